"""Where a mention stands in a text: by offsets counted in some unit, or by its words alone."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import ClassVar, NamedTuple

from confide.errors import FormatError
from confide.text.document import Span
from confide.text.segment import tokenise

# --- Units of offsets -----------------------------------------------------------------------------
#
# A file counts in characters, UTF-16 units or UTF-8 bytes, and each line end.
#
# Tools say "offset" and mean different things as soon as a text is not plain ASCII or has carriage
# returns. `best_fit` decides for one document of any format: by the texts that the file gives for
# its annotations or, where it gives none, by the borders of tokens.

CHARACTERS, UTF16, BYTES = "characters", "UTF-16 units", "UTF-8 bytes"
NOWHERE: Span = (-1, 0)
"""The place of a stretch that is not in the text."""
_OFFSET, _TRIED = attrgetter("offset"), 64  # parts that overlap are tried for a fragment
_SLACK = 200
_MOST = 2000  # mentions that are asked how they are counted
_ENDS = {"one": ", line ends as one", "two": ", line ends as two"}


class TextPart(NamedTuple):
    """A part of a text (start, end) whose first character the file calls `offset`."""

    start: int
    end: int
    offset: int = 0


class StatedMention(NamedTuple):
    """A mention as the file gives it: its fragments, its text ("": not said), and their part.

    Several parts are in the order of their offsets; the last that begins before a fragment and has
    room for it holds it.
    """

    spans: Sequence[Span]
    surface: str = ""
    within: Sequence[TextPart] = ()


def same_surface(text: str, spans: Sequence[Span], surface: str) -> bool:
    """Return whether fragments of a text equal a surface, apart from white space.

    A stretch that is far longer than the surface cannot equal it and is not read, so that a
    thousand mentions of a whole text take no longer than the text.
    """
    if sum(end - start for start, end in spans) > 2 * len(surface) + _SLACK:
        return False
    return " ".join(text[start:end] for start, end in spans).split() == surface.split()


class OffsetCounting(NamedTuple):
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

    def __init__(self, text: str, way: OffsetCounting) -> None:
        self.way, self._length, self._plain = way, len(text), way == OffsetCounting()
        self._marks = None if way[:2] == (CHARACTERS, "") else _marks(text, way)

    def __call__(self, span: Span, within: Sequence[TextPart] = ()) -> Span:
        """The characters of a stretch, or `NOWHERE`."""
        if not within:
            if self._plain:
                return span if 0 <= span[0] < span[1] <= self._length else NOWHERE
            within = (TextPart(0, self._length),)
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


def _marks(text: str, way: OffsetCounting) -> list[int]:
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


class Utf16:
    r"""Offsets of a text in UTF-16 units, as Java counts: `of[n]` is that of character n.

    >>> units = Utf16("a\U0001f600b")
    >>> list(units.of), [units.character(offset) for offset in (0, 1, 2, 3, 5)]
    ([0, 1, 3, 4], [0, 1, 1, 2, -1])
    """

    def __init__(self, text: str) -> None:
        plain = text.isascii() or max(text) <= "\uffff"
        self.of: Sequence[int] = range(len(text) + 1)
        if not plain:
            self.of = _marks(text, OffsetCounting(UTF16))

    def character(self, offset: int) -> int:
        """The character that begins at an offset, or that it lies in; -1 if it is outside."""
        return bisect_right(self.of, offset) - 1 if 0 <= offset <= self.of[-1] else -1


def _ways(text: str) -> Iterator[OffsetCounting]:
    """All ways in which this text may have been counted, the usual ones first."""
    units = [CHARACTERS]
    if not text.isascii():
        units += [UTF16, BYTES] if max(text) > "\uffff" else [BYTES]
    yield from (OffsetCounting(unit) for unit in units)
    yield from (OffsetCounting(first=first) for first in (1, -1))
    for end, line_end in (("one", "\r\n"), ("two", "\n")):
        if line_end in text:
            yield from (OffsetCounting(unit, end) for unit in units)


def best_fit(text: str, given: Sequence[StatedMention], units: Sequence[str]) -> tuple[Ruler, str]:
    r"""The way in which a document's mentions are counted, and a doubt in words ("": none).

    The mentions' own texts decide: another way than characters is taken only if more of them agree
    with it. If none agrees, or none is given, the borders of tokens decide between `units`, those
    in which the format may count, its own rule first: another is taken only if every mention fits
    it and not the rule. A doubt remains if both fit or neither does, and they differ.

    >>> mention = StatedMention([(8, 15)])
    >>> ruler, doubt = best_fit("\U0001f600 took lithium", [mention], (CHARACTERS, UTF16))
    >>> str(ruler.way), ruler((8, 15))
    ('offsets in UTF-16 units', (7, 14))
    """
    own = Ruler(text, OffsetCounting(units[0]))
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
    for ruler in (own, *(Ruler(text, OffsetCounting(unit)) for unit in dict.fromkeys(differ))):
        spans = [ruler(span, one.within) for one in unsaid or said for span in one.spans]
        readings.setdefault(tuple(spans), ruler)
    if len(readings) == 1:
        return own, ""
    tokens = tokenise(text)
    starts, ends = {start for start, _ in tokens}, {end for _, end in tokens}
    fits = [ruler for spans, ruler in readings.items()
            if all(start in starts and end in ends for start, end in spans)]  # fmt: skip
    if len(fits) == 1:
        return fits[0], ""
    names = " or ".join(ruler.way.unit for ruler in readings.values())
    how = "several of them fit" if fits else "none of them fits"
    return own, f"offsets may count {names}: {how} the words" if unsaid else ""


def _misses(ruler: Ruler, text: str, said: Sequence[StatedMention]) -> int:
    """Count the mentions that differ from the text at their place."""
    return sum(
        not same_surface(text, [ruler(span, one.within) for span in one.spans], one.surface)
        for one in said
    )


# --- Places of mentions ---------------------------------------------------------------------------
#
# Mentions given as strings without offsets are found in their sentence.
#
# There are five ways, each tried only if the one before finds nothing. Each was checked on all
# mentions of the PsyTAR corpus that it places.
#
# 1. As it is written, from the border of a word to the border of a word. 2. The same letters and
# digits, whatever the case, white space and punctuation between them. 3. The same, of six letters
# or more, begun or ended inside a word ("headache" of "headaches"). 4. In pieces: all its words in
# the same order with others between them ("muscle pain" of "muscle    and joint pain"), on the
# shortest stretch that has them. 5. Misspelt: as many words, of which those that differ begin with
# the same letter, have four letters    or more, and are one edit apart, or two if they have seven
# (an edit is a letter more, less,    other, or swapped with its neighbour). Only where one place is
# better than all others.

WAYS = ("as written", "but for case and punctuation", "inside a word", "in pieces", "misspelt")
LONGEST_NAME = 300
"""The longest mention that is looked for, in characters."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_LONGEST_WORD = 64  # of a word that may be misspelt


