"""From relation examples to an encoder's word pieces: entities marked, long texts cut around them.

    … was caused by <e1> drug </e1> in most <e2> disease </e2> patients …

The two entities are wrapped in pieces of their own, whose rows follow those of the encoder's
vocabulary. By default they are replaced by the names of their types ("blinded"), so that the model
reads what is said about a pair instead of memorising pairs (Sui et al. 2020, FedED, 4.1). The text
is split at the borders of entities before it is split into pieces, so that no piece spans a border.

A text of more pieces than `longest` is cut to those around the entities, and never through one; if
the entities are too far apart for one window, the middle between them is dropped. Only an entity
longer than half a window is cut itself, and counted (`EncodedRelations.trimmed`).

Shapes: N pieces of all examples, S examples, P pieces of a batch's longest, B examples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from confide.data.batches.flat import Rows, offsets, places
from confide.data.batches.relations import RelationExample
from confide.data.batches.tagger import longest_first
from confide.data.batches.token_pieces import PieceBatch, pieces_of
from confide.errors import DataError
from confide.text.document import Span

Ints = NDArray[np.int32]
Tokenise = Callable[[Sequence[str]], list[list[int]]]
"""Texts to the numbers of their pieces, without special ones."""

_CHUNK = 1024  # examples that are cut into pieces at once
LEAST = 16
"""A window of fewer pieces cannot hold two entities and anything about them."""


@dataclass(frozen=True)
class Marking:
    """How examples are marked, and how many pieces one may have, special ones included.

    `types` are the entity types that have marks of their own (Zhou & Chen 2022, "typed entity
    marker"); if empty, all entities have the same marks. `first` is the number of the first mark,
    `before` and `after` are the special pieces around a text, `padding` fills a batch.
    """

    first: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    longest: int = 128
    blind: bool = True
    types: tuple[str, ...] = ()
    padding: int = 0

    @property
    def count(self) -> int:
        """How many marks there are: rows that the encoder needs behind its own."""
        return 4 * max(1, len(self.types))

    def around(self, type: str, *, tail: bool) -> tuple[int, int]:
        """The pieces before and after an entity. Raises DataError for a type without a mark."""
        if self.types and type not in self.types:
            raise DataError(
                "the relation model has no mark for the type of an entity",
                expected=", ".join(self.types),
                got=type,
                fix="map the type to one of these, or train with typed = false",
            )
        place = self.first + (4 * self.types.index(type) if self.types else 0) + 2 * tail
        return place, place + 1


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Where each example is in a flat array (`data.flat`), and its two entities and relation.

    `heads_S2` and `tails_S2`: from which word or piece of the example to which. `trimmed` counts
    examples of which an entity had to be cut.
    """

    from_S1: Rows
    heads_S2: Ints
    tails_S2: Ints
    relations_S: Ints
    trimmed: int = field(default=0, kw_only=True)

    @property
    def lengths_S(self) -> Rows:  # noqa: N802
        """Words of each example, or pieces with the special ones."""
        return np.diff(self.from_S1)

    def __len__(self) -> int:
        return len(self.relations_S)

    def only(self, rows: Rows) -> Self:
        """These examples, in this order; `trimmed` is not known of them, and 0."""
        return replace(
            self,
            from_S1=offsets(self.lengths_S[rows]),
            heads_S2=self.heads_S2[rows],
            tails_S2=self.tails_S2[rows],
            relations_S=self.relations_S[rows],
            trimmed=0,
        )


@dataclass(frozen=True, eq=False)
class EncodedRelations(EncodedPairs):
    """Examples as pieces; the entities are without their marks.

    `features_SF` are what a frozen encoder gives of each example, if that is known.
    """

    ids_N: Ints
    padding: int
    features_SF: NDArray[np.float32] | None = None

    def only(self, rows: Rows) -> Self:
        """These examples, in this order; `trimmed` is not known of them, and 0."""
        features_SF = None if self.features_SF is None else self.features_SF[rows]
        ids_N = self.ids_N[places(self.from_S1, rows)]
        return replace(super().only(rows), ids_N=ids_N, features_SF=features_SF)


@dataclass(frozen=True, eq=False)
class RelationBatch(PieceBatch):
    """What a relation classifier reads."""

    head_BP: Tensor
    tail_BP: Tensor
    openings_B2: Tensor
    relations_B: Tensor
    features_BF: Tensor | None = None


def numbered(examples: Sequence[RelationExample], relations: Sequence[str]) -> Ints:
    """The place of each example's relation in `relations`. Raises DataError if it has another."""
    numbers = {name: number for number, name in enumerate(relations)}
    for example in examples:
        if example.relation not in numbers:
            raise DataError(
                "an example has a relation outside the declared set",
                expected=", ".join(relations),
                got=example.relation,
                where=example.id,
            )
    return np.array([numbers[example.relation] for example in examples], np.int32)


def encode_relations(
    examples: Sequence[RelationExample],
    *,
    relations: Sequence[str],
    marking: Marking,
    tokenise: Tokenise,
) -> EncodedRelations:
    """Every example as pieces, and its relation as its place in `relations`.

    Raises DataError if an example has another relation or the window is too small.
    """
    if marking.longest - len(marking.before) - len(marking.after) < LEAST:
        raise DataError(
            "the window is too small for two entities",
            expected=f"at least {LEAST} pieces between the special ones",
            got=str(marking.longest),
        )
    relations_S = numbered(examples, relations)
    rows: list[_Row] = []
    for start in range(0, len(examples), _CHUNK):
        rows += _rows(examples[start : start + _CHUNK], marking, tokenise)
    return EncodedRelations(
        ids_N=np.array([piece for row in rows for piece in row.ids], np.int32),
        from_S1=offsets([len(row.ids) for row in rows]),
        heads_S2=np.array([row.head for row in rows], np.int32).reshape(-1, 2),
        tails_S2=np.array([row.tail for row in rows], np.int32).reshape(-1, 2),
        relations_S=relations_S,
        padding=marking.padding,
        trimmed=sum(row.trimmed for row in rows),
    )


def predict_relation_batches(
    encoded: EncodedRelations, *, pieces_per_batch: int = 2048
) -> Iterator[RelationBatch]:
    """Every example once, longest first, at most `pieces_per_batch` padded pieces in a batch."""
    for rows in longest_first(encoded.lengths_S, pieces_per_batch):
        yield relation_batch(encoded, rows)


def relation_batch(encoded: EncodedRelations, rows_B: Rows) -> RelationBatch:
    """These examples as one batch, in this order."""
    ids_BP, mask_BP = pieces_of(encoded.ids_N, encoded.from_S1, rows_B, padding=encoded.padding)
    steps_P = np.arange(ids_BP.shape[1])
    heads_B2, tails_B2 = encoded.heads_S2[rows_B], encoded.tails_S2[rows_B]
    openings_B2 = np.stack((heads_B2[:, 0], tails_B2[:, 0]), 1).astype(np.int64) - 1
    return RelationBatch(
        rows_B=rows_B,
        ids_BP=ids_BP,
        mask_BP=mask_BP,
        head_BP=torch.from_numpy(_within(heads_B2, steps_P)),
        tail_BP=torch.from_numpy(_within(tails_B2, steps_P)),
        openings_B2=torch.from_numpy(openings_B2),
        relations_B=torch.from_numpy(encoded.relations_S[rows_B].astype(np.int64)),
        features_BF=(
            None if encoded.features_SF is None else torch.from_numpy(encoded.features_SF[rows_B])
        ),
    )


def _within(ranges_B2: Ints, steps_P: NDArray[np.int64]) -> NDArray[np.bool_]:
    inside_BP: NDArray[np.bool_] = (ranges_B2[:, :1] <= steps_P) & (steps_P < ranges_B2[:, 1:])
    return inside_BP


# --- one example ----------------------------------------------------------------------------


class _Row(NamedTuple):
    ids: list[int]
    head: tuple[int, int]
    tail: tuple[int, int]
    trimmed: bool


class _Cut(NamedTuple):
    """A border in the text where a mark goes. `order` sorts what is at the same character."""

    place: int
    order: tuple[int, int]
    mark: int


def _rows(
    examples: Sequence[RelationExample], marking: Marking, tokenise: Tokenise
) -> Iterator[_Row]:
    """The pieces of each example, with all their texts tokenised together."""
    plans = [_plan(example, marking) for example in examples]
    texts = [part for plan in plans for part in plan if isinstance(part, str)]
    pieces = iter(tokenise(texts))
    for example, plan in zip(examples, plans, strict=True):
        flat: list[int] = []
        for part in plan:
            flat += next(pieces) if isinstance(part, str) else [part]
        marks = [
            marking.around(type, tail=tail)
            for type, tail in ((example.head_type, False), (example.tail_type, True))
        ]
        spans = [(flat.index(opening) + 1, flat.index(closing)) for opening, closing in marks]
        yield _cut_to_window(flat, spans, marking)


def _plan(example: RelationExample, marking: Marking) -> list[str | int]:
    """Texts and marks in turn. Entities that overlap are not blinded: what is between would go."""
    head, tail = _mentions(example)
    blinded: dict[Span, str] = {}
    if marking.blind and (head[1] <= tail[0] or tail[1] <= head[0]):
        blinded = {head: example.head_type, tail: example.tail_type}
    plan: list[str | int] = []
    at = 0
    cuts = _cuts(example.head_type, head, marking, tail=False)
    for cut in sorted(cuts + _cuts(example.tail_type, tail, marking, tail=True)):
        between = (at, cut.place)
        plan += [blinded.get(between, example.text[slice(*between)]), cut.mark]
        at = cut.place
    return [*plan, example.text[at:]]


def _cuts(type: str, mention: Span, marking: Marking, *, tail: bool) -> list[_Cut]:
    """Of two entities that begin together the longer opens first; what opened last closes first."""
    start, end = mention
    opening, closing = marking.around(type, tail=tail)
    return [_Cut(start, (1, -2 * end + tail), opening), _Cut(end, (0, -2 * start - tail), closing)]


def _mentions(example: RelationExample) -> tuple[Span, Span]:
    """Where each entity is marked: all of it, or its first fragment where the other is inside."""
    hulls = [(one[0][0], one[-1][1]) for one in (example.head, example.tail)]
    found = []
    for own, other, fragments in (
        (hulls[0], hulls[1], example.head),
        (hulls[1], hulls[0], example.tail),
    ):
        inside = len(fragments) > 1 and own[0] < other[1] and other[0] < own[1]
        found.append(fragments[0] if inside else own)
    return found[0], found[1]


def _cut_to_window(flat: list[int], spans: list[tuple[int, int]], marking: Marking) -> _Row:
    """The pieces around both entities that fit, with the special ones."""
    room = marking.longest - len(marking.before) - len(marking.after)
    kept = list(range(len(flat)))
    trimmed = False
    if len(flat) > room:
        kept, trimmed = window(len(flat), [(a - 1, b + 1) for a, b in spans], room)
    shift = len(marking.before)
    place = {old: new + shift for new, old in enumerate(kept)}
    ranges = []
    for start, end in spans:
        inside = [place[old] for old in range(start, end) if old in place]
        opening = place[start - 1]
        ranges.append((opening + 1, inside[-1] + 1 if inside else opening + 1))
    ids = [*marking.before, *(flat[old] for old in kept), *marking.after]
    return _Row(ids, ranges[0], ranges[1], trimmed)


def window(length: int, marked: list[tuple[int, int]], room: int) -> tuple[list[int], bool]:
    """Which `room` of `length` pieces stay, and whether one of two marked ranges had to be cut."""
    first, last = sorted(marked)
    start, end = first[0], max(first[1], last[1])
    if end - start <= room:
        return list(_widened(start, end, length, room)), False
    if last[0] < first[1]:  # they overlap, and are too long together
        must = {*_ends(first, room // 2), *_ends(last, room // 2 - 2)}
        return sorted(must), True
    halves = [_ends(one, room // 2) for one in (first, last)]
    trimmed = any(len(half) < b - a for half, (a, b) in zip(halves, (first, last), strict=True))
    must = {place for half in halves for place in half}
    spare = room - len(must)
    around = (range(first[0] - 1, -1, -1), range(first[1], last[0]),
              range(last[0] - 1, first[1] - 1, -1), range(last[1], length))  # fmt: skip
    turns = [iter(one) for one in around]
    while spare and turns:
        for turn in list(turns):
            place = next((p for p in turn if p not in must), None)
            if place is None:
                turns.remove(turn)
            elif spare:
                must.add(place)
                spare -= 1
    return sorted(must), trimmed


def _ends(one: tuple[int, int], most: int) -> list[int]:
    """The places of a range, or a number of them from both ends."""
    start, end = one
    if end - start <= most:
        return list(range(start, end))
    left = most // 2
    return [*range(start, start + left), *range(end - (most - left), end)]


def _widened(start: int, end: int, length: int, room: int) -> range:
    """The range made as wide as there is room, to both sides alike as far as the text goes."""
    spare = room - (end - start)
    left = min(start, max(spare // 2, spare - (length - end)))
    return range(start - left, min(length, end + spare - left))
