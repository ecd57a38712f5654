"""How a message is put into an NVIDIA FLARE `Shareable`: bytes, a number and a seal each way."""

from __future__ import annotations

import math

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

_DATA, _ROUND, _SECONDS, _SEAL = "confide", "round", "seconds", "seal"


def ask_of(round: int, data: bytes, *, seal: bytes = b"") -> Shareable:
    """An ask on its way to a site, with its seal."""
    shareable = Shareable()
    shareable[_DATA], shareable[_ROUND], shareable[_SEAL] = data, round, seal
    return shareable


def opened(shareable: Shareable) -> tuple[int, bytes, bytes] | None:
    """Round, bytes and seal of an ask; None if it is not one of ours."""
    data, round, seal = shareable.get(_DATA), shareable.get(_ROUND), shareable.get(_SEAL)
    sound = type(data) is bytes and type(round) is int and type(seal) is bytes
    return (round, data, seal) if sound else None


def reply_of(data: bytes, seconds: float, *, seal: bytes = b"") -> Shareable:
    """A reply on its way to the server, with the seconds the site worked on it, and its seal."""
    shareable = Shareable()
    shareable[_DATA], shareable[_SECONDS], shareable[_SEAL] = data, seconds, seal
    shareable.set_return_code(ReturnCode.OK)
    return shareable


def replied(shareable: Shareable | None) -> tuple[bytes, float, bytes] | None:
    """Bytes, seconds and seal of a reply; None if the site gave no proper reply."""
    if shareable is None or shareable.get_return_code() != ReturnCode.OK:
        return None
    data, seconds, seal = shareable.get(_DATA), shareable.get(_SECONDS), shareable.get(_SEAL)
    sound = type(data) is bytes and type(seconds) is float and math.isfinite(seconds)
    return (data, max(seconds, 0.0), seal) if sound and type(seal) is bytes else None
