"""The engine over NVIDIA FLARE: one FLARE task per asked site, replies as they come.

Large replies are fetched side by side, each into a file without a name, and are read one at a time.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from confide.errors import EngineError, RunError
from confide.federation.failures import Failure
from confide.federation.memory import Spool
from confide.federation.messages import WHOLE, Pieces, encode
from confide.federation.steps import Delivery
from confide.flare.kit import LARGEST

# --- Large messages
#
# They are fetched in parts: FLARE never has the whole of one in its hands.
#
# FLARE puts a message together in several copies, at the sender and at the receiver. So a message
# of more than `WHOLE` bytes stays in its sender's outbox. A ticket travels in its place, and the
# receiver asks for one part after another. What comes is checked as any other message is: by the
# seal over all of it.


PART = 2 * 2**20
"""Bytes of a part; the last one may have fewer."""
PART_TOPIC = "confide_part"
_EACH, _PATIENCE = 120.0, 240.0
"""Seconds to wait for a part that was asked for, and in all, before the message counts as lost."""
_PAUSE = 1.0
"""Seconds before a part that did not come is asked for again."""
_PART_NAME, _AT, _BYTES = "name", "at", "part"


@dataclass(frozen=True)
class Ticket:
    """A stand-in for a message: its name in the sender's outbox, and its bytes.

    Nobody can guess a name, so only who was sent the ticket gets the message.
    """

    name: str
    size: int

    def is_sound(self) -> bool:
        """True if it is of a form that an outbox makes."""
        named = type(self.name) is str and re.fullmatch("[0-9a-f]{32}", self.name) is not None
        return named and type(self.size) is int and 0 < self.size <= LARGEST


Talking = Any
"""NVIDIA FLARE's engine in a process of a run, which carries questions to other places."""


class Outbox:
    """Large messages that wait to be fetched, and the answers to those who ask for their parts."""

    def __init__(self) -> None:
        self._held: dict[str, bytes | Pieces] = {}
        self._lock = threading.Lock()

    def open(self, engine: Talking) -> None:
        """Answer from now on, in this process."""
        engine.register_aux_message_handler(PART_TOPIC, self.answer)

    def put(self, data: bytes | Pieces) -> bytes | Ticket:
        """Choose what travels: a large message's ticket, any other message itself."""
        if len(data) <= WHOLE:
            return bytes(data)
        ticket = Ticket(secrets.token_hex(16), len(data))
        with self._lock:
            self._held[ticket.name] = data
        return ticket

    def empty(self) -> None:
        """Forget every message: whoever still asks for one gets nothing."""
        with self._lock:
            self._held.clear()

    def answer(self, topic: str, fl_ctx: FLContext, **asked: Shareable) -> Shareable:
        """One part of a message that is here."""
        ask = asked["request"]  # as FLARE calls it
        name, at = ask.get(_PART_NAME), ask.get(_AT)
        with self._lock:
            data = self._held.get(name) if type(name) is str else None
        if data is None or type(at) is not int or not 0 <= at < len(data):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[_BYTES] = data[at : at + PART]
        return reply


def fetch_parts(
    ticket: Ticket, engine: Talking, sender: str, *, over: Callable[[], bool]
) -> Iterator[bytes]:
    """A message's parts, in order, from the outbox of `sender`.

    Raises EngineError if the ticket is not sound, if a part does not come or is not as long as it
    must be, and if it is `over`.
    """
    if not ticket.is_sound():
        raise EngineError("a large message was announced in a form that confide does not write")
    at = 0
    while at < ticket.size:
        size = min(PART, ticket.size - at)
        yield _part(ticket.name, at, size, engine=engine, sender=sender, over=over)
        at += size


def _part(
    name: str, at: int, size: int, *, engine: Talking, sender: str, over: Callable[[], bool]
) -> bytes:
    give_up = time.monotonic() + _PATIENCE
    while not over():
        ask = Shareable()
        ask[_PART_NAME], ask[_AT] = name, at
        with engine.new_context() as context:
            found = engine.send_aux_request([sender], PART_TOPIC, ask, _EACH, context)
        reply = found.get(sender) if found else None
        code = None if reply is None else reply.get_return_code()
        if reply is not None and code == ReturnCode.OK:
            part = reply.get(_BYTES)
            if type(part) is bytes and len(part) == size:
                return part
        if code in (ReturnCode.OK, ReturnCode.BAD_REQUEST_DATA) or time.monotonic() > give_up:
            break
        time.sleep(_PAUSE)
    raise EngineError("a part of a large message did not come")


