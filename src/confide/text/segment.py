"""Raw text to sentences and tokens, with exact offsets, behind one small interface.

Tokens cover every character that is not white space, in order and without overlap; every token lies
in one sentence. The rules are made for clinical and scientific prose: abbreviations, decimals,
initials, list items, headings, and notes whose lines either end with the sentence or are merely
wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from confide.text.document import Document, Sentence, Span

_UNITS = "mg|mcg|ug|µg|g|kg|ml|mL|dl|dL|l|L|mm|cm|mmHg|mmol|mEq|IU|hrs?|h|min|days?|wks?|yo|x"
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0e7f"
    "\u1ab0-\u1aff\u1dc0-\u1dff\u200c\u200d\u20d0-\u20f0\ufe00-\ufe0f"
)
_TOKEN = re.compile(
    rf"""
      \d+(?:[.,]\d+)*(?=(?:{_UNITS})\b)        # the number of a dose: 5 of 5mg
    | \d+(?:[.,]\d+)+                          # decimals and thousands: 3.5, 10,000
    | [\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]  # scripts without blanks: one by one
    | [^\W_](?:[{_MARKS}]|[^\W_])*             # words, with their combining marks
    | ['’](?:s|t|d|m|re|ve|ll)\b               # the end of: patient's, don't
    | (?P<run>[.\-=_*~!?\#])(?P=run)+          # ..., ---, ====
    | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)
_BREAK = re.compile(
    r"(?<![.!?])(?P<stop>[.!?]++)[\"'”’)\]]*+(?=\s|$)|(?P<line>\n\s*+)|[。！？]++[”’」』]*+"
)
_BULLET = re.compile(r"(?:[-*•·+>]|\(?\d{1,3}[.)]|\(?[A-Za-z][.)])\s")
_LAST_WORD = re.compile(r"[^\s(\[\"'“‘]+$")
_TITLES = (
    "dr mr mrs ms prof st fig figs eq eqs ref refs vs v cf e.g i.e eg ie approx ca nos vol "
    "dept jr sr sp spp resp incl esp viz pp ed eds"
)
_DOTTED = "al etc b.i.d t.i.d q.i.d q.d p.o p.r.n i.v i.m s.c b.p a.m p.m h.s q.h.s u.s u.k"
_OPENING = (
    "the a an he she it they we i this that these those there in on at for from with no after "
    "before during his her its patient patients pt on our however continue denies"
)
_NEVER_LAST = frozenset(_TITLES.split())
_OFTEN_LAST = frozenset(_DOTTED.split())
_OPENERS = frozenset(_OPENING.split())
_WRAPPED_AT = 60


class Segmenter(Protocol):
    """What finds sentences and tokens: any callable from a text to its sentences, in order."""

    def __call__(self, text: str) -> tuple[Sentence, ...]:
        """The sentences of a text; their tokens are offsets into it."""
        ...


class RuleSegmenter:
    """The sentence splitter and tokeniser that comes with confide; it is deterministic.

    A full stop ends a sentence unless it belongs to a title, an abbreviation, an initial or a
    number, or a lower-case word follows. A newline ends one unless the line was merely wrapped
    (the next line continues in lower case, or the line has 60 characters or more and no final mark,
    and no list item follows); an empty line always does.
    """

    def __call__(self, text: str) -> tuple[Sentence, ...]:
        """The sentences of a text; none for a text of white space."""
        tokens = tokens_of(text)
        sentences: list[Sentence] = []
        first = 0
        for cut in (*_cuts(text), len(text)):
            last = first
            while last < len(tokens) and tokens[last][0] < cut:
                last += 1
            if last > first:
                sentences.append(_sentence(tokens[first:last]))
            first = last
        return tuple(sentences)


def tokens_of(text: str) -> list[Span]:
    """The tokens of a text, the same that `RuleSegmenter` finds, without its sentences."""
    return [match.span() for match in _TOKEN.finditer(text)]


def _sentence(tokens: list[Span]) -> Sentence:
    return Sentence(tokens[0][0], tokens[-1][1], tuple(tokens))


def _cuts(text: str) -> Iterator[int]:
    """The offsets where a sentence ends, ascending."""
    line_start = 0
    for match in _BREAK.finditer(text):
        if match.lastgroup == "line":
            if _line_ends(text, line_start, match):
                yield match.end()
            line_start = match.end()
        elif match.lastgroup is None or _stop_ends(text, line_start, match):
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


def _stop_ends(text: str, line_start: int, match: re.Match[str]) -> bool:
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
    if word.lower() in _NEVER_LAST or (word.lower() == "no" and following.isdigit()):
        return False
    if _BULLET.match(text, match.start() - len(word)) and match.start() - len(word) == line_start:
        return False  # "1. Aspirin"
    if (len(word) == 1 and word.isalpha()) or word.lower() in _OFTEN_LAST:
        opener = re.match(r"\w+", text[position : position + 20])
        return opener is not None and opener.group().lower() in _OPENERS
    return True


def segmented(document: Document, segmenter: Segmenter | None = None) -> Document:
    """The document with sentences and tokens; one that already has them is returned as it is."""
    if document.sentences:
        return document
    return replace(document, sentences=(segmenter or RuleSegmenter())(document.text))
