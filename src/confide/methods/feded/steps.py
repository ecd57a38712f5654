"""FedED at a site: the messages, and how a site answers.

Shapes: S rows of the public set (pairs of entities, or tokens, as the kind decides), R classes,
Q = R - 1 columns of predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.coarse import LEVELS, fixed
from confide.federation.failures import Refusal
from confide.federation.guards import bounded
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Learnt, Shapes, Step, Turn
from confide.kinds.fitting import fitted_on
from confide.kinds.how import How
from confide.kinds.protocol import (
    F,
    Kept,
    P,
    SiteModel,
    Taken,
    check_taken,
    taken,
)
from confide.learning.relations import probabilities


@dataclass(frozen=True)
class TakePublic(Generic[F, P]):
    """Keep the form of the model, and the public set without its labels."""

    form: F = carries("the form of the model")
    public: P = carries("the public set")


@dataclass(frozen=True)
class PublicKept(Kept[F], Generic[F, P]):
    """A site's memory: the form and the public set."""

    public: P = carries("the public set")


@dataclass(frozen=True)
class TrainAndPredict:
    """Train the central model on your own examples, and predict the public set."""

    weights: Arrays = carries("the central model")
    how: How = carries("how a site trains")
    public: str = carries("SHA-256 of the public set", rule="varies")
    examples: int = carries("number of its rows, each to be predicted", rule="varies")
    classes: int = carries("number of classes", rule="varies")
    upload: str = carries("what to send: logits or probabilities")
    average: str = carries("whose predictions of a class are averaged: all or known")
    wire_dtype: str = carries("number type of the predictions")
    most: float = carries("the largest prediction; larger ones are clipped to it")


@dataclass(frozen=True)
class Predicted:
    """What the trained model predicts of the public set, and of nothing else."""

    said_SQ: NDArray[np.int8 | np.float16 | np.float32] = carries(
        "for each public row, logits relative to the first class, or probabilities"
    )
    knows: dict[str, NDArray[np.float32]] = carries(
        "for each class, whether the site annotates it; only if average = known", legend="R"
    )
    sites: int = carries("1, so that the sum counts the sites")
    loss: float = carries("mean training loss per example")
    sentences: int = carries("examples trained on, over all epochs")


# --- the public set ----------------------------------------------------------------------------


def take_public_set(
    site: Site, memory: object, ask: TakePublic[F, P], turn: Turn
) -> tuple[Taken, PublicKept[F, P]]:
    """Keep the form of the model and the public set. Raises Refusal if the set is malformed."""
    ask.public.check()
    return taken(site, ask.form), PublicKept(ask.form, public=ask.public)


# --- training and predicting ------------------------------------------------------------------


def train_and_predict(
    site: Site, memory: PublicKept[F, P] | None, ask: TrainAndPredict, turn: Turn
) -> tuple[Predicted, PublicKept[F, P]]:
    """Train on the site's own examples, and predict the public set (Algorithm 1)."""
    memory = known(memory)
    desk = desk_for(site, memory, ask)
    fitted, memory = fitted_on(
        memory, ask.how, lambda how: desk.fit(ask.weights, how, seed=turn.seed)
    )
    reply = predicted(desk, memory.public, ask=ask, weights=fitted.weights)
    return replace(reply, loss=round(fitted.loss, 4), sentences=fitted.examples), memory


def desk_for(site: Site, memory: PublicKept[F, P], ask: TrainAndPredict) -> SiteModel:
    """The site's desk. Raises Refusal if the ask is of another public set than the site has."""
    public, form = memory.public, memory.form
    if (ask.public, ask.examples, ask.classes) != (public.digest, public.rows, form.classes):
        raise Refusal("other-public-set")
    return form.at(site)


def predicted(desk: SiteModel, public: P, *, ask: TrainAndPredict, weights: Arrays) -> Predicted:
    """What a model with these weights says of the public set; no loss, and of one sentence."""
    logits_SR = desk.predicted(weights, public)
    knows_R = np.array(desk.known_classes() if ask.average == "known" else [True] * ask.classes)
    found_SQ = columns(logits_SR, knows_R, upload=ask.upload, average=ask.average)
    return Predicted(
        said_SQ=fixed(found_SQ, ask.wire_dtype, most=ask.most),  # type: ignore[arg-type]
        knows={"R": knows_R.astype(np.float32)} if ask.average == "known" else {},
        sites=1,
        loss=0.0,
        sentences=1,
    )