# --- Messages in NVIDIA FLARE's `Shareable`
#
# Bytes, a number and a seal each way.
#
# In place of the bytes of a large message there is its ticket (`confide.flare.nvidia.engine`).


_DATA, _ROUND, _SECONDS, _SEAL = "confide", "round", "seconds", "seal"
_TICKET, _SIZE = "ticket", "size"


def write_ask(round: int, data: bytes | Ticket, *, seal: bytes = b"") -> Shareable:
    """An ask on its way to a site, with its seal."""
    return _packed(data, seal, _ROUND, round)


def read_ask(shareable: Shareable) -> tuple[int, bytes | Ticket, bytes] | None:
    """Round, bytes and seal of an ask; None if it is not one of ours."""
    data, round, seal = _data_of(shareable), shareable.get(_ROUND), shareable.get(_SEAL)
    sound = type(round) is int and type(seal) is bytes
    return (round, data, seal) if sound and data is not None else None


def write_reply(data: bytes | Ticket, seconds: float, *, seal: bytes = b"") -> Shareable:
    """A reply on its way to the server, with the seconds the site worked on it, and its seal."""
    shareable = _packed(data, seal, _SECONDS, seconds)
    shareable.set_return_code(ReturnCode.OK)
    return shareable


def read_reply(shareable: Shareable | None) -> tuple[bytes | Ticket, float, bytes] | None:
    """Bytes, seconds and seal of a reply; None if the site gave no proper reply."""
    if shareable is None or shareable.get_return_code() != ReturnCode.OK:
        return None
    data, seconds, seal = _data_of(shareable), shareable.get(_SECONDS), shareable.get(_SEAL)
    sound = type(seconds) is float and math.isfinite(seconds) and type(seal) is bytes
    return (data, max(seconds, 0.0), seal) if sound and data is not None else None


def _packed(data: bytes | Ticket, seal: bytes, name: str, number: float) -> Shareable:
    shareable = Shareable()
    if isinstance(data, Ticket):
        shareable[_TICKET], shareable[_SIZE] = data.name, data.size
    else:
        shareable[_DATA] = data
    shareable[name], shareable[_SEAL] = number, seal
    return shareable


def _data_of(shareable: Shareable) -> bytes | Ticket | None:
    """Read the bytes or, after them, the ticket; None if neither is of its proper form."""
    data = shareable.get(_DATA)
    if data is not None:
        return data if type(data) is bytes else None
    ticket = Ticket(shareable.get(_TICKET), shareable.get(_SIZE))
    return ticket if ticket.is_sound() else None


# --- Memory of past messages
#
# NVIDIA FLARE keeps it for messages already sent or read; here it is freed.
#
# A FLARE stream refers to itself, so it keeps its message and a buffer of a megabyte until Python
# collects old objects. That is seldom, and the messages of many rounds pile up.


LARGE = 1_000_000
"""Messages of more bytes than this are worth a collection each."""


def free_memory() -> None:
    """Collect unreachable objects now, and give their memory back: some milliseconds.

    Objects that exist at the first call are never looked at again. Where the C library has no
    `malloc_trim`, it keeps what it has for later.
    """
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


_POLL = 0.02
"""Seconds between two checks of the tasks that are still open."""

Heard = queue.SimpleQueue[tuple[str, Callable[[], Delivery]]]
"""Sites that answered, and how to get at what each of them said."""


