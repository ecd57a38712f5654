"""What runs of one site each come to together."""

from __future__ import annotations

from typing import Any

import pytest

from confide.runs.result import merge_histories


def turn(site: str, **own: Any) -> dict[str, Any]:
    return {
        "round": 1, "loss": 1.0, "learning_rate": 0.5, "sites": [site], "failed": {}, "faults": [],
        "seconds": 1.0, "train_seconds": 2.0, "compute_seconds": 3.0, "slowest_seconds": 4.0,
        "sentences": 5, "bytes": {"up": 6, "down": 7}, **own,
    }  # fmt: skip


def test_rounds_of_several_federations_are_joined() -> None:
    """Seconds, sentences and bytes add up; losses and scores are means; the slowest is the slowest.

    Where one had fewer rounds, the others' are joined alone.
    """
    north = turn("north", dev={"strict": 0.5}, dev_sites={"north": 0.5})
    fault = {"site": "south", "step": "train", "code": "lost", "why": "gone"}
    south = turn(
        "south", loss=3.0, slowest_seconds=1.0, failed={"south": "lost"}, faults=[fault],
        dev={"strict": 1.0}, dev_sites={"south": 1.0},
    )  # fmt: skip
    late = turn("north", round=2, loss=0.25)
    first, second = merge_histories([[north, late], [south]])
    assert first == {
        "round": 1, "loss": 2.0, "learning_rate": 0.5, "sites": ["north", "south"],
        "failed": {"south": "lost"}, "faults": [fault], "seconds": 2.0, "train_seconds": 4.0,
        "compute_seconds": 6.0, "slowest_seconds": 4.0, "sentences": 10,
        "bytes": {"up": 12, "down": 14}, "dev": {"strict": pytest.approx(0.75)},
        "dev_sites": {"north": 0.5, "south": 1.0},
    }  # fmt: skip
    assert (second["round"], second["loss"], second["sites"]) == (2, 0.25, ["north"])
    assert "dev" not in second


def test_of_one_federation_the_history_is_its_own() -> None:
    history = [turn("north")]
    assert merge_histories([history]) == history
