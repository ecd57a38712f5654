"""FLARE's component that tells, in a small file of the kit, how its resident process is doing."""

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
from nvflare.apis.fl_constant import FLContextKey, SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from confide.errors import KitError
from confide.federation.files import write_atomically
from confide.flare.kits.policies import MESSAGE_TIMEOUT
from confide.flare.kits.probe import ended
from confide.flare.kits.startup import open_kit
from confide.flare.kits.supervisor import STATE
from confide.flare.nvidia.revoking import LIST, Door

_LOG = logging.getLogger(__name__)
KNOCKS = (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_HEARTBEAT_RECEIVED)
"""At the server, before it looks whether it takes the site."""


class Watch(FLComponent):  # type: ignore[misc]
    """Notes each sign of life: at a site whether the server took it, at the server whose it was.

    At the server it also sees to it that a site that was revoked is out at once.
    """

    engine: Any = None
    """FLARE's engine, once it is there; for whoever must end the process in good order."""
    registered = False

    def __init__(self) -> None:
        super().__init__()
        self._asked = self._noted = 0.0
        self._unanswered = False
        self._door = Door(Path.cwd() / LIST)
        self._runs_at_end: set[str] | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note what happened."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            Watch.engine = fl_ctx.get_engine()
        elif event_type == EventType.SYSTEM_START:
            Watch.engine = fl_ctx.get_engine()
            Watch.registered = True
            self._note(connected=True)
        elif event_type in KNOCKS:
            if Watch.engine is not None and self._door.look(Watch.engine):
                self._note(connected=True)
        elif event_type == EventType.AFTER_CLIENT_REGISTER:
            if not fl_ctx.get_prop(FLContextKey.CLIENT_TOKEN):
                self._note(connected=False, refused=True)
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            if self._unanswered:  # FLARE says no "after" of a sign of life that was refused
                self._note(connected=False, refused=True)
            self._asked, self._unanswered = time.monotonic(), True
            self._look_at_certificate()
        elif event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self._unanswered = False
            self._note(connected=self._answered(fl_ctx))
        elif event_type == EventType.CLIENT_HEARTBEAT_PROCESSED and self._old():
            self._note(connected=True)

    def _look_at_certificate(self) -> None:
        """A site whose certificate has ended leaves, once the runs of that moment are over.

        TLS looks at a certificate when a connection is made, so the site would stay; but its
        process of a new run could not connect, and that run would fail again and again.
        """
        said = self._ended()
        if not said:
            return
        runs = set(Watch.engine.get_all_job_ids())
        if self._runs_at_end is None:
            self._runs_at_end = runs
            _LOG.warning("%s", said)
        if not runs & self._runs_at_end and Watch.registered:
            Watch.registered = False
            threading.Thread(target=Watch.engine.shutdown, daemon=True).start()

    def _ended(self) -> str:
        try:
            return ended(open_kit(Path.cwd()))
        except KitError:
            return ""  # a kit that cannot be read says so elsewhere

    def _answered(self, fl_ctx: FLContext) -> bool:
        """FLARE says "after" of a sign of life that timed out, too."""
        if time.monotonic() - self._asked >= MESSAGE_TIMEOUT:
            return False
        cell = fl_ctx.get_prop(SystemComponents.FED_CLIENT).cell
        return bool(cell.core_cell.is_cell_connected(FQCN.ROOT_SERVER))

    def _old(self) -> bool:
        """With many sites, not every sign of life is written down."""
        return time.monotonic() - self._noted > 1.0

    def _note(self, *, connected: bool, refused: bool = False) -> None:
        self._noted = time.monotonic()
        known = Watch.engine.get_clients() if hasattr(Watch.engine, "get_clients") else ()
        manager = getattr(Watch.engine, "client_manager", None)
        state = {
            "pid": os.getpid(),
            "at": time.time(),
            "connected": connected,
            "refused": refused,
            "sites": {site.name: site.last_connect_time for site in known},
            "revoked": sorted(manager.disabled_clients) if manager else [],
        }
        with contextlib.suppress(OSError):  # on a full disk the file grows old, and that is seen
            write_atomically(Path.cwd() / STATE, json.dumps(state).encode())