@dataclass(frozen=True)
class FlareEngine:
    """Asks sites through a controller's tasks; every site has its own task, and so its own bytes.

    Attributes:
        controller: its `broadcast` sends a task.
        context: FLARE's context of the controller's thread.
        stop: FLARE's signal that the run shall end.
        outbox: where large asks wait to be fetched.
        sites: the names of all sites, sorted.
        gone: the code of a site that has no process in this submission, or whose process is lost.
    """

    controller: Controller
    context: FLContext
    stop: Signal
    outbox: Outbox
    sites: tuple[str, ...]
    gone: Callable[[str], str | None]

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes | Pieces],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        """Every asked site's reply, in the order they come, or a failure.

        The codes of failures are `absent`, `lost` and `timeout`.

        `seals` vouch for the asks (`federation.seals`). Raises EngineError if FLARE ends the run,
        RunError if a large reply finds no room on the disk.
        """
        free_memory()
        heard: Heard = queue.SimpleQueue()
        over = threading.Event()
        different = {id(data): data for data in asks.values()}
        carried = {key: self.outbox.put(data) for key, data in different.items()}
        open_tasks = {}
        absent = {site for site in asks if self.gone(site) == "absent"}
        for site, data in sorted(asks.items()):
            if site in absent:
                continue
            ask = write_ask(round, carried[id(data)], seal=(seals or {}).get(site, b""))
            open_tasks[site] = self._send(site, step, ask, heard, over)
        start = time.monotonic()
        try:
            for site in sorted(absent):
                yield _failed(site, "absent", 0.0)
            while open_tasks:
                if self.stop.triggered:
                    raise EngineError("the engine ended the run while sites were being asked")
                try:
                    site, said = heard.get(timeout=_POLL)
                except queue.Empty:
                    late = timeout is not None and time.monotonic() - start > timeout
                    for site, task in list(open_tasks.items()):
                        code = self._lost(site, task, late=late)
                        if code and heard.empty():
                            del open_tasks[site]
                            self._cancel(task)
                            yield _failed(site, code, time.monotonic() - start)
                    continue
                if open_tasks.pop(site, None) is not None:
                    yield from _alone(said)
        finally:
            over.set()
            self.outbox.empty()
            for task in open_tasks.values():
                self._cancel(task)

    def _send(
        self, site: str, step: str, ask: Shareable, heard: Heard, over: threading.Event
    ) -> Task:
        start = time.monotonic()

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            reply = read_reply(client_task.result)
            client_task.result = None  # FLARE would keep the bytes
            seconds = time.monotonic() - start
            if reply is None:
                heard.put((site, lambda: _failed(site, "lost", seconds)))
                return
            data, worked, seal = reply
            worked = min(worked, seconds)
            if isinstance(data, Ticket):
                fetch = functools.partial(self._fetch, site, data, worked, seal, heard, over)
                threading.Thread(target=fetch, daemon=True).start()
            else:
                heard.put((site, lambda: Delivery(site, data, worked, seal)))

        task = Task(name=step, data=ask, result_received_cb=received)
        self.controller.broadcast(task, self.context, targets=[site], min_responses=1)
        return task

    def _fetch(
        self, site: str, ticket: Ticket, worked: float, seal: bytes,
        heard: Heard, over: threading.Event,
    ) -> None:  # fmt: skip
        """Fetch a large reply into a file without a name, then say so; in a thread of its own."""
        spool = Spool(in_memory=1)

        def read() -> Delivery:
            try:
                return Delivery(site, spool.get(0, ticket.size), worked, seal)
            finally:
                spool.close()

        engine = self.context.get_engine()
        try:
            for part in fetch_parts(ticket, engine, site, over=over.is_set):
                spool.put(part)
        except RunError as error:
            spool.close()
            heard.put((site, functools.partial(_raise, error)))
        except Exception:  # whatever it is: nobody else hears of it in this thread
            spool.close()
            heard.put((site, lambda: _failed(site, "lost", worked)))
        else:
            heard.put((site, read))

    def _lost(self, site: str, task: Task, *, late: bool) -> str | None:
        """The code of a site whose reply will not come; None if it still may."""
        status = task.completion_status
        if late or status == TaskCompletionStatus.TIMEOUT:
            return "timeout"
        over = status is not None and status != TaskCompletionStatus.OK
        return "lost" if over else self.gone(site)

    def _cancel(self, task: Task) -> None:
        if task.completion_status is None:
            self.controller.cancel_task(task, fl_ctx=self.context)


def _alone(said: Callable[[], Delivery]) -> Generator[Delivery, None, None]:
    """Deliver a site's reply once; nothing here keeps a large one, not even while others wait."""
    found = [said()]
    if len(found[0].reply) > LARGE:
        free_memory()
    yield found.pop()


def _raise(error: RunError) -> Delivery:
    raise error


def _failed(site: str, code: str, seconds: float) -> Delivery:
    return Delivery(site, encode(Failure(code, "", "", "")), seconds, heard=False)
