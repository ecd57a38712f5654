"""A relation classifier at a site: examples as numbers, made once, and one model in a process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches import drawn_rows
from confide.data.relation_pieces import EncodedRelations, relation_batch
from confide.data.relations import (
    NO_RELATION,
    Candidates,
    candidates,
    with_labels,
)
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.completing import CompleteText, Pulls
from confide.kinds.context import encoder_of
from confide.kinds.evaluation import RelationsScored, relation_counts_of, relations_scored
from confide.kinds.how import How
from confide.kinds.protocol import Fitted
from confide.kinds.relations.completing import (
    LabelledPairs,
    completed,
    own_pairs,
    relations_in,
)
from confide.kinds.relations.form import RelationForm, modeller_of, rules_of
from confide.kinds.relations.public import PublicExamples
from confide.learning.gradients import gradients
from confide.learning.relations import (
    RelationModeller,
    fit_relations,
    relation_logits,
    relation_slopes,
)
from confide.learning.weights import arrays, load
from confide.models import relation
from confide.models.relation import RelationClassifier
from confide.scoring import SCORING, count_relations


@dataclass
class _Bench:
    """What the sites of one process share: the classifier of one form, and what makes it."""

    modeller: RelationModeller

    @cached_property
    def model(self) -> RelationClassifier:
        return self.modeller.initial(0)


@dataclass(frozen=True)
class Looked:
    """A part of a site's text: the examples that it gives, and those as numbers."""

    found: Candidates
    encoded: EncodedRelations


