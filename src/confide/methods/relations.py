"""Relation classifiers at a site: what the methods that train one share.

The form of the classifier is a site's memory; encoded examples are its cache; one model instance
serves all sites of a process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from torch import Tensor

from confide.data.relation_pieces import EncodedRelations, RelationBatch
from confide.data.relations import NO_RELATION, Candidates, candidates, with_labels
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.fit import FitReport
from confide.learning.optimisers import Optimiser
from confide.learning.relations import RelationModeller, fit_relations, relation_logits
from confide.learning.weights import load
from confide.methods.context import encoder_of
from confide.methods.evaluation import (
    HELD_OUT,
    RelationsScored,
    check_relations_scored,
    relation_counts_of,
    relations_scored,
)
from confide.methods.relation_form import RelationMemory, modeller_of, rules_of
from confide.models.relation import RelationClassifier, loss_among
from confide.scoring import RelationCounts, count_relations
from confide.settings import Settings as RunSettings


@dataclass(frozen=True)
class RelationTraining:
    """How a site trains."""

    learning_rate: float = carries("of this round")
    optimiser: str = carries("sgd, adam or adamw")
    momentum: float = carries("of SGD")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient")
    batch_size: int = carries("examples")
    local_epochs: int = carries("passes over the site's training examples")


def training_of(run: RunSettings, round: int) -> dict[str, Any]:
    """The fields of `RelationTraining` for a round."""
    own = run.training
    names = {field.name for field in fields(RelationTraining)} - {"learning_rate"}
    rate = own.learning_rate * own.decay ** (round - 1)
    return {"learning_rate": rate, **{name: getattr(own, name) for name in names}}


def optimiser_of(ask: RelationTraining) -> Optimiser:
    """The optimiser of a training."""
    return Optimiser(
        name=ask.optimiser,
        learning_rate=ask.learning_rate,
        momentum=ask.momentum,
        weight_decay=ask.weight_decay,
        clip=ask.clip,
    )


@dataclass
class _Desk:
    """What the sites of one process share: the classifier of one form, and what makes it."""

    modeller: RelationModeller

    @cached_property
    def model(self) -> RelationClassifier:
        return self.modeller.initial(0)


def desk_of(site: Site, memory: RelationMemory) -> _Desk:
    """That of the site's process. Raises Refusal where the encoder is not the common one."""
    encoder = encoder_of(site, memory.encoder)
    if encoder.digest != memory.digest:
        raise Refusal("other-encoder")
    desks: dict[Any, _Desk] = site.scratch.setdefault("relation desks", {})
    modeller = modeller_of(memory, encoder)
    if modeller.form not in desks:
        desks[modeller.form] = _Desk(modeller)
    return desks[modeller.form]


def classifier_at(
    site: Site, memory: RelationMemory, weights: Arrays, *, lent: bool = False
) -> RelationClassifier:
    """The one classifier of this form in this process, with these weights.

    `lent`: it computes with these very arrays, so it must not be trained.
    """
    model = desk_of(site, memory).model
    load(model, weights, lent=lent)
    return model


@dataclass(frozen=True)
class Looked:
    """A part of a site's text: the examples that it gives, and those as numbers."""

    found: Candidates
    encoded: EncodedRelations


def looked_at(site: Site, memory: RelationMemory, part: str) -> Looked:
    """The examples of a part of the site's text, made once.

    Raises Refusal where a relation of training text is outside the agreed set or what the site says
    that it knows, or where training examples are fewer than the site's own guard asks for.
    """
    key = f"relations {part}"
    if key not in site.cache:
        found = candidates(site.documents(part), rules_of(memory))
        if part == "train" and found.examples and len(found.examples) < site.guards.min_sentences:
            raise Refusal("too-few-sentences")
        known = set(compress(memory.relations, known_at(site, memory)))
        if part == "train" and any(one.relation not in known for one in found.examples):
            raise Refusal("relation-outside-set")
        modeller = desk_of(site, memory).modeller
        unlabelled = with_labels(found.examples, known)
        site.cache[key] = Looked(found, modeller.encoded(unlabelled))
    kept: Looked = site.cache[key]
    return kept


def forget_examples(site: Site) -> None:
    """Forget all that was made of text with another form."""
    for part in ("train", "dev", "test"):
        site.cache.pop(f"relations {part}", None)


def train_at(
    site: Site, memory: RelationMemory, ask: RelationTraining, *, weights: Arrays, seed: int
) -> tuple[RelationClassifier, FitReport]:
    """Train from these weights on the site's own examples; the classifier is the process's.

    A site that annotates some of the relations only learns to choose among these.
    """
    encoded = looked_at(site, memory, "train").encoded
    if not len(encoded):
        raise Refusal("no-training-text")
    model = classifier_at(site, memory, weights)
    report = fit_relations(
        model,
        encoded,
        epochs=ask.local_epochs,
        batch_size=ask.batch_size,
        optimiser=optimiser_of(ask),
        seed=seed,
        loss=_loss_at(site, memory),
    )
    return model, report


def known_at(site: Site, memory: RelationMemory) -> list[bool]:
    """For each class whether the site annotates it; no relation is one that all do."""
    own = {NO_RELATION, *site.knows}
    return [not site.knows or name in own for name in memory.relations]


def _loss_at(
    site: Site, memory: RelationMemory
) -> Callable[[RelationClassifier, RelationBatch], Tensor] | None:
    known = known_at(site, memory)
    return None if all(known) else loss_among(known)


# --- scores -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreRelations:
    """Score a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights")
    part: str = carries("dev or test")


def score_relations(
    site: Site, memory: RelationMemory | None, ask: ScoreRelations, turn: Turn
) -> tuple[RelationsScored, RelationMemory]:
    """Count what the common classifier gets right on the site's held-out text."""
    memory = known(memory)
    return scored_at(site, memory, ask.weights, part=ask.part), memory


def scored_at(site: Site, memory: RelationMemory, weights: Arrays, *, part: str) -> RelationsScored:
    """The counts of these weights on a part of the site's text.

    A relation that the site does not annotate is not found there: that would be no fault.
    """
    if part not in HELD_OUT:
        raise Refusal("bad-ask")
    looked = looked_at(site, memory, part)
    logits_SR = relation_logits(classifier_at(site, memory, weights, lent=True), looked.encoded)
    logits_SR[:, ~np.array(known_at(site, memory))] = -np.inf
    predicted = [memory.relations[place] for place in logits_SR.argmax(1)]
    gold = [example.relation for example in looked.found.examples]
    counts = count_relations(gold, predicted, missed=looked.found.missed)
    return relations_scored(counts)


SCORE_RELATIONS = Step.of(score_relations, check=check_relations_scored)


def scores_from(
    federation: Federation, step: Step, ask: Any, *, round: int
) -> dict[str, RelationCounts]:
    """Every site's counts, asked by this step."""
    replies = federation.ask(step, ask, round=round)
    return {site: relation_counts_of(reply) for site, reply in replies.items()}
