"""Reading without the garbage collector, which would visit every document again and again.

Readers make no reference cycles, so reference counting frees everything. With a file of a hundred
thousand tiny documents, the collector would take a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector if it is on, and turn it on again afterwards, whatever was raised.

    What was made meanwhile counts as old at once, so that the collector does not begin with a visit
    to all of it. Several may be open at once, even in several threads: the first one to end turns
    it on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # or else somebody froze objects, which stay so
            gc.freeze()
            gc.unfreeze()
        gc.enable()
