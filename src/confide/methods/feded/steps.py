"""What a site is asked under FedED, and what it answers.

Shapes: S public examples, R classes, Q = R - 1 columns of predictions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.relation_pieces import EncodedRelations
from confide.data.relations import NO_RELATION, RelationExample
from confide.errors import GuardError
from confide.federation.coarse import LEVELS, fixed, plus
from confide.federation.failures import Refusal
from confide.federation.guards import bounded
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from confide.learning.relations import probabilities, relation_logits
from confide.methods.evaluation import RelationsScored, check_relations_scored
from confide.methods.relation_form import RelationMemory
from confide.methods.relations import (
    RelationTraining,
    desk_of,
    forget_examples,
    known_at,
    scored_at,
    train_at,
)

Spans = list[tuple[int, int]]
MIB = 2**20
NONE_YET = 0
"""The version of a central model that a site does not keep."""


@dataclass(frozen=True)
class PublicSet(RelationMemory):
    """The form of the classifier, and the public examples without their relations.

    `digest_of_public` is a number from their content, by which both sides know them.
    """

    texts: list[str] = carries("text of each public example", most=8 * MIB)
    heads: list[Spans] = carries("where the head is in it", most=2 * MIB)
    tails: list[Spans] = carries("where the tail is in it", most=2 * MIB)
    head_types: list[str] = carries("entity type of the head", most=2 * MIB)
    tail_types: list[str] = carries("entity type of the tail", most=2 * MIB)
    public: int = carries("a number from the content of the public examples")


@dataclass(frozen=True)
class PublicTaken:
    """A site has the public examples."""

    public: int = carries("a number from the content of the public examples")


@dataclass(frozen=True)
class FedEDMemory(PublicSet):
    """What a site keeps: the same, and the central model, where only differences are sent."""

    version: int = carries("which central model this is")
    weights: Arrays = carries("the central model; empty where it is sent whole")


@dataclass(frozen=True)
class TakeModel:
    """Keep this central model."""

    version: int = carries("which central model this is")
    weights: Arrays = carries("the whole model; empty where a difference will do")
    change: Arrays = carries("how it differs from the version before: int8, scales, rows")


@dataclass(frozen=True)
class ModelTaken:
    """A site has the central model."""

    version: int = carries("the version that it keeps")


@dataclass(frozen=True)
class TrainAndPredict(RelationTraining):
    """Train from the central model on your own examples, and predict the public ones."""

    weights: Arrays = carries("the central model; empty: the one that the site keeps")
    version: int = carries("which central model this is")
    public: int = carries("a number from the content of the public examples")
    examples: int = carries("how many these are")
    classes: int = carries("how many classes the classifier has")
    upload: str = carries("what is predicted: logits or probabilities")
    average: str = carries("whose predictions of a relation enter the mean: all or known")
    wire_dtype: str = carries("the type of number of the predictions")
    most: float = carries("the largest prediction; what is larger is sent as this")


@dataclass(frozen=True)
class Predicted:
    """What the trained model says of the public examples, and of nothing else."""

    said_SQ: NDArray[np.int8 | np.float16 | np.float32] = carries(
        "of each public example, logits of all relations against no relation, or probabilities"
    )
    knows: dict[str, NDArray[np.float32]] = carries(
        "for each relation whether the site annotates it; average = known only", legend="R"
    )
    public: int = carries("a number from the content of the public examples")
    sites: int = carries("1, so that the sum says how many sites these are")
    loss: float = carries("mean training loss per example")
    sentences: int = carries("examples trained on, over all epochs")


@dataclass(frozen=True)
class ScoreModel:
    """Score a part of your held-out text with the central model."""

    weights: Arrays = carries("the central model; empty: the one that the site keeps")
    version: int = carries("which central model this is")
    part: str = carries("dev or test")


# --- the public set ---------------------------------------------------------------------------


def public_of(form: RelationMemory, examples: Sequence[RelationExample]) -> PublicSet:
    """The message that gives these examples to the sites; their relations are not in it."""
    content: dict[str, list[object]] = {
        "texts": [one.text for one in examples],
        "heads": [[tuple(span) for span in one.head] for one in examples],
        "tails": [[tuple(span) for span in one.tail] for one in examples],
        "head_types": [one.head_type for one in examples],
        "tail_types": [one.tail_type for one in examples],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return PublicSet(**vars(form), **content, public=int.from_bytes(digest[:4], "big"))  # type: ignore[arg-type]


def examples_of(public: PublicSet, relations: Sequence[str] = ()) -> list[RelationExample]:
    """The public examples; `relations` are the server's labels, where it has some."""
    labels = relations or [NO_RELATION] * len(public.texts)
    return [
        RelationExample(
            id=f"public:{number}",
            text=public.texts[number],
            head=tuple(public.heads[number]),
            tail=tuple(public.tails[number]),
            head_type=public.head_types[number],
            tail_type=public.tail_types[number],
            relation=label,
        )
        for number, label in enumerate(labels)
    ]


