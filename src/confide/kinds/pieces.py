"""An encoder's word pieces of sentences and of relation examples, and a frozen one's features.

A sentence of more pieces than the encoder reads at once is cut between words into windows that
overlap by about a quarter; an entity belongs to the window that owns its first token, as in
`training.batches`. A word without a piece (a control character, an unusual space) is read as the
unknown piece. A word longer than a quarter of a window is cut to that many pieces.

Annotation comes later (`training.batches`) and never changes a piece.

Shapes: N pieces of all windows, W words of all windows, S windows, B windows of a batch, P pieces,
L words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from confide.errors import DataError
from confide.kinds.relations.batches import RelationExample
from confide.text.document import Span
from confide.training import batches
from confide.training.context import kept_rows
from confide.training.devices import at_home, beside, most_read, predicting, where_is
from confide.training.tagger import longest_first

Cut = Callable[[Sequence[Sequence[str]]], list[list[list[int]]]]
"""Sentences to the numbers of each word's pieces, without special ones."""

LEAST = 8
"""The fewest pieces between the special ones; a smaller window leaves no context."""


@dataclass(frozen=True)
class Pieces:
    """The form of an encoder's input: special pieces around a text, and those for padding.

    `longest` is how many pieces it reads at once, special ones included.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    unknown: int
    padding: int
    longest: int = 128

    @property
    def room(self) -> int:
        """The number of pieces that fit between the special ones. Raises DataError if too few."""
        room = self.longest - len(self.before) - len(self.after)
        if room < LEAST:
            raise DataError(
                "the window is too small for a sentence",
                expected=f"at least {LEAST} pieces between the special ones",
                got=str(self.longest),
            )
        return room


@dataclass(frozen=True, eq=False)
class TokenText:
    """Sentences as numbers. Window `s` has the pieces `ids_N[from_S1[s]:from_S1[s + 1]]`.

    `firsts_W[words_from_S1[s]:words_from_S1[s + 1]]` are the places in it of its words' first
    pieces. `features_WD` are what a frozen encoder gives of each word, if that is known.
    """

    examples: int
    windows: tuple[batches.Window, ...]
    ids_N: batches.Ints
    from_S1: NDArray[np.int64]
    firsts_W: batches.Ints
    words_from_S1: NDArray[np.int64]
    padding: int
    features_WD: NDArray[np.float32] | None = None

    @property
    def lengths_S(self) -> NDArray[np.int64]:  # noqa: N802
        """Pieces of each window, special ones included."""
        return np.diff(self.from_S1)

    def __len__(self) -> int:
        return len(self.windows)


@dataclass(frozen=True, eq=False)
class EncodedTokens:
    """A text with the tag of each word; `source_W` is false where another model found an entity.

    `open_Y`: the tags that a word outside all entities may have as far as the site knows.
    """

    text: TokenText
    tags_W: batches.Ints
    source_W: batches.Bools
    open_Y: batches.Bools

    def __len__(self) -> int:
        return len(self.text)


@dataclass(frozen=True, eq=False)
class PieceBatch(batches.PaddedBatch):
    """A batch for an encoder; `mask_BP` is None if nothing is padded."""

    ids_BP: Tensor
    mask_BP: Tensor | None


@dataclass(frozen=True, eq=False)
class TokenBatch(PieceBatch):
    """A batch for a token classifier; `lengths_B` counts words. Unannotated, all tags are 0."""

    firsts_BL: Tensor
    lengths_B: Tensor
    tags_BL: Tensor
    source_BL: Tensor
    features_BLD: Tensor | None = None


def token_text(examples: Sequence[batches.Example], *, pieces: Pieces, cut: Cut) -> TokenText:
    """Every word as pieces, whatever the examples' spans. Sentences without a word have no row."""
    room = pieces.room
    most = room // 4
    windows: list[batches.Window] = []
    ids: list[int] = []
    firsts: list[int] = []
    lengths: list[int] = []
    for number, words in enumerate(cut([example.tokens for example in examples])):
        words = [word[:most] or [pieces.unknown] for word in words]
        found = list(_windows(number, [len(word) for word in words], room))
        windows += found
        for window in found:
            place = len(pieces.before)
            ids += pieces.before
            for word in words[window.start : window.end]:
                firsts.append(place)
                ids += word
                place += len(word)
            ids += pieces.after
            lengths.append(place + len(pieces.after))
    return TokenText(
        examples=len(examples),
        windows=tuple(windows),
        ids_N=np.array(ids, np.int32),
        from_S1=batches.offsets(lengths),
        firsts_W=np.array(firsts, np.int32),
        words_from_S1=batches.offsets([window.end - window.start for window in windows]),
        padding=pieces.padding,
    )


