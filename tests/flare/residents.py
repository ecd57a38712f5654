"""Server and sites in the background of a test, kept alive as a service manager would."""

from __future__ import annotations

import os
import subprocess
import sys

from confide.flare.kit import Kit
from confide.flare.nvidia import processes
from confide.flare.nvidia.processes import status
from flare.waiting import PATIENCE, until

_START = """
import sys
from pathlib import Path
from confide.flare.kit import open_kit
from confide.flare.nvidia.processes import start
start(open_kit(Path(sys.argv[1])))
"""
_KEEP = 'while kill -0 "$PPID" && ! "$@"; do sleep 2; done'
_KEPT: dict[str, subprocess.Popen[bytes]] = {}
"""By the path of a kit: the shell that starts it again until it ends with 0."""


def start(kit: Kit, *, wait: float = PATIENCE) -> None:
    """Keep a kit's resident process running; wait until it is connected, or turned away.

    What it prints goes to `console.txt` in the kit.
    """
    before = _KEPT.pop(str(kit.path), None)
    assert before is None or before.wait(PATIENCE) == 0, "it is still kept: stop it first"
    command = [sys.executable, "-c", _START, str(kit.path)]
    with open(kit.path / "console.txt", "ab", opener=_private) as console:
        _KEPT[str(kit.path)] = subprocess.Popen(
            ["sh", "-c", _KEEP, "keep", *command],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    if wait:
        until(lambda: _settled(kit), within=wait, what=lambda: status(kit))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _settled(kit: Kit) -> bool:
    now = status(kit)
    return now.connected or (now.running and now.trouble == processes.TURNED_AWAY)


def stop(kit: Kit, *, wait: float = 20.0) -> bool:
    """Stop a kit for good; whether anything was running."""
    kept = _KEPT.pop(str(kit.path), None)
    if kept is not None:
        kept.kill()
        kept.wait()
    return processes.stop(kit, wait=wait)
