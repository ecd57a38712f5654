"""Counts of a model that writes noised text again: what adds up over sites -> rates.

A piece is a word piece that the model is to write. It is *hidden* where the noised text of its
passage does not have it, so that it cannot be copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class TextCounts:
    """Pieces to write, and what became of them. Numbers only.

    Attributes:
        pieces: how many were to be written.
        right: how many of them were the likeliest of all pieces.
        hidden: how many are not in the noised text.
        hidden_right: how many of these were the likeliest.
        loss: the sum of -ln p over all pieces, in nats.
    """

    pieces: int = 0
    right: int = 0
    hidden: int = 0
    hidden_right: int = 0
    loss: float = 0.0

    def __add__(self, other: TextCounts) -> TextCounts:
        return sum_text_counts((self, other))


def sum_text_counts(parts: Iterable[TextCounts]) -> TextCounts:
    """The counts over all parts; nothing gives empty counts."""
    known = list(parts)
    names = [field.name for field in fields(TextCounts)]
    return TextCounts(**{name: sum(getattr(part, name) for part in known) for name in names})


def text_scores(counts: TextCounts) -> dict[str, Any]:
    """The JSON form of counts; every rate is a fraction from 0 to 1.

    `{"likelihood": geometric mean of the pieces' probabilities, which is 1 / perplexity, "right":
    share of pieces, "hidden": share of hidden pieces, "loss": nats per piece, "pieces": n,
    "hidden_pieces": n}`.
    """
    loss = counts.loss / counts.pieces if counts.pieces else 0.0
    return {
        "likelihood": math.exp(-loss) if counts.pieces else 0.0,
        "right": counts.right / counts.pieces if counts.pieces else 0.0,
        "hidden": counts.hidden_right / counts.hidden if counts.hidden else 0.0,
        "loss": loss,
        "pieces": counts.pieces,
        "hidden_pieces": counts.hidden,
    }
