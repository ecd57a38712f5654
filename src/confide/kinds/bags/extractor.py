"""A trained bag model in use: documents in, facts out, each with its supporting sentences.

Shapes: S sentences (examples), G bags, R relations (class 0 is no relation).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.bags import Bags, Same, held_out_bags
from confide.data.batches.relations import (
    NO_RELATION,
    RelationExample,
    Rules,
    candidates,
    with_labels,
)
from confide.data.batches.vocabulary import Vocabulary
from confide.errors import FederationError
from confide.federation.messages import Arrays
from confide.kinds.bags.form import PCNN, BagForm, bag_trainer, words_of
from confide.kinds.bags.report import bag_report
from confide.kinds.context import find_encoder
from confide.kinds.relations.form import rules_of
from confide.kinds.trained import Report
from confide.learning.bag_scores import bag_scores, sentence_probabilities
from confide.learning.bags import BagTrainer
from confide.learning.encoder import FrozenEncoder
from confide.learning.weights import load
from confide.models.bags import BagModel, Denoise
from confide.scoring import BagCounts, count_bags
from confide.scoring.calibration import AS_IS, Calibrator
from confide.text.document import Document, Relation


@dataclass(frozen=True, slots=True)
class Support:
    """A sentence of a bag: the index of its document, and the ids of the pair there.

    `score` is the probability of the fact's relation in this sentence alone.
    """

    document: int
    pair: tuple[str, str]
    score: float


@dataclass(frozen=True, slots=True)
class Fact:
    """A relation that the model finds between two entities, from all sentences that name both.

    `head` and `tail` are identities (a concept, or letters); `names` is how the best sentence
    spells the two. `confidence` is that of the bag; `sentences` are all of the bag, best first.
    """

    head: str
    relation: str
    tail: str
    names: tuple[str, str]
    confidence: float
    sentences: tuple[Support, ...]


@dataclass(frozen=True)
class _Read:
    """Documents as bags, with the model's scores."""

    examples: list[RelationExample]
    bags: Bags
    likely_SR: NDArray[np.float32]
    scores_GR: NDArray[np.float32]