def annotated_tokens(
    text: TokenText,
    spans: Sequence[Sequence[batches.TypedSpan]],
    *,
    tags: batches.TagSet,
    source: Set[str],
) -> EncodedTokens:
    """The text with these spans of each example. Raises DataError as `annotation` does."""
    found = batches.annotation(
        text.windows, spans, examples=text.examples, tags=tags, source=source
    )
    return EncodedTokens(text, *found)


def predict_token_batches(text: TokenText, *, pieces_per_batch: int = 2048) -> Iterator[TokenBatch]:
    """Every window once, longest first, at most `pieces_per_batch` padded pieces in a batch."""
    for rows in longest_first(text.lengths_S, pieces_per_batch):
        yield token_batch(text, rows)


def token_batch(
    text: TokenText, rows_B: batches.Rows, *, annotated: EncodedTokens | None = None
) -> TokenBatch:
    """These windows as one batch, in this order."""
    words_BL, inside_BL = batches.padded(text.words_from_S1, rows_B)
    tags_BL = np.zeros(inside_BL.shape, np.int64)
    source_BL = inside_BL
    if annotated is not None:
        tags_BL = np.where(inside_BL, annotated.tags_W[words_BL], 0).astype(np.int64)
        source_BL = batches.of_rows(annotated.source_W, text.words_from_S1, rows_B)
    ids_BP, mask_BP = pieces_of(text.ids_N, text.from_S1, rows_B, padding=text.padding)
    return TokenBatch(
        rows_B=rows_B,
        ids_BP=ids_BP,
        mask_BP=mask_BP,
        firsts_BL=torch.from_numpy(
            np.where(inside_BL, text.firsts_W[words_BL], 0).astype(np.int64)
        ),
        lengths_B=torch.from_numpy(inside_BL.sum(1)),
        tags_BL=torch.from_numpy(tags_BL),
        source_BL=torch.from_numpy(source_BL),
        features_BLD=_features(text, words_BL, inside_BL),
    )


def _features(text: TokenText, words_BL: batches.Rows, inside_BL: batches.Bools) -> Tensor | None:
    """The features of the batch's words, 0 in the padding."""
    if text.features_WD is None:
        return None
    values_BLD = np.zeros((*inside_BL.shape, text.features_WD.shape[1]), np.float32)
    values_BLD[inside_BL] = text.features_WD[words_BL[inside_BL]]
    return torch.from_numpy(values_BLD)


def pieces_of(
    ids_N: batches.Ints, from_S1: batches.Rows, rows_B: batches.Rows, *, padding: int
) -> tuple[Tensor, Tensor | None]:
    """ids_BP of these rows, and the mask, which is None if nothing is padded."""
    places_BP, real_BP = batches.padded(from_S1, rows_B)
    ids_BP = np.where(real_BP, ids_N[places_BP], padding).astype(np.int64)
    mask_BP = None if real_BP.all() else torch.from_numpy(real_BP.astype(np.int64))
    return torch.from_numpy(ids_BP), mask_BP


# --- windows --------------------------------------------------------------------------------


