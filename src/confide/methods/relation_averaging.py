"""FedAvg and FedAtt of a relation classifier: sites send weights, the server averages them.

The baselines of Sui et al. 2020 (FedED, 4.1). FedAvg: McMahan, Moore, Ramage, Hampson & Agüera y
Arcas, AISTATS 2017: the mean of the sites' weights, each as heavy as its training examples. FedAtt:
Ji, Pan, Long, Li, Jiang & Huang, "Learning private neural language modeling with attentive
aggregation", IJCNN 2019: in each layer the central weights move by ε times the attended difference,

    w ← w - ε Σ_k α_k (w - w_k),   α = softmax over the sites of ‖w - w_k‖   (Algorithm 2).

What leaves a site: at the start which public encoder it has, names of relations and entity types;
its trained weights: the sum of all sites under FedAvg, one by one under FedAtt, whose server must
see how far each site went; counts of right and wrong relations.
What never does: text, examples, predictions.
What weights may still tell: they are a function of the text. Rows of the word-piece table that
moved show which word pieces occur at a site, in the clear: docs/methods/feded.md says more.

Where we differ from the papers or decide what they leave open:
- a layer is one named array of the classifier;
- `weighting = "equal"`: the plain mean under FedAvg;
- a public set, where there is one, is not used: that text is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from confide.errors import GuardError
from confide.federation.federation import Federation
from confide.federation.guards import near
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays
from confide.methods.context import find_encoder
from confide.methods.relation_extractor import RelationExtractor, extractor_of
from confide.methods.relation_form import (
    DESCRIBE_RELATIONS,
    RelationMemory,
    agree_on_relations,
    modeller_of,
)
from confide.methods.relations import (
    SCORE_RELATIONS,
    RelationTraining,
    ScoreRelations,
    forget_examples,
    looked_at,
    scores_from,
    train_at,
    training_of,
)
from confide.scoring import RelationCounts
from confide.settings import Settings as RunSettings
from confide.settings import Table, Task, own_settings
from confide.text.document import Document


@dataclass(frozen=True)
class RelationState(RelationMemory):
    """What the server carries from round to round: the form of the classifier, and its weights."""

    weights: Arrays = carries("weights of the classifier")


@dataclass(frozen=True)
class FormTaken:
    """A site has the form of the classifier."""

    examples: int = carries("number of its training examples")


@dataclass(frozen=True)
class TrainRelations(RelationTraining):
    """Train from these weights."""

    weights: Arrays = carries("the common weights")
    weighting: str = carries("what a site's weights are multiplied by: 1 or its examples")


@dataclass(frozen=True)
class RelationsTrained:
    """What training came to, multiplied by the site's weight."""

    weights: Arrays = carries(
        "trained weights, times the site's weight in the mean; of a table the rows that changed"
    )
    weight: float = carries("the site's weight in the mean")
    loss: float = carries("mean training loss per example, times the weight")
    sentences: int = carries("examples trained on, over all epochs")


def take_form(
    site: Site, memory: RelationMemory | None, ask: RelationMemory, turn: Turn
) -> tuple[FormTaken, RelationMemory]:
    """Keep the form of the classifier, and look at the training text with it."""
    forget_examples(site)
    return FormTaken(len(looked_at(site, ask, "train").encoded)), ask


def train_relations(
    site: Site, memory: RelationMemory | None, ask: TrainRelations, turn: Turn
) -> tuple[RelationsTrained, RelationMemory]:
    """Train the common classifier on the site's own examples for some epochs."""
    memory = known(memory)
    model, report = train_at(site, memory, ask, weights=ask.weights, seed=turn.seed)
    weight = 1.0
    if ask.weighting == "examples":
        weight = float(len(looked_at(site, memory, "train").encoded))
    trained = arrays(model)
    if weight != 1.0:
        trained = {name: array * np.float32(weight) for name, array in trained.items()}
    return RelationsTrained(trained, weight, report.loss * weight, report.sentences), memory


def train_relations_alone(
    site: Site, memory: RelationMemory | None, ask: TrainRelations, turn: Turn
) -> tuple[RelationsTrained, RelationMemory]:
    """The same, for a server that looks at each site's weights."""
    return train_relations(site, memory, ask, turn)


def check_form_taken(ask: object, reply: FormTaken) -> None:
    """Raise GuardError where the number of examples is none."""
    if reply.examples < 0:
        raise GuardError("examples is not a count")


def check_trained(ask: TrainRelations, reply: RelationsTrained) -> None:
    """Raise GuardError where a site's weight in the mean is not what was asked for."""
    if reply.weight < 1 or (ask.weighting == "equal" and reply.weight != 1):
        raise GuardError("weight is not a weight in the mean")
    if reply.sentences < 1:
        raise GuardError("sentences is not a count")


def start_of_trained(ask: TrainRelations, reply: RelationsTrained, name: str) -> np.ndarray:
    """What an array of the reply would be, had the site learnt nothing."""
    start: np.ndarray = ask.weights[name]
    return start if reply.weight == 1.0 else start * np.float32(reply.weight)


def bounded_trained(ask: TrainRelations, reply: RelationsTrained, most: float) -> RelationsTrained:
    """The reply with weights that are at most `most` away from those that were asked."""
    before = {name: start_of_trained(ask, reply, name) for name in reply.weights}
    kept = near(reply.weights, before, most, times=reply.weight)
    return reply if kept is reply.weights else replace(reply, weights=kept)


