"""A relation classifier at a site: examples, encoded once, and one model per process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.relation_pieces import EncodedRelations
from confide.data.batches.relations import (
    NO_RELATION,
    Candidates,
    RelationExample,
    candidates,
    with_labels,
)
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.context import encoder_of
from confide.kinds.evaluation import RelationsScored, relation_counts_of, relations_scored
from confide.kinds.how import How
from confide.kinds.protocol import CompleteText, Losses, SharedModel, SiteModel
from confide.kinds.relations.completing import completed, relations_in
from confide.kinds.relations.form import CLASS_ROWS, RelationForm, rules_of, trainer_of
from confide.kinds.relations.public import PublicExamples
from confide.kinds.tuned import keeping_features
from confide.learning.context import cache_folder
from confide.learning.relations import LabelledPairs, RelationTrainer, probabilities
from confide.scoring import count_relations
from confide.tasks import TASKS
from confide.text.document import Document


@dataclass(frozen=True)
class Looked:
    """The examples of a part of a site's text, and the same encoded."""

    found: Candidates
    encoded: EncodedRelations


class RelationSiteModel(SiteModel):
    """A relation classifier at a site.

    Beyond what every desk does, it predicts public examples (`predicted`), labels the site's own
    pairs with what a model finds there (`completed`), and gives the gradients of single pairs
    (`slopes`).
    """

    form: RelationForm

    def __init__(self, site: Site, form: RelationForm) -> None:
        super().__init__(site, form)
        self._looked: dict[str, Looked] = {}

    @property
    def size(self) -> int:
        """The number of training examples: pairs of entities."""
        return len(self.looked("train").encoded)

    def check(self) -> None:
        """Raise Refusal if the training text has a relation that the form lacks."""
        self.looked("train")

    def rows_seen(self, how: How) -> Arrays:
        """For each relation: 1 if the site annotates it, else 0."""
        return {name: np.array(self.known, np.float32) for name in CLASS_ROWS}

    @property
    def bench(self) -> SharedModel:
        """The process's bench. Raises Refusal if the site's encoder is not the common one."""
        encoder = encoder_of(self.site, self.form.encoder)
        if encoder.digest != self.form.digest:
            raise Refusal("other-encoder")
        trainer = trainer_of(self.form, encoder)
        return self.site.once("relations", trainer.form, make=lambda: SharedModel(trainer))

    def looked(self, part: str) -> Looked:
        """The examples of a part of the site's text, made once.

        Raises Refusal if the training text has a relation outside the agreed set or outside what
        the site says it knows.
        """
        if part not in self._looked:
            site = self.site
            found = candidates(site.documents(part), rules_of(self.form))
            known = set(compress(self.form.relations, self.known))
            if part == "train" and any(one.relation not in known for one in found.examples):
                raise Refusal("relation-outside-set")
            unlabelled = with_labels(found.examples, known)
            self._looked[part] = Looked(found, self.featured(unlabelled))
        return self._looked[part]

    def featured(self, examples: Sequence[RelationExample]) -> EncodedRelations:
        """The examples, encoded, with what a frozen encoder gives of them. Raises Refusal."""
        made = self.trainer
        with keeping_features():
            return made.featured(made.prepared(examples), self.bench.model, folder=cache_folder())

    @property
    def known(self) -> list[bool]:
        """For each class, whether the site annotates it; every site annotates `NO_RELATION`."""
        own = {NO_RELATION, *self.site.knows}
        return [not self.site.knows or name in own for name in self.form.relations]

    @cached_property
    def annotated(self) -> frozenset[str]:
        """The relations that the site says it annotates; by default, those of its training text."""
        return frozenset(self.site.knows or relations_in(self.site.train))

    def completed(self, weights: Arrays | None, *, confidence: float = 0.0) -> CompleteText:
        """The training pairs with the site's own relations and, given weights, a model's as well.

        Only relations that the site lacks are added, with at least this confidence, where it says
        that none of its own holds.
        """
        encoded, relations = self.looked("train").encoded, self.form.relations
        nothing, own = relations.index(NO_RELATION), {NO_RELATION, *self.annotated}
        own_R = np.array([name in own for name in relations])
        if weights is None:
            count = int((encoded.relations_S != nothing).sum())
            return CompleteText(self.trainer.annotated(encoded, own_R), own=count, pseudo=0)

        def logits(pairs: EncodedRelations) -> NDArray[np.float32]:
            return self.trainer.row_logits(self.model(weights, lent=True), pairs)

        return completed(encoded, own_R, nothing=nothing, logits=logits, confidence=confidence)

    @property
    def trainer(self) -> RelationTrainer:
        """The trainer of the process's model."""
        trainer: RelationTrainer = self.bench.trainer
        return trainer

    @property
    def own(self) -> LabelledPairs:
        """The training pairs with the site's own labels."""
        return self.trainer.annotated(self.looked("train").encoded, np.array(self.known))

    def losses(self, weights: Arrays, how: How, documents: Sequence[Document]) -> Losses:
        """What these weights lose on each pair."""
        known = set(compress(self.form.relations, self.known))
        examples = with_labels(candidates(documents, rules_of(self.form)).examples, known)
        own = self.trainer.annotated(self.featured(examples), np.array(self.known))
        found_S = self.trained_by(how).row_losses(self.model(weights, lent=True), own)
        return Losses(
            "pairs",
            found_S,
            np.array([one.document for one in examples], np.int64),
            [(one.text, one.head, one.tail) for one in examples],
        )

    @property
    def places(self) -> list[tuple[int, int]]:
        """The document of each training pair, by number; a pair has no sentence of its own."""
        return [(one.document, -1) for one in self.looked("train").found.examples]

    def worth(self, counted: RelationsScored, by: str) -> float | None:
        """The score by which models are compared; None if nothing was scored."""
        counts = relation_counts_of(counted)
        task = TASKS["re"]
        return task.value(task.scores(counts), by) if counts.confusion else None

    def known_classes(self) -> list[bool]:
        """For each class, whether the site annotates it."""
        return self.known

    def predicted(self, weights: Arrays, public: PublicExamples) -> NDArray[np.float32]:
        """logits_SR of public examples, which are encoded once per process."""
        made = self.trainer
        encoded = self.site.once(
            "public pairs", public.digest, made.form, make=lambda: self.featured(public.examples())
        )
        return made.row_logits(self.model(weights, lent=True), encoded)

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> RelationsScored:
        """Counts on a part of the held-out text.

        Relations that the site does not annotate are not predicted: finding one would be no
        mistake. With `apart`, one is predicted if it occurs in that text all the same, and a pair
        whose likeliest relation nobody looked for gets none.
        """
        looked = self.looked(part)
        logits_SR = self.trainer.row_logits(self.model(weights, lent=True), looked.encoded)
        likely_SR = probabilities(logits_SR) if len(logits_SR) else logits_SR
        if not apart:
            logits_SR[:, ~np.array(self.known)] = -np.inf
        best_S = logits_SR.argmax(1)
        predicted = [self.form.relations[place] for place in best_S]
        if apart:
            test = self.site.test_knows if part == "test" else ()
            sought = {*self.annotated, *test, *relations_in(self.site.documents(part))}
            predicted = [name if name in sought else NO_RELATION for name in predicted]
        gold = [example.relation for example in looked.found.examples]
        counts = count_relations(
            gold,
            predicted,
            missed=looked.found.missed,
            confidences=likely_SR[np.arange(len(best_S)), best_S].tolist(),
        )
        return relations_scored(counts)
