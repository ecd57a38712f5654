"""Text as numbers: examples, tag sets, ragged arrays, and annotation laid over them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain, count
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, SmallBatchError
from confide.text.document import Document, Problem
from confide.text.segment import segmented
from confide.text.tagging import all_spans, flat_spans
from confide.training.vocabulary import Normalisation, Vocabulary, normalise

TypedSpan = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Example:
    """A sentence as a tagger sees it.

    `document` and `sentence` are positions: of the document among those given, of the sentence in
    its document. `spans` are (first token, one past the last token, type), in order, not
    overlapping.
    """

    document: int
    sentence: int
    tokens: tuple[str, ...]
    spans: tuple[TypedSpan, ...] = ()


def examples_from(documents: Sequence[Document]) -> tuple[list[Example], list[Problem]]:
    """Every sentence that has a token, in order, and all annotations that a flat tagger leaves out.

    Documents without sentences are first segmented by rule. Equal words are one string.
    """
    examples: list[Example] = []
    problems: list[Problem] = []
    words: dict[str, str] = {}
    for number, given in enumerate(documents):
        document = segmented(given)
        spans_per_sentence, found = flat_spans(document)
        problems.extend(found)
        for index, (sentence, spans) in enumerate(
            zip(document.sentences, spans_per_sentence, strict=True)
        ):
            if sentence.tokens:
                tokens = document.token_texts(sentence)
                tokens = tuple(map(words.setdefault, tokens, tokens))
                examples.append(Example(number, index, tokens, tuple(spans)))
    return examples, problems


def left_out_of(documents: Iterable[Document]) -> list[Problem]:
    """The annotations that `examples_from` leaves out, without making the examples."""
    return _problems(flat_spans, documents)


def left_out_of_nested(documents: Iterable[Document]) -> list[Problem]:
    """The annotations that `nested_spans` leaves out."""
    return _problems(all_spans, documents)


def _problems(
    spans: Callable[[Document], tuple[object, list[Problem]]], documents: Iterable[Document]
) -> list[Problem]:
    return [
        one for document in documents if document.entities
        for one in spans(segmented(document))[1]
    ]  # fmt: skip


def nested_spans(documents: Sequence[Document]) -> list[list[TypedSpan]]:
    """The spans of each example of `examples_from`, with those that share tokens with others."""
    found: list[list[TypedSpan]] = []
    for document in map(segmented, documents):
        for sentence, spans in zip(document.sentences, all_spans(document)[0], strict=True):
            if sentence.tokens:
                found.append(spans)
    return found


# --- Rows of different lengths, one after the other in a flat array
#
# Where each of them is.
#
# Row s of `values_N` is `values_N[from_S1[s] : from_S1[s + 1]]`.
#
# Shapes: S rows, N values of all rows, B rows of a batch, L values of the batch's longest row.


Rows = NDArray[np.int64]

_BY_ROW = re.compile(r"_B[A-Z0-9]*$")  # a shape whose first axis is the rows of a batch


def offsets(lengths: Sequence[int] | Rows) -> Rows:
    """from_S1: where each row begins, and where the last one ends.

    >>> offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    return np.append(0, np.cumsum(lengths, dtype=np.int64))


def places(from_S1: Rows, rows_B: Rows) -> Rows:
    """The places of all values of these rows, one row after the other.

    >>> places(offsets([2, 0, 3]), np.array([2, 0])).tolist()
    [2, 3, 4, 0, 1]
    """
    from_B = from_S1[rows_B]
    lengths_B = from_S1[1:][rows_B] - from_B
    shifts_B = from_B - (np.cumsum(lengths_B) - lengths_B)
    found: Rows = np.arange(int(lengths_B.sum())) + np.repeat(shifts_B, lengths_B)
    return found


