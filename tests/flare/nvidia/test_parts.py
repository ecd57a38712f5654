"""Large messages in parts: whole at the other end, in little memory, and only with their ticket."""

from __future__ import annotations

import contextlib
import threading
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from cases import each
from confide.errors import EngineError, RunError
from confide.federation.failures import Failure
from confide.federation.memory import Spool
from confide.federation.messages import Pieces, decode
from confide.flare.kit import LARGEST
from confide.flare.nvidia import engine as parts_module
from confide.flare.nvidia.engine import (
    FlareEngine,
    Outbox,
    Ticket,
    fetch_parts,
    read_ask,
    read_reply,
    write_ask,
    write_reply,
)

LARGE = bytes(range(256)) * 40
NAME = "0" * 32


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "WHOLE", 1000)
    monkeypatch.setattr(parts_module, "PART", 700)
    monkeypatch.setattr(parts_module, "_PAUSE", 0.001)
    monkeypatch.setattr("confide.flare.nvidia.engine.free_memory", lambda: None)


def talking(answer: Callable[..., Any]) -> Any:
    """An engine whose one peer answers so."""

    def ask(targets: list[str], topic: str, request: Shareable, *more: Any) -> dict[str, Any]:
        return {targets[0]: answer(topic=topic, request=request, fl_ctx=FLContext())}

    return SimpleNamespace(
        new_context=lambda: contextlib.nullcontext(FLContext()),
        register_aux_message_handler=lambda topic, message_handle_func: None,
        send_aux_request=ask,
    )


def fetched(ticket: Any, answer: Callable[..., Any], *, over: bool = False) -> bytes:
    return b"".join(fetch_parts(ticket, talking(answer), "peer", over=lambda: over))


def put(data: bytes | Pieces) -> tuple[Outbox, Ticket]:
    outbox = Outbox()
    ticket = outbox.put(data)
    assert isinstance(ticket, Ticket)
    return outbox, ticket


@each("size", [1001, 1399, 1400, 1401, 10_240])
def test_a_large_message_comes_whole(size: int) -> None:
    data = LARGE[:size]
    for whole in (data, Pieces([data[:8], b"", memoryview(data)[8:900], data[900:]])):
        outbox, ticket = put(whole)
        assert ticket.size == size
        assert fetched(ticket, outbox.answer) == data


def test_a_small_message_travels_itself() -> None:
    assert Outbox().put(LARGE[:1000]) == LARGE[:1000]
    assert Outbox().put(Pieces([LARGE[:400], LARGE[400:1000]])) == LARGE[:1000]


def test_a_message_is_given_to_nobody_without_its_ticket_and_not_for_ever() -> None:
    outbox, ticket = put(LARGE)
    other = Outbox().put(LARGE)
    assert isinstance(other, Ticket)
    assert other.name != ticket.name
    with pytest.raises(EngineError, match="did not come"):
        fetched(other, outbox.answer)
    outbox.empty()
    with pytest.raises(EngineError, match="did not come"):
        fetched(ticket, outbox.answer)


def code_of(outbox: Outbox, request: Shareable) -> str:
    return str(outbox.answer("", FLContext(), request=request).get_return_code())


@each("at", [-1, len(LARGE), True, "0", None, 0.0])
def test_a_part_from_nowhere_is_refused(at: object) -> None:
    outbox, ticket = put(LARGE)
    request = Shareable()
    request["name"], request["at"] = ticket.name, at
    assert code_of(outbox, request) == ReturnCode.BAD_REQUEST_DATA
    for name in (None, [ticket.name], ticket.name[:-1]):
        request["name"], request["at"] = name, 0
        assert code_of(outbox, request) == ReturnCode.BAD_REQUEST_DATA


TICKETS = [
    (NAME, 0), (NAME, -1), (NAME, True), (NAME, "9"), (NAME, LARGEST + 1), (NAME, None),
    ("../../etc/passwd", 9), (NAME[1:], 9), (NAME + "\n", 9), (None, 9), (b"0" * 32, 9),
]  # fmt: skip


@each(("name", "size"), TICKETS)
def test_a_ticket_of_another_form_is_no_message(name: object, size: object) -> None:
    forged: Any = Ticket(name, size)  # type: ignore[arg-type]
    assert read_reply(write_reply(forged, 1.0)) is None
    assert read_ask(write_ask(1, forged)) is None
    with pytest.raises(EngineError, match="does not write"):
        fetched(forged, lambda **_: pytest.fail("nothing is asked for"))


def test_a_ticket_travels_in_place_of_the_bytes() -> None:
    ticket = Ticket(NAME, 2**20)
    assert read_ask(write_ask(1, ticket, seal=b"s")) == (1, ticket, b"s")
    assert read_reply(write_reply(ticket, 1.0, seal=b"s")) == (ticket, 1.0, b"s")


def part_of(value: object, code: str = ReturnCode.OK) -> Shareable:
    reply = make_reply(code)
    reply["part"] = value
    return reply


@each("value", [b"", b"x" * 699, b"x" * 701, "x" * 700, bytearray(700), None])
def test_a_part_of_another_length_or_kind_ends_it(value: object) -> None:
    with pytest.raises(EngineError, match="did not come"):
        fetched(Ticket(NAME, 1400), lambda **_: part_of(value))


def test_a_part_that_did_not_come_is_asked_for_again() -> None:
    outbox, ticket = put(LARGE)
    failing = iter([None, make_reply(ReturnCode.TIMEOUT), make_reply(ReturnCode.ERROR)] * 3)

    def answer(request: Shareable, **more: Any) -> Shareable | None:
        if request["at"] == 2100:
            for failure in failing:
                return failure
        return outbox.answer(request=request, **more)

    assert fetched(ticket, answer) == LARGE
    assert next(failing, "all were told") == "all were told"


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "_PATIENCE", 0.05)
    with pytest.raises(EngineError, match="did not come"):
        fetched(Ticket(NAME, 1400), lambda **_: None)
    with pytest.raises(EngineError, match="did not come"):
        fetched(Ticket(NAME, 1400), lambda **_: pytest.fail("asked after the end"), over=True)