def columns(
    logits_SR: NDArray[np.float32], knows_R: NDArray[np.bool_], *, upload: str, average: str
) -> NDArray[np.float64]:
    """What is sent: logits relative to the first class, or probabilities, without the first.

    Nothing is lost: the softmax ignores what all logits share, and probabilities sum to 1. Where
    sites know different classes, a probability is that of the class rather than the first, whatever
    else the site knows: only these can be compared. Classes that the site does not know are 0.
    """
    found_SR = logits_SR.astype(np.float64)
    found_SQ = found_SR[:, 1:] - found_SR[:, :1]
    if upload == "probabilities" and average == "known":
        found_SQ = np.exp(-np.logaddexp(0.0, -found_SQ))
    elif upload == "probabilities":
        found_SQ = probabilities(found_SR)[:, 1:]
    return np.where(knows_R[1:], found_SQ, 0.0)


def check_predicted(ask: TrainAndPredict, reply: Predicted) -> None:
    """Raise GuardError if the reply is not a prediction of the public set that was asked about."""
    found = reply.said_SQ
    if found.shape != (ask.examples, ask.classes - 1) or found.dtype.name != ask.wire_dtype:
        raise GuardError(
            "said_SQ has the wrong type or shape",
            expected=f"{ask.wire_dtype} ({ask.examples}, {ask.classes - 1})",
            got=f"{found.dtype.name} {found.shape}",
        )
    most = LEVELS if ask.wire_dtype == "int8" else ask.most * 1.001
    if found.size and float(np.abs(found.astype(np.float32)).max()) > most:
        raise GuardError("said_SQ exceeds the largest prediction")
    if reply.sites != 1 or reply.sentences < 1:
        raise GuardError("sites must be 1, and sentences at least 1")
    expected = {"R": (ask.classes,)} if ask.average == "known" else {}
    if {name: array.shape for name, array in reply.knows.items()} != expected:
        raise GuardError("knows must hold one number for each class")
    if any(not np.isin(array, (0.0, 1.0)).all() for array in reply.knows.values()):
        raise GuardError("knows must hold only 0 and 1")
    if any(array[0] != 1.0 for array in reply.knows.values()):
        raise GuardError("knows must name the first class, which all sites know")


def shapes_of_predicted(ask: TrainAndPredict) -> Shapes:
    """The shapes of a reply: a number for each row and class but the first, one for each class."""
    knows = {"R": (ask.classes,)} if ask.average == "known" else {}
    return {"said_SQ": {"": (ask.examples, ask.classes - 1)}, "knows": knows}


def lanes_of_predicted(ask: TrainAndPredict) -> tuple[int, float]:
    """As many bytes as a number has without lanes, with room for the largest prediction.

    Rounding to float16 makes that a little larger.
    """
    if ask.wire_dtype == "int8":
        return 1, LEVELS
    if ask.wire_dtype == "float16":
        return 2, ask.most * 1.001
    return 4, 2.0 ** math.ceil(math.log2(ask.most))


def bounded_predicted(ask: TrainAndPredict, reply: Predicted, most: float) -> Predicted:
    """The reply with predictions whose common norm is at most `most`."""
    codes_per_number = LEVELS / ask.most if ask.wire_dtype == "int8" else 1.0
    kept = bounded({"": reply.said_SQ}, most, times=codes_per_number)
    return replace(reply, said_SQ=kept[""])


def columns_known(reply: Predicted, name: str, axes: int) -> NDArray[np.float32] | None:
    """For each class, how many of the summed sites annotate it; None if that does not matter."""
    known_R: NDArray[np.float32] | None = reply.knows.get("R")
    return None if known_R is None else known_R[None, 1:]


TAKE_PUBLIC_SET = Step.of(take_public_set, check=check_taken)
TRAIN_AND_PREDICT = Step.of(
    train_and_predict,
    summed=True,
    check=check_predicted,
    bound=bounded_predicted,
    shapes=shapes_of_predicted,
    learnt=Learnt("said_SQ", "sites", has=columns_known, lanes=lanes_of_predicted),
)
