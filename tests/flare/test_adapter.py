"""The components that FLARE loads, without its processes: what it passes on, and what it loses."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.utils import fobs

from confide import __version__
from confide.errors import EngineError
from confide.federation.comparing import compare_ledgers
from confide.federation.events import unwatched
from confide.federation.failures import Failure
from confide.federation.messages import decode
from confide.flare.nvidia import components, service
from confide.flare.nvidia import engine as parts_module
from confide.flare.nvidia.components import ConfideController, ConfideExecutor
from confide.flare.nvidia.engine import (
    FlareEngine,
    Outbox,
    Ticket,
    free_memory,
    read_ask,
    read_reply,
    write_ask,
    write_reply,
)
from confide.flare.server import Conductor, ServerEvidence
from confide.runs.run import run
from contract.corpus import tiny
from contract.entries import CARRIED, METHOD, pairs
from contract.runs import differences, states
from flare.homes import as_toml, ordered, place_in, public_of, write_site_files
from flare.test_conducting import numbers

Answer = Callable[[str, Shareable], Shareable | None]


class Wire:
    """Plays FLARE's controller: carries every task, as bytes, to who answers it."""

    def __init__(self, answer: dict[str, Answer]) -> None:
        self.answer = answer
        self.at_once = False
        self.cancelled: list[str] = []

    def broadcast(self, task: Any, fl_ctx: Any, *, targets: list[str], min_responses: int) -> None:
        def carry() -> None:
            asked = fobs.loads(fobs.dumps(task.data))
            reply = self.answer[targets[0]](task.name, asked)
            if reply is None:
                return
            result = SimpleNamespace(result=fobs.loads(fobs.dumps(reply)))
            task.completion_status = TaskCompletionStatus.OK
            task.result_received_cb(client_task=result, fl_ctx=fl_ctx)

        carrying = threading.Thread(target=carry, daemon=True)
        carrying.start()
        if self.at_once:
            carrying.join()

    def cancel_task(self, task: Any, fl_ctx: Any) -> None:
        self.cancelled.append(task.name)


@pytest.fixture(autouse=True)
def unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the tests keeps its own hooks, and its objects as they are."""
    monkeypatch.setattr(service, "seal_run", lambda: None)
    monkeypatch.setattr("confide.flare.nvidia.engine.free_memory", lambda: None)


@pytest.fixture(autouse=True)
def without_kits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place has its identity beside its own file, and no kit around it."""
    monkeypatch.setattr("confide.flare.nvidia.components.open_kit", lambda folder, kind: folder)
    monkeypatch.setattr(
        "confide.flare.nvidia.components.open_signer", lambda at: place_in(at, at.name)
    )


class Lines:
    """Plays FLARE's engines: the parts of whoever has a name here are fetched, as bytes."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[..., Shareable]] = {}
        self.asked: list[tuple[str, int]] = []

    def engine(self, name: str, kit: Path | None = None) -> Any:
        def ask(
            targets: list[str], topic: str, request: Shareable, timeout: float, fl_ctx: Any
        ) -> dict[str, Shareable]:
            [target] = targets
            asked = fobs.loads(fobs.dumps(request))
            self.asked.append((target, asked["at"]))
            reply = self.answers[target](topic=topic, request=asked, fl_ctx=fl_ctx)
            return {target: fobs.loads(fobs.dumps(reply))}

        def register(topic: str, message_handle_func: Callable[..., Shareable]) -> None:
            self.answers[name] = message_handle_func

        return SimpleNamespace(
            get_workspace=lambda: SimpleNamespace(get_site_config_dir=lambda: str(kit)),
            new_context=lambda: contextlib.nullcontext(FLContext()),
            register_aux_message_handler=register,
            send_aux_request=ask,
        )


def executor_in(kit: Path, lines: Lines | None = None, name: str = "site") -> ConfideExecutor:
    """An executor in a kit whose `local` folder is this one."""
    made, engine = ConfideExecutor(), (lines or Lines()).engine(name, kit)
    made.handle_event(EventType.START_RUN, SimpleNamespace(get_engine=lambda: engine))
    return made


def answering(executor: ConfideExecutor) -> Answer:
    return lambda name, asked: executor.execute(name, asked, FLContext(), Signal())


def engine_of(
    answer: dict[str, Answer],
    *,
    stop: Signal | None = None,
    gone: Any = None,
    lines: Lines | None = None,
) -> FlareEngine:
    wire: Any = Wire(answer)
    outbox, server = Outbox(), (lines or Lines()).engine("server")
    outbox.open(server)
    context: Any = SimpleNamespace(get_engine=lambda: server)
    return FlareEngine(
        wire,
        context,
        stop or Signal(),
        outbox=outbox,
        sites=tuple(sorted(answer)),
        gone=gone or (lambda site: None),
    )


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of more than 3,000 bytes are large, and have parts of 2,500."""
    monkeypatch.setattr(parts_module, "WHOLE", 3000)
    monkeypatch.setattr("confide.federation.messages.WHOLE", 3000)
    monkeypatch.setattr(parts_module, "PART", 2500)
    monkeypatch.setattr(parts_module, "_PAUSE", 0.01)