def padded(from_S1: Rows, rows_B: Rows | NDArray[np.int32]) -> tuple[Rows, NDArray[np.bool_]]:
    """places_BL of the values of these rows, 0 in the padding; and which cells hold a value.

    >>> where_BL, real_BL = padded(offsets([2, 0, 3]), np.array([2, 0]))
    >>> where_BL.tolist(), real_BL.sum(1).tolist()
    ([[2, 3, 4], [0, 1, 0]], [3, 2])
    """
    from_B = from_S1[rows_B]
    lengths_B = from_S1[1:][rows_B] - from_B
    steps_L = np.arange(lengths_B.max(initial=0))
    real_BL = steps_L < lengths_B[:, None]
    return np.where(real_BL, from_B[:, None] + steps_L, 0), real_BL


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """A batch of rows, padded; `rows_B` (numpy) are the positions in the encoded text.

    The names of its arrays say which have a row for each: those whose shape begins with B.
    """

    rows_B: Rows

    def __len__(self) -> int:
        return len(self.rows_B)

    @property
    def tokens_B(self) -> Rows:  # noqa: N802
        """The tokens of each row, padding included."""
        tables = [value for value in self._by_row().values() if value.ndim > 1]
        return np.full(len(self), max((table.shape[1] for table in tables), default=1), np.int64)

    def part(self, start: int, end: int) -> Self:
        """The rows `start` to `end`."""
        return replace(self, **{name: v[start:end] for name, v in self._by_row().items()})

    def _by_row(self) -> dict[str, Any]:
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return {n: value for n, value in own.items() if value is not None and _BY_ROW.search(n)}


# --- Encoding of examples
#
# Tag sets, and the ragged arrays that batches are cut from.
#
# Shapes: N tokens of all windows, S windows, F distinct words as written ("forms"), M characters
# of all forms, T tokens of all examples, X contextual features, Y tags.


Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
TagScheme = Literal["iobes", "iob2"]

OUTSIDE = 0
_PREFIXES: dict[str, str] = {"iobes": "BIES", "iob2": "BI"}


class TagRules(NamedTuple):
    """Which tags may follow, open and close a sentence: true where it is allowed."""

    moves_YY: Bools
    starts_Y: Bools
    ends_Y: Bools


@dataclass(frozen=True)
class TagSet:
    """The tags of entity types in one scheme: `O` is 0, then every prefix of each type in turn."""

    types: tuple[str, ...]
    scheme: TagScheme = "iobes"

    def __post_init__(self) -> None:
        if self.scheme not in _PREFIXES:
            raise DataError(
                "a tagger cannot learn this scheme", expected="iobes or iob2", got=repr(self.scheme)
            )
        if len(set(self.types)) != len(self.types):
            raise DataError("an entity type is named twice", got=", ".join(sorted(self.types)))

    @property
    def prefixes(self) -> str:
        """The letters of the scheme, in the order in which a type's tags are numbered."""
        return _PREFIXES[self.scheme]

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """The name of each tag, by id."""
        return ("O", *(f"{letter}-{name}" for name in self.types for letter in self.prefixes))

    def __len__(self) -> int:
        return 1 + len(self.types) * len(self.prefixes)

    @cached_property
    def _first_tag(self) -> dict[str, int]:
        return {name: 1 + i * len(self.prefixes) for i, name in enumerate(self.types)}

    def path(self, type: str, length: int) -> list[int]:
        """The tags of one entity of that many tokens."""
        try:
            begin = self._first_tag[type]
        except KeyError:
            raise DataError(
                "an entity has a type outside the declared set",
                expected=", ".join(self.types) or "no type at all",
                got=type,
                fix="add the type, or map it in the site's `tags`",
            ) from None
        inside, end, single = begin + 1, begin + 2, begin + 3
        if self.scheme == "iob2":
            return [begin] + [inside] * (length - 1)
        return [single] if length == 1 else [begin, *[inside] * (length - 2), end]

    def continuation(self, type: str) -> int | None:
        """The tag that would continue an entity, if the scheme does not mark ends."""
        return self._first_tag[type] + 1 if self.scheme == "iob2" else None

    def only(self, types: Collection[str]) -> tuple[TagSet, list[int]]:
        """The tag set of only these types, in the order of this one, and its tags' ids here."""
        kept = TagSet(tuple(name for name in self.types if name in types), self.scheme)
        each = range(len(self.prefixes))
        return kept, [OUTSIDE, *(self._first_tag[name] + n for name in kept.types for n in each)]

    def encode(self, length: int, spans: Sequence[TypedSpan]) -> Ints:
        """The tag of each of `length` tokens."""
        tags = np.zeros(length, np.int32)
        for start, end, name in spans:
            tags[start:end] = self.path(name, end - start)
        return tags

    def spans(self, tags: NDArray[np.integer]) -> list[TypedSpan]:
        """The entities of a tag sequence; a malformed one is repaired the way conlleval does."""
        found: list[TypedSpan] = []
        open_type, open_start, open_end, closed = -1, 0, 0, True
        prefixes = self.prefixes
        for position, tag in enumerate(tags.tolist()):
            if not tag:
                continue
            type_number, place = divmod(tag - 1, len(prefixes))
            letter = prefixes[place]
            joins = not closed and open_end == position and open_type == type_number
            if letter in "BS" or not joins:
                if open_type >= 0:
                    found.append((open_start, open_end, self.types[open_type]))
                open_type, open_start = type_number, position
            open_end, closed = position + 1, letter in "ES"
        if open_type >= 0:
            found.append((open_start, open_end, self.types[open_type]))
        return found

    @cached_property
    def rules(self) -> TagRules:
        """The moves that the scheme allows."""
        size = len(self)
        letters = ["O", *(self.prefixes * len(self.types))]
        types = [-1] + [i for i in range(len(self.types)) for _ in self.prefixes]
        needs_end = self.scheme == "iobes"
        moves = np.zeros((size, size), np.bool_)
        for i in range(size):
            inside = letters[i] in "BI"
            for j in range(size):
                if letters[j] in "IE":
                    moves[i, j] = inside and types[i] == types[j]
                else:
                    moves[i, j] = not (inside and needs_end)
        starts = np.array([letter not in "IE" for letter in letters])
        ends = np.array([not (needs_end and letter in "BI") for letter in letters])
        return TagRules(moves, starts, ends)


