"""Distillation span by span: predicting every span of a text, and learning others' predictions.

As `learning.teaching`, with a span of at most so many words in place of a token. A row has a class
for "no entity", whose logit is 0, and one for each type; so the softmax of a row says the same as
the model's own sigmoids: both are learnt exactly where the logits are the teacher's. Rows are
counted over all sentences, by first word, then width.

Where a sentence is read in windows, a span is predicted by the window that owns its first word, and
learnt in every window that it lies in. One that reaches out of its window is predicted to be none.

Shapes: T rows of all sentences, B windows of a batch, N spans of a window (first word, then width),
Y types, Z = Y + 1 classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from confide.data.batches.encoding import Window
from confide.data.batches.spans import cells_from
from confide.learning.devices import at_home, on
from confide.learning.teaching import Lesson, Rows
from confide.models.distillation import distillation_loss

NEVER = -12.0
"""The logit of each type of a span that no window holds."""


@dataclass(frozen=True, eq=False)
class Cells:
    """Where the spans of a text's windows stand among its rows. E sentences."""

    windows: Sequence[Window]
    width: int
    words_E: list[int]
    from_E1: Rows

    @classmethod
    def of(cls, windows: Sequence[Window], width: int) -> Cells:
        """Those of windows that come in the order of sentences; each one's last ends with it."""
        ends: dict[int, int] = {window.example: window.end for window in windows}
        words_E = [ends.get(one, 0) for one in range(max(ends, default=-1) + 1)]
        each_E = [int(cells_from(words, width)[-1]) for words in words_E]
        return cls(windows, width, words_E, np.append(0, np.cumsum(each_E)).astype(np.int64))

    def rows_of(self, rows_B: Rows, *, words: int, owned: bool = False) -> Rows:
        """rows_BN of windows padded to this many words: -1 for a span that ends outside.

        With `owned`, also -1 for a span whose first word is another window's.
        """
        rows_BLW = np.full((len(rows_B), words, self.width), -1, np.int64)
        for place, number in enumerate(rows_B.tolist()):
            window = self.windows[number]
            length = window.end - window.start
            before_L = cells_from(self.words_E[window.example], self.width)
            firsts_L1 = np.arange(window.start, window.end)[:, None]
            found_LW = before_L[firsts_L1] + np.arange(self.width) + self.from_E1[window.example]
            inside_LW = firsts_L1 + np.arange(self.width) < window.end
            if owned:
                inside_LW &= (window.own_start <= firsts_L1) & (firsts_L1 < window.own_end)
            rows_BLW[place, :length] = np.where(inside_LW, found_LW, -1)
        return rows_BLW.reshape(len(rows_B), words * self.width)

    def said(self, given: Iterable[tuple[Rows, Tensor]], *, types: int) -> NDArray[np.float32]:
        """logits_TZ of every span, from the logits_BNY of windows, batch by batch."""
        logits_TZ = np.full((int(self.from_E1[-1]), types + 1), NEVER, np.float32)
        logits_TZ[:, 0] = 0.0
        for rows_B, logits_BNY in given:
            places_BN = self.rows_of(rows_B, words=logits_BNY.shape[1] // self.width, owned=True)
            logits_TZ[places_BN[places_BN >= 0], 1:] = at_home(logits_BNY)[places_BN >= 0]
        return logits_TZ

    def taught(self, lesson: Lesson, logits_BNY: Tensor, rows_B: Rows) -> Tensor:
        """loss_B: τ² KL(teacher ‖ student), summed over each window's spans."""
        places_BN = self.rows_of(rows_B, words=logits_BNY.shape[1] // self.width)
        teacher_BNZ = np.where(
            (places_BN >= 0)[:, :, None], lesson.teacher_TY[places_BN], np.float32(0)
        )
        return distillation_loss(
            functional.pad(logits_BNY, (1, 0)),
            on(torch.from_numpy(teacher_BNZ), logits_BNY).to(logits_BNY.dtype),
            temperature=lesson.temperature,
        ).sum(1)

    def told(self, lesson: Lesson, rows_B: Rows) -> Tensor:
        """weights_B: how much the ordinary loss of each window counts; on the processor."""
        firsts_B = [self.from_E1[self.windows[row].example] for row in rows_B.tolist()]
        return torch.from_numpy(lesson.labels_T[firsts_B])
