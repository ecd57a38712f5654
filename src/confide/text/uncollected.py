"""Reading without the garbage collector, which would look at every document again and again.

What readers make holds no cycles, so counting references frees it all. Of a file of a hundred
thousand tiny documents the collector would take a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """The collector rests meanwhile, if it is on; afterwards it is on again, whatever was raised.

    Several may be open at once, also in several threads: the first one that ends turns it on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
