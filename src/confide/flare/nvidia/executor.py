"""The site's component in NVIDIA FLARE: hands each task's bytes to the site's home and back.

No part of an exception leaves: FLARE sees our reply, which may be a `Failure` without text, or an
empty one.
"""

from __future__ import annotations

import io
import time
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from confide.federation.failures import failure_from
from confide.federation.messages import encode
from confide.flare.kits.naming import SERVER
from confide.flare.kits.peers import place_of
from confide.flare.kits.startup import open_kit
from confide.flare.nvidia import quiet
from confide.flare.nvidia.envelope import opened, reply_of
from confide.flare.nvidia.freeing import free
from confide.flare.nvidia.parts import Outbox, Talking, Ticket, parts
from confide.flare.run.agreements import SITE_FILE
from confide.flare.run.answering import SignedHome
from confide.flare.run.home import SiteHome


class ConfideExecutor(Executor):  # type: ignore[misc]
    """Answers every task of a FLARE job with the site's home, which lives as long as the job."""

    def __init__(self) -> None:
        super().__init__()
        self._home: SignedHome | None = None
        self._folder: Path | None = None
        self._outbox = Outbox()
        self._engine: Talking | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """At the start of a run, restrict FLARE's commands, and note where the kit is."""
        if event_type == EventType.START_RUN:
            quiet.seal_run()
            self._engine = engine = fl_ctx.get_engine()
            self._folder = Path(engine.get_workspace().get_site_config_dir())
            self._outbox.open(engine)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The reply to one ask."""
        asked = opened(shareable)
        if asked is None:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        round, data, seal = asked
        self._outbox.empty()  # who asks anew has the last reply, or has given it up
        free()
        if isinstance(data, Ticket):
            try:
                data = self._whole(data, abort_signal)
            except Exception:
                return make_reply(ReturnCode.TASK_ABORTED)
        start = time.perf_counter()
        try:
            if self._home is None:
                assert self._folder is not None, "START_RUN comes before the first task"
                home = SiteHome(self._folder / SITE_FILE)
                self._home = SignedHome(home, place_of(open_kit(self._folder.parent, "site")))
            reply, sealed = self._home.answer(task_name, round, data, seal=seal)
        except Exception as error:
            reply, sealed = encode(failure_from(error)), b""
        seconds = time.perf_counter() - start
        return reply_of(self._outbox.put(reply), seconds, seal=sealed)

    def _whole(self, ticket: Ticket, stop: Signal) -> bytes:
        """A large ask, fetched from the server. Raises EngineError if it does not come."""
        assert self._engine is not None, "START_RUN comes before the first task"
        data = io.BytesIO()
        for part in parts(ticket, self._engine, SERVER, over=lambda: stop.triggered):
            data.write(part)
        return data.getvalue()
