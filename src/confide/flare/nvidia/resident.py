"""The resident process of a kit: FLARE, hardened. `python -m confide.flare.nvidia.resident KIT`.

It starts FLARE's server or site in our environment, and holds the kit's lock. SIGTERM and Ctrl-C
end it in good order and with 0; any other end has another code, so a service manager starts it
again. A site accepts only the FLARE commands that a run needs, so whoever controls the server
cannot look into it, restart it or turn up its log.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from confide.flare.kits.naming import SERVER, organisation
from confide.flare.kits.policies import HEARTBEAT_EVERY
from confide.flare.kits.startup import Kit, open_kit
from confide.flare.nvidia import quiet
from confide.flare.nvidia.processes import lock

NEEDED = (
    "AbortAppProcessor",
    "AbortTaskProcessor",
    "CancelResourceProcessor",
    "CheckResourceProcessor",
    "DeleteRunNumberProcessor",
    "DeployProcessor",
    "NotifyJobStatusProcessor",
    "StartJobProcessor",
)
"""The server's commands that a site accepts. It answers others with "invalid"."""


_told: list[int] = []
"""The signals that asked this process to end; no Event, for whose lock a handler could wait."""


def main(path: str) -> None:
    """Be the resident process of the kit at `path` until asked to end."""
    os.umask(0o077)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    kit = open_kit(Path(path))
    held = lock(kit.path)
    if held is None:
        sys.exit(f"the {kit.kind} is already running")
    quiet.install()
    from nvflare.fuel.f3.mpm import MainProcessMonitor

    flare = _flare(kit)
    sys.argv = [sys.argv[0], *_arguments(kit)]
    args = flare.parse_arguments()

    def serve(**given: Any) -> int:
        try:
            flare.main(**given)
        except Exception:
            if not _told:
                raise
        return 0 if _told else 1

    with held:
        code = MainProcessMonitor.run(
            serve, run_dir=args.workspace, shutdown_grace_time=1, args=args
        )
    if code:
        sys.stderr.write(f"the {kit.kind} ended by itself; its log: {kit.path / 'log.txt'}\n")
    sys.exit(code)


def _flare(kit: Kit) -> ModuleType:
    """FLARE's module for this kind of kit, with a site's commands cut down to `NEEDED`."""
    if kit.kind == SERVER:
        return import_module("nvflare.private.fed.app.server.server_train")
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    commands = ClientRequestProcessors.request_processors
    commands[:] = [command for command in commands if type(command).__name__ in NEEDED]
    return import_module("nvflare.private.fed.app.client.client_train")


def _arguments(kit: Kit) -> list[str]:
    kind, *own = ("server",) if kit.kind == SERVER else ("client", f"uid={kit.name}")
    values = ["secure_train=true", f"org={organisation(kit.consortium)}", "config_folder=config"]
    values += [f"heart_beat_interval={HEARTBEAT_EVERY}", *own]
    return ["-m", str(kit.path), "-s", f"fed_{kind}.json", "--set", *values]


def _end(number: int, frame: FrameType | None) -> None:
    """Shut down in good order: stop runs, and tell the server that the site is leaving."""
    from confide.flare.nvidia.watch import Watch

    _told.append(number)
    if Watch.engine is None or not Watch.registered:
        os._exit(0)
    leave = getattr(Watch.engine, "shutdown_server", None) or Watch.engine.shutdown
    threading.Thread(target=leave, daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
