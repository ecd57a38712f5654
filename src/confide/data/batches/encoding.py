"""From examples to numbers: tag sets, and the ragged arrays that batches are cut from.

Shapes: N tokens of all windows, S windows, F distinct words as written ("forms"), M characters of
all forms, T tokens of all examples, X contextual features, Y tags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.examples import Example, Span
from confide.data.batches.flat import offsets
from confide.data.batches.vocabulary import How, Vocabulary, normalise
from confide.errors import DataError

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

    def encode(self, length: int, spans: Sequence[Span]) -> Ints:
        """The tag of each of `length` tokens."""
        tags = np.zeros(length, np.int32)
        for start, end, name in spans:
            tags[start:end] = self.path(name, end - start)
        return tags

    def spans(self, tags: NDArray[np.integer]) -> list[Span]:
        """The entities of a tag sequence; a malformed one is repaired the way conlleval does."""
        found: list[Span] = []
        open_type, open_start, open_end, closed = -1, 0, 0, True
        for position in np.flatnonzero(tags).tolist():
            type_number, place = divmod(int(tags[position]) - 1, len(self.prefixes))
            letter = self.prefixes[place]
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
    `cut` lists the examples that are longer than one window, with their number of tokens.
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
    cut: tuple[tuple[int, int], ...] = ()
    context_TX: NDArray[np.float16] | None = None
    context_from_S: NDArray[np.int64] | None = None

    @property
    def lengths_S(self) -> NDArray[np.int64]:  # noqa: N802
        """Tokens of each window."""
        return np.diff(self.tokens_from_S1)

    def __len__(self) -> int:
        return len(self.windows)


def encode(
    examples: Sequence[Example],
    *,
    words: Vocabulary,
    characters: Vocabulary | None,
    tags: TagSet,
    how: How,
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
    windows: list[Window] = []
    cut: list[tuple[int, int]] = []
    for number, example in enumerate(examples):
        length = len(example.tokens)
        pieces = list(_windows(number, length, max_tokens))
        if len(pieces) > 1:
            cut.append((number, length))
        windows.extend(pieces)
    from_S1 = offsets([window.end - window.start for window in windows])
    forms: dict[str, int] = {}
    forms_N = np.fromiter(
        (
            forms.setdefault(token, len(forms))
            for window in windows
            for token in examples[window.example].tokens[window.start : window.end]
        ),
        np.int32,
        int(from_S1[-1]),
    )
    characters_M, characters_from_F1 = _spelled(list(forms), characters, max_characters)
    return Encoded(
        tags=tags,
        examples=len(examples),
        windows=tuple(windows),
        tokens_from_S1=from_S1,
        forms_N=forms_N,
        tags_N=_tagged(examples, windows, from_S1, tags),
        words_F=words.ids([normalise(form, how) for form in forms]),
        characters_M=characters_M,
        characters_from_F1=characters_from_F1,
        cut=tuple(cut),
    )


def with_context(
    encoded: Encoded, states_TX: NDArray[np.float16], starts_E: NDArray[np.int64]
) -> Encoded:
    """The same with contextual features; those of example `e` begin at row `starts_E[e]`.

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


def _tagged(
    examples: Sequence[Example], windows: Sequence[Window], from_S1: NDArray[np.int64], tags: TagSet
) -> Ints:
    """The tag of every window's tokens."""
    tags_N = np.zeros(from_S1[-1], np.int32)
    for window, begin in zip(windows, from_S1.tolist(), strict=False):
        example = examples[window.example]
        if example.spans:
            end = begin + window.end - window.start
            tags_N[begin:end] = _window_tags(example, window, tags)
    return tags_N


def _window_tags(example: Example, window: Window, tags: TagSet) -> Ints:
    """Tags of a window; if an entity crosses its border, the part inside is an entity."""
    inside = [
        (max(start, window.start) - window.start, min(end, window.end) - window.start, name)
        for start, end, name in example.spans
        if start < window.end and end > window.start
    ]
    return tags.encode(window.end - window.start, inside)


def _spelled(
    forms: Sequence[str], characters: Vocabulary | None, max_characters: int
) -> tuple[Ints, NDArray[np.int64]]:
    """The character ids of all forms, one after the other, and where each form's begin."""
    if characters is None:
        return np.zeros(0, np.int32), np.zeros(len(forms) + 1, np.int64)
    head, tail = max_characters - max_characters // 2, max_characters // 2
    short = [f if len(f) <= max_characters else f[:head] + f[len(f) - tail :] for f in forms]
    alphabet = sorted(set("".join(short)))
    ids = dict(zip(alphabet, characters.ids(alphabet).tolist(), strict=True))
    spelled = np.fromiter((ids[character] for form in short for character in form), np.int32)
    return spelled, offsets([len(form) for form in short])
