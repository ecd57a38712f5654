"""How a site trains arrives at every kind of model in one message."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.kinds import KINDS
from confide.kinds.protocol import train_config
from confide.methods import METHODS
from confide.runs.run import run
from contract.corpus import tiny
from methods.relation_runs import started

PAGE = Path(__file__).parents[2] / "docs/methods/pseudo-complete.md"


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "tagger")) for kind in KINDS]
)
def test_a_round_may_be_a_batch_or_two(kind: str, tmp_path: Path) -> None:
    """Sites take at most `local_steps` batches, and no more passes than `local_epochs`."""
    done = {}
    for steps in (0, 1, 2, 10_000):
        settings = tiny(
            tmp_path, f"method=fedavg-{kind}", "rounds=1", f"training.local_steps={steps}",
            "training.batch_size=2", "training.local_epochs=2",
        )  # fmt: skip
        assert train_config(settings, 1).batches == steps
        history = run(settings, out=tmp_path / f"run-{steps}").result.history
        done[steps] = history[0].sentences
    assert 0 < done[1] < done[2] < done[0] == done[10_000]


@each("kind", KINDS)
def test_the_kinds_that_leave_outside_open_are_those_that_the_page_names(
    kind: str, tmp_path: Path
) -> None:
    (sentence,) = re.findall(r"plain fedavg too, for (.*?)\.\s", PAGE.read_text())
    name = next(one for one in (f"pseudo-complete-{kind}", f"fedavg-{kind}") if one in METHODS)
    found = []
    for outside in (0, 1):
        settings = tiny(tmp_path, f"method={name}", f"training.unannotated_types={outside}")
        method, federation, _ = started(tmp_path / f"{outside}", settings)
        found.append(method.round(method.start(federation), federation, 1)[0].weights)
    moved = any(not np.array_equal(found[0][name], one) for name, one in found[1].items())
    assert moved == (kind in sentence)