@dataclass(slots=True)
class Effort:
    """A budget of places and words to look at for the mentions of one file (`where`).

    Every sentence adds `EACH` to what is left, up to `MOST`: far more than natural sentences need,
    yet so little that no file can be made to take hours.
    """

    where: str
    left: int = 300_000
    EACH: ClassVar[int] = 300
    MOST: ClassVar[int] = 300_000

    def begin(self) -> None:
        """Begin a new sentence."""
        self.left = min(self.MOST, self.left + self.EACH)

    def spend(self, count: int) -> None:
        """Use some of the budget. Raises FormatError if nothing is left."""
        self.left -= count
        if self.left < 0:
            raise FormatError(
                "its mentions could stand at more places than can be looked at",
                expected="sentences, and the names of what is in them",
                where=self.where,
                fix="shorten the sentences that say the same word hundreds of times, or give the"
                " mentions' offsets",
            )


class MentionPlace(NamedTuple):
    """The place of a mention, which of `WAYS` found it, and how many places fit equally well."""

    fragments: tuple[Span, ...]
    way: str
    places: int = 1


class _Word(NamedTuple):
    """A word in lower case without apostrophes, and its place."""

    text: str
    start: int
    end: int


class _Sentence:
    """A sentence, with everything that is looked up in it repeatedly."""

    def __init__(self, text: str, effort: Effort) -> None:
        self.text, self.effort = text, effort
        self._taken = bytearray(len(text))

    def take(self, spans: Sequence[Span]) -> None:
        """Note that a mention stands here."""
        for start, end in spans:
            self._taken[start:end] = b"\1" * (end - start)

    def taken(self, span: Span) -> bool:
        """Return whether a stretch shares a character with a mention that was placed."""
        return self._taken.find(1, *span) >= 0

    @cached_property
    def letters(self) -> tuple[str, list[int]]:
        """The letters and digits in lower case, and the offset of each."""
        return _letters(self.text)

    @cached_property
    def words(self) -> list[_Word]:
        """Its words."""
        return _words(self.text)

    @cached_property
    def places(self) -> Mapping[str, list[int]]:
        """Where each word stands among the words."""
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, word in enumerate(self.words):
            places[word.text].append(place)
        return places