def take_public_set(
    site: Site, memory: FedEDMemory | None, ask: PublicSet, turn: Turn
) -> tuple[PublicTaken, FedEDMemory]:
    """Keep the form of the classifier and the public examples."""
    forget_examples(site)
    return PublicTaken(ask.public), FedEDMemory(**vars(ask), version=NONE_YET, weights={})


def check_public(ask: PublicSet, reply: PublicTaken) -> None:
    """Raise GuardError where the site has other public examples."""
    if reply.public != ask.public:
        raise GuardError("public is the number of another public set")


def public_at(site: Site, memory: FedEDMemory) -> EncodedRelations:
    """The public examples as numbers, made once in a process for classifiers of one form."""
    encoded: dict[Any, EncodedRelations] = site.scratch.setdefault("public sets", {})
    modeller = desk_of(site, memory).modeller
    key = memory.public, modeller.form
    if key not in encoded:
        encoded[key] = modeller.encoded(examples_of(memory))
    return encoded[key]


# --- the central model ------------------------------------------------------------------------


def take_model(
    site: Site, memory: FedEDMemory | None, ask: TakeModel, turn: Turn
) -> tuple[ModelTaken, FedEDMemory]:
    """Keep the central model: a whole one, or the one that is here and what it has more."""
    memory = known(memory)
    weights = ask.weights
    if not weights:
        if not memory.weights or memory.version != ask.version - 1:
            raise Refusal("other-model")
        weights = plus(memory.weights, ask.change)
    return ModelTaken(ask.version), replace(memory, version=ask.version, weights=weights)


def check_taken(ask: TakeModel, reply: ModelTaken) -> None:
    """Raise GuardError where the site has another model."""
    if reply.version != ask.version:
        raise GuardError("version is not the one that was sent")


def model_at(memory: FedEDMemory, ask: TrainAndPredict | ScoreModel) -> Arrays:
    """The central model: as it was sent, or as the site keeps it. Raises Refusal."""
    if ask.weights:
        return ask.weights
    if not memory.weights or memory.version != ask.version:
        raise Refusal("other-model")
    return memory.weights


# --- training and predicting ------------------------------------------------------------------


def train_and_predict(
    site: Site, memory: FedEDMemory | None, ask: TrainAndPredict, turn: Turn
) -> tuple[Predicted, FedEDMemory]:
    """Train on the site's own examples; the predictions of the public ones (Algorithm 1)."""
    memory = known(memory)
    if ask.public != memory.public or ask.examples != len(memory.texts):
        raise Refusal("other-public-set")
    model, report = train_at(site, memory, ask, weights=model_at(memory, ask), seed=turn.seed)
    logits_SR = relation_logits(model, public_at(site, memory))
    knows_R = np.array(known_at(site, memory) if ask.average == "known" else [True] * ask.classes)
    found_SQ = columns(logits_SR, knows_R, upload=ask.upload)
    reply = Predicted(
        said_SQ=fixed(found_SQ, ask.wire_dtype, most=ask.most),  # type: ignore[arg-type]
        knows={"R": knows_R.astype(np.float32)} if ask.average == "known" else {},
        public=memory.public,
        sites=1,
        loss=round(report.loss, 4),
        sentences=report.sentences,
    )
    return reply, memory