@pytest.mark.parametrize("method", pairs(fast=CARRIED, of={*CARRIED, *METHOD.values()}))
def test_a_run_through_the_components_gives_the_same_numbers(tmp_path: Path, method: str) -> None:
    """The components pass on bytes, in the order of a method's asks, and know of no kind."""
    through_the_components(tmp_path, method)


@pytest.mark.parametrize("method", ["fedavg", "fedner-encoder"])
def test_a_run_in_parts_gives_the_same_numbers(tmp_path: Path, method: str, in_parts: None) -> None:
    lines = through_the_components(tmp_path, method)
    asked = {name for name, at in lines.asked if at > 0}
    assert asked == {"server", "site-1", "site-2", "site-3"}, "large messages went both ways"


def through_the_components(tmp_path: Path, method: str) -> Lines:
    lines = Lines()
    settings = tiny(tmp_path, f"method={method}")
    run(settings, out=tmp_path / "one")
    files = write_site_files(tmp_path / "homes", settings)
    for path in files.values():
        (path.parent / "local").mkdir()
        for file in (path, *path.parent.glob("consent*")):
            file.rename(path.parent / "local" / file.name)
    executors = {
        name: executor_in(path.parent / "local", lines, name) for name, path in files.items()
    }
    answers = {name: answering(executor) for name, executor in executors.items()}
    engine = engine_of(answers, lines=lines)
    lead = place_in(tmp_path / "lead", "lead", "lead")
    order = ordered(as_toml(settings), engine.sites, lead, run="run-1")
    conductor = Conductor(
        "run-1",
        as_toml(settings),
        version=__version__,
        engine=engine,
        folder=tmp_path / "server",
        public=public_of(settings),
        evidence=ServerEvidence(place_in(tmp_path / "kit", "server", "server"), order),
    )
    conductor.conduct(unwatched)
    for name in files:
        found = compare_ledgers(
            tmp_path / "server", tmp_path / "homes" / name / "memory/runs/run-1"
        )
        assert found.agree and found.verified > 0, found
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))
    return lines


def heard(engine: FlareEngine, timeout: float | None = None) -> dict[str, str]:
    """Each site's reply to an ask: its bytes, or the code of its failure."""
    found = {}
    for delivery in engine.deliver(
        "step", 3, asks=dict.fromkeys(engine.sites, b"ask"), timeout=timeout
    ):
        try:
            found[delivery.site] = decode(Failure, delivery.reply).code
        except Exception:
            found[delivery.site] = delivery.reply.decode()
    return found


def echo(name: str, asked: Shareable) -> Shareable:
    round, data, _ = read_ask(asked) or (0, b"", b"")
    return write_reply(data + str(round).encode(), 0.5)


def silent(name: str, asked: Shareable) -> None:
    return None


def test_what_a_site_does_not_answer_is_lost_or_late() -> None:
    broken = make_reply(ReturnCode.EXECUTION_EXCEPTION)
    engine = engine_of(
        {"away": echo, "echo": echo, "broken": lambda *_: broken, "silent": silent},
        gone={"silent": "lost", "away": "absent"}.get,
    )
    lost = {"broken": "lost", "silent": "lost", "away": "absent"}
    assert heard(engine) == {"echo": "ask3", **lost}
    late = engine_of({"echo": echo, "silent": silent})
    late.controller.at_once = True  # however busy the machine is
    assert heard(late, timeout=0.3) == {"echo": "ask3", "silent": "timeout"}
    assert late.controller.cancelled == ["step"]


