"""Our FLARE component that notes, in a small file in the kit, how its resident process is doing."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, RunProcessKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.private.fed.client.client_status import ClientStatus

from confide.errors import ConfideError, KitError
from confide.files import stamp_of, write_atomically
from confide.flare.kit import MESSAGE_TIMEOUT, expiry_message, open_kit
from confide.flare.nvidia import processes
from confide.flare.nvidia.processes import REVOKED, STATE, read_revoked
from confide.settings.sitefile import LauncherTable

_LOG = logging.getLogger(__name__)
KNOCKS = (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_HEARTBEAT_RECEIVED)
"""Events at the server before it decides whether to accept a site."""


class RevocationWatch:
    """Makes a running server follow the list of revoked sites, which lies at `path`.

    If the list cannot be read, nothing changes: sites that were out stay out.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None

    def follow(self, engine: Any) -> bool:
        """Follow the list if it changed; whether it did. `engine` is FLARE's."""
        with self._lock:
            try:
                stamp = stamp_of(self._path)
                if stamp == self._seen:
                    return False
                names = read_revoked(self._path)
            except (OSError, ValueError):
                return False
            self._seen = stamp
            manager = engine.client_manager
            manager.set_disabled_clients_file(None)  # only our commands write the list
            out = set(manager.disabled_clients)
            engine.enable_clients(sorted(out - names))
            for site in sorted(names - out):
                runs = [
                    run
                    for run, process in list(engine.run_processes.items())
                    for one in (process.get(RunProcessKey.PARTICIPANTS) or {}).values()
                    if one.name == site
                ]
                engine.disable_clients([site])
                threading.Thread(target=_end_runs, args=(engine, runs), daemon=True).start()
            return True


def _end_runs(engine: Any, runs: list[str]) -> None:
    for run in runs:
        with engine.new_context() as context:
            engine.job_runner.stop_run(run, context)


class StatusWriter(FLComponent):  # type: ignore[misc]
    """Notes every heartbeat: at a site whether the server took it, at the server whose it was.

    At the server it also makes sure that a revoked site is shut out at once.
    """

    engine: Any = None
    """FLARE's engine, once it exists; needed to end the process in good order."""
    registered = False

    def __init__(self) -> None:
        super().__init__()
        self._asked = self._noted = 0.0
        self._unanswered = False
        self._revocations = RevocationWatch(Path.cwd() / REVOKED)
        self._runs_at_end: set[str] | None = None
        self._starting: dict[str, float] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note what happened."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            StatusWriter.engine = fl_ctx.get_engine()
        elif event_type == EventType.SYSTEM_START:
            StatusWriter.engine = fl_ctx.get_engine()
            StatusWriter.registered = True
            self._note(connected=True)
        elif event_type in KNOCKS:
            if StatusWriter.engine is not None and self._revocations.follow(StatusWriter.engine):
                self._note(connected=True)
        elif event_type == EventType.AFTER_CLIENT_REGISTER:
            if not fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN):
                self._note(connected=False, refused=True)
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            if self._unanswered:  # FLARE sends no "after" event for a refused heartbeat
                self._note(connected=False, refused=True)
            self._asked, self._unanswered = time.monotonic(), True
            self._look_at_certificate()
            self._end_unstarted()
        elif event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self._unanswered = False
            self._note(connected=self._answered(fl_ctx))
        elif event_type == EventType.CLIENT_HEARTBEAT_PROCESSED and self._old():
            self._note(connected=True)

    def _look_at_certificate(self) -> None:
        """Make a site whose certificate has expired leave once its present runs are over.

        TLS checks certificates only when a connection is made, so the site could stay connected.
        But its process of a new run could not connect, and that run would fail again and again.
        """
        said = self._ended()
        if not said:
            return
        runs = set(StatusWriter.engine.get_all_job_ids())
        if self._runs_at_end is None:
            self._runs_at_end = runs
            _LOG.warning("%s", said)
        if not runs & self._runs_at_end and StatusWriter.registered:
            StatusWriter.registered = False
            threading.Thread(target=StatusWriter.engine.shutdown, daemon=True).start()

    def _end_unstarted(self) -> None:
        """End processes of runs that have not started in time, as the site's own file says.

        FLARE tells the server, as of any process that ended.
        """
        now, held = time.monotonic(), dict(StatusWriter.engine.client_executor.run_processes)
        self._starting = {
            run: self._starting.get(run, now)
            for run, one in held.items()
            if one[RunProcessKey.STATUS] == ClientStatus.STARTING
        }
        if not self._starting:
            return
        try:
            site = processes.own_file(open_kit(Path.cwd()))
        except ConfideError:
            return  # a file that cannot be read is reported elsewhere
        within = (LauncherTable() if site is None else site.launcher).patience
        for run, since in self._starting.items():
            if now - since > within:
                self._starting[run] = now
                _LOG.error("the process of a run has not started within %d s: ended", within)
                end = held[run][RunProcessKey.JOB_HANDLE].terminate
                threading.Thread(target=end, daemon=True).start()

    def _ended(self) -> str:
        try:
            return expiry_message(open_kit(Path.cwd()))
        except KitError:
            return ""  # a kit that cannot be read is reported elsewhere

    def _answered(self, fl_ctx: FLContext) -> bool:
        """True if the server answered; FLARE sends "after" events for timed-out heartbeats too."""
        if time.monotonic() - self._asked >= MESSAGE_TIMEOUT:
            return False
        cell = fl_ctx.get_prop(SystemComponents.FED_CLIENT).cell
        return bool(cell.core_cell.is_cell_connected(FQCN.ROOT_SERVER))

    def _old(self) -> bool:
        """True if the last note is over a second old: with many sites not every one is written."""
        return time.monotonic() - self._noted > 1.0

    def _note(self, *, connected: bool, refused: bool = False) -> None:
        self._noted = time.monotonic()
        manager = getattr(StatusWriter.engine, "client_manager", None)  # only a server has one
        known = StatusWriter.engine.get_clients() if manager else ()
        reported = StatusWriter.engine.server._job_reported_clients if manager else {}
        names = {site.token: site.name for site in known}
        state = {
            "pid": os.getpid(),
            "at": time.time(),
            "connected": connected,
            "refused": refused,
            "runs": len(StatusWriter.engine.get_all_job_ids()) if not manager and connected else 0,
            "sites": {site.name: site.last_connect_time for site in known},
            "revoked": sorted(manager.disabled_clients) if manager else [],
            "starting": {
                run: [names[token] for token in list(tokens) if token in names]
                for run, tokens in list(reported.items())
            },
        }
        with contextlib.suppress(OSError):  # on a full disk the file grows old, which `status` sees
            write_atomically(Path.cwd() / STATE, json.dumps(state).encode())
