"""Of a model's weights a round makes the copies that travel, and few more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.federation import combining, memory, messages
from confide.kinds import protocol
from confide.runs.run import run
from contract.corpus import tiny

ROUNDS, SITES = 2, 3


def test_weights_are_joined_to_what_travels_and_copied_to_be_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put aside or kept on disk is written piece by piece."""
    joined, loaded = Counter[str](), Counter[str]()
    pieces, load = messages.pieces, protocol.load_weights
    spooled: list[int] = []
    put = memory.Spool.put

    def seen(message: object) -> Any:
        joined[type(message).__name__] += 1
        return pieces(message)

    def load_weights(model: Any, values: Any, *, lent: bool = False) -> None:
        loaded["lent" if lent else "copied"] += 1
        load(model, values, lent=lent)

    def noted(spool: memory.Spool, *parts: Any) -> tuple[int, int]:
        spooled.append(len(parts))
        return put(spool, *parts)

    monkeypatch.setattr(messages, "pieces", seen)
    monkeypatch.setattr(protocol, "load_weights", load_weights)
    monkeypatch.setattr(memory.Spool, "put", noted)
    monkeypatch.setattr(combining, "IN_MEMORY", 0)
    run(tiny(tmp_path, "method=fedavg-encoder", f"rounds={ROUNDS}", sites=SITES), out=tmp_path)
    assert {name: joined[name] for name in ("Train", "Score", "Update", "FedAvgState")} == {
        "Train": ROUNDS,
        "Score": ROUNDS + 1,  # and of the test text
        "Update": ROUNDS * SITES,
        "FedAvgState": ROUNDS,
    }
    assert not joined["Checkpoint"] and not joined["Kept"]
    assert len(spooled) == ROUNDS * SITES and min(spooled) > 2
    assert loaded == {"copied": ROUNDS * SITES, "lent": (ROUNDS + 1) * SITES}
