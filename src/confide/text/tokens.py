"""The tokens of a sentence in little memory: sequences of offsets that equal a tuple of the same.

A pair of Python integers takes some 120 bytes, and a corpus of a million sentences has 20 million.
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import overload

Span = tuple[int, int]


class Spans(Sequence[Span]):
    """What the sequences below share: they are equal to any tuple of the same spans."""

    __slots__ = ()

    @abstractmethod
    def one(self, place: int) -> Span:
        """The span at a place, counted from 0, in a time that does not grow with their number."""

    def stretches(self, places: Iterable[tuple[int, int]]) -> Iterator[Span]:
        """The characters from each first token to the one before `last`; places ascend."""
        return ((self.one(first)[0], self.one(last - 1)[1]) for first, last in places)

    @overload
    def __getitem__(self, place: int) -> Span: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Span, ...]: ...

    def __getitem__(self, place: int | slice) -> Span | tuple[Span, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        count = len(self)
        if not -count <= place < count:
            raise IndexError(f"token {place} of {count}")
        return self.one(place % count)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, tuple | Spans):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Packed(Spans):
    """Spans of eight bytes each, as `packed` makes them."""

    __slots__ = ("_borders",)

    def __init__(self, borders: array[int]) -> None:
        self._borders = borders

    def __len__(self) -> int:
        return len(self._borders) // 2

    def __iter__(self) -> Iterator[Span]:
        return zip(self._borders[::2], self._borders[1::2], strict=True)

    def one(self, place: int) -> Span:
        """The span at a place."""
        return self._borders[2 * place], self._borders[2 * place + 1]


class Words(Spans):
    """The words of a stretch of text in which each is one blank from the next.

    Nothing is stored until one of them is asked for by its number. `end` is one past the last
    character. A word has at least one.
    """

    __slots__ = ("_packed", "end", "start", "text")

    def __init__(self, text: str, start: int, end: int) -> None:
        self.text, self.start, self.end = text, start, end
        self._packed: Packed | None = None

    def strings(self) -> list[str]:
        """The words themselves."""
        return self.text[self.start : self.end].split(" ")

    def __len__(self) -> int:
        if self._packed is not None:
            return len(self._packed)
        return self.text.count(" ", self.start, self.end) + 1

    def one(self, place: int) -> Span:
        """The span at a place."""
        if self._packed is None:
            self._packed = packed(self)
        return self._packed.one(place)

    def stretches(self, places: Iterable[tuple[int, int]]) -> Iterator[Span]:
        """The characters from each first word to the one before `last`; places ascend."""
        words, at, here = self.strings(), self.start, 0
        for first, last in places:
            at += len(" ".join(words[here:first])) + (first > here)
            here = first
            yield at, at + len(" ".join(words[first:last]))

    def __iter__(self) -> Iterator[Span]:
        start = self.start
        for word in self.strings():
            end = start + len(word)
            yield start, end
            start = end + 1


def packed(spans: Iterable[Span]) -> Packed:
    """Spans in little memory.

    >>> packed([(0, 4), (5, 7)])[-1], packed([(0, 4)]) == ((0, 4),)
    ((5, 7), True)
    """
    return Packed(array("I", chain.from_iterable(spans)))
