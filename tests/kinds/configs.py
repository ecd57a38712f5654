"""Training settings, for tests that make an ask by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from confide.kinds.protocol import TrainConfig

PLAIN = TrainConfig(
    learning_rate=0.1,
    optimiser="sgd",
    momentum=0.0,
    weight_decay=0.0,
    clip=5.0,
    batch_size=10,
    epochs=1,
    word_dropout=0.0,
    vectors=False,
    round=1,
)


def config(**changes: Any) -> TrainConfig:
    """Plain SGD, but for these changes."""
    return replace(PLAIN, **changes)
