"""Documents cut into single sentences, the unit of error lists and of the bootstrap."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from confide.scoring.counts import paired
from confide.text.document import Document, Entity, Sentence


def by_sentence(
    gold: Sequence[Document], predicted: Sequence[Document]
) -> tuple[list[Document], list[Document]]:
    """The same entities as one document per sentence; offsets count from the sentence's start.

    The gold document's sentences are used, or the predicted one's if only that is segmented. An
    entity belongs to the sentence in which it starts. A document of at most one sentence is kept
    as it is.
    """
    left, right = [], []
    for one, other in paired(gold, predicted):
        sentences = one.sentences or other.sentences
        if len(sentences) < 2:
            left.append(one)
            right.append(other)
        else:
            left += _cut(one, sentences)
            right += _cut(other, sentences)
    return left, right


def _cut(document: Document, sentences: Sequence[Sentence]) -> list[Document]:
    starts = [sentence.start for sentence in sentences]
    entities: list[list[Entity]] = [[] for _ in sentences]
    for entity in document.entities:
        entities[max(0, bisect_right(starts, entity.start) - 1)].append(entity)
    return [
        Document(
            f"{document.id}#{number}",
            document.text[sentence.start : sentence.end],
            tuple(_shifted(entity, -sentence.start) for entity in inside),
            sentences=(_shifted_sentence(sentence),),
            source=document.source,
        )
        for number, (sentence, inside) in enumerate(zip(sentences, entities, strict=True), 1)
    ]


def _shifted(entity: Entity, by: int) -> Entity:
    return replace(
        entity, fragments=tuple((start + by, end + by) for start, end in entity.fragments)
    )


def _shifted_sentence(sentence: Sentence) -> Sentence:
    by = sentence.start
    tokens = tuple((start - by, end - by) for start, end in sentence.tokens)
    return Sentence(0, sentence.end - by, tokens)