class Wire:
    """Plays FLARE's controller: every task is answered at once, in a thread."""

    def __init__(self, answer: Callable[[str], Shareable]) -> None:
        self.answer = answer
        self.tasks: list[Any] = []

    def broadcast(self, task: Any, fl_ctx: Any, *, targets: list[str], min_responses: int) -> None:
        def carry() -> None:
            task.completion_status = TaskCompletionStatus.OK
            result = SimpleNamespace(result=self.answer(targets[0]))
            task.result_received_cb(client_task=result, fl_ctx=fl_ctx)

        self.tasks.append(task)
        threading.Thread(target=carry, daemon=True).start()

    def cancel_task(self, task: Any, fl_ctx: Any) -> None:
        pass


def asking(
    reply: Callable[[str], Shareable],
    answer: Callable[..., Any],
    *,
    gone: Callable[[str], str | None] = lambda _: None,
    stop: Signal | None = None,
) -> tuple[FlareEngine, Outbox, Any]:
    outbox, wire = Outbox(), Wire(reply)
    context: Any = SimpleNamespace(get_engine=lambda: talking(answer))
    engine = FlareEngine(
        wire,  # type: ignore[arg-type]
        context,
        stop or Signal(),
        outbox=outbox,
        sites=tuple(sorted(["one", "two"])),
        gone=gone,
    )
    return engine, outbox, wire


def delivered(engine: FlareEngine, ask: bytes = b"ask") -> dict[str, bytes]:
    asks = dict.fromkeys(engine.sites, ask)
    return {one.site: one.reply for one in engine.deliver("step", 1, asks=asks, timeout=None)}


def code(reply: bytes) -> str:
    return decode(Failure, reply).code


def test_large_replies_come_whole_and_a_large_ask_is_there_once_while_it_is_asked() -> None:
    there, ticket = put(LARGE)
    engine, outbox, wire = asking(lambda _: write_reply(ticket, 1.0), there.answer)
    deliveries = engine.deliver("step", 1, asks=dict.fromkeys(engine.sites, LARGE), timeout=None)
    first = next(deliveries)
    assert first.reply == LARGE
    asked = {read_ask(task.data) for task in wire.tasks}
    [(_, own, _)] = [one for one in asked if one]
    assert isinstance(own, Ticket)
    assert fetched(own, outbox.answer) == LARGE
    assert [one.reply for one in deliveries] == [LARGE]
    with pytest.raises(EngineError):
        fetched(own, outbox.answer)


def test_a_site_that_announces_what_it_does_not_give_is_lost_alone() -> None:
    there, ticket = put(LARGE)
    tickets = {"one": ticket, "two": Ticket(NAME, 5000)}
    engine, _, _ = asking(lambda site: write_reply(tickets[site], 1.0), there.answer)
    found = delivered(engine)
    assert found["one"] == LARGE
    assert code(found["two"]) == "lost"


def test_a_site_that_goes_while_its_reply_is_fetched_is_lost() -> None:
    left = threading.Event()

    def answer(request: Shareable, **more: Any) -> None:
        left.set()

    engine, _, _ = asking(
        lambda _: write_reply(Ticket(NAME, 5000), 1.0),
        answer,
        gone=lambda _: "lost" if left.is_set() else None,
    )
    assert {code(reply) for reply in delivered(engine).values()} == {"lost"}


def test_an_error_of_the_engine_while_a_reply_is_fetched_loses_that_site_only() -> None:
    there, ticket = put(LARGE)
    tickets = {"one": ticket, "two": Ticket(NAME, 5000)}

    def answer(request: Shareable, **more: Any) -> Shareable:
        if request["name"] == NAME:
            raise ValueError("a bug of the engine")
        return there.answer(request=request, **more)

    engine, _, _ = asking(lambda site: write_reply(tickets[site], 1.0), answer)
    found = delivered(engine)
    assert found["one"] == LARGE
    assert code(found["two"]) == "lost"


def test_a_run_that_ends_fetches_no_more() -> None:
    stop, asked = Signal(), []

    def answer(request: Shareable, **more: Any) -> None:
        asked.append(request["at"])
        stop.trigger(True)

    engine, _, _ = asking(lambda _: write_reply(Ticket(NAME, 5000), 1.0), answer, stop=stop)
    with pytest.raises(EngineError, match="ended the run"):
        delivered(engine)
    assert set(asked) == {0}


def test_a_full_disk_ends_the_run_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    there, ticket = put(LARGE)

    def full(self: Spool, data: bytes) -> tuple[int, int]:
        raise RunError("the replies of a round could not be put aside")

    monkeypatch.setattr(Spool, "put", full)
    engine, _, _ = asking(lambda _: write_reply(ticket, 1.0), there.answer)
    with pytest.raises(RunError, match="put aside"):
        delivered(engine)


def test_replies_wait_on_the_disk_and_are_read_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts_module, "PART", 2**18)
    size = 2**24
    whole = bytes(size)
    there, ticket = put(whole)
    engine, _, _ = asking(lambda _: write_reply(ticket, 1.0), there.answer)
    tracemalloc.start()
    try:
        for one in engine.deliver("step", 1, asks=dict.fromkeys("ab", b"ask"), timeout=None):
            assert len(one.reply) == size
            del one
            assert tracemalloc.get_traced_memory()[0] < size / 2, "it is held until the next comes"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size <= peak < 1.3 * size
