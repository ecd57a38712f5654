"""Mentions that are given as strings, without offsets: their places in the sentence they are of.

Five ways, the next only where the one before finds nothing; each was looked at on all mentions of
the PsyTAR corpus that it places.

1. As it is written, from the border of a word to the border of a word.
2. The same letters and digits, whatever the case, white space and punctuation between them.
3. The same, of six letters or more, begun or ended inside a word ("headache" of "headaches").
4. In pieces: all its words in the same order with others between them ("muscle pain" of "muscle
   and joint pain"), on the shortest stretch that has them.
5. Misspelt: as many words, of which those that differ begin with the same letter, have four letters
   or more, and are one edit apart, or two if they have seven (an edit is a letter more, less,
   other, or swapped with its neighbour). Only where one place is better than all others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from confide.text.document import Span

WAYS = (
    "as written",
    "but for case and punctuation",
    "inside a word",
    "in pieces",
    "misspelt",
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


class Placed(NamedTuple):
    """Where a mention stands, which of `WAYS` found it, and how many places fit as well as this."""

    fragments: tuple[Span, ...]
    way: str
    places: int = 1


class _Word(NamedTuple):
    """A word in lower case without apostrophes, and where it stands."""

    text: str
    start: int
    end: int


def place_mentions(text: str, mentions: Sequence[str]) -> list[Placed | None]:
    """The places of mentions of one type in one sentence, None where there is none.

    The longest come first, and a place that another mention has is taken only where no other is
    left: of "pain" and "back pain" in "back pain and pain" each gets its own.
    """
    found: list[Placed | None] = [None] * len(mentions)
    waiting = Counter(mentions)
    taken: list[Span] = []
    for number in sorted(range(len(mentions)), key=lambda number: -len(mentions[number])):
        mention = mentions[number]
        place = (
            _in_one_piece(text, mention, taken, waiting[mention])
            or _in_pieces(text, mention)
            or _misspelt(text, mention)
        )
        waiting[mention] -= 1
        if place is not None:
            taken += place.fragments
            found[number] = place
    return found


def _in_one_piece(text: str, mention: str, taken: Sequence[Span], waiting: int) -> Placed | None:
    """Ways 1 to 3; `waiting` mentions of this string have no place yet."""
    literal = [
        (match.start(), match.start() + len(mention))
        for match in re.finditer(f"(?={re.escape(mention)})", text)
        if mention
    ]
    alike = [span for span in _same_letters(text, mention) if not _touches(span, literal)]
    borders = {span: _borders(text, span) for span in (*literal, *alike)}
    ranks = {
        span: (_touches(span, taken), WAYS[0 if span in literal else 1])
        for span, count in borders.items()
        if count == 2
    }
    if not ranks and len(_letters(mention)) >= 6:
        spans = [span for span, count in borders.items() if count == 1]
        ranks = {span: (_touches(span, taken), WAYS[2]) for span in spans}
    if not ranks:
        return None
    best = min(ranks.values(), key=lambda rank: (rank[0], WAYS.index(rank[1])))
    spans = sorted(span for span, rank in ranks.items() if rank == best)
    return Placed((spans[0],), best[1], len(spans) if len(spans) > waiting else 1)


def _same_letters(text: str, mention: str) -> list[Span]:
    """Stretches of a text with just the letters and digits of a mention, from one to another."""
    wanted = "".join(letter for letter, _ in _letters(mention))
    letters = _letters(text)
    run = "".join(letter for letter, _ in letters)
    if not wanted:
        return []
    return [
        (letters[match.start()][1], letters[match.start() + len(wanted) - 1][1] + 1)
        for match in re.finditer(f"(?={re.escape(wanted)})", run)
    ]


def _letters(text: str) -> list[tuple[str, int]]:
    """The letters and digits of a text in lower case, each with its offset."""
    return [
        (letter, offset)
        for offset, character in enumerate(text)
        if character.isalnum()
        for letter in character.lower()
    ]


def _touches(span: Span, others: Sequence[Span]) -> bool:
    """Whether a stretch shares a character with one of others."""
    return any(span[0] < end and start < span[1] for start, end in others)


def _borders(text: str, span: Span) -> int:
    """How many of a stretch's two ends do not lie inside a word."""
    inside = sum(
        0 < border < len(text) and text[border - 1].isalnum() and text[border].isalnum()
        for border in span
    )
    return 2 - inside


def _words(text: str) -> list[_Word]:
    return [
        _Word(re.sub("['’]", "", match.group()).lower(), *match.span())
        for match in _WORD.finditer(text)
    ]


def _in_pieces(text: str, mention: str) -> Placed | None:
    """Way 4: of several stretches the shortest in words, then the first."""
    wanted, words = [word.text for word in _words(mention)], _words(text)
    best: list[int] = []
    for first, word in enumerate(words):
        if len(wanted) < 2 or word.text != wanted[0]:
            continue
        chosen = [first]
        for place in range(first + 1, len(words)):
            if len(chosen) < len(wanted) and words[place].text == wanted[len(chosen)]:
                chosen.append(place)
        if len(chosen) == len(wanted) and (not best or chosen[-1] - chosen[0] < best[-1] - best[0]):
            best = chosen
    fragments: list[Span] = []
    for before, place in zip([-2, *best], best, strict=False):
        start = words[place].start
        if place == before + 1:
            start = fragments.pop()[0]
        fragments.append((start, words[place].end))
    return Placed(tuple(fragments), WAYS[3]) if fragments else None


def _misspelt(text: str, mention: str) -> Placed | None:
    """Way 5."""
    wanted, words = _words(mention), _words(text)
    found: list[tuple[int, Span]] = []
    for first in range(len(words) - len(wanted) + 1 if wanted else 0):
        here = words[first : first + len(wanted)]
        slips = [_slips(one.text, other.text) for one, other in zip(here, wanted, strict=True)]
        if None not in slips:
            total = sum(slip for slip in slips if slip is not None)
            found.append((total, (here[0].start, here[-1].end)))
    found.sort()
    if not found or (len(found) > 1 and found[0][0] == found[1][0]):
        return None
    return Placed((found[0][1],), WAYS[4])


def _slips(one: str, other: str) -> int | None:
    """How many edits apart two words are; None if these are too many to be the same word."""
    if one == other:
        return 0
    shorter, longer = sorted((len(one), len(other)))
    allowed = 0 if shorter < 4 or one[0] != other[0] else 1 + (longer >= 7)
    if longer - shorter > allowed:
        return None
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
