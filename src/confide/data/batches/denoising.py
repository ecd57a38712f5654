"""Batches of noised passages beside the originals.

The encoder reads [CLS] noised text [SEP]; the decoder reads [CLS] text and must write text [SEP].
An epoch's batches, their order and their noise depend only on the passages, the settings and the
seed, so training can continue from any batch.

Shapes: B passages of a batch, P noised pieces (padded), Q written ones (padded), N written ones
without padding, S passages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.flat import rows_of
from confide.data.batches.least import joined
from confide.data.batches.noise import Ints, Noise, noised
from confide.data.batches.passages import Passages
from confide.errors import DataError

_POOL = 64  # batches' worth of passages among which like lengths are looked for


@dataclass(frozen=True)
class Specials:
    """The numbers of the pieces around a text, of padding, and of what stands for a span."""

    start: int
    end: int
    padding: int
    mask: int


@dataclass(frozen=True, eq=False)
class DenoisingBatch:
    """`written_BQ` goes into the decoder, which must predict `targets_N` where `real_BQ` is true.

    `hidden_N` is true if the noised text of the row lacks the piece.
    """

    source_BP: Tensor
    seen_BP: Tensor
    written_BQ: Tensor
    real_BQ: Tensor
    targets_N: Tensor
    hidden_N: Tensor

    @property
    def tokens(self) -> int:
        """Written pieces without padding."""
        return len(self.targets_N)

    def __len__(self) -> int:
        return len(self.source_BP)

    def part(self, start: int, end: int) -> DenoisingBatch:
        """Some of its passages."""
        own = rows_of(self, start, end)
        begin = int(self.real_BQ[:start].sum())
        pieces = slice(begin, begin + int(own.real_BQ.sum()))
        return replace(own, targets_N=self.targets_N[pieces], hidden_N=self.hidden_N[pieces])


@dataclass(frozen=True)
class Batching:
    """How passages become batches. `longest` counts special pieces too."""

    specials: Specials
    noise: Noise = field(default_factory=Noise)
    longest: int = 128
    pieces_per_batch: int = 2048


def epoch_plan(passages: Passages, how: Batching, *, seed: int) -> list[NDArray[np.int64]]:
    """The passages of each batch of an epoch, similar lengths together, batches in random order.

    Where a gradient must cover more passages, short batches are joined to their neighbours.

    Raises DataError if there is no passage.
    """
    if not len(passages):
        raise DataError("there is no text to learn from")
    rng = np.random.default_rng(seed)
    lengths_S = passages.lengths_S + 2
    order_S = rng.permutation(len(passages))
    pool = max(1, _POOL * how.pieces_per_batch // int(lengths_S.mean()))
    plan: list[NDArray[np.int64]] = []
    for start in range(0, len(order_S), pool):
        part = order_S[start : start + pool]
        part = part[np.argsort(lengths_S[part], kind="stable")]
        plan += _full_batches(part, lengths_S, how.pieces_per_batch)
    plan = joined(plan)
    return [plan[place] for place in rng.permutation(len(plan))]


def _full_batches(
    order: NDArray[np.int64], lengths_S: NDArray[np.int64], most: int
) -> Iterator[NDArray[np.int64]]:
    """Runs of at most `most` pieces, padding included; shortest first, so the last is longest."""
    start = 0
    for place in range(len(order)):
        if place > start and (place + 1 - start) * lengths_S[order[place]] > most:
            yield order[start:place]
            start = place
    yield order[start:]


def denoising_batch(
    passages: Passages, places: NDArray[np.int64], how: Batching, *, seed: int
) -> DenoisingBatch:
    """These passages, each noised by its own draw from the seed."""
    special, room = how.specials, how.longest - 2
    sources: list[Ints] = []
    targets: list[Ints] = []
    for place in places:
        rng = np.random.default_rng((seed, int(place)))
        passage = passages[int(place)]
        found = noised(passage, how.noise, mask=special.mask, longest=room, rng=rng)
        sources.append(np.concatenate([[special.start], found, [special.end]]).astype(np.int32))
        targets.append(np.append(passage.ids_P, special.end))
    written = [np.append(special.start, target[:-1]) for target in targets]
    source_BP, seen_BP = _padded(sources, special.padding)
    written_BQ, real_BQ = _padded(written, special.padding)
    hidden = [~np.isin(t, s) for s, t in zip(sources, targets, strict=True)]
    return DenoisingBatch(
        source_BP=source_BP,
        seen_BP=seen_BP,
        written_BQ=written_BQ,
        real_BQ=real_BQ,
        targets_N=torch.from_numpy(np.concatenate(targets).astype(np.int64)),
        hidden_N=torch.from_numpy(np.concatenate(hidden)),
    )


def _padded(rows: list[Ints], padding: int) -> tuple[Tensor, Tensor]:
    ids = np.full((len(rows), max(map(len, rows))), padding, np.int64)
    real = np.zeros(ids.shape, np.bool_)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        real[place, : len(row)] = True
    return torch.from_numpy(ids), torch.from_numpy(real)