class Window(NamedTuple):
    """Tokens `start` to `end` of an example; entities that begin in its own part are its own."""

    example: int
    start: int
    end: int
    own_start: int
    own_end: int


@dataclass(frozen=True, eq=False)
class Encoded:
    """Examples as ragged arrays. A form's characters and word id are stored once per corpus.

    `tokens_from_S1[s]:tokens_from_S1[s + 1]` are the tokens of window `s`; `words_F` and
    `characters_M[characters_from_F1[f]:characters_from_F1[f + 1]]` belong to form `f`.
    `context_TX`, if there is one, holds a frozen encoder's features of every token, example after
    example; window `s` begins at row `context_from_S[s]`.
    """

    tags: TagSet
    examples: int
    windows: tuple[Window, ...]
    tokens_from_S1: NDArray[np.int64]
    forms_N: Ints
    tags_N: Ints
    words_F: Ints
    characters_M: Ints
    characters_from_F1: NDArray[np.int64]
    context_TX: NDArray[np.float16] | None = None
    context_from_S: NDArray[np.int64] | None = None

    @property
    def lengths_S(self) -> NDArray[np.int64]:  # noqa: N802
        """Tokens of each window."""
        return np.diff(self.tokens_from_S1)

    def __len__(self) -> int:
        return len(self.windows)


def encode_examples(
    examples: Sequence[Example],
    *,
    words: Vocabulary,
    characters: Vocabulary | None,
    tags: TagSet,
    how: Normalisation,
    max_tokens: int = 512,
    max_characters: int = 40,
) -> Encoded:
    """The examples as numbers; every token once, every distinct word's characters once.

    An example of more than `max_tokens` tokens is cut into windows that overlap by a quarter, which
    bounds memory; a word of more than `max_characters` characters keeps its first and last ones,
    half of that number each. `characters=None` leaves all characters out.

    Raises `DataError` if an entity's type is not in `tags`.
    """
    if max_tokens < 8:
        raise DataError("windows are too short", expected="max_tokens >= 8", got=str(max_tokens))
    windows = [
        window
        for number, example in enumerate(examples)
        for window in _windows(number, len(example.tokens), max_tokens)
    ]
    from_S1 = offsets([window.end - window.start for window in windows])
    tokens = list(
        chain.from_iterable(
            examples[window.example].tokens[window.start : window.end] for window in windows
        )
    )
    forms = dict(zip(dict.fromkeys(tokens), count(), strict=False))
    forms_N = np.fromiter(map(forms.__getitem__, tokens), np.int32, len(tokens))
    characters_M, characters_from_F1 = _spelled(list(forms), characters, max_characters)
    spans = [example.spans for example in examples]
    return Encoded(
        tags=tags,
        examples=len(examples),
        windows=tuple(windows),
        tokens_from_S1=from_S1,
        forms_N=forms_N,
        tags_N=annotation(windows, spans, examples=len(spans), tags=tags, source=set()).tags_N,
        words_F=words.ids([normalise(form, how) for form in forms]),
        characters_M=characters_M,
        characters_from_F1=characters_from_F1,
    )