def test_a_site_that_is_back_and_has_no_process_in_the_run_makes_it_begin_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it was not there at first, or was killed; one whose connection was cut goes on."""
    names = ["absent", "cut", "killed", "there"]
    controller = ConfideController("run", "", names, "1")
    controller._absent, controller._begun = frozenset({"absent"}), time.monotonic()
    heard: set[str] = set()
    monkeypatch.setattr(components.processes, "heard_from", lambda kit: set(heard))
    monkeypatch.setattr(components, "CATCH_UP", 0.3)
    controller._heard = {"cut": -1e9, "killed": -1e9, "there": time.monotonic()}
    kit: Any = None
    controller._recheck(kit, names)  # nobody is connected
    heard |= {"cut", "there"}
    comes = threading.Timer(0.1, lambda: controller._heard.update(cut=time.monotonic()))
    comes.start()
    controller._recheck(kit, names)
    comes.join()
    heard.add("absent")
    controller._unable = frozenset({"absent"})  # it was connected, and could not begin
    controller._recheck(kit, names)
    controller._unable = frozenset()
    for back in ("absent", "killed"):
        heard.add(back)
        controller._recheck(kit, ["cut", "there"])  # it may not join
        with pytest.raises(EngineError, match=f"{back}: connected again"):
            controller._recheck(kit, [back, "there"])
        said = controller._events.since(0)
        assert said["state"] == "running" and back in said["why"]


def test_a_run_that_flare_ends_is_an_engine_error() -> None:
    stop = Signal()
    engine = engine_of({"silent": silent}, stop=stop)
    threading.Timer(0.1, lambda: stop.trigger(True)).start()
    with pytest.raises(EngineError, match="the engine ended the run"):
        heard(engine)


def test_an_envelope_of_another_form_is_no_ask_and_no_reply() -> None:
    assert read_ask(Shareable()) is None
    assert read_ask(write_ask(2, b"x", seal=b"seal")) == (2, b"x", b"seal")
    unsealed = write_ask(2, b"x")
    unsealed["seal"] = "seal"
    assert read_ask(unsealed) is None
    odd = write_ask(2, b"x")
    odd["round"] = "2"
    assert read_ask(odd) is None
    assert read_reply(None) is None
    for seconds in (float("nan"), "soon", None):
        forged = write_reply(b"x", 1.0)
        forged["seconds"] = seconds
        assert read_reply(forged) is None
    assert read_reply(write_reply(b"x", -1.0, seal=b"seal")) == (b"x", 0.0, b"seal")
    forged = write_reply(b"x", 1.0)
    forged["seal"] = None
    assert read_reply(forged) is None


def test_an_executor_refuses_what_is_not_ours_and_says_no_word_of_an_error(tmp_path: Path) -> None:
    executor = executor_in(tmp_path)
    bad = executor.execute("join", Shareable(), FLContext(), Signal())
    assert bad.get_return_code() == ReturnCode.BAD_TASK_DATA
    (tmp_path / "site.toml").write_text('name = "secret-ward"\nnonsense = 1\n')
    reply = read_reply(executor.execute("join", write_ask(0, b"nonsense"), FLContext(), Signal()))
    assert reply is not None
    assert decode(Failure, reply[0]).code == "bad-signature"
    assert b"secret-ward" not in reply[0]


def test_an_executor_that_cannot_fetch_its_ask_says_so_and_nothing_else(tmp_path: Path) -> None:
    """Nobody answers here for the server, which is an error of any kind."""
    executor = executor_in(tmp_path)
    asked = write_ask(1, Ticket("0" * 32, 5000))
    said = executor.execute("train", asked, FLContext(), Signal())
    assert said.get_return_code() == ReturnCode.TASK_ABORTED
    assert read_reply(said) is None


class Ring:
    """Refers to itself, as FLARE's streams do."""

    def __init__(self) -> None:
        self.me = self


def test_what_only_refers_to_itself_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    ring = weakref.ref(Ring())
    assert ring() is not None
    free_memory()
    assert ring() is None
    assert frozen == [True] * (not gc.get_freeze_count())


def test_a_lost_site_ends_a_run_only_if_the_federation_cannot_do_without_it() -> None:
    """FLARE by itself ends it a minute after a site that the submission names is lost."""
    names = ["site-1", "site-2"]
    meta = {"min_clients": 2, "mandatory_clients": names, "deploy_map": {"app": ["server", *names]}}

    class Context(dict[str, Any]):
        get_prop = dict.get
        __enter__ = __exit__ = lambda self, *_: self

    context = Context({FLContextKey.JOB_META: {JobMetaKey.JOB_ID: "job", **meta}})
    engine = SimpleNamespace(
        new_context=lambda: context,
        get_clients=lambda: [SimpleNamespace(name=name) for name in names],
    )
    plain, ours = WFCommServer(), WFCommServer()
    controller = ConfideController("run", "", names, __version__)
    controller.set_communicator(ours)
    for one in (plain, ours):
        one._engine = engine
        one.log_error = lambda *_: None
        one._dead_clients["site-2"] = SimpleNamespace(disconnect_time=1.0)
    assert plain._job_policy_violated()
    assert not ours._job_policy_violated()
