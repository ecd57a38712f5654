"""A run that has learnt the small corpus, for tests that use a model."""

from __future__ import annotations

from pathlib import Path

from confide.runs.run import run
from contract.corpus import tiny

LEARNING = (
    "rounds=4",
    "training.local_epochs=3",
    "training.learning_rate=0.03",
    "model.dropout=0.1",
)


def learned(folder: Path, *overrides: str, sites: int = 2) -> Path:
    """The folder of a run whose model finds drugs and effects."""
    return run(tiny(folder, *LEARNING, *overrides, sites=sites), out=folder / "run").folder