def with_context(
    encoded: Encoded, states_TX: NDArray[np.float16], starts_E: NDArray[np.int64]
) -> Encoded:
    """Add contextual features; those of example `e` begin at row `starts_E[e]`.

    Raises `DataError` if a window's tokens would lie outside.
    """
    places = [(starts_E[window.example] + window.start, window) for window in encoded.windows]
    if any(place + window.end - window.start > len(states_TX) for place, window in places):
        raise DataError("the contextual features do not belong to these sentences")
    from_S = np.array([place for place, _ in places], np.int64)
    return replace(encoded, context_TX=states_TX, context_from_S=from_S)


def _windows(example: int, length: int, max_tokens: int) -> Iterator[Window]:
    """Windows of at most `max_tokens`; neighbours share a quarter, each owns half of that."""
    if length <= max_tokens:
        yield Window(example, 0, length, 0, length)
        return
    margin = max_tokens // 8
    stride = max_tokens - 2 * margin
    start = 0
    while True:
        end = min(start + max_tokens, length)
        own_start = start + margin if start else 0
        own_end = end - margin if end < length else length
        yield Window(example, start, end, own_start, own_end)
        if end == length:
            return
        start += stride


def _spelled(
    forms: Sequence[str], characters: Vocabulary | None, max_characters: int
) -> tuple[Ints, NDArray[np.int64]]:
    """The character ids of all forms, one after the other, and where each form's begin."""
    if characters is None:
        return np.zeros(0, np.int32), np.zeros(len(forms) + 1, np.int64)
    head, tail = max_characters - max_characters // 2, max_characters // 2
    short = [f if len(f) <= max_characters else f[:head] + f[len(f) - tail :] for f in forms]
    alphabet = sorted(set("".join(short)))
    codes_M = np.frombuffer("".join(short).encode("utf-32-le", "surrogatepass"), np.uint32)
    ids = np.zeros(ord(alphabet[-1]) + 1 if alphabet else 0, np.int32)
    ids[[ord(character) for character in alphabet]] = characters.ids(alphabet)
    return ids[codes_M], offsets([len(form) for form in short])


# --- Annotation of tokens
#
# Laid over text that is already numbers: a tag for each token, and its source.
#
# A token of an entity that the site annotated itself, or of no entity, belongs to the source
# loss; a token of an entity that another model found belongs to the target loss (Wang et al.
# 2023, Eq. 6-9).
#
# Shapes: N tokens of all windows, E examples, S windows, B windows of a batch, L tokens, Y tags.


class Annotation(NamedTuple):
    """`source_N` is false at tokens of entities that another model found.

    `open_Y` is true for the tags that a token outside all entities may have as far as the site
    knows: `O`, and those of the types that it did not annotate.
    """

    tags_N: Ints
    source_N: Bools
    open_Y: Bools


def annotation(
    windows: Sequence[Window],
    spans: Sequence[Sequence[TypedSpan]],
    *,
    examples: int,
    tags: TagSet,
    source: Set[str],
) -> Annotation:
    """The tags of every window's tokens, window after window.

    `spans` has the spans of each of the `examples`, in tokens and without overlap. `source` are the
    types that the site annotated itself. If an entity crosses a window's border, the part inside is
    an entity. Raises DataError if a type is not in `tags`, a span lies outside its example, or the
    number of examples differs.
    """
    check_spans(spans, windows, examples=examples)
    starts = offsets([window.end - window.start for window in windows])
    tags_N = np.zeros(starts[-1], np.int32)
    source_N = np.ones(starts[-1], np.bool_)
    for window, begin in zip(windows, starts.tolist(), strict=False):
        for start, end, name in spans[window.example]:
            first, stop = max(start, window.start), min(end, window.end)
            if first < stop:
                shift = begin - window.start
                tags_N[first + shift : stop + shift] = tags.path(name, stop - first)
                source_N[first + shift : stop + shift] = name in source
    lacked = [name not in source for name in tags.types for _ in tags.prefixes]
    return Annotation(tags_N, source_N, np.array([True, *lacked]))