@dataclass(frozen=True)
class BagExtractor:
    """A trained bag model, the pairs it considers, and what makes two mentions one entity."""

    finds: ClassVar[Literal["facts"]] = "facts"

    trainer: BagTrainer
    model: BagModel
    rules: Rules
    same: Same
    denoise: Denoise
    types: tuple[str, ...]
    calibrator: Calibrator = AS_IS

    @cached_property
    def relations(self) -> tuple[str, ...]:
        """The classes, `NO_RELATION` first."""
        return tuple(self.trainer.form.relations)

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents, with the likeliest relation of each bag on all its pairs of mentions.

        A relation's confidence is the bag's score. Existing relations are replaced.
        """
        read = self._read(documents)
        found: dict[int, list[Relation]] = {}
        said = dict[int, tuple[str, float]]()
        for rows, scores_R in zip(read.bags.groups, read.scores_GR, strict=True):
            best = int(scores_R.argmax())
            if self.relations[best] != NO_RELATION:
                sure = self.calibrator.of(float(scores_R[best]))
                said |= dict.fromkeys(map(int, rows), (self.relations[best], sure))
        for row in sorted(said):
            example, (relation, score) = read.examples[row], said[row]
            own = found.setdefault(example.document, [])
            own.append(Relation(f"R{len(own) + 1}", relation, *example.pair, confidence=score))
        return [replace(one, relations=tuple(found.get(n, ()))) for n, one in enumerate(documents)]

    @property
    def labels(self) -> tuple[str, ...]:
        """Empty: a bag is scored by each relation alone, so there is nothing to restrict."""
        return ()

    def only(self, labels: Collection[str]) -> BagExtractor:
        """The same model."""
        return self

    def facts(self, documents: Sequence[Document], *, least: float | None = None) -> list[Fact]:
        """The facts of the documents, the likeliest first.

        Gives each pair's likeliest relation unless that is `NO_RELATION`; with `least`, every
        relation with at least that confidence.
        """
        read = self._read(documents)
        found = []
        for bag, scores_R in enumerate(read.scores_GR):
            wanted = [int(scores_R.argmax())]
            if least is not None:
                sure = [self.calibrator.of(float(score)) for score in scores_R]
                wanted = [place for place, score in enumerate(sure) if score >= least]
            found += [
                self._fact(read, bag, place, documents)
                for place in wanted
                if self.relations[place] != NO_RELATION
            ]
        return sorted(found, key=lambda fact: -fact.confidence)

    def scores(self, documents: Sequence[Document]) -> tuple[Bags, NDArray[np.float32]]:
        """The bags of the documents with their facts, and scores_GR of all relations."""
        examples = candidates(documents, self.rules).examples
        bags = held_out_bags(examples, documents, same=self.same)
        encoded = self.trainer.prepared(with_labels(examples, frozenset(self.relations)))
        return bags, bag_scores(self.model, encoded, bags.groups, denoise=self.denoise)

    def counts(self, documents: Sequence[Document]) -> BagCounts:
        """Counts of what the model gets right on the bags of annotated documents."""
        bags, scores_GR = self.scores(documents)
        return count_bags(scores_GR, self.relations, bags.facts)

    def report(self, documents: Sequence[Document], looked_for: Collection[str] | None) -> Report:
        """What the model gets right and wrong on annotated documents."""
        return bag_report(self, documents)

    def _read(self, documents: Sequence[Document]) -> _Read:
        plain = [replace(one, relations=()) for one in documents]
        examples = candidates(plain, self.rules).examples
        bags = held_out_bags(examples, plain, same=self.same)
        encoded = self.trainer.prepared(with_labels(examples, ()))
        return _Read(
            examples,
            bags,
            sentence_probabilities(self.model, encoded),
            bag_scores(self.model, encoded, bags.groups, denoise=self.denoise),
        )

    def _fact(self, read: _Read, bag: int, place: int, documents: Sequence[Document]) -> Fact:
        rows = [int(row) for row in read.bags.groups[bag]]
        rows.sort(key=lambda row: (-read.likely_SR[row, place], row))
        head, tail = read.bags.pairs[bag]
        best = read.examples[rows[0]]
        return Fact(
            head=head,
            relation=self.relations[place],
            tail=tail,
            names=_names(documents[best.document], best.pair),
            confidence=self.calibrator.of(float(read.scores_GR[bag, place])),
            sentences=tuple(
                Support(
                    read.examples[row].document,
                    read.examples[row].pair,
                    self.calibrator.of(float(read.likely_SR[row, place])),
                )
                for row in rows
            ),
        )


def _names(document: Document, pair: tuple[str, str]) -> tuple[str, str]:
    entities = {entity.id: entity for entity in document.entities}
    head, tail = pair
    return document.surface(entities[head]), document.surface(entities[tail])


def extractor_of(
    memory: BagForm, weights: Arrays, *, key: bytes | None, encoder: str | None = None
) -> BagExtractor:
    """The extractor of a trained bag model; it needs the key or, if an encoder reads, its files.

    `encoder` is where the files are, if not where the run's settings say. Raises KeyFileError,
    FederationError if the files are not those of the training, and what `find_encoder` raises.
    """
    if memory.reader == PCNN:
        return extractor_with(memory, weights, words_of(memory, key))
    found = find_encoder(encoder or memory.encoder)
    if found.digest != memory.digest:
        raise FederationError(
            "this is not the encoder that the bag model was trained with",
            where=str(found.folder),
            fix="name the folder of the same files",
        )
    return extractor_with(memory, weights, found)


def extractor_with(
    memory: BagForm, weights: Arrays, source: Vocabulary | FrozenEncoder
) -> BagExtractor:
    """The extractor with these words (word i is row i of the word table) or this encoder."""
    trainer = bag_trainer(memory, source)
    model = trainer.initial(0)
    load(model, weights)
    return BagExtractor(
        trainer,
        model,
        rules=rules_of(memory),
        same=memory.same,  # type: ignore[arg-type]
        denoise=memory.denoise,  # type: ignore[arg-type]
        types=tuple(memory.known_types),
    )
