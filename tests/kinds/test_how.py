"""How a site trains arrives at every kind of model in one message."""

from __future__ import annotations

from pathlib import Path

import pytest

from confide.kinds import KINDS
from confide.kinds.how import how_of
from confide.runs.run import run
from contract.corpus import tiny


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_may_be_a_batch_or_two(kind: str, tmp_path: Path) -> None:
    """Sites take at most `local_steps` batches, and no more passes than `local_epochs`."""
    done = {}
    for steps in (0, 1, 2, 10_000):
        settings = tiny(
            tmp_path, f"method=fedavg-{kind}", "rounds=1", f"training.local_steps={steps}",
            "training.batch_size=2", "training.local_epochs=2",
        )  # fmt: skip
        assert how_of(settings, 1).batches == steps
        history = run(settings, out=tmp_path / f"run-{steps}").result.history
        done[steps] = history[0].sentences
    assert 0 < done[1] < done[2] < done[0] == done[10_000]
