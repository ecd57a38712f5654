"""How a file counts its offsets: in characters, UTF-16 units or UTF-8 bytes, and each line end.

Tools say "offset" and mean different things as soon as a text is not plain ASCII or has carriage
returns. `fitting` decides for one document of any format: by the texts that the file gives for its
annotations or, where it gives none, by the borders of tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from confide.text.document import Span
from confide.text.formats.base import reads
from confide.text.segment import tokens_of

CHARACTERS, UTF16, BYTES = "characters", "UTF-16 units", "UTF-8 bytes"
NOWHERE: Span = (-1, 0)
"""The place of a stretch that is not in the text."""
_OFFSET, _TRIED = attrgetter("offset"), 64  # parts that overlap are tried for a fragment
_MOST = 2000  # mentions that are asked how they are counted
_ENDS = {"one": ", line ends as one", "two": ", line ends as two"}


class Stretch(NamedTuple):
    """A part of a text (start, end) whose first character the file calls `offset`."""

    start: int
    end: int
    offset: int = 0


class Given(NamedTuple):
    """A mention as the file gives it: its fragments, its text ("": not said), and their part.

    Several parts are in the order of their offsets; the last that begins before a fragment and has
    room for it holds it.
    """

    spans: Sequence[Span]
    surface: str = ""
    within: Sequence[Stretch] = ()


class Way(NamedTuple):
    """A way to count: the unit, a line end (as it stands, always one, always two), the first."""

    unit: str = CHARACTERS
    ends: str = ""
    first: int = 0

    def __str__(self) -> str:
        """The way in words."""
        first = f" counted from {self.first}" if self.first else ""
        return f"offsets in {self.unit}{first}{_ENDS.get(self.ends, '')}"


class Ruler:
    """Turns offsets that were counted in one way into characters of a text."""

    def __init__(self, text: str, way: Way) -> None:
        self.way, self._length, self._plain = way, len(text), way == Way()
        self._marks = None if way[:2] == (CHARACTERS, "") else _marks(text, way)

    def __call__(self, span: Span, within: Sequence[Stretch] = ()) -> Span:
        """The characters of a stretch, or `NOWHERE`."""
        if not within:
            if self._plain:
                return span if 0 <= span[0] < span[1] <= self._length else NOWHERE
            within = (Stretch(0, self._length),)
        last = bisect_right(within, span[0] - self.way.first, key=_OFFSET) or 1
        for start, end, offset in reversed(within[max(0, last - _TRIED) : last]):
            shift = (self._marks[start] if self._marks else start) - offset - self.way.first
            first, last = self._place(span[0] + shift), self._place(span[1] + shift)
            if start <= first < last <= end:
                return first, last
        return NOWHERE

    def _place(self, offset: int) -> int:
        """The character that begins at an offset; -1 for one inside a character, or outside."""
        if self._marks is None:
            return offset
        place = bisect_left(self._marks, offset)
        return place if place < len(self._marks) and self._marks[place] == offset else -1


def _marks(text: str, way: Way) -> list[int]:
    """The offset at which each character begins, and the one behind the last."""
    if way.unit == CHARACTERS:
        widths = [1] * len(text)
    elif way.unit == UTF16:
        widths = [1 + (character > "\uffff") for character in text]
    else:
        widths = [len(character.encode("utf-8", "replace")) for character in text]
    if way.ends:
        for place, character in enumerate(text):
            whole = character == "\n" and text[place - 1 : place] == "\r"
            if whole and way.ends == "one":
                widths[place - 1] = 0
            elif character == "\n" and not whole and way.ends == "two":
                widths[place] += 1
    return list(accumulate(widths, initial=0))


def _ways(text: str) -> Iterator[Way]:
    """All ways in which this text may have been counted, the usual ones first."""
    units = [CHARACTERS]
    if not text.isascii():
        units += [UTF16, BYTES] if max(text) > "\uffff" else [BYTES]
    ends = ["", *(["one"] if "\r\n" in text else []), *(["two"] if "\n" in text else [])]
    yield from (Way(unit) for unit in units)
    yield from (Way(first=first) for first in (1, -1))
    yield from (Way(unit, end) for end in ends[1:] for unit in units)


def fitting(text: str, given: Sequence[Given], units: Sequence[str]) -> tuple[Ruler, str]:
    r"""The way in which a document's mentions are counted, and a doubt in words ("": none).

    The mentions' own texts decide: another way than characters is taken only if more of them agree
    with it. If none agrees, or none is given, the borders of tokens decide between `units`, those
    in which the format may count, its own rule first: another is taken only if every mention fits
    it and not the rule. A doubt remains if both fit or neither does, and they differ.

    >>> ruler, doubt = fitting("\U0001f600 took lithium", [Given([(8, 15)])], (CHARACTERS, UTF16))
    >>> str(ruler.way), ruler((8, 15))
    ('offsets in UTF-16 units', (7, 14))
    """
    own = Ruler(text, Way(units[0]))
    said = [one for one in given if one.surface][:_MOST]
    unsaid = [one for one in given if not one.surface][:_MOST]
    best, fewest = own, _misses(own, text, said)
    if fewest:
        for ruler in (Ruler(text, way) for way in _ways(text)):
            count = _misses(ruler, text, said)
            if count < fewest:
                best, fewest = ruler, count
    if fewest < len(said) or text.isascii():
        return best, ""
    wide = max(text) > "\uffff"
    possible = units if unsaid else (units[0], CHARACTERS, UTF16, BYTES)
    differ = [unit for unit in possible if wide or unit != UTF16]
    if len(differ) < 2:
        return own, ""
    readings: dict[tuple[Span, ...], Ruler] = {}
    for ruler in (own, *(Ruler(text, Way(unit)) for unit in dict.fromkeys(differ))):
        spans = [ruler(span, one.within) for one in unsaid or said for span in one.spans]
        readings.setdefault(tuple(spans), ruler)
    if len(readings) == 1:
        return own, ""
    tokens = tokens_of(text)
    starts, ends = {start for start, _ in tokens}, {end for _, end in tokens}
    fits = [ruler for spans, ruler in readings.items()
            if all(start in starts and end in ends for start, end in spans)]  # fmt: skip
    if len(fits) == 1:
        return fits[0], ""
    names = " or ".join(ruler.way.unit for ruler in readings.values())
    how = "several of them fit" if fits else "none of them fits"
    return own, f"offsets may count {names}: {how} the words" if unsaid else ""


def _misses(ruler: Ruler, text: str, said: Sequence[Given]) -> int:
    """How many mentions are not what the text has at their place."""
    return sum(
        not reads(text, [ruler(span, one.within) for span in one.spans], one.surface)
        for one in said
    )
