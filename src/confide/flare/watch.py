"""FLARE's component that tells, in a small file of the kit, how its resident process is doing."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import SystemComponents
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.fqcn import FQCN

from confide.federation.files import write_atomically
from confide.flare.policies import MESSAGE_TIMEOUT
from confide.flare.supervisor import STATE


class Watch(FLComponent):  # type: ignore[misc]
    """Notes each sign of life: at a site whether the server took it, at the server whose it was."""

    engine: Any = None
    """FLARE's engine, once it is there; for whoever must end the process in good order."""
    registered = False

    def __init__(self) -> None:
        super().__init__()
        self._asked = self._noted = 0.0

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note what happened."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            Watch.engine = fl_ctx.get_engine()
        elif event_type == EventType.SYSTEM_START:
            Watch.engine = fl_ctx.get_engine()
            Watch.registered = True
            self._note(connected=True)
        elif event_type == EventType.BEFORE_CLIENT_HEARTBEAT:
            self._asked = time.monotonic()
        elif event_type == EventType.AFTER_CLIENT_HEARTBEAT:
            self._note(connected=self._answered(fl_ctx))
        elif event_type == EventType.CLIENT_HEARTBEAT_PROCESSED and self._old():
            self._note(connected=True)

    def _answered(self, fl_ctx: FLContext) -> bool:
        """FLARE says "after" of a sign of life that timed out, too."""
        if time.monotonic() - self._asked >= MESSAGE_TIMEOUT:
            return False
        cell = fl_ctx.get_prop(SystemComponents.FED_CLIENT).cell
        return bool(cell.core_cell.is_cell_connected(FQCN.ROOT_SERVER))

    def _old(self) -> bool:
        """With many sites, not every sign of life is written down."""
        return time.monotonic() - self._noted > 1.0

    def _note(self, *, connected: bool) -> None:
        self._noted = time.monotonic()
        known = Watch.engine.get_clients() if hasattr(Watch.engine, "get_clients") else ()
        state = {
            "pid": os.getpid(),
            "at": time.time(),
            "connected": connected,
            "sites": {site.name: site.last_connect_time for site in known},
        }
        with contextlib.suppress(OSError):  # on a full disk the file grows old, and that is seen
            write_atomically(Path.cwd() / STATE, json.dumps(state).encode())
