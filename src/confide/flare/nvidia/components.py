"""The components of a site and of the server in NVIDIA FLARE.

A site's hands each task's bytes to the site's home and back.

No part of an exception leaves: FLARE sees our reply, which may be a `Failure` without text, or an
empty one.
"""

from __future__ import annotations

import functools
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from confide.errors import ConfideError, EngineError, QuorumError
from confide.federation.failures import failure_from
from confide.federation.messages import encode
from confide.files import Tree, path_inside, private_folder
from confide.flare.agreements import SITE_FILE
from confide.flare.joining import TOPIC, EventBuffer, collect
from confide.flare.kit import OUTCOME, SERVER, Kit, Submission, gone_from, open_kit
from confide.flare.nvidia import engine, processes, service
from confide.flare.peers import open_signer
from confide.flare.server import Conductor, server_evidence
from confide.flare.site import SignedHome, SiteHome


class ConfideExecutor(Executor):  # type: ignore[misc]
    """Answers every task of a FLARE job with the site's home, which lives as long as the job."""

    def __init__(self) -> None:
        super().__init__()
        self._home: SignedHome | None = None
        self._folder: Path | None = None
        self._outbox = engine.Outbox()
        self._engine: engine.Talking | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """At the start of a run, restrict FLARE's commands, and note where the kit is."""
        if event_type == EventType.START_RUN:
            service.seal_run()
            self._engine = engine = fl_ctx.get_engine()
            self._folder = Path(engine.get_workspace().get_site_config_dir())
            self._outbox.open(engine)

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """The reply to one ask."""
        asked = engine.read_ask(shareable)
        if asked is None:
            return make_reply(ReturnCode.BAD_TASK_DATA)
        round, data, seal = asked
        self._outbox.empty()  # who asks anew has the last reply, or has given it up
        engine.free_memory()
        if isinstance(data, engine.Ticket):
            try:
                data = self._whole(data, abort_signal)
            except Exception:
                return make_reply(ReturnCode.TASK_ABORTED)
        start = time.perf_counter()
        try:
            if self._home is None:
                assert self._folder is not None, "START_RUN comes before the first task"
                home = SiteHome(self._folder / SITE_FILE)
                self._home = SignedHome(home, open_signer(open_kit(self._folder.parent, "site")))
            reply, sealed = self._home.answer(task_name, round, data, seal=seal)
        except Exception as error:
            reply, sealed = encode(failure_from(error)), b""
        seconds = time.perf_counter() - start
        return engine.write_reply(self._outbox.put(reply), seconds, seal=sealed)

    def _whole(self, ticket: engine.Ticket, stop: Signal) -> bytes:
        """A large ask, fetched from the server. Raises EngineError if it does not come."""
        assert self._engine is not None, "START_RUN comes before the first task"
        data = io.BytesIO()
        for part in engine.fetch_parts(ticket, self._engine, SERVER, over=lambda: stop.triggered):
            data.write(part)
        return data.getvalue()


# --- The server's component in NVIDIA FLARE
#
# The rounds of a run over real sites.
#
# The run's folder lies in the server's kit (`runs/RUN`) and outlives FLARE's processes, so a run
# that is submitted again continues from its last checkpoint. At the end a fixed list of its files
# is copied to where FLARE collects what the lead may download.
#
# Whatever a lead submits is hostile until `Submission.read` has checked it.


SILENCE = 45.0
"""Seconds without a heartbeat before a site's process counts as lost; it sends one every ten."""
COLLECTED = "confide"
"""The name of the folder in the lead's download."""
CATCH_UP = 30.0
"""Seconds in which the process of a site that is connected again may be heard again, too."""
TRIED_AGAIN = 1800.0
"""Seconds until a run begins again for a site that was connected but did not begin with it."""
RUNS, PUBLIC = "runs", "public"
"""Folders in the server's kit: its runs, and the files that a public set may be read from."""


