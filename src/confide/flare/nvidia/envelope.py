"""How a message is put into an NVIDIA FLARE `Shareable`: bytes, a number and a seal each way.

In place of the bytes of a large message there is its ticket (`confide.flare.nvidia.parts`).
"""

from __future__ import annotations

import math

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

from confide.flare.nvidia.parts import Ticket

_DATA, _ROUND, _SECONDS, _SEAL = "confide", "round", "seconds", "seal"
_NAME, _SIZE = "ticket", "size"


def ask_of(round: int, data: bytes | Ticket, *, seal: bytes = b"") -> Shareable:
    """An ask on its way to a site, with its seal."""
    shareable = Shareable()
    _put(shareable, data)
    shareable[_ROUND], shareable[_SEAL] = round, seal
    return shareable


def opened(shareable: Shareable) -> tuple[int, bytes | Ticket, bytes] | None:
    """Round, bytes and seal of an ask; None if it is not one of ours."""
    data, round, seal = _held(shareable), shareable.get(_ROUND), shareable.get(_SEAL)
    sound = type(round) is int and type(seal) is bytes
    return (round, data, seal) if sound and data is not None else None


def reply_of(data: bytes | Ticket, seconds: float, *, seal: bytes = b"") -> Shareable:
    """A reply on its way to the server, with the seconds the site worked on it, and its seal."""
    shareable = Shareable()
    _put(shareable, data)
    shareable[_SECONDS], shareable[_SEAL] = seconds, seal
    shareable.set_return_code(ReturnCode.OK)
    return shareable


def replied(shareable: Shareable | None) -> tuple[bytes | Ticket, float, bytes] | None:
    """Bytes, seconds and seal of a reply; None if the site gave no proper reply."""
    if shareable is None or shareable.get_return_code() != ReturnCode.OK:
        return None
    data, seconds, seal = _held(shareable), shareable.get(_SECONDS), shareable.get(_SEAL)
    sound = type(seconds) is float and math.isfinite(seconds) and type(seal) is bytes
    return (data, max(seconds, 0.0), seal) if sound and data is not None else None


def _put(shareable: Shareable, data: bytes | Ticket) -> None:
    if isinstance(data, Ticket):
        shareable[_NAME], shareable[_SIZE] = data.name, data.size
    else:
        shareable[_DATA] = data


def _held(shareable: Shareable) -> bytes | Ticket | None:
    """What is in it, bytes before a ticket; None if neither is of its proper form."""
    data = shareable.get(_DATA)
    if data is not None:
        return data if type(data) is bytes else None
    ticket = Ticket(shareable.get(_NAME), shareable.get(_SIZE))
    return ticket if ticket.is_sound() else None
