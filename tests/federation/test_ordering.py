"""Replies in order, and none of them longer than it is needed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from confide.federation.federation import Federation, in_order
from confide.federation.ledger import Ledger
from confide.federation.memory import Spool
from confide.federation.messages import Arrays, Pieces, encode
from confide.federation.steps import Delivery
from confide.flare.server import SignedEngine
from confide.methods.fedavg import TRAIN, Train, Update, mean_of
from kinds.configs import config

SITES = ("a", "b", "c", "d")
SHAPES = {f"layer-{number}": (512, 512) for number in range(14)}
MODEL = sum(4 * rows * columns for rows, columns in SHAPES.values())


def test_an_early_reply_waits_for_those_before_it() -> None:
    deliveries = [Delivery(site, site.encode(), 1.0, b"seal") for site in "dcab"]
    found = list(in_order(deliveries, SITES))
    assert found == sorted(deliveries, key=lambda one: one.site)


class Disk:
    """Sites whose replies lie on the disk; two of them come early, when the sum is there."""

    sites = SITES

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[bytes | Pieces] = []

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes | Pieces], **more: Any
    ) -> Iterator[Delivery]:
        self.asked += asks.values()
        for site in "adcb":
            yield Delivery(site, (self.folder / site).read_bytes(), 1.0)
        self.asked.clear()


class Signed(SignedEngine):
    """The engine that signs, without its signatures."""

    def __init__(self, carrier: Any) -> None:
        self._carrier, self._ledger, self.sites = carrier, Ledger(), SITES

    def _sealed(self, step: str, round: int, asks: Any) -> Any:
        return {site: SimpleNamespace(encode=lambda: b"") for site in asks}

    def _checked_delivery(self, delivery: Delivery, asked: Any) -> Delivery:
        return delivery

    def _note(self, *what: Any, **more: Any) -> None:
        pass


def drawn(seed: int) -> Arrays:
    draws = np.random.default_rng(seed)
    return {name: draws.random(shape, np.float32) for name, shape in SHAPES.items()}


def test_a_server_holds_four_models_however_many_sites_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights, the sum in float64 (two) and one reply: no ask, no early or earlier reply."""
    monkeypatch.setattr("confide.federation.federation.Spool", lambda: Spool(2**16))
    for number, site in enumerate(SITES):
        (tmp_path / site).write_bytes(encode(Update(drawn(number), 1.0, {}, 0.5, 1)))
    tracemalloc.start()
    try:
        before = drawn(9)
        ask = Train(before, config(), "equal", [])
        federation = Federation(Signed(Disk(tmp_path)), seed=1, ledger=Ledger())
        total = federation.sum(TRAIN, ask, round=1)
        after = mean_of(total, before)
        peak = tracemalloc.get_traced_memory()[1] / MODEL
    finally:
        tracemalloc.stop()
    every = [drawn(number) for number in range(len(SITES))]
    for name, mean in after.items():
        summed = sum(one[name].astype(np.float64) for one in every)
        assert (mean == (summed / len(SITES)).astype(np.float32)).all()
    assert 3 < peak < 4.1