def place_mentions(
    text: str, mentions: Sequence[str], *, effort: Effort | None = None
) -> list[MentionPlace | None]:
    """The places of mentions of one type in one sentence, None for a mention without one.

    The longest come first, and a place that another mention has is used only if no other is left:
    of "pain" and "back pain" in "back pain and pain", each gets its own.

    Raises FormatError if the `effort` for the file is spent.
    """
    effort = effort or Effort("the sentence")
    effort.begin()
    found: list[MentionPlace | None] = [None] * len(mentions)
    sentence = _Sentence(text, effort)
    waiting = Counter(mentions)
    for number in sorted(range(len(mentions)), key=lambda number: -len(mentions[number])):
        mention = mentions[number]
        effort.spend(1)
        if not mention or len(mention) > LONGEST_NAME:
            continue
        place = _in_one_piece(sentence, mention, waiting[mention])
        if place is None and (words := _words(mention)):
            place = _in_pieces(sentence, words) or _misspelt(sentence, words)
        waiting[mention] -= 1
        if place is not None:
            sentence.take(place.fragments)
            found[number] = place
    return found


def _in_one_piece(sentence: _Sentence, mention: str, waiting: int) -> MentionPlace | None:
    """Ways 1 to 3; `waiting` mentions of this string have no place yet."""
    text = sentence.text
    literal = list(_found(text, mention, sentence.effort))
    wanted, (run, offsets) = _letters(mention)[0], sentence.letters
    alike = [(offsets[start], offsets[end - 1] + 1)
             for start, end in _found(run, wanted, sentence.effort)]  # fmt: skip
    alike = [span for span in alike if not _touches(span, literal)]
    as_written = set(literal)
    borders = {span: _borders(text, span) for span in (*literal, *alike)}
    ranks = {
        span: (sentence.taken(span), WAYS[0 if span in as_written else 1])
        for span, count in borders.items()
        if count == 2
    }
    if not ranks and len(wanted) >= 6:
        spans = [span for span, count in borders.items() if count == 1]
        ranks = {span: (sentence.taken(span), WAYS[2]) for span in spans}
    if not ranks:
        return None
    best = min(ranks.values(), key=lambda rank: (rank[0], WAYS.index(rank[1])))
    spans = sorted(span for span, rank in ranks.items() if rank == best)
    return MentionPlace((spans[0],), best[1], len(spans) if len(spans) > waiting else 1)


def _found(text: str, wanted: str, effort: Effort) -> Iterator[Span]:
    """Every place of a string in a text, including overlapping ones."""
    start = text.find(wanted) if wanted else -1
    effort.spend(len(text) >> 10)
    while start >= 0:
        effort.spend(1)
        yield start, start + len(wanted)
        start = text.find(wanted, start + 1)


