"""A linear-chain CRF whose emissions are sums of weights of hashed features (Lafferty et al. 2001).

    emission_t(y) = Σ_o Σ_f w[h(f, o, y)] + v_y · state_t + b_y

where f are the features of the word at place t + o, for o from -2 to 2. A feature comes as a keyed
number, its *mark*, and h maps mark, offset and tag into a table of a fixed size (Weinberger,
Dasgupta, Langford, Smola & Attenberg, "Feature Hashing for Large Scale Multitask Learning", ICML
2009). So there is no vocabulary to agree on, and the table is as large for one type as for twenty:
the tags of a type share a row, `O` has one by itself. h depends on a type's name and not on its
place, so that models of other tag sets mean the same by a row. States of a frozen encoder are
optional. The loss is convex.

A row is `SPECIALS` plus the highest bits of mark × factor, modulo 2^64, with an odd factor for each
offset and type (Dietzfelbinger, Hagerup, Katajainen & Penttonen 1997). The two lowest bits of a
mark say how far it is read (`reach_of`).

Shapes: B sentences, L tokens, U distinct words of the batch, C features of a word, N distinct
features of the batch, T blocks of tags (`O`, then the types), K tags of a type, Y tags, M rows of
the table that are looked up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from confide.models.crf import CRF, Rules
from confide.models.tagger import CrfTagger, TaggerInput

SPECIALS = 2
"""The first rows of every table, which belong to no feature."""
WINDOW = 2
"""How many neighbours on each side a word's tag depends on."""
REACH_BITS = 2
EDGE = 1 << REACH_BITS | WINDOW
"""The mark of what lies beyond the ends of a sentence; a keyed one is larger."""


@dataclass(frozen=True)
class LinearSizes:
    """A table of 2^`bits` rows; `prefixes` counts the tags of each of the `types`.

    `context_dim = 0` means no contextual features.
    """

    types: tuple[str, ...]
    prefixes: int
    bits: int = 16
    context_dim: int = 0

    @property
    def tags(self) -> int:
        """The number of tags, `O` included."""
        return 1 + len(self.types) * self.prefixes


class _Lookup(NamedTuple):
    """Which rows of the table a batch reads.

    `rows_M` has the rows of each offset's features in turn, a block of tags after the other;
    `counts` says how many features each offset has. `places_UC` says for each offset which of its
    features a word has; one past the last means none.
    """

    rows_M: Tensor
    counts: list[int]
    places_UC: list[Tensor]


class LinearTagger(CrfTagger):
    """The model of one tag set; all weights are 0 at the start."""

    def __init__(self, sizes: LinearSizes, rules: Rules | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        self.table = nn.Embedding(2**sizes.bits + SPECIALS, sizes.prefixes, padding_idx=0)
        # without states the layer reads a constant
        self.crf = CRF(sizes.context_dim or 1, sizes.tags, rules=rules)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        factors = [
            [_factor(place, name) for name in ("", *sizes.types)]
            for place in range(-WINDOW, WINDOW + 1)
        ]
        self.register_buffer("factors_OT", torch.tensor(factors), persistent=False)

    def forward(self, batch: TaggerInput) -> Tensor:
        """emissions_BLY; those in the padding are meaningless."""
        forms_BL = self._forms(batch)
        found = self._lookup(batch)
        values_MK = self.table(found.rows_M)
        blocks = self.get_buffer("factors_OT").shape[1]
        parts = values_MK.split([count * blocks for count in found.counts])
        length = batch.forms_BL.shape[1]
        emissions_BLY: Tensor = self.crf(self._dense(batch))
        for offset, (part_MK, places_UC) in enumerate(zip(parts, found.places_UC, strict=True)):
            part_NY = functional.pad(self._by_tag(part_MK), (0, 0, 0, 1))
            none = len(part_NY) - 1
            words_UY = functional.embedding_bag(places_UC, part_NY, mode="sum", padding_idx=none)
            at_BL = forms_BL[:, offset : offset + length]
            emissions_BLY = emissions_BLY + functional.embedding(at_BL, words_UY)
        return emissions_BLY

    def rows(self, batch: TaggerInput) -> Tensor:
        """The rows of the table that these sentences read, each once."""
        with torch.no_grad():
            rows_M: Tensor = torch.unique(self._lookup(batch).rows_M)
            return rows_M

    def _forms(self, batch: TaggerInput) -> Tensor:
        """forms_BL with `WINDOW` more on each side; what lies beyond a sentence is number U."""
        beyond = len(batch.characters_UC)
        steps_L = torch.arange(batch.forms_BL.shape[1], device=batch.lengths_B.device)
        forms_BL = batch.forms_BL.masked_fill(steps_L >= batch.lengths_B[:, None], beyond)
        return functional.pad(forms_BL, (WINDOW, WINDOW), value=beyond)

    def _dense(self, batch: TaggerInput) -> Tensor:
        if self.sizes.context_dim:
            assert batch.context_BLX is not None
            return batch.context_BLX
        return torch.ones(*batch.forms_BL.shape, 1).to(self.crf.linear.weight)

    def _lookup(self, batch: TaggerInput) -> _Lookup:
        """The rows of a batch's features; the word beyond the ends has only `EDGE`."""
        marks_UC = batch.characters_UC
        edge_C = functional.pad(marks_UC.new_tensor([EDGE]), (0, marks_UC.shape[1] - 1))
        marks_UC = torch.cat([marks_UC, edge_C[None]])
        marks_N, places_UC = torch.unique(marks_UC, return_inverse=True)
        reach_N = (marks_N & (2**REACH_BITS - 1)).masked_fill(marks_N == 0, -1)
        factors_OT = self.get_buffer("factors_OT")
        rows, counts, places = [], [], []
        for offset in range(-WINDOW, WINDOW + 1):
            read_N = reach_N >= abs(offset)
            rows.append(self._rows_of(marks_N[read_N], factors_OT[offset + WINDOW]))
            counts.append(len(rows[-1]))
            numbers_N = torch.where(read_N, read_N.cumsum(0) - 1, counts[-1])
            places.append(numbers_N[places_UC])
        return _Lookup(torch.cat([part.flatten() for part in rows]), counts, places)

    def _rows_of(self, marks_N: Tensor, factor_T: Tensor) -> Tensor:
        bits = self.sizes.bits
        hashed_NT = marks_N[:, None] * factor_T
        rows_NT: Tensor = (hashed_NT >> (64 - bits) & (2**bits - 1)) + SPECIALS
        return rows_NT

    def _by_tag(self, values_MK: Tensor) -> Tensor:
        """values_NY of N features, from those of their blocks."""
        blocks, prefixes = 1 + len(self.sizes.types), self.sizes.prefixes
        values_NTK = values_MK.view(-1, blocks, prefixes)
        return torch.cat([values_NTK[:, 0, :1], values_NTK[:, 1:].flatten(1)], 1)


def _factor(place: int, name: str) -> int:
    """The odd factor of an offset and a type; `O` is the type without a name."""
    found = hashlib.blake2b(f"{place} {name}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(found.digest(), "big", signed=True) | 1
