"""Greedy decoding of entities: start, end, type, and so on, until stop (Wang et al. 2023, Eq. 4).

With constraints, a step chooses among the symbols that the grammar allows:

    entities  →  stop  |  start  end  type  entities

with an end not before its start, and a start after the end of the previous entity. So entities come
in order, complete and without overlaps. Without constraints, as in the paper, any symbol may come
at any step, at most three for each word.

Where only some types are wanted, the model writes as ever, with all of its types: what it reads of
its own writing is what it was trained on. An entity's label is then the likeliest wanted one. If
that is not the likeliest of all, it must be likelier, with its start and end, than that no entity
starts there, or else the entity keeps its unwanted type. Its probability is given that no unwanted
type was possible: P(start) P(end) P(type) / (1 - P(start) P(end) P(unwanted types)).

All texts of a batch advance together. Those that have stopped leave the batch once they are a
quarter of it, since leaving copies all keys and values.

Shapes: B texts, V symbols, T steps, L words; see `models.lightner`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from confide.models.bart import Reading
from confide.models.lightner import NOTHING, Lightner, LightnerInput, Text, logits

_LEAVE = 0.75  # no row leaves while more than this share of them still writes


class Written(NamedTuple):
    """symbols_BT, `NOTHING` after stop, and the log probability of each.

    Probabilities are among all symbols, whatever the grammar allows, but for wanted types.
    """

    symbols_BT: Tensor
    log_probs_BT: Tensor


def write(
    model: Lightner,
    batch: LightnerInput,
    *,
    constrained: bool = True,
    wanted_Y: Tensor | None = None,
) -> Written:
    """What the model writes for each text. Call it without gradients, in evaluation mode.

    `wanted_Y` is true at the types that are wanted; None: all, and at least one must be. A text
    that fills all of the decoder's places ends without a stop.
    """
    text = model.known(batch)
    rows_B = _steps(len(batch.lengths_B), batch.lengths_B)
    cache, prompts = model.bart.cache(), model.wrote()
    writing = _Writing(model.types, batch.lengths_B, wanted_Y=wanted_Y)
    given_BD = model.started().expand(len(rows_B), -1)
    most = model.bart.config.max_position_embeddings // 3 * 3
    for step in range(min(most, 3 * int(batch.lengths_B.max()) + 1)):
        states_B1D = model.bart.write(
            given_BD[:, None] * model.bart.scale, text.reading, prompts=prompts, cache=cache
        )
        log_probs_BV = functional.log_softmax(logits(states_B1D, text)[:, 0], 1)
        allowed_BV = text.known_BV
        if constrained:
            allowed_BV = allowed_BV & writing.allowed(step, text.known_BV.shape[1])
        chosen_B = log_probs_BV.masked_fill(~allowed_BV, -torch.inf).argmax(1)
        writing.add(rows_B, chosen_B, log_probs_BV=log_probs_BV)
        going_B = ~writing.finished_B[rows_B]
        left = int(going_B.sum())
        if not left:
            break
        given_BD = text.given_BVD[_steps(len(rows_B), rows_B), chosen_B]
        if left <= _LEAVE * len(rows_B):
            kept_K = going_B.nonzero()[:, 0]
            rows_B, given_BD = rows_B[kept_K], given_BD[kept_K]
            text = _only(text, kept_K)
            cache.batch_select_indices(kept_K)
            writing.keep(kept_K)
    return writing.result()


def _only(text: Text, rows_K: Tensor) -> Text:
    states_BPD, mask_B11P = text.reading
    return Text(
        reading=Reading(states_BPD[rows_K], None if mask_B11P is None else mask_B11P[rows_K]),
        given_BVD=text.given_BVD[rows_K],
        sought_BVD=text.sought_BVD[rows_K],
        known_BV=text.known_BV[rows_K],
    )


class _Writing:
    """What has been written, and what the grammar says of the next symbol."""

    def __init__(self, types: int, lengths_B: Tensor, *, wanted_Y: Tensor | None) -> None:
        rows = len(lengths_B)
        self.types = types
        self.lengths_B = lengths_B
        self.wanted_Y = wanted_Y
        self.finished_B = lengths_B.new_zeros(rows, dtype=torch.bool)
        # the first allowed word, as a symbol
        self.least_B = lengths_B.new_full((rows,), types + 1)
        self.symbols: list[Tensor] = []
        self.log_probs: list[Tensor] = []

    def allowed(self, step: int, symbols: int) -> Tensor:
        """allowed_BV, for the remaining texts."""
        numbers_V = _steps(symbols, self.least_B)
        place = step % 3
        if place == 2:
            return (numbers_V < self.types).expand(len(self.least_B), -1)
        words_BV = numbers_V >= self.least_B[:, None]
        return words_BV if place else words_BV | (numbers_V == self.types)

    def add(self, rows_B: Tensor, chosen_B: Tensor, *, log_probs_BV: Tensor) -> None:
        """Record a step: a start or an end bounds the next word from the left."""
        step = len(self.symbols)
        if step % 3 == 0:
            self.least_B = chosen_B
        elif step % 3 == 1:
            self.least_B = chosen_B + 1
        going_B = ~self.finished_B[rows_B]
        self.finished_B[rows_B] |= chosen_B == self.types
        log_prob_B = log_probs_BV.gather(1, chosen_B[:, None])[:, 0]
        if self.wanted_Y is not None and step >= 2:
            chosen_B, log_prob_B = self._wanted(rows_B, chosen_B, log_prob_B, log_probs_BV)
        symbols_B = chosen_B.new_full((len(self.finished_B),), NOTHING)
        symbols_B[rows_B] = chosen_B.masked_fill(~going_B, NOTHING)
        found_B = log_probs_BV.new_zeros(len(self.finished_B))
        found_B[rows_B] = log_prob_B
        self.symbols.append(symbols_B)
        self.log_probs.append(found_B.masked_fill(symbols_B == NOTHING, 0.0))
        self.finished_B |= step + 1 > 3 * self.lengths_B

    def _wanted(
        self, rows_B: Tensor, chosen_B: Tensor, log_prob_B: Tensor, log_probs_BV: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The symbols with wanted labels where these win, and their log probabilities."""
        assert self.wanted_Y is not None
        types_BY = log_probs_BV[:, : self.types]
        label_B = types_BY.masked_fill(~self.wanted_Y, -torch.inf).max(1)
        unwanted_B = types_BY.masked_fill(self.wanted_Y, -torch.inf).logsumexp(1).exp()
        start_B = self.log_probs[-2][rows_B]
        ends_B = (start_B + self.log_probs[-1][rows_B]).exp()
        wins_B = (label_B.indices == chosen_B) | (
            ends_B * label_B.values.exp() > 1.0 - start_B.exp()
        )
        given_B = label_B.values - torch.log1p(-ends_B * unwanted_B)
        wins_B = wins_B & (chosen_B < self.types)
        return (
            torch.where(wins_B, label_B.indices, chosen_B),
            torch.where(wins_B, given_B, log_prob_B),
        )

    def keep(self, rows_K: Tensor) -> None:
        """Keep only these texts."""
        self.least_B = self.least_B[rows_K]

    def result(self) -> Written:
        """All that was written."""
        return Written(torch.stack(self.symbols, 1), torch.stack(self.log_probs, 1))


def _steps(count: int, beside: Tensor) -> Tensor:
    return torch.arange(count, device=beside.device)