def _letters(text: str) -> tuple[str, list[int]]:
    """The letters and digits of a text in lower case, and the offset of each."""
    if text.isascii() and text.isalnum():
        return text.lower(), list(range(len(text)))
    offsets = [offset for offset, character in enumerate(text) if character.isalnum()]
    letters = [text[offset].lower() for offset in offsets]  # some have two in lower case
    offsets = [offset for offset, some in zip(offsets, letters, strict=True) for _ in some]
    return "".join(letters), offsets


def _touches(span: Span, others: Sequence[Span]) -> bool:
    """True if a stretch shares a character with one of others: all of one length, in order."""
    place = bisect_right(others, span[0], key=lambda other: other[1])
    return place < len(others) and others[place][0] < span[1]


def _borders(text: str, span: Span) -> int:
    """Count the ends of a stretch, of two, that do not lie inside a word."""
    inside = sum(
        0 < border < len(text) and text[border - 1].isalnum() and text[border].isalnum()
        for border in span
    )
    return 2 - inside


def _words(text: str) -> list[_Word]:
    return [
        _Word(match.group().replace("'", "").replace("’", "").lower(), *match.span())
        for match in _WORD.finditer(text)
    ]


def _in_pieces(sentence: _Sentence, mention: Sequence[_Word]) -> MentionPlace | None:
    """Way 4: of several stretches the shortest in words, then the first."""
    if len(mention) < 2:
        return None
    wanted, words = [word.text for word in mention], sentence.words
    best: list[int] = []
    first = -1
    while True:
        chosen = _chain(sentence, wanted, first)
        if not chosen:
            break
        begin = chosen[-1]
        for word in reversed(wanted[:-1]):  # back to the last beginning that has the same end
            places = sentence.places[word]
            begin = places[bisect_left(places, begin) - 1]
        chosen = _chain(sentence, wanted, begin - 1)
        if not best or chosen[-1] - chosen[0] < best[-1] - best[0]:
            best = chosen
        first = chosen[0]
    fragments: list[Span] = []
    for before, place in zip([-2, *best], best, strict=False):
        start = words[place].start
        if place == before + 1:
            start = fragments.pop()[0]
        fragments.append((start, words[place].end))
    return MentionPlace(tuple(fragments), WAYS[3]) if fragments else None


def _chain(sentence: _Sentence, wanted: Sequence[str], after: int) -> list[int]:
    """The first places of words, each after the one before; empty if one is missing."""
    chosen: list[int] = []
    for word in wanted:
        sentence.effort.spend(1)
        places = sentence.places.get(word, ())
        next_one = bisect_right(places, after)
        if next_one == len(places):
            return []
        after = places[next_one]
        chosen.append(after)
    return chosen


def _misspelt(sentence: _Sentence, wanted: Sequence[_Word]) -> MentionPlace | None:
    """Way 5."""
    words = sentence.words
    found: list[tuple[int, Span]] = []
    for first in range(len(words) - len(wanted) + 1):
        total = 0
        for one, other in zip(words[first : first + len(wanted)], wanted, strict=True):
            slip = _slips(one.text, other.text, sentence.effort)
            if slip is None:
                break
            total += slip
        else:
            found.append((total, (words[first].start, words[first + len(wanted) - 1].end)))
    found.sort()
    if not found or (len(found) > 1 and found[0][0] == found[1][0]):
        return None
    return MentionPlace((found[0][1],), WAYS[4])


def _slips(one: str, other: str, effort: Effort) -> int | None:
    """Count the edits between two words; None if too many for the same word."""
    effort.spend(1)
    if one == other:
        return 0
    shorter, longer = sorted((len(one), len(other)))
    allowed = 0 if shorter < 4 or one[0] != other[0] else 1 + (longer >= 7)
    if longer - shorter > allowed or longer > _LONGEST_WORD:
        return None
    effort.spend(longer * longer // 8 if allowed else 0)
    edits = _edits(one, other) if allowed else 1
    return edits if edits <= allowed else None


def _edits(one: str, other: str) -> int:
    """The edits from one word to another (optimal string alignment: no letter is edited twice)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], wanted):
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]
