"""Frees the memory that NVIDIA FLARE keeps for messages already sent or read.

A FLARE stream refers to itself, so it keeps its message and a buffer of a megabyte until Python
collects old objects. That is seldom, and the messages of many rounds pile up.
"""

from __future__ import annotations

import ctypes
import gc

LARGE = 1_000_000
"""Messages of more bytes than this are worth a collection each."""


def free() -> None:
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
