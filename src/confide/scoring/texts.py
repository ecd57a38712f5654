"""Counts of a model that restores noised text: counts that add up over sites -> rates.

A piece is a word piece that the model has to write. It is *hidden* if the noised text of its
passage lacks it, so that it cannot be copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from confide.scoring.calibration import Sure
from confide.scoring.scores import Scored


@dataclass(frozen=True, slots=True)
class TextCounts:
    """How many pieces there were and how the model did on them. Numbers only.

    Attributes:
        pieces: how many pieces there were to write.
        right: for how many of them the correct piece was the likeliest.
        hidden: how many pieces the noised text lacks.
        hidden_right: for how many of these the correct piece was the likeliest.
        loss: the sum of -ln p over all pieces, in nats.
    """

    pieces: int = 0
    right: int = 0
    hidden: int = 0
    hidden_right: int = 0
    loss: float = 0.0

    @property
    def sure(self) -> Sure:
        """Nothing: a BART's pieces have no confidence that anybody reads."""
        return {}

    def __add__(self, other: TextCounts) -> TextCounts:
        return sum_text_counts((self, other))


def sum_text_counts(parts: Iterable[TextCounts]) -> TextCounts:
    """The counts over all parts; nothing gives empty counts."""
    known = list(parts)
    names = [field.name for field in fields(TextCounts)]
    return TextCounts(**{name: sum(getattr(part, name) for part in known) for name in names})


def text_scores(counts: TextCounts) -> Scored:
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
