"""What the contract has to know of each method. A new method adds one entry."""

from __future__ import annotations

from dataclasses import dataclass

from confide.methods import METHODS


@dataclass(frozen=True)
class Entry:
    """How a method's tiny run is set up.

    Attributes:
        learning: overrides with which it learns `contract.corpus` in a few rounds.
        reaches: the strict F1 that it must reach with them, on test text.
        variants: overrides of other forms of the method that must resume and agree too.
    """

    learning: tuple[str, ...]
    reaches: float
    variants: tuple[tuple[str, ...], ...] = ()


OPTIONAL = {"describe_encoder"}
"""Steps that are asked only where the settings name an encoder (tests/methods/test_context.py)."""


ENTRIES: dict[str, Entry] = {
    "fedavg": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=2",
            "training.learning_rate=0.03",
            "model.dropout=0.1",
        ),
        reaches=0.9,
        variants=(
            ("options.weighting=sentences", "options.rows=seen"),
            ("model.character=bilstm",),
        ),
    ),
    "fedner": Entry(
        learning=(
            "rounds=60",
            "select.every=20",
            "training.learning_rate=0.02",
            "training.batch_size=18",
            "model.dropout=0.1",
        ),
        reaches=0.9,
        variants=(
            ("select.every=2", "rounds=5"),
            ("options.local_steps=2", "options.wire_dtype=float16", "options.sparse=true"),
            ('options.private=["crf"]', "model.cnn_filters=6", "model.cnn_widths=[1,3]"),
            ('options.private=["word","character","cnn","bilstm","crf"]',),
            ("options.private=[]",),
        ),
    ),
}

STEPS = [
    (method, step.name)
    for method, kind in METHODS.items()
    for step in kind.steps
    if step.name not in OPTIONAL
]
"""Every step of every method, but for those that are optional."""