def _windows(example: int, lengths: Sequence[int], room: int) -> Iterator[batches.Window]:
    """Windows of words whose pieces fit; none for no word.

    Neighbours share as many words as fit into a quarter; each owns half of them. `lengths`: pieces
    of each word, at most a quarter of the room.
    """
    ends = np.cumsum(lengths)  # pieces up to and with each word
    start = own_start = pieces = 0
    while start < len(lengths):
        end = int(np.searchsorted(ends, pieces + room, side="right"))
        if end == len(lengths):
            yield batches.Window(example, start, end, own_start, end)
            return
        after = int(np.searchsorted(ends, ends[end - 1] - room // 4, side="left")) + 1
        own_end = (after + end + 1) // 2
        yield batches.Window(example, start, end, own_start, own_end)
        start, own_start, pieces = after, own_end, int(ends[after - 1])


# --- Word pieces of relation examples
#
# Entities are marked, and long texts are cut around them.
#
#     … was caused by <e1> drug </e1> in most <e2> disease </e2> patients …
#
# The two entities are wrapped in pieces of their own, whose rows follow those of the encoder's
# vocabulary. By default they are replaced by the names of their types ("blinded"), so that the
# model reads what is said about a pair instead of memorising pairs (Sui et al. 2020, FedED, 4.1).
# The text is split at the borders of entities before it is split into pieces, so that no piece
# spans a border.
#
# A text of more pieces than `longest` is cut to those around the entities, and never through one;
# if the entities are too far apart for one window, the middle between them is dropped. Only an
# entity longer than half a window is cut itself.
#
# Shapes: N pieces of all examples, S examples, P pieces of a batch's longest, B examples of a
# batch.


Tokenise = Callable[[Sequence[str]], list[list[int]]]
"""Texts to the numbers of their pieces, without special ones."""

_CHUNK = 1024  # examples that are cut into pieces at once
LEAST_PIECES = 16
"""A window of fewer pieces cannot hold two entities and anything about them."""


@dataclass(frozen=True)
class Marking:
    """The marks of examples, and the most pieces of one, special ones included.

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
        """The number of marks: rows that the encoder needs behind its own."""
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
    """Where each example is in a flat array (`text.tagging`), and its two entities and relation.

    `heads_S2` and `tails_S2`: from which word or piece of the example to which.
    """

    from_S1: batches.Rows
    heads_S2: batches.Ints
    tails_S2: batches.Ints
    relations_S: batches.Ints

    @property
    def lengths_S(self) -> batches.Rows:  # noqa: N802
        """Words of each example, or pieces with the special ones."""
        return np.diff(self.from_S1)

    def __len__(self) -> int:
        return len(self.relations_S)

    def only(self, rows: batches.Rows) -> Self:
        """These examples, in this order."""
        return replace(
            self,
            from_S1=batches.offsets(self.lengths_S[rows]),
            heads_S2=self.heads_S2[rows],
            tails_S2=self.tails_S2[rows],
            relations_S=self.relations_S[rows],
        )


@dataclass(frozen=True, eq=False)
class EncodedRelations(EncodedPairs):
    """Examples as pieces; the entities are without their marks.

    `features_SF` are what a frozen encoder gives of each example, if that is known.
    """

    ids_N: batches.Ints
    padding: int
    features_SF: NDArray[np.float32] | None = None

    def only(self, rows: batches.Rows) -> Self:
        """These examples, in this order."""
        features_SF = None if self.features_SF is None else self.features_SF[rows]
        ids_N = self.ids_N[batches.places(self.from_S1, rows)]
        return replace(super().only(rows), ids_N=ids_N, features_SF=features_SF)


@dataclass(frozen=True, eq=False)
class RelationBatch(PieceBatch):
    """A batch for a relation classifier."""

    head_BP: Tensor
    tail_BP: Tensor
    openings_B2: Tensor
    relations_B: Tensor
    features_BF: Tensor | None = None


def relation_numbers(examples: Sequence[RelationExample], relations: Sequence[str]) -> batches.Ints:
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
    if marking.longest - len(marking.before) - len(marking.after) < LEAST_PIECES:
        raise DataError(
            "the window is too small for two entities",
            expected=f"at least {LEAST_PIECES} pieces between the special ones",
            got=str(marking.longest),
        )
    relations_S = relation_numbers(examples, relations)
    rows: list[_Row] = []
    for start in range(0, len(examples), _CHUNK):
        rows += _rows(examples[start : start + _CHUNK], marking, tokenise)
    return EncodedRelations(
        ids_N=np.array([piece for row in rows for piece in row.ids], np.int32),
        from_S1=batches.offsets([len(row.ids) for row in rows]),
        heads_S2=np.array([row.head for row in rows], np.int32).reshape(-1, 2),
        tails_S2=np.array([row.tail for row in rows], np.int32).reshape(-1, 2),
        relations_S=relations_S,
        padding=marking.padding,
    )


def predict_relation_batches(
    encoded: EncodedRelations, *, pieces_per_batch: int = 2048
) -> Iterator[RelationBatch]:
    """Every example once, longest first, at most `pieces_per_batch` padded pieces in a batch."""
    for rows in longest_first(encoded.lengths_S, pieces_per_batch):
        yield relation_batch(encoded, rows)


def relation_batch(encoded: EncodedRelations, rows_B: batches.Rows) -> RelationBatch:
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


def _within(ranges_B2: batches.Ints, steps_P: NDArray[np.int64]) -> NDArray[np.bool_]:
    inside_BP: NDArray[np.bool_] = (ranges_B2[:, :1] <= steps_P) & (steps_P < ranges_B2[:, 1:])
    return inside_BP


# --- one example ----------------------------------------------------------------------------


class _Row(NamedTuple):
    ids: list[int]
    head: tuple[int, int]
    tail: tuple[int, int]


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
    """Texts and marks in turn. Entities that overlap are not blinded: what is between would go.

    One that is a pair with itself is.
    """
    head, tail = _mentions(example)
    alone = head == tail and example.head_type == example.tail_type
    blinded: dict[Span, str] = {}
    if marking.blind and (head[1] <= tail[0] or tail[1] <= head[0] or alone):
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
    if len(flat) > room:
        kept = window(len(flat), [(a - 1, b + 1) for a, b in spans], room)
    shift = len(marking.before)
    place = {old: new + shift for new, old in enumerate(kept)}
    ranges = []
    for start, end in spans:
        inside = [place[old] for old in range(start, end) if old in place]
        opening = place[start - 1]
        ranges.append((opening + 1, inside[-1] + 1 if inside else opening + 1))
    ids = [*marking.before, *(flat[old] for old in kept), *marking.after]
    return _Row(ids, ranges[0], ranges[1])


def window(length: int, marked: list[tuple[int, int]], room: int) -> list[int]:
    """Return which `room` of `length` pieces stay: those around two marked ranges."""
    first, last = sorted(marked)
    start, end = first[0], max(first[1], last[1])
    if end - start <= room:
        return list(_widened(start, end, length, room))
    if last[0] < first[1]:  # they overlap, and are too long together
        must = {*_ends(first, room // 2), *_ends(last, room // 2 - 2)}
        return sorted(must)
    halves = [_ends(one, room // 2) for one in (first, last)]
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
    return sorted(must)


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


# --- Features of a frozen encoder
#
# They are computed once for each example, kept on disk, and used in every round.
#
# With `tune = "frozen"` (`training.encoder`) only the layer behind the encoder is trained, so the
# encoder runs once over a text, however many rounds and epochs follow. The file's name is a
# digest of the encoder, of how the model reads it and of the pieces, so another encoder or text
# never finds it; the file itself is as in `kinds.agreement`. **It reveals much of its text.**
#
# Shapes: W words of all windows, S examples, N pieces, D and F numbers of a feature.


_DTYPE = np.dtype("<f4")
_PER_BATCH = 2048  # most padded pieces of a batch


def with_word_features(
    text: TokenText, model: nn.Module, *, reads: str, folder: Path | None
) -> TokenText:
    """The text with the state of each word's first piece.

    `reads` says what the states depend on besides the pieces: a digest of the encoder, and how the
    model reads. With `folder=None` they stay in memory. Raises DataError and DeviceError.
    """
    if not len(text):
        return text
    found = predict_token_batches(text, pieces_per_batch=most_read(model, _PER_BATCH))
    blocks = (
        (int(text.words_from_S1[row]), states_LD[:length])
        for batch, states_BLD in _frozen_features(model, found)
        for row, states_LD, length in zip(
            batch.rows_B, states_BLD, batch.lengths_B.tolist(), strict=True
        )
    )
    arrays = (text.ids_N, text.from_S1, text.firsts_W, text.words_from_S1)
    rows = int(text.words_from_S1[-1])
    kept = _kept(f"words {reads}", arrays, blocks, rows=rows, model=model, folder=folder)
    return replace(text, features_WD=kept)


def with_pair_features(
    encoded: EncodedRelations, model: nn.Module, *, reads: str, folder: Path | None
) -> EncodedRelations:
    """The examples with what the model's last layer reads of each; otherwise as for words."""
    if not len(encoded):
        return encoded
    found = predict_relation_batches(encoded, pieces_per_batch=most_read(model, _PER_BATCH))
    blocks = (
        (int(row), features_F[None])
        for batch, features_BF in _frozen_features(model, found)
        for row, features_F in zip(batch.rows_B, features_BF, strict=True)
    )
    arrays = (encoded.ids_N, encoded.from_S1, encoded.heads_S2, encoded.tails_S2)
    kept = _kept(f"pairs {reads}", arrays, blocks, rows=len(encoded), model=model, folder=folder)
    return replace(encoded, features_SF=kept)


def _frozen_features(model: Any, read: Iterable[Any]) -> Iterator[tuple[Any, NDArray[np.float32]]]:
    """Compute the last layer's input: `features` of a classifier, a bag model's reader."""
    features = model.reader if hasattr(model, "reader") else model.features
    for batch in read:
        yield batch, at_home(features(beside(batch, model)))


def _kept(
    reads: str,
    arrays: Iterable[NDArray[Any]],
    blocks: Iterable[tuple[int, NDArray[np.float32]]],
    *,
    rows: int,
    model: Any,
    folder: Path | None,
) -> NDArray[np.float32]:
    """The N `rows` that `blocks` makes of a text of these `arrays`, from the disk if kept there."""
    narrow = " narrow" if where_is(model).narrow else ""
    digest = hashlib.sha256(f"confide features 1 {reads}{narrow} ".encode())
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    last: nn.Linear = getattr(model, "tag", None) or model.relation
    shape = (rows, last.in_features)
    with predicting(model):
        return kept_rows(digest.hexdigest(), shape, blocks, folder=folder, dtype=_DTYPE)
