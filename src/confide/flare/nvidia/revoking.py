"""The sites that the server no longer lets in, whatever certificate they show.

A certificate cannot be called back, so the server keeps a list of names: the one that NVIDIA FLARE
reads from a server's kit when it starts. Here a running server follows that file too: a site on the
list is out at its next heartbeat, and the runs it takes part in are ended.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from confide.errors import KitError, os_errors_as
from confide.federation.files import write_atomically
from confide.flare.kits.naming import check_site
from confide.flare.kits.startup import Kit
from confide.userfiles import bytes_of, json_of

if TYPE_CHECKING:
    from nvflare.private.fed.server.server_engine import ServerEngine

LIST = Path("disabled_clients.json")
"""The list in the server's kit; its name and form are FLARE's."""
_KEY = "disabled_clients"


def revoked(kit: Kit) -> tuple[str, ...]:
    """The sites that this server no longer lets in, sorted. Raises KitError: a damaged list."""
    path = kit.path / LIST
    try:
        return tuple(sorted(_read(path)))
    except (OSError, ValueError) as error:
        raise KitError(
            "the list of revoked sites cannot be read, so the server does not start",
            where=str(path),
            fix="restore it from your backup, or delete it and revoke the sites again",
        ) from error


def revoke(kit: Kit, site: str) -> bool:
    """Revoke a site, even with a renewed kit. False if it was revoked already.

    A server's kit does not know who takes part, so only the form of the name is checked. Raises
    KitError.
    """
    check_site(site, host=kit.host)
    before = revoked(kit)
    if site in before:
        return False
    _write(kit, {*before, site})
    return True


def admit(kit: Kit, site: str) -> None:
    """Let a revoked site in again. Raises KitError if it was not revoked."""
    before = revoked(kit)
    if site not in before:
        raise KitError(
            "this site is not revoked",
            expected=f"one of: {', '.join(before)}" if before else "none: no site is revoked",
            got=repr(site),
            where=str(kit.path),
        )
    _write(kit, set(before) - {site})


class Door:
    """Makes a running server follow its list, which lies at `path`.

    If the list cannot be read, nothing changes: sites that were out stay out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, int] | None = None

    def look(self, engine: ServerEngine) -> bool:
        """Follow the list if it changed; whether it did. `engine` is FLARE's."""
        with self._lock:
            try:
                stamp = self._stamp()
                if stamp == self._seen:
                    return False
                names = _read(self._path)
            except (OSError, ValueError):
                return False
            self._seen = stamp
            manager = engine.client_manager
            manager.set_disabled_clients_file(None)  # only our commands write the list
            out = set(manager.disabled_clients)
            engine.enable_clients(sorted(out - names))
            for site in sorted(names - out):
                runs = _runs_of(engine, site)
                engine.disable_clients([site])
                threading.Thread(target=_end_runs, args=(engine, runs), daemon=True).start()
            return True

    def _stamp(self) -> tuple[int, int]:
        """A value that changes whenever the list is written; a missing list is an empty one."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_mtime_ns, found.st_ino


def _runs_of(engine: ServerEngine, site: str) -> list[str]:
    """The runs under way in which the site takes part, by FLARE's ids."""
    from nvflare.apis.fl_constant import RunProcessKey

    found = []
    for run, process in list(engine.run_processes.items()):
        taking_part = (process.get(RunProcessKey.PARTICIPANTS) or {}).values()
        if any(one.name == site for one in taking_part):
            found.append(run)
    return found


def _end_runs(engine: ServerEngine, runs: list[str]) -> None:
    for run in runs:
        with engine.new_context() as context:
            engine.job_runner.stop_run(run, context)


def _read(path: Path) -> set[str]:
    """The names in a list; none if there is no file. Raises OSError, ValueError."""
    try:
        held = json_of(bytes_of(path))
    except FileNotFoundError:
        return set()
    names = held.get(_KEY) if isinstance(held, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"expected a list {_KEY!r}")
    return set(names)


def _write(kit: Kit, names: set[str]) -> None:
    path = kit.path / LIST
    with os_errors_as(KitError, "the list of revoked sites could not be written", where=path):
        write_atomically(path, (json.dumps({_KEY: sorted(names)}, indent=2) + "\n").encode())
        path.chmod(0o600)
