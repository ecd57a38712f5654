"""Sums of numbers that are worth one or two bytes: how long masked replies are, and how exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cases import each
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode
from confide.federation.secure.lanes import LanePart, layout_of
from confide.federation.steps import Step
from confide.kinds.protocol import TrainConfig
from confide.methods import METHODS
from confide.methods.feded import TRAIN_AND_PREDICT
from confide.methods.fedner import IMPROVE, Improve
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import states
from methods.relation_runs import asked

CONFIG = TrainConfig(0.001, "adam", 0.0, 0.0, 5.0, 8, 1, 0.0, False, 1)
FEDNER = ("method=fedner-tagger", "options.local_steps=3", "rounds=3", "federation.sums=masked")


def part_of(step: Step, ask: Any, field: str, *, sites: int = 10, lane: int = 0) -> LanePart:
    ranges = {"w": 0.1}
    layout = layout_of(step, ask, sites=sites, examples=0.0, lane_width=lane, ranges=ranges)
    return next(part for part in layout.parts if part.field == field)


@each("sites", [3, 10, 100])
def test_predictions_in_float16_or_int8_take_two_bytes(sites: int) -> None:
    for wire_dtype in ("float16", "int8"):
        ask = asked(S=1000, R=9, wire_dtype=wire_dtype)
        assert part_of(TRAIN_AND_PREDICT, ask, "said_SQ", sites=sites).length == 2 * 1000 * 8


@each("local_steps", [1, 4])
def test_updates_of_fedner_take_as_many_bytes_as_are_asked_for(local_steps: int) -> None:
    ask = Improve({"w": np.zeros((200, 500), np.float32)}, CONFIG, local_steps)
    assert [part_of(IMPROVE, ask, "update", lane=lane).width for lane in (0, 2, 1)] == [4, 2, 1]


def test_a_run_in_half_the_bytes_is_near_the_whole_one(tmp_path: Path) -> None:
    found, sent = {}, {}
    for up in ("rows", "float16"):
        done = run(tiny(tmp_path, *FEDNER, f"federation.up={up}"), out=tmp_path / up)
        assert not any(entry.failed for entry in done.result.history)
        state = decode(METHODS["fedner-tagger"].State, states(done.folder).popitem()[1])
        found[up] = state.weights
        rows = read_ledger(done.folder / "ledger.jsonl")
        sent[up] = sum(row.bytes for row in rows if (row.field, row.round) == ("lanes_B", 3))
    first = found["rows"]
    far = max(float(np.abs(found["float16"][name] - first[name]).max()) for name in first)
    assert 0 < far < 0.01
    assert sent["float16"] < 0.7 * sent["rows"]
