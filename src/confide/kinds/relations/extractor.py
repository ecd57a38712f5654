"""A trained relation classifier in use: documents in, documents out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relations import (
    NO_RELATION,
    RelationExample,
    Rules,
    candidates,
    with_labels,
    with_relations,
)
from confide.errors import FederationError
from confide.federation.messages import Arrays
from confide.kinds.context import find_encoder
from confide.kinds.relations.completing import among
from confide.kinds.relations.form import RelationForm, rules_of, trainer_of
from confide.kinds.relations.report import relation_report, weighted_pair
from confide.kinds.trained import Report, calibrated
from confide.learning.relations import RelationTrainer, probabilities
from confide.learning.weights import load
from confide.models.relation import RelationClassifier
from confide.scoring.calibration import AS_IS, Calibrator
from confide.text.document import Document


@dataclass(frozen=True)
class RelationExtractor:
    """A trained relation classifier, and the pairs it considers.

    With `wanted`, it decides between these relations and none alone.
    """

    finds: ClassVar[Literal["relations"]] = "relations"

    trainer: RelationTrainer
    model: RelationClassifier
    rules: Rules
    types: tuple[str, ...]
    calibrator: Calibrator = AS_IS
    wanted: frozenset[str] | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """What it can be restricted to: all relations of the model."""
        return tuple(name for name in self.relations if name != NO_RELATION)

    def only(self, labels: Collection[str]) -> RelationExtractor:
        """The same model, which finds these relations alone."""
        return replace(self, wanted=frozenset(labels))

    @property
    def relations(self) -> tuple[str, ...]:
        """The classes, `NO_RELATION` among them."""
        return self.trainer.form.relations

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the relations that the model finds between their entities.

        A relation's confidence is its probability. Existing relations are replaced.
        """
        found = candidates([replace(one, relations=()) for one in documents], self.rules)
        made = with_relations(documents, found.examples, self.probabilities(found.examples))
        return calibrated(made, self.calibrator, of="relations")

    def report(self, documents: Sequence[Document], looked_for: Collection[str] | None) -> Report:
        """What the model gets right and wrong, without relations that nobody looked for."""
        if self.wanted is not None:
            documents = among(documents, [], self.wanted)
        predicted = self(documents)
        if looked_for is not None:
            predicted = among(predicted, documents, looked_for)
        return relation_report(documents, predicted, self.rules)

    def weighted(
        self, documents: Sequence[Document], weights_S: NDArray[np.float32]
    ) -> dict[str, list[dict[str, object]]]:
        """The training `pairs` with their instance weights, the heaviest first."""
        found = candidates(documents, self.rules).examples
        pairs = sorted(zip(found, weights_S.tolist(), strict=True), key=lambda pair: -pair[1])
        return {
            "pairs": [
                weighted_pair(documents[one.document].id, one, weight) for one, weight in pairs
            ]
        }

    def probabilities(self, examples: Sequence[RelationExample]) -> list[dict[str, float]]:
        """For each example, the probability of every class, given that it is a wanted one."""
        plain = with_labels(examples, set())
        logits_SR = self.trainer.row_logits(self.model, self.trainer.prepared(plain))
        if self.wanted is not None:
            sought = [one == NO_RELATION or one in self.wanted for one in self.relations]
            logits_SR[:, ~np.array(sought)] = -np.inf
        rows = probabilities(logits_SR).tolist()
        return [dict(zip(self.relations, row, strict=True)) for row in rows]


def extractor_of(
    memory: RelationForm, weights: Arrays, *, encoder: str | None = None
) -> RelationExtractor:
    """The extractor of a trained classifier; `encoder` overrides the settings' encoder folder.

    Raises FederationError if the files are not those of the training, and what `find_encoder`
    raises.
    """
    found = find_encoder(encoder or memory.encoder)
    if found.digest != memory.digest:
        raise FederationError(
            "this is not the encoder that the relation model was trained with",
            where=str(found.folder),
            fix="name the folder of the same files",
        )
    trainer = trainer_of(memory, found)
    model = trainer.initial(0)
    load(model, weights)
    return RelationExtractor(trainer, model, rules_of(memory), tuple(memory.known_types))
