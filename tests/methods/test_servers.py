"""Server optimisers and the proximal term reach every kind that FedAvg trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from confide.methods.fedavg import FedAvg
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import states

PAIRS = [(f"fedavg-{kind}",) for kind in FedAvg.kinds]
PAIRS += [("fedavg-bags", "bags.reader=encoder")]


QUICK = ("fedavg-tagger", "fedavg-bags")


def losses(folder: Path, *overrides: str) -> list[float | None]:
    return [
        entry.loss
        for entry in run(tiny(folder, "rounds=2", *overrides), out=folder / "run").result.history
    ]


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(pair, marks=[pytest.mark.slow] * (pair[0] not in QUICK or len(pair) > 1))
        for pair in PAIRS
    ],
    ids="-".join,
)
def test_every_kind_is_moved_by_the_servers_step_and_held_by_the_proximal_term(
    tmp_path: Path, pair: tuple[str, ...]
) -> None:
    method, *own = pair
    plain = losses(tmp_path / "plain", f"method={method}", *own)
    stepped = losses(tmp_path / "adam", f"method={method}", *own, "options.server=adam")
    held = losses(tmp_path / "held", f"method={method}", *own, "options.proximal=0.5")
    assert np.isfinite([*plain, *stepped, *held]).all()
    assert stepped[0] == plain[0]
    assert stepped[1] != plain[1]
    assert held != plain


def test_what_the_server_keeps_survives_a_resume(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "options.server=yogi", "rounds=3")
    run(settings, out=tmp_path / "whole")
    run(settings.model_copy(update={"rounds": 2}), out=tmp_path / "two")
    run(settings, out=tmp_path / "two", resume=True)
    name = "checkpoints/round-000003.ckpt"
    assert states(tmp_path / "two")[name] == states(tmp_path / "whole")[name]
