"""How an encoded message lies in a `Shareable` of NVIDIA FLARE: bytes and a number each way."""

from __future__ import annotations

import math

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable

_DATA, _ROUND, _SECONDS = "confide", "round", "seconds"


def ask_of(round: int, data: bytes) -> Shareable:
    """An ask on its way to a site."""
    shareable = Shareable()
    shareable[_DATA], shareable[_ROUND] = data, round
    return shareable


def opened(shareable: Shareable) -> tuple[int, bytes] | None:
    """Round and bytes of an ask; None where it is not one of ours."""
    data, round = shareable.get(_DATA), shareable.get(_ROUND)
    return (round, data) if type(data) is bytes and type(round) is int else None


def reply_of(data: bytes, seconds: float) -> Shareable:
    """A reply on its way to the server, and how long the site worked on it."""
    shareable = Shareable()
    shareable[_DATA], shareable[_SECONDS] = data, seconds
    shareable.set_return_code(ReturnCode.OK)
    return shareable


def replied(shareable: Shareable | None) -> tuple[bytes, float] | None:
    """Bytes and seconds of a reply; None where the site's engine gave none."""
    if shareable is None or shareable.get_return_code() != ReturnCode.OK:
        return None
    data, seconds = shareable.get(_DATA), shareable.get(_SECONDS)
    sound = type(data) is bytes and type(seconds) is float and math.isfinite(seconds)
    return (data, max(seconds, 0.0)) if sound else None