def columns(
    logits_SR: NDArray[np.float32], knows_R: NDArray[np.bool_], *, upload: str
) -> NDArray[np.float64]:
    """What is sent of logits: nothing is lost, since a softmax does not see what all have more.

    Logits: of each class but the first, how much more it has than that one. Probabilities: those of
    each class but the first. Classes that the site does not know are left at 0.
    """
    found_SR = logits_SR.astype(np.float64)
    if upload == "logits":
        found_SQ = found_SR[:, 1:] - found_SR[:, :1]
    else:
        found_SQ = probabilities(np.where(knows_R, found_SR, -np.inf))[:, 1:]
    return np.where(knows_R[1:], found_SQ, 0.0)


def check_predicted(ask: TrainAndPredict, reply: Predicted) -> None:
    """Raise GuardError where these are no predictions of the public set that was asked about."""
    if reply.public != ask.public:
        raise GuardError("public is the number of another public set")
    found = reply.said_SQ
    if found.shape != (ask.examples, ask.classes - 1) or found.dtype.name != ask.wire_dtype:
        raise GuardError(
            "said_SQ has another form",
            expected=f"{ask.wire_dtype} ({ask.examples}, {ask.classes - 1})",
            got=f"{found.dtype.name} {found.shape}",
        )
    most = LEVELS if ask.wire_dtype == "int8" else ask.most * 1.001
    if found.size and float(np.abs(found.astype(np.float32)).max()) > most:
        raise GuardError("said_SQ holds what is larger than the largest prediction")
    if reply.sites != 1 or reply.sentences < 1:
        raise GuardError("sites or sentences is not a count")
    expected = {"R": (ask.classes,)} if ask.average == "known" else {}
    if {name: array.shape for name, array in reply.knows.items()} != expected:
        raise GuardError("knows is not a number for each class")
    if any(not np.isin(array, (0.0, 1.0)).all() for array in reply.knows.values()):
        raise GuardError("knows holds what is neither yes nor no")
    if any(array[0] != 1.0 for array in reply.knows.values()):
        raise GuardError("knows leaves out the class of pairs without a relation")


def numbers_of_predicted(ask: TrainAndPredict) -> dict[str, int]:
    """How many numbers a reply holds: a prediction for each example and relation."""
    return {"said_SQ": ask.examples * (ask.classes - 1), "knows": ask.classes}


def bounded_predicted(ask: TrainAndPredict, reply: Predicted, most: float) -> Predicted:
    """The reply with predictions that are, together, no further than `most` from saying nothing."""
    codes_per_number = LEVELS / ask.most if ask.wire_dtype == "int8" else 1.0
    kept = bounded({"": reply.said_SQ}, most, times=codes_per_number)
    return replace(reply, said_SQ=kept[""])


def columns_known(reply: Predicted, name: str) -> NDArray[np.float32] | None:
    """Which relations a site, or how many sites, annotate; None where that does not matter."""
    known_R: NDArray[np.float32] | None = reply.knows.get("R")
    return None if known_R is None else known_R[None, 1:]


def score_model(
    site: Site, memory: FedEDMemory | None, ask: ScoreModel, turn: Turn
) -> tuple[RelationsScored, FedEDMemory]:
    """Count what the central model gets right on the site's held-out text."""
    memory = known(memory)
    return scored_at(site, memory, model_at(memory, ask), part=ask.part), memory


TAKE_PUBLIC_SET = Step.of(take_public_set, check=check_public)
TAKE_MODEL = Step.of(take_model, check=check_taken)
TRAIN_AND_PREDICT = Step.of(
    train_and_predict,
    summed=True,
    check=check_predicted,
    bound=bounded_predicted,
    numbers=numbers_of_predicted,
    learnt=Learnt("said_SQ", "sites", has=columns_known),
)
SCORE_MODEL = Step.of(score_model, check=check_relations_scored)