def check_spans(
    spans: Sequence[Sequence[TypedSpan]], windows: Sequence[Window], *, examples: int
) -> None:
    """Raise DataError unless there are spans for each example, all inside its sentence."""
    if len(spans) != examples:
        raise DataError(
            "the spans do not belong to these sentences",
            expected=f"{examples} lists of spans",
            got=str(len(spans)),
        )
    words_E = np.zeros(examples, np.int64)
    for window in windows:
        words_E[window.example] = window.end  # the last one ends the sentence
    for example, found in enumerate(spans):
        for start, end, _ in found:
            if not 0 <= start < end <= words_E[example]:
                raise DataError(
                    "a span lies outside its sentence",
                    expected=f"tokens 0 to {words_E[example]}",
                    got=f"{start} to {end}",
                )


def of_rows(values_N: Bools, from_S1: Rows, rows_B: Rows) -> Bools:
    """values_BL of these rows, false in the padding."""
    places_BL, inside_BL = padded(from_S1, rows_B)
    found_BL: Bools = values_N[places_BL] & inside_BL
    return found_BL


# --- The fewest rows of a gradient
#
# A site's own guard, for whatever trains there.
#
# A row is what a model learns from at once: a sentence (a window of a long one), a pair of
# entities, a bag. The site sets the least around all work that it does for others; what makes
# batches joins short ones to their neighbours, and what takes a gradient refuses one of fewer
# rows. Elsewhere the least is 1, and nothing changes.


_LEAST: ContextVar[int] = ContextVar("least", default=1)


@contextmanager
def covering(least: int) -> Iterator[None]:
    """No gradient that is taken within covers fewer than `least` rows."""
    before = _LEAST.set(least)
    try:
        yield
    finally:
        _LEAST.reset(before)


def check_covers(rows: int) -> None:
    """Raise SmallBatchError if a gradient may not cover so few rows."""
    if rows < _LEAST.get():
        raise SmallBatchError(
            "a gradient would cover too few rows",
            expected=f"at least {_LEAST.get()}",
            got=str(rows),
        )


def covered(rows: int) -> bool:
    """Return whether a gradient may cover so few rows."""
    return rows >= _LEAST.get()


def joined(batches: Iterable[Rows]) -> list[Rows]:
    """The batches, with each short one joined to the next, and a short last one to that before it.

    >>> with covering(3):
    ...     [one.tolist() for one in joined(map(np.array, ([1, 2, 3, 4], [5, 6], [7], [8])))]
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    least = _LEAST.get()
    found: list[list[Rows]] = []
    short = 0
    for batch in batches:
        if short:
            found[-1].append(batch)
        else:
            found.append([batch])
        short += len(batch)
        short = short if short < least else 0
    if short and len(found) > 1:
        last = found.pop()
        found[-1].extend(last)
    return [one[0] if len(one) == 1 else np.concatenate(one) for one in found]


# --- Pseudo-complete annotation
#
# A site's own spans, plus another model's spans of missing types.
#
# Wang, Yu, Wu, Zhao, Kim, Zhang, Mitra & Henao, "Federated Domain Adaptation for Named Entity
# Recognition via Distilling with Heterogeneous Tag Sets", Findings of ACL 2023, 3.2, Eq. 5.


def completed(
    own: Sequence[TypedSpan], found: Sequence[TypedSpan], *, missing: Set[str]
) -> list[TypedSpan]:
    """The own spans of a sentence and the found ones of a `missing` type, sorted by start.

    A found span that shares a token with an own span, or with an earlier found one, is dropped.

    >>> completed([(0, 2, "drug")], [(1, 3, "event"), (4, 5, "event"), (6, 7, "drug")],
    ...           missing={"event"})
    [(0, 2, 'drug'), (4, 5, 'event')]
    """
    kept = list(own)
    for span in found:
        start, end, kind = span[:3]
        if kind in missing and not any(start < b and a < end for a, b, _ in kept):
            kept.append((start, end, kind))
    return sorted(kept)


def only(documents: Sequence[Document], types: Set[str]) -> list[Document]:
    """The documents as a site would have them that annotates only these entity types.

    A relation is dropped along with its entity.
    """
    return [_only(document, types) for document in documents]


def _only(document: Document, types: Set[str]) -> Document:
    kept = tuple(entity for entity in document.entities if entity.type in types)
    if len(kept) == len(document.entities):
        return document
    lost = {one.id for one in document.entities} - {one.id for one in kept}
    relations = tuple(
        one
        for one in document.relations
        if one.level != "entity" or not {one.head, one.tail} & lost
    )
    return replace(document, entities=kept, relations=relations)