class ConfideController(Controller):  # type: ignore[misc]
    """Conducts one run.

    Args:
        run: the name of the run, and of its folder at the server and at each site.
        settings: those of the run, as TOML.
        sites: the sites that take part.
        version: that of confide at the lead.
        lead: the lead's card and signature of this order (`orders.submitted`).
    """

    def __init__(
        self, run: str, settings: str, sites: list[str], version: str, *, lead: str = ""
    ) -> None:
        super().__init__(task_check_period=0.02)
        self._given: Tree = {
            "run": run, "settings": settings, "sites": sites, "version": version, "lead": lead
        }  # fmt: skip
        self._events = EventBuffer()
        self._outbox = engine.Outbox()
        self._heard: dict[str, float] = {}
        self._begun = time.monotonic()
        self._absent: frozenset[str] = frozenset()
        self._unable: frozenset[str] = frozenset()
        self._starting: Callable[[], set[str]] = set

    def set_communicator(self, communicator: WFCommServer) -> None:
        """Listen to every heartbeat of a site's process, and let nobody else end the run.

        FLARE itself does not notice a process that was killed together with the resident one of its
        site: the site comes back as a newcomer, and nothing reports that its process is gone. A
        minute after it has noticed a lost site, it would end a run that can do without that site
        (`federation.at_least`); whether it can, the federation says.
        """
        super().set_communicator(communicator)
        communicator._job_policy_violated = lambda: False
        told = communicator.client_is_active

        def heard(name: str, reason: str, fl_ctx: FLContext) -> None:
            self._heard[name] = time.monotonic()
            told(name, reason, fl_ctx)

        communicator.client_is_active = heard

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Let the lead ask for the progress of the run, and sites for parts of what they get."""
        engine = fl_ctx.get_engine()
        engine.register_app_command(TOPIC, self._answer_events)
        self._outbox.open(engine)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run it from its last checkpoint to the end, then collect the files that travel."""
        workspace = fl_ctx.get_engine().get_workspace()
        root = Path(workspace.get_root_dir())
        collected = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / COLLECTED
        private_folder(collected)
        try:
            order = Submission.read(self._given)
            folder = path_inside(root, RUNS, order.run)
        except ConfideError as error:
            self._events.fail(error)
            self._events.write(collected)
            return
        if self._conducted(order, folder, root=root, abort_signal=abort_signal, fl_ctx=fl_ctx):
            self._events.write(folder)
            collect(folder, collected)
        else:
            self._events.write(collected)

    def _conducted(
        self,
        order: Submission,
        folder: Path,
        *,
        root: Path,
        abort_signal: Signal,
        fl_ctx: FLContext,
    ) -> bool:
        """Conduct a run; return False if the lead is to submit it again."""
        sites = order.sites
        self._begun = time.monotonic()
        flare = engine.FlareEngine(
            self, fl_ctx, abort_signal, self._outbox, tuple(sorted(sites)), gone=self._gone
        )
        (folder / OUTCOME).unlink(missing_ok=True)
        there = {one.name for one in fl_ctx.get_engine().get_clients()}
        self._absent = frozenset(sites) - there
        try:
            kit = open_kit(root, "server")
            self._unable = self._absent & processes.heard_from(kit)
            submission = fl_ctx.get_job_id()
            self._starting = functools.partial(processes.waited_for, kit, submission)
            evidence = server_evidence(kit, **order.model_dump())
            conductor = Conductor(
                order.run,
                order.settings,
                version=order.version,
                engine=flare,
                folder=folder,
                public=root / PUBLIC,
                evidence=evidence,
                recheck=functools.partial(self._recheck, kit),
            )
            conductor.conduct(self._events)
            self._events.end()
        except EngineError:
            return False  # FLARE ended it, or a site is back
        except QuorumError as error:
            gone = [fault.site for fault in error.faults if fault.code in ("absent", "lost")]
            if gone:
                self._events.again(gone_from(gone))
                return False
            self._events.fail(error)
        except ConfideError as error:
            self._events.fail(error)
        return True

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: checkpoints are whole at all times."""

    def _gone(self, site: str) -> str | None:
        if site in self._absent:
            return "absent"
        heard, now = self._heard.get(site), time.monotonic()
        silent = now - (self._begun if heard is None else heard) > SILENCE
        if silent and heard is None and site in self._starting():
            return None  # how long it may wait for its place, the site knows
        return "lost" if silent else None

    def _recheck(self, kit: Kit, sites: Sequence[str]) -> None:
        """Raise EngineError if one of these sites is connected, and has no process in this run.

        The lead then submits the run again, with it. A process whose connection was cut goes on by
        itself, if it is still there.
        """
        give_up = time.monotonic() + CATCH_UP
        while True:
            heard = processes.heard_from(kit)
            if time.monotonic() - self._begun < TRIED_AGAIN:
                heard -= self._unable
            back = [site for site in sites if site in heard and self._gone(site)]
            if not back or self._absent & set(back) or time.monotonic() > give_up:
                break
            time.sleep(1.0)
        if back:
            why = f"{', '.join(back)}: connected again; the run goes on with it from this round"
            self._events.again(why)
            raise EngineError(why)

    def _answer_events(self, topic: str, data: object, fl_ctx: FLContext) -> Tree:
        since = data.get("since", 0) if isinstance(data, dict) else 0
        return self._events.since(since if type(since) is int else 0)
