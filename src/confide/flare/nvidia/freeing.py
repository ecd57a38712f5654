"""Frees what NVIDIA FLARE keeps of messages that have been sent or read.

A stream of FLARE's refers to itself, and so keeps its message and a buffer of a megabyte until
Python's collector comes round to old objects, which is seldom: many rounds' messages wait for it.
"""

from __future__ import annotations

import gc

LARGE = 1_000_000
"""Bytes from which on a message is worth a collection of its own."""


def free() -> None:
    """Collect now what nobody refers to any more; some milliseconds.

    What is there at the first call stays, and is not looked at again.
    """
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
