"""Large messages, fetched in parts: FLARE never has the whole of one in its hands.

FLARE puts a message together in several copies, at the sender and at the receiver. So a message of
more than `WHOLE` bytes stays in its sender's outbox. A ticket travels in its place, and the
receiver asks for one part after another. What comes is checked as any other message is: by the seal
over all of it.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply

from confide.errors import EngineError
from confide.flare.kits.policies import LARGEST

WHOLE = 8 * 2**20
"""A message of more bytes than this is fetched in parts."""
PART = 2 * 2**20
"""Bytes of a part; the last one may have fewer."""
TOPIC = "confide_part"
_EACH, _PATIENCE = 120.0, 240.0
"""Seconds to wait for a part that was asked for, and in all, before the message counts as lost."""
_PAUSE = 1.0
"""Seconds before a part that did not come is asked for again."""
_NAME, _AT, _BYTES = "name", "at", "part"


@dataclass(frozen=True)
class Ticket:
    """What travels in place of a message: its name in the sender's outbox, and its bytes.

    Nobody can guess a name, so only who was sent the ticket gets the message.
    """

    name: str
    size: int

    def is_sound(self) -> bool:
        """Whether it is of a form that an outbox makes."""
        named = type(self.name) is str and re.fullmatch("[0-9a-f]{32}", self.name) is not None
        return named and type(self.size) is int and 0 < self.size <= LARGEST


Talking = Any
"""NVIDIA FLARE's engine in a process of a run, which carries questions to other places."""


class Outbox:
    """Large messages that wait to be fetched, and the answers to those who ask for their parts."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def open(self, engine: Talking) -> None:
        """Answer from now on, in this process."""
        engine.register_aux_message_handler(TOPIC, self.answer)

    def put(self, data: bytes) -> bytes | Ticket:
        """What shall travel: a large message's ticket, any other message itself."""
        if len(data) <= WHOLE:
            return data
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
        name, at = ask.get(_NAME), ask.get(_AT)
        with self._lock:
            data = self._held.get(name) if type(name) is str else None
        if data is None or type(at) is not int or not 0 <= at < len(data):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        reply = make_reply(ReturnCode.OK)
        reply[_BYTES] = data[at : at + PART]
        return reply


def parts(
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
        ask[_NAME], ask[_AT] = name, at
        with engine.new_context() as context:
            found = engine.send_aux_request([sender], TOPIC, ask, _EACH, context)
        reply = found.get(sender) if found else None
        if reply is not None and reply.get_return_code() == ReturnCode.OK:
            part = reply.get(_BYTES)
            if type(part) is bytes and len(part) == size:
                return part
            break
        if reply is not None and reply.get_return_code() == ReturnCode.BAD_REQUEST_DATA:
            break
        if time.monotonic() > give_up:
            break
        time.sleep(_PAUSE)
    raise EngineError("a part of a large message did not come")
