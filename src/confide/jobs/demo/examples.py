"""What the demonstration's recogniser finds in held-out sentences, beside what is marked there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from confide.data.corpus.synthetic import HABITS, TYPES, Habit, documents
from confide.jobs.predict import predict
from confide.text.checking import retag
from confide.text.document import Document, Sentence
from confide.text.formats import read
from confide.text.segment import segmented


@dataclass(frozen=True, slots=True)
class Mark:
    """Marked words: their type in the data, their type from the model, and its confidence.

    A type is empty if the data, or the model, has no entity of exactly these words. The first of
    them begins at the sign `start` of the sentence.
    """

    words: str
    marked: str
    found: str
    confidence: float | None
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """A held-out sentence of one site, with its marked entities and what the model finds."""

    site: str
    text: str
    marks: tuple[Mark, ...]


def example(habit: Habit, run: Path, file: Path, *, seed: int) -> Example:
    """The site's richest test sentence, chosen without looking at predictions."""
    common = dict(zip(habit.names, TYPES, strict=True))
    gold = [segmented(note) for note in retag(read(file).documents, common)[0]]
    known = {name for h in HABITS for name in _drugs(documents(h.site, "train", seed=seed))}

    def richness(place: tuple[int, Sentence]) -> tuple[bool, int, int]:
        marked = _within(gold[place[0]], place[1]).values()
        is_new = any(type == "DRUG" and words.lower() not in known for words, type in marked)
        return is_new, len({type for _, type in marked}), -len(place[1].tokens)

    number, sentence = max(
        ((number, s) for number, note in enumerate(gold) for s in note.sentences), key=richness
    )
    predicted = predict(run, [file])[number]
    return Example(
        habit.site,
        gold[number].text[sentence.start : sentence.end],
        tuple(_marks(gold[number], predicted, sentence)),
    )


def _drugs(notes: Iterable[Document]) -> Iterable[str]:
    return (note.surface(e).lower() for note in notes for e in note.entities if e.type == "DRUG")


def _within(note: Document, sentence: Sentence) -> dict[tuple[int, int], tuple[str, str]]:
    """The words and types of a sentence's entities, in order."""
    return {
        (e.start, e.end): (note.surface(e), e.type)
        for e in note.entities
        if sentence.start <= e.start and e.end <= sentence.end
    }


def _marks(gold: Document, predicted: Document, sentence: Sentence) -> Iterable[Mark]:
    marked, found = _within(gold, sentence), _within(predicted, sentence)
    sure = {(e.start, e.end): e.confidence for e in predicted.entities}
    for place in sorted({*marked, *found}):
        words = (marked.get(place) or found[place])[0]
        yield Mark(
            words,
            marked.get(place, ("", ""))[1],
            found.get(place, ("", ""))[1],
            sure.get(place),
            place[0] - sentence.start,
        )
