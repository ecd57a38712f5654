"""Distillation token by token: predicting every token, and learning others' predictions.

The kinds that tag words differ in what they predict of a token (a CRF its marginals, an encoder its
logits); reading windows, and the loss of a sentence, are the same (Sui et al. 2020, Eq. 6, with a
token in place of an example):

    loss = [labels] w · ordinary loss of the sentence + Σ_t τ² KL(teacher_t ‖ student_t)

Tokens are counted over all sentences, in order. A token that two windows of a long sentence share
is predicted by the window that owns it, and learnt in both, as its own tag would be.

Shapes: T tokens of all sentences, N tokens of all windows, S windows, B windows of a batch, L
tokens, Y tags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.encoding import Window
from confide.learning.devices import at_home, on
from confide.models.distillation import distillation_loss

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What is to be learnt of a text, or of other rows.

    `teacher_TY` are probabilities; a row of zeros teaches nothing. `temperature` softens the
    student. `labels_T` is how much the loss of each row's own label counts, the same for all tokens
    of a sentence; if all are 0, labels are not learnt.
    """

    teacher_TY: NDArray[np.float32]
    temperature: float
    labels_T: NDArray[np.float32]

    @property
    def labelled(self) -> bool:
        """Whether any label is learnt."""
        return bool(self.labels_T.any())


class Places(NamedTuple):
    """For each token of a window: its place in the text, and whether the window owns it."""

    tokens_N: Rows
    owned_N: NDArray[np.bool_]
    from_S1: Rows


def places_of(windows: Sequence[Window]) -> Places:
    """The places of the windows' tokens, window after window, in the text.

    The windows of a sentence come in order, and the last one ends with the sentence.
    """
    lengths: dict[int, int] = {window.example: window.end for window in windows}
    starts = np.append(0, np.cumsum(list(lengths.values()), dtype=np.int64))
    first = dict(zip(lengths, starts.tolist(), strict=False))
    none = np.zeros(0, np.int64)
    within = [np.arange(window.start, window.end) for window in windows]
    tokens = [first[w.example] + steps for w, steps in zip(windows, within, strict=True)]
    owned = [
        (steps >= w.own_start) & (steps < w.own_end)
        for w, steps in zip(windows, within, strict=True)
    ]
    ends = np.cumsum([len(steps) for steps in within], dtype=np.int64)
    return Places(
        np.concatenate([none, *tokens]),
        np.concatenate([none.astype(np.bool_), *owned]),
        np.append(0, ends).astype(np.int64),
    )


def said_of_tokens(
    windows: Sequence[Window], said: Iterable[tuple[Rows, Tensor]], *, tags: int
) -> NDArray[np.float32]:
    """logits_TY of every token, from logits_BLY of windows, batch by batch."""
    places = places_of(windows)
    logits_TY = np.zeros((int(places.owned_N.sum()), tags), np.float32)
    for rows_B, logits_BLY in said:
        for row, logits_LY in zip(rows_B.tolist(), at_home(logits_BLY), strict=True):
            here = slice(places.from_S1[row], places.from_S1[row + 1])
            owned_L = places.owned_N[here]
            logits_TY[places.tokens_N[here][owned_L]] = logits_LY[: len(owned_L)][owned_L]
    return logits_TY


def told_by(lesson: Lesson, windows: Sequence[Window]) -> Callable[[Rows], Tensor]:
    """weights_B of rows_B: how much the ordinary loss of each window counts; on the processor."""
    places = places_of(windows)
    weights_S = torch.from_numpy(lesson.labels_T[places.tokens_N[places.from_S1[:-1]]])
    return lambda rows_B: weights_S[torch.from_numpy(rows_B)]


def taught_by(lesson: Lesson, windows: Sequence[Window]) -> Callable[[Tensor, Rows], Tensor]:
    """loss_B of logits_BLY and rows_B: the sum over each window's tokens."""
    places = places_of(windows)
    teacher_NY = torch.from_numpy(lesson.teacher_TY)[torch.from_numpy(places.tokens_N)]

    def loss(logits_BLY: Tensor, rows_B: Rows) -> Tensor:
        steps_L = np.arange(logits_BLY.shape[1])
        starts_B1 = places.from_S1[rows_B][:, None]
        ends_B1 = places.from_S1[1:][rows_B][:, None]
        inside_BL = torch.from_numpy(starts_B1 + steps_L < ends_B1)
        found_BL = torch.from_numpy(np.where(inside_BL, starts_B1 + steps_L, 0))
        # a teacher of zeros teaches nothing
        teacher_BLY = teacher_NY[found_BL].masked_fill(~inside_BL[:, :, None], 0.0)
        return distillation_loss(
            logits_BLY,
            on(teacher_BLY, logits_BLY).to(logits_BLY.dtype),
            temperature=lesson.temperature,
        ).sum(1)

    return loss
