"""How documents are cut into sentences: by a language's rules, by their lines, or as they came."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confide.text.document import Document, Entity
from confide.text.languages import AUTO, check_language, language_of
from confide.text.segment import (
    RuleSegmenter,
    Segmenter,
    line_segmenter,
    segmented,
    with_own_tokens,
)

Sentences = Literal["rules", "lines"]
TrainOn = Literal["own tokens", "file tokens"]
"""The tokens of text that comes with tokens: those that raw text has, or those of the file."""
_PLAIN = ("", "en")
_SHARE, _COMMONEST = 0.01, 10


@dataclass(frozen=True, slots=True)
class Splitting:
    """How to cut text into sentences and tokens.

    `language` is two letters of ISO 639-1, or `auto`: that of all documents together. Text that is
    English, or does not tell, then keeps the rules of English prose. With `lines`, every line is a
    sentence. `abbreviations` are further ones that end no sentence. Text that comes with sentences
    keeps them; `tokens` says which tokens they have.
    """

    language: str = AUTO
    sentences: Sentences = "rules"
    abbreviations: tuple[str, ...] = ()
    tokens: TrainOn = "file tokens"

    def __post_init__(self) -> None:
        """Raise SettingsError for a language that is not known."""
        check_language(self.language)

    def language_for(self, documents: Sequence[Document]) -> str:
        """The language that is stated or, if `auto`, told by documents without sentences."""
        if self.language != AUTO:
            return self.language
        return language_of(one.text for one in documents if not one.sentences)

    def segmenter(self, language: str) -> Segmenter:
        """What finds the sentences of text in this language."""
        if self.sentences == "lines":
            return line_segmenter
        plain = self.language == AUTO and language in _PLAIN
        return RuleSegmenter("" if plain else language, self.abbreviations)


def into_sentences(documents: Sequence[Document], splitting: Splitting) -> list[Document]:
    """The documents with sentences; those that have some keep them."""
    if splitting.tokens == "own tokens":
        documents = [with_own_tokens(one) if one.sentences else one for one in documents]
    if all(one.sentences for one in documents):
        return list(documents)
    segmenter = splitting.segmenter(splitting.language_for(documents))
    if segmenter == RuleSegmenter():  # what everything does by itself, when it needs sentences
        return list(documents)
    return [segmented(document, segmenter) for document in documents]


# --- entities across the ends of sentences --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Crossing:
    """Entities of a type that cross the end of a sentence, of how many, and what stands there.

    `before` counts the words before those ends, the ten commonest first.
    """

    crossing: int
    entities: int
    before: Mapping[str, int]


class Crossings:
    """Counts, document by document, the entities that cross the end of a sentence."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()
        self._crossing: Counter[str] = Counter()
        self._before: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, document: Document) -> None:
        """Count a segmented document."""
        self._totals.update(entity.type for entity in document.entities)
        if len(document.sentences) > 1:
            for entity, word in _crossing(document):
                self._crossing[entity.type] += 1
                self._before[entity.type][word] += 1

    def by_type(self) -> dict[str, Crossing]:
        """The types of which more than 1 % cross the end of a sentence, the most frequent first."""
        return {
            type: Crossing(
                count, self._totals[type], dict(self._before[type].most_common(_COMMONEST))
            )
            for type, count in self._crossing.most_common()
            if count > _SHARE * self._totals[type]
        }


def _crossing(document: Document) -> list[tuple[Entity, str]]:
    """Entities across the end of a sentence, each with the word before the first such end."""
    found = []
    ordered = sorted((e for e in document.entities if len(e.fragments) == 1), key=_start)
    sentences, place = document.sentences, 0
    for entity in ordered:
        while place + 1 < len(sentences) and sentences[place + 1].start <= entity.start:
            place += 1
        if place + 1 < len(sentences) and sentences[place + 1].start < entity.end:
            end = sentences[place].end
            word = document.text[max(end - 40, sentences[place].start) : end].split()
            found.append((entity, word[-1] if word else ""))
    return found


def _start(entity: Entity) -> int:
    return entity.start
