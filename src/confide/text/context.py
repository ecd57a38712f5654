"""Assertions by ConText's rules: the words around a mention tell if it is absent, or possible.

Harkema, Dowling, Thornblade & Chapman, "ConText: An algorithm for determining negation,
experiencer, and temporal status from clinical reports", J Biomed Inform 42 (2009), which goes on
from NegEx (Chapman et al., J Biomed Inform 34, 2001). A trigger speaks of the mentions behind it
("no"), or before it ("was ruled out"), up to a word that ends its reach or the end of the sentence.
Nothing is learnt. The triggers are a list of our own (`context.toml`), in the papers' categories.

Departures: a mention has one value, the first of `VALUES` that a trigger gives it; a backward
trigger reaches over `WORDS` words; and a negation, doubt or history does not reach past another
trigger that follows a comma or "and" ("no cough, history of asthma").
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
import warnings
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import ClassVar, Literal, NamedTuple

from confide.errors import Note
from confide.files import Tree
from confide.text.document import ASSERTION, Document, Entity, Span
from confide.text.segment import language_of, segmented

PRESENT = "present"
VALUES = (
    "associated_with_someone_else", "hypothetical", "possible", "absent", "historical",
)  # fmt: skip
"""The values of triggers, in the names of i2b2 2010; the first that applies counts."""
WORDS = 6
"""The most words between a mention and a trigger behind it."""
_WAYS = ("forward", "near", "just_before", "backward", "just_after", "ends")
_REACH, _CLOSE = 1000, 20  # characters: of a trigger, and back to a comma
_GIVES_WAY = frozenset(("possible", "absent", "historical"))
_START = re.compile(r"(?<!\w)\w|n(?=\s*['’]\s*t\b)|[^\w\s]", re.IGNORECASE)
_PIECE = re.compile(r"\{(\w+)\}|([()|])|(#)|(\w+)|(\s+)|(.)")
_LIST = re.compile(r"\{(\w+)\}")
_NEW = re.compile(r"(?:,|\b(?:and|et|y))\s*$", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_FAR = re.compile(r"[,:]|\b(?:and|et|y)\b", re.IGNORECASE)


class _Cue(NamedTuple):
    """A trigger, or a word that ends what others reach, in a text."""

    start: int
    end: int
    says: Mapping[str, frozenset[str]]
    new: bool


class _Rules(NamedTuple):
    """One pattern of all phrases that begin with a character, and what each of its groups says."""

    pattern: re.Pattern[str]
    says: tuple[Mapping[str, frozenset[str]], ...]


def _cues(rules: Mapping[str, _Rules], text: str, span: Span) -> Iterator[_Cue]:
    """The triggers and ends in a stretch of a text, in order; where several begin, the longest."""
    at, end = span
    for start in _START.finditer(text, at, end):
        own = rules.get(start[0].lower())
        if own is None or start.start() < at:
            continue
        if found := own.pattern.match(text, start.start(), end):
            at = found.end()
            new = (
                _NEW.search(text[max(span[0], found.start() - _CLOSE) : found.start()]) is not None
            )
            yield _Cue(*found.span(), own.says[(found.lastindex or 0) - 1], new)


@cache
def _table() -> dict[str, Tree]:
    return tomllib.loads((files("confide.text") / "context.toml").read_text("utf-8"))


@cache
def _rules(language: str) -> dict[str, _Rules]:
    """The rules of a language of the table, by the first character of their phrases."""
    table = _table()[language]
    lists = {name: "|".join(words.split()) for name, words in table["lists"].items()}
    either = {name: "|".join(map(_either, words.split())) for name, words in table["lists"].items()}
    said: defaultdict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for value in VALUES:
        for way, phrases in table[value].items():
            for phrase in phrases:
                said[phrase][way].add(value)
    for value, phrases in table["ends"].items():
        for phrase in phrases:
            said[phrase]["ends"].update(VALUES if value == "all" else [value])
    for phrase in table["nothing"]["phrases"]:
        said[phrase].update()
    firsts: defaultdict[str, list[str]] = defaultdict(list)
    for phrase in sorted(said, key=lambda one: (-len(one.split()), -len(one))):
        opening = _LIST.sub(lambda one: f"({lists[one[1]]})", phrase)
        words = opening[1:].partition(")")[0].split("|") if opening[0] == "(" else [opening]
        for first in {first for word in words for first in (word[0], _bare(word[0]))}:
            firsts[first].append(phrase)
    return {
        first: _Rules(
            re.compile("|".join(f"({_pattern(one, either)})" for one in phrases), re.IGNORECASE),
            tuple({way: frozenset(said[one][way]) for way in _WAYS} for one in phrases),
        )
        for first, phrases in firsts.items()
    }


def _bare(letter: str) -> str:
    """The letter without its accent."""
    return unicodedata.normalize("NFD", letter)[0]


def _either(word: str) -> str:
    """The pattern of a word, each of whose accents may be missing."""
    found = (one if _bare(one) == one else f"[{one}{_bare(one)}]" for one in word)
    return "".join(found).replace("'", r"\s*['’]\s*")


def _pattern(phrase: str, lists: Mapping[str, str]) -> str:
    """The pattern of a phrase, without a group that counts; blanks may be any white space."""
    last = phrase.endswith("$")
    parts = []
    for name, bracket, digit, word, blank, mark in _PIECE.findall(phrase.removesuffix("$")):
        if name:
            parts.append(f"(?:{lists[name]})")
        elif bracket:
            parts.append("(?:" if bracket == "(" else bracket)
        elif digit:
            parts.append(r"\d")
        elif blank:
            parts.append(r"\s+")
        else:
            parts.append(
                _either(word) or (r"\s*['’]\s*" if mark == "'" else rf"\s*{re.escape(mark)}\s*")
            )
    whole = "".join(parts).removeprefix(r"\s*").removesuffix(r"\s*")
    if not phrase.startswith("n't") and re.match(r"[\w({]", phrase):
        whole = rf"(?<!\w){whole}"
    if last:
        return whole + r"(?=\s*(?:[.,;)\n]|$))"
    return whole + r"(?!\w)" if re.search(r"[\w)}]$", phrase) else whole


@dataclass(frozen=True, slots=True)
class ContextRules:
    """Gives each entity of a document the attribute "assertion": "present" or one of `VALUES`.

    With `wanted`, triggers of other values are not looked at. Text is in the `language`, or in what
    it tells itself.
    """

    finds: ClassVar[Literal["attributes"]] = "attributes"
    attribute: ClassVar[str] = ASSERTION
    labels: ClassVar[tuple[str, ...]] = (PRESENT, *VALUES)

    wanted: frozenset[str] = frozenset(VALUES)
    language: str = ""

    def only(self, labels: Sequence[str]) -> ContextRules:
        """Restrict the rules to these values."""
        return replace(self, wanted=frozenset(labels))

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with their entities' assertions, in place of those they had.

        Text that is in a language without rules gets none, with a Note.
        """
        common = language_of(one.text for one in documents)
        found = []
        for document in documents:
            language = self.language or language_of([document.text])
            if language not in _table():  # what one short text tells may be wrong
                language = common or language or "en"
            values = [""] * len(document.entities)
            if language in _table():
                values = list(self._values(document, language))
            elif values:
                warnings.warn(
                    f"there are no rules for assertions in text of the language {language!r}, so"
                    f" its entities get none; there are for {', '.join(_table())}",
                    Note,
                    stacklevel=2,
                )
            both = zip(document.entities, values, strict=True)
            entities = tuple(one.with_attribute(ASSERTION, value or None) for one, value in both)
            found.append(replace(document, entities=entities))
        return found

    def _values(self, document: Document, language: str) -> Iterator[str]:
        """The assertion of each entity."""
        rules, text = _rules(language), document.text
        sentences = segmented(document).sentences
        starts, ends = [one.start for one in sentences], [one.end for one in sentences]
        known: dict[Span, list[_Cue]] = {}
        for entity in document.entities:
            first, last = bisect_right(ends, entity.start), bisect_left(starts, entity.end)
            span = (min([entity.start, *starts[first : first + 1]]),
                    max([entity.end, *ends[max(last - 1, 0) : last]]))  # fmt: skip
            if span not in known:
                known[span] = list(_cues(rules, text, span))
            yield self._value(entity, known[span], text)

    def _value(self, entity: Entity, cues: Sequence[_Cue], text: str) -> str:
        """The first of `VALUES` that a trigger of the sentence gives the entity, or "present"."""
        given: set[str] = set()
        closed: set[str] = set()
        behind = bisect_right(cues, entity.start, key=lambda one: one.end)
        for place in range(behind - 1, -1, -1):
            cue = cues[place]
            if cue.end < entity.start - _REACH:
                break
            if not text[cue.end : entity.start].strip(" -"):
                given |= cue.says["just_before"]
            if cue.says["near"] and not _FAR.search(text, cue.end, entity.start):
                given |= cue.says["near"] - closed
            given |= cue.says["forward"] - closed
            closed |= cue.says["ends"]
            if cue.new and (cue.says["forward"] or cue.says["near"]):
                closed |= _GIVES_WAY
        closed = set()
        for place in range(bisect_left(cues, entity.end, key=lambda one: one.start), len(cues)):
            cue = cues[place]
            far = cue.start > entity.end + _REACH
            if far or len(_WORD.findall(text, entity.end, cue.start)) > WORDS:
                break
            if not text[entity.end : cue.start].strip(" -"):
                given |= cue.says["just_after"]
            given |= cue.says["backward"] - closed
            closed |= cue.says["ends"]
        return next((one for one in VALUES if one in given & self.wanted), PRESENT)