class RelationDesk:
    """A relation classifier at a site.

    Besides what every desk does, it predicts other examples than the site's own (`logits`), labels
    the site's own pairs with what a model of other weights finds there (`completed`), and says what
    single pairs pull at (`slopes`).
    """

    def __init__(self, site: Site, form: RelationForm) -> None:
        self.site = site
        self.form = form
        self._looked: dict[str, Looked] = {}

    @property
    def size(self) -> int:
        """Training examples: pairs of entities."""
        return len(self.looked("train").encoded)

    def check(self) -> None:
        """Raise Refusal where the training text has a relation that the form does not have."""
        self.looked("train")

    def vectors(self) -> str:
        """There are none."""
        return ""

    def rows_seen(self) -> Arrays:
        """There are no tables."""
        return {}

    @property
    def bench(self) -> _Bench:
        """That of the site's process. Raises Refusal where the encoder is not the common one."""
        encoder = encoder_of(self.site, self.form.encoder)
        if encoder.digest != self.form.digest:
            raise Refusal("other-encoder")
        benches: dict[Any, _Bench] = self.site.scratch.setdefault("relation benches", {})
        modeller = modeller_of(self.form, encoder)
        if modeller.form not in benches:
            benches[modeller.form] = _Bench(modeller)
        return benches[modeller.form]

    def model(self, weights: Arrays, *, lent: bool = False) -> RelationClassifier:
        """The process's model with these weights; `lent`: these very arrays, not to be trained."""
        model = self.bench.model
        load(model, weights, lent=lent)
        return model

    def looked(self, part: str) -> Looked:
        """The examples of a part of the site's text, made once.

        Raises Refusal where a relation of training text is outside the agreed set or what the site
        says that it knows, or where training examples are fewer than the site's own guard asks for.
        """
        if part not in self._looked:
            site = self.site
            found = candidates(site.documents(part), rules_of(self.form))
            if part == "train" and 0 < len(found.examples) < site.guards.min_sentences:
                raise Refusal("too-few-sentences")
            known = set(compress(self.form.relations, self.known))
            if part == "train" and any(one.relation not in known for one in found.examples):
                raise Refusal("relation-outside-set")
            unlabelled = with_labels(found.examples, known)
            self._looked[part] = Looked(found, self.bench.modeller.encoded(unlabelled))
        return self._looked[part]

    @property
    def known(self) -> list[bool]:
        """For each class whether the site annotates it; no relation is one that all do."""
        own = {NO_RELATION, *self.site.knows}
        return [not self.site.knows or name in own for name in self.form.relations]

    @cached_property
    def annotated(self) -> frozenset[str]:
        """The relations that the site annotates: what it says so, or what its training text has."""
        return frozenset(self.site.knows or relations_in(self.site.train))

    def completed(self, weights: Arrays | None) -> CompleteText:
        """The training pairs with the site's own relations, and what such a model finds besides.

        Of that the relations that the site lacks, where it says that none of its own holds. Without
        weights one learns to choose among the site's own relations, with them among all.
        """
        encoded, relations = self.looked("train").encoded, self.form.relations
        if weights is None:
            among_R = [name == NO_RELATION or name in self.annotated for name in relations]
            own = int((encoded.relations_S != relations.index(NO_RELATION)).sum())
            return CompleteText(own_pairs(encoded, among_R), own=own, pseudo=0)
        return completed(
            encoded,
            relations=relations,
            own=self.annotated,
            logits=lambda pairs: relation_logits(self.model(weights, lent=True), pairs),
        )

    def slopes(self, weights: Arrays, encoded: LabelledPairs) -> Pulls:
        """The gradients of each pair's loss by the form's `slope`."""
        model = self.model(weights, lent=True)
        return Pulls(*relation_slopes(model, encoded.encoded, source_S=encoded.source_S))

    def fit(
        self,
        weights: Arrays,
        how: How,
        *,
        seed: int,
        encoded: LabelledPairs | None = None,
        each_S: NDArray[np.float32] | None = None,
    ) -> Fitted:
        """Train on the site's own examples, or on those that `completed` gave.

        A site that annotates some of the relations only learns to choose among these. `each_S`: how
        much each pair counts whose label is the site's own.
        """
        pairs = encoded or own_pairs(self.looked("train").encoded, self.known)
        if not len(pairs.encoded):
            raise Refusal("no-training-text")
        model = self.model(weights)
        report = fit_relations(
            model,
            pairs.encoded,
            epochs=how.epochs,
            batch_size=how.batch_size,
            optimiser=how.steps,
            seed=seed,
            loss=pairs.loss(each_S),
        )
        return Fitted(arrays(model), report.loss, report.sentences)

    def gradient(self, weights: Arrays, how: How, *, seed: int) -> tuple[float, Arrays, int]:
        """The mean loss of a batch that the seed draws, its gradient by parameter, and its size."""
        encoded = self.looked("train").encoded
        if not len(encoded):
            raise Refusal("no-training-text")
        model = self.model(weights, lent=True)
        loss_of = own_pairs(encoded, self.known).loss() or relation.loss
        random = np.random.default_rng(seed)
        rows_B = drawn_rows(encoded.lengths_S, how.batch_size, random=random)
        batch = relation_batch(encoded, rows_B)
        loss, slope = gradients(model, lambda: loss_of(model, batch), seed=seed, clip=how.clip)
        return loss, slope, len(rows_B)

    def lift(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """There is no file of vectors."""
        return {}

    def worth(self, counted: RelationsScored, by: str) -> float | None:
        """By how much a model is better than another; None where nothing was scored."""
        counts = relation_counts_of(counted)
        scoring = SCORING["re"]
        return scoring.value(scoring.scores(counts), by) if counts.confusion else None

    def logits(self, weights: Arrays, public: PublicExamples) -> NDArray[np.float32]:
        """logits_SR of public examples, which are encoded once in a process."""
        sets: dict[Any, EncodedRelations] = self.site.scratch.setdefault("public sets", {})
        bench = self.bench
        key = public.name, bench.modeller.form
        if key not in sets:
            sets[key] = bench.modeller.encoded(public.examples())
        return relation_logits(self.model(weights, lent=True), sets[key])

    def scored(self, weights: Arrays, part: str, *, apart: bool = False) -> RelationsScored:
        """Counts on held-out text.

        A relation that the site does not annotate is not found there: that would be no fault. If
        `apart`, one is where it is annotated in that text all the same, and a pair whose likeliest
        relation nobody looked for there has none.
        """
        looked = self.looked(part)
        logits_SR = relation_logits(self.model(weights, lent=True), looked.encoded)
        if not apart:
            logits_SR[:, ~np.array(self.known)] = -np.inf
        predicted = [self.form.relations[place] for place in logits_SR.argmax(1)]
        if apart:
            test = self.site.test_knows if part == "test" else ()
            sought = {*self.annotated, *test, *relations_in(self.site.documents(part))}
            predicted = [name if name in sought else NO_RELATION for name in predicted]
        gold = [example.relation for example in looked.found.examples]
        counts = count_relations(gold, predicted, missed=looked.found.missed)
        return relations_scored(counts)