LEARNT = Learnt("weights", "weight", start="weights")
"""Trained weights, times the site's weight in the mean."""
_HOW: dict[str, Any] = {
    "like": (("weights", "weights"),),
    "check": check_trained,
    "bound": bounded_trained,
    "start": start_of_trained,
    "learnt": LEARNT,
}
TAKE_FORM = Step.of(take_form, check=check_form_taken)
TRAIN_RELATIONS = Step.of(train_relations, summed=True, **_HOW)
TRAIN_RELATIONS_ALONE = Step.of(train_relations_alone, **_HOW)


class FedAvgRESettings(Table):
    """The table `[options]` of FedAvg."""

    weighting: Literal["equal", "examples"] = "examples"


class FedAttSettings(Table):
    """The table `[options]` of FedAtt: `epsilon` is how far the central weights move."""

    epsilon: Annotated[float, Field(gt=0)] = 1.2


class FedAvgRE:
    """FedAvg: `start` agrees on the classifier, `round` takes the mean of what sites arrive at."""

    name: ClassVar[str] = "fedavg-re"
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_RELATIONS,
        TAKE_FORM,
        TRAIN_RELATIONS,
        SCORE_RELATIONS,
    )
    Settings: ClassVar[type] = FedAvgRESettings
    State: ClassVar[type] = RelationState
    Memory: ClassVar[type] = RelationMemory
    task: ClassVar[Task] = "re"
    keyed: ClassVar[bool] = False
    personal: ClassVar[bool] = False

    def __init__(self, settings: RunSettings, public: Sequence[Document] = ()) -> None:
        self._run = settings
        self._own: Any = own_settings(self.Settings, settings.options)

    def start(self, federation: Federation) -> RelationState:
        """Agree on the classifier and draw its first weights."""
        form = agree_on_relations(self._run, federation)
        federation.ask(TAKE_FORM, form, round=0)
        seed = derive_seed(federation.seed, "weights")
        first = modeller_of(form, find_encoder(form.encoder)).initial(seed)
        return RelationState(**vars(form), weights=arrays(first))

    def round(
        self, state: RelationState, federation: Federation, n: int
    ) -> tuple[RelationState, dict[str, Any]]:
        """Sites train from the common weights; the mean of theirs is the next state."""
        sites = federation.draw(self._run.federation.fraction, n)
        ask = self._ask(state, n, weighting=self._own.weighting)
        total = federation.sum(TRAIN_RELATIONS, ask, round=n, sites=sites)
        mean = {name: (a / total.weight).astype(np.float32) for name, a in total.weights.items()}
        facts = {
            "loss": total.loss / total.weight,
            "learning_rate": ask.learning_rate,
            "sites": list(sites),
            "sentences": total.sentences,
        }
        return replace(state, weights=mean), facts

    def score(
        self, state: RelationState, federation: Federation, *, part: str, round: int
    ) -> dict[str, RelationCounts]:
        """Every site's counts on its own held-out text."""
        ask = ScoreRelations(state.weights, part)
        return scores_from(federation, SCORE_RELATIONS, ask, round=round)

    def model(self, state: RelationState, memory: object) -> tuple[RelationMemory, Arrays]:
        """The common classifier, the same for all sites."""
        return state, state.weights

    def extractor(
        self, state: RelationState, memory: object, *, key: bytes | None, encoder: str | None = None
    ) -> RelationExtractor:
        """What reads documents and finds relations between their entities."""
        return extractor_of(state, state.weights, encoder=encoder)

    def _ask(self, state: RelationState, n: int, *, weighting: str) -> TrainRelations:
        return TrainRelations(
            **training_of(self._run, n), weights=state.weights, weighting=weighting
        )


class FedAttRE(FedAvgRE):
    """FedAtt: in each layer, sites that went further are attended to more."""

    name: ClassVar[str] = "fedatt-re"
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_RELATIONS,
        TAKE_FORM,
        TRAIN_RELATIONS_ALONE,
        SCORE_RELATIONS,
    )
    Settings: ClassVar[type] = FedAttSettings

    def round(
        self, state: RelationState, federation: Federation, n: int
    ) -> tuple[RelationState, dict[str, Any]]:
        """Sites train from the common weights, which move towards those of all, attentively."""
        sites = federation.draw(self._run.federation.fraction, n)
        ask = self._ask(state, n, weighting="equal")
        replies = federation.ask(TRAIN_RELATIONS_ALONE, ask, round=n, sites=sites)
        trained = [reply.weights for reply in replies.values()]
        facts = {
            "loss": sum(reply.loss for reply in replies.values()) / len(replies),
            "learning_rate": ask.learning_rate,
            "sites": list(sites),
            "sentences": sum(reply.sentences for reply in replies.values()),
        }
        moved = attended(state.weights, trained, epsilon=self._own.epsilon)
        return replace(state, weights=moved), facts


def attended(
    before: Mapping[str, np.ndarray], trained: Sequence[Arrays], *, epsilon: float
) -> Arrays:
    """The central weights, moved towards those of the sites (Ji et al. 2019, Eq. 4 to 6)."""
    moved = {}
    for name, start in before.items():
        away = [start - weights[name] for weights in trained]
        norms_K = np.array([np.sqrt(np.square(one, dtype=np.float64).sum()) for one in away])
        attention_K = np.exp(norms_K - norms_K.max())
        attention_K /= attention_K.sum()
        step = sum(float(a) * one for a, one in zip(attention_K, away, strict=True))
        moved[name] = (start - epsilon * step).astype(np.float32)
    return moved
