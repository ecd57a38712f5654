"""Raw text to sentences and tokens, with exact offsets, behind one small interface.

Tokens cover every character that is not white space, in order and without overlap; every token lies
in one sentence. The rules are made for clinical and scientific prose: abbreviations, decimals,
initials, list items, headings, and notes whose lines either end with the sentence or are merely
wrapped.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Protocol

from confide.text.document import Document, Sentence, Span
from confide.text.languages import Stops, stops_of
from confide.text.tokens import Packed

_UNITS = "mg|mcg|ug|µg|g|kg|ml|mL|dl|dL|l|L|mm|cm|mmHg|mmol|mEq|IU|hrs?|h|min|days?|wks?|yo|x"
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0e00"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u200c\u200d\u20d0-\u20f0\ufe00-\ufe0f"
)
_ALONE = (  # letters of Chinese and Japanese, Thai, Lao, Burmese and Khmer
    "\u3005-\u3007\u3040-\u3098\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9d"
    "\U00020000-\U0003ffff\u0e01-\u0e30\u0e32\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0ec0-\u0ec6"
    "\u0edc-\u0edf\u1000-\u102a\u103f\u1050-\u1055\u1780-\u17b3"
)
_JOINED = (  # their vowels and tones above, below and behind
    "\u3099\u309a\uff9e\uff9f\ufe00-\ufe0f\u0e31\u0e33-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb3-\u0ebc"
    "\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u17b4-\u17d3\u17dd"
)
_TOKEN = re.compile(
    rf"""
      [A-Za-z][A-Za-z0-9]*+(?:[{_MARKS}]|[^\W_{_ALONE}])*+  # words, the usual ones first for speed
    | \d+(?:[.,]\d+)*(?=(?i:{_UNITS})\b)       # the number of a dose: 5 of 5mg
    | \d+(?:[.,]\d+)+                          # decimals and thousands: 3.5, 10,000
    | [{_ALONE}](?:[\u17d2\u1039][{_ALONE}]|[{_JOINED}])*  # scripts without blanks: one by one
    | [^\W_{_ALONE}](?:[{_MARKS}]|[^\W_{_ALONE}])*  # other words, with their combining marks
    | ['’](?i:s|t|d|m|re|ve|ll)\b              # the end of: patient's, don't
    | (?P<run>[.\-=_*~!?\#])(?P=run)+          # ..., ---, ====
    | \S
    """,
    re.VERBOSE,
)
_BREAK = re.compile(
    r"(?<![.!?])(?P<stop>[.!?]++)[\"'”’)\]]*+(?=\s|$)|(?P<line>\n\s*+)"
    "|[。！？｡؟۔।॥։።။។]++[”’」』]*+"
)
_BULLET = re.compile(r"(?:[-*•·+>]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s")
_LINE = re.compile(r"[\n\r]+")
_NEXT_WORD = re.compile(r"\w+")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_DOTTED = re.compile(r"[^\W\d_]{1,3}(?:\.-?[^\W\d_]{1,3})+")
_TITLES = (
    "dr mr mrs ms prof st fig figs eq eqs ref refs vs v cf e.g i.e eg ie approx ca nos vol "
    "dept jr sr sp spp resp incl esp viz pp ed eds"
)
_SHORT = "al etc b.i.d t.i.d q.i.d q.d p.o p.r.n i.v i.m s.c b.p a.m p.m h.s q.h.s u.s u.k"
_OPENING = (
    "the a an he she it they we i this that these those there in on at for from with no after "
    "before during his her its patient patients pt on our however continue denies"
)
_PLAIN = Stops(
    "",
    never=frozenset(_TITLES.split()),
    often=frozenset(_SHORT.split()),
    openers=frozenset(_OPENING.split()),
    library=False,
)
_WRAPPED_AT = 60


class Segmenter(Protocol):
    """What finds sentences and tokens: any callable from a text to its sentences, in order."""

    def __call__(self, text: str) -> tuple[Sentence, ...]:
        """The sentences of a text; their tokens are offsets into it."""
        ...


@dataclass(frozen=True)
class RuleSegmenter:
    """The sentence splitter and tokeniser that comes with confide; it is deterministic.

    A full stop ends a sentence unless it belongs to a title, an abbreviation, an initial or a
    number, or a lower-case word follows. A newline ends one unless the line was merely wrapped
    (the next line continues in lower case, or the line has 60 characters or more and no final mark,
    and no list item follows); an empty line always does.

    `language` is a code of ISO 639-1; without one, stops mean what they do in English prose.
    `abbreviations` are further ones that end no sentence.
    """

    language: str = ""
    abbreviations: tuple[str, ...] = ()

    @cached_property
    def stops(self) -> Stops:
        """What a full stop means here."""
        if self.language:
            return stops_of(self.language, self.abbreviations)
        own = stops_of("", self.abbreviations)
        return replace(_PLAIN, never=_PLAIN.never | own.never, endings=own.endings)

    def __call__(self, text: str) -> tuple[Sentence, ...]:
        """The sentences of a text; none for a text of white space."""
        return cut_at(text, _cuts(text, self.stops))


def line_segmenter(text: str) -> tuple[Sentence, ...]:
    """Each line of a text that is not blank as one sentence."""
    return cut_at(text, (match.end() for match in _LINE.finditer(text)))


def cut_at(text: str, cuts: Iterable[int]) -> tuple[Sentence, ...]:
    """The sentences between ascending offsets; a cut inside a token comes after that token."""
    borders = array("I", chain.from_iterable(map(re.Match.span, _TOKEN.finditer(text))))
    starts = borders[::2]
    sentences: list[Sentence] = []
    first = 0
    for cut in (*cuts, len(text)):
        last = bisect_left(starts, cut, first)
        if last > first:
            own = borders[2 * first : 2 * last]
            sentences.append(Sentence(own[0], own[-1], Packed(own)))
        first = last
    return tuple(sentences)


def tokens_of(text: str) -> list[Span]:
    """The tokens of a text, the same that `RuleSegmenter` finds, without its sentences."""
    return list(map(re.Match.span, _TOKEN.finditer(text)))


def with_own_tokens(document: Document) -> Document:
    """The document with its own sentences, and the tokens that `tokens_of` finds in each.

    >>> told = Document("d", "Art. 25. gilt", sentences=(Sentence(0, 13, ((0, 4), (5, 8))),))
    >>> with_own_tokens(told).sentences[0].tokens
    ((0, 3), (3, 4), (5, 7), (7, 8), (9, 13))
    """
    return replace(document, sentences=tuple(_own(document.text, s) for s in document.sentences))


def _own(text: str, sentence: Sentence) -> Sentence:
    found = map(re.Match.span, _TOKEN.finditer(text, sentence.start, sentence.end))
    tokens = Packed(array("I", chain.from_iterable(found)))
    return sentence if tokens == sentence.tokens else replace(sentence, tokens=tokens)


@dataclass(frozen=True, slots=True)
class Cut:
    """The words in entities as a file cuts them, and how many of them `tokens_of` cuts otherwise.

    Only sentences that came with tokens are counted.
    """

    words: int = 0
    cut: int = 0

    @property
    def share(self) -> float:
        """The share that is cut otherwise; 0 without a word."""
        return self.cut / self.words if self.words else 0.0


def words_cut(documents: Iterable[Document]) -> Cut:
    """How the tokens of files differ, in entities, from those of raw text.

    A model that learnt from the former does not know the latter.
    """
    words = cut = 0
    for document in documents:
        inside = sorted(part for one in document.entities for part in one.fragments)
        if not inside or not document.sentences:
            continue
        own = {span for s in with_own_tokens(document).sentences for span in s.tokens}
        ends = list(accumulate((end for _, end in inside), max))
        starts = [start for start, _ in inside]
        for sentence in document.sentences:
            for start, end in sentence.tokens:
                place = bisect_left(starts, end)  # fragments that begin before the token ends
                if place and ends[place - 1] > start:
                    words += 1
                    cut += (start, end) not in own
    return Cut(words, cut)


def _cuts(text: str, stops: Stops) -> Iterator[int]:
    """The offsets where a sentence ends, ascending."""
    line_start = 0
    for match in _BREAK.finditer(text):
        if match.lastgroup == "line":
            if _line_ends(text, line_start, match):
                yield match.end()
            line_start = match.end()
        elif match.lastgroup is None or _stop_ends(text, line_start, match, stops=stops):
            yield match.end()


def _line_ends(text: str, line_start: int, match: re.Match[str]) -> bool:
    """Whether a newline ends the sentence."""
    if match.group().count("\n") > 1 or match.end() == len(text):
        return True
    if _BULLET.match(text, match.end()):
        return True
    end = match.start()
    while end > line_start and text[end - 1].isspace():
        end -= 1
    if end == line_start or text[end - 1] in ".!?:;":
        return True
    following, wrapped = text[match.end()], end - line_start >= _WRAPPED_AT
    return not (following.islower() or (wrapped and (following.isalnum() or following in "(")))


def _stop_ends(text: str, line_start: int, match: re.Match[str], *, stops: Stops) -> bool:
    """Whether a stop before white space or the end of the text ends the sentence."""
    position = match.end()
    while position < len(text) and text[position].isspace() and text[position] != "\n":
        position += 1
    if position == len(text) or text[position] == "\n":
        return False  # the end of the text or of the line decides
    following = text[position]
    if following.islower():
        return False
    if match.group("stop") != ".":
        return True
    found = _LAST_WORD.search(text, max(line_start, match.start() - 40), match.start())
    word = found.group() if found else ""
    lower = word.lower()
    if stops.never_ends(lower) or (lower == "no" and following.isdigit()):
        return False
    if _BULLET.match(text, match.start() - len(word)) and match.start() - len(word) == line_start:
        return False  # "1. Aspirin"
    ahead = _NEXT_WORD.match(text, position, position + 20)
    next_word = ahead.group() if ahead else ""
    initial = stops.library and len(next_word) == 1 and text[position + 1 : position + 2] == "."
    opens = next_word.lower() in stops.openers and not initial
    if (len(word) == 1 and word.isalpha()) or lower in stops.often:
        return opens
    if stops.library and _DOTTED.fullmatch(word):
        return opens
    if stops.ordinals and word.isdigit() and len(word) <= 2:
        return opens or not next_word
    return not stops.in_library(word, next_word)


def segmented(document: Document, segmenter: Segmenter | None = None) -> Document:
    """The document with sentences and tokens; one that already has them is returned as it is."""
    if document.sentences:
        return document
    return replace(document, sentences=(segmenter or RuleSegmenter())(document.text))
