"""Seeds: every random choice has a name, and the name decides the numbers."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_ONE_AT_A_TIME = threading.RLock()


def derive_seed(*parts: str | int) -> int:
    """A seed (63 bits) from what names a choice: (run seed, round, site, step, ...).

    >>> derive_seed(1, "site-01", "train") == derive_seed(1, "site-01", "train")
    True
    >>> derive_seed(1, "2") == derive_seed("1", 2)
    False
    """
    name = json.dumps(parts, ensure_ascii=True).encode()
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big") >> 1


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make torch draw from this seed inside; outside, its generator is as before.

    Torch has one generator for all threads, so threads wait for each other here.
    """
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
