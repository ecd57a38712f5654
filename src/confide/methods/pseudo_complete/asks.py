"""What the server and the sites say to each other, and what a reply must be like.

Shapes: S rows (training sentences, or windows of long ones), G numbers of the shared part by whose
gradient sentences are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError
from confide.federation.guards import MOST, bounded, near
from confide.federation.messages import Arrays, carries


@dataclass(frozen=True)
class ShapeTaken:
    """A site has the form of the model."""

    sentences: int = carries("number of its training sentences")


@dataclass(frozen=True)
class Weigh:
    """What would these weights have you learn of the types that you do not annotate?"""

    weights: Arrays = carries("the common weights of what is trained")
    shared: str = carries("the parameter by whose gradient sentences are compared")


@dataclass(frozen=True)
class Weighed:
    """The target gradient of Eq. 11, of all training sentences together."""

    slope_G: NDArray[np.float32] = carries("gradient of the target loss by the shared parameter")


@dataclass(frozen=True)
class Complete:
    """Annotate what you lack, and train from these weights."""

    weights: Arrays = carries("the common weights of what is trained")
    distil: bool = carries("whether types that the site lacks are annotated by the common model")
    slope_G: NDArray[np.float32] = carries(
        "sum of all sites' target gradients; empty: no weighting"
    )
    momentum_of_weights: float = carries("how much an instance weight keeps of what it was, alpha")
    centred: bool = carries("whether a site's instance weights are moved to a mean of 1")
    learning_rate: float = carries("of this round")
    optimiser: str = carries("sgd, adam or adamw")
    momentum: float = carries("of SGD")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient")
    batch_size: int = carries("sentences")
    local_epochs: int = carries("passes over the site's training text")
    weighting: str = carries("what a site's weights are multiplied by: 1 or its sentences")
    reversal: float = carries("how much of an adversary's gradient reaches the model")


@dataclass(frozen=True)
class Completed:
    """What training came to, multiplied by the site's weight."""

    weights: Arrays = carries(
        "trained weights, times the site's weight in the mean; of a table the rows that changed"
    )
    weight: float = carries("the site's weight in the mean")
    loss: float = carries("mean training loss per sentence, times the weight")
    sentences: int = carries("sentences trained on, over all epochs")
    own: int = carries("entities that the site annotated")
    pseudo: int = carries("entities that the common model annotated")


@dataclass(frozen=True)
class ScoreTypes:
    """Score a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights of what is trained")
    part: str = carries("dev or test")


def check_taken(ask: object, reply: ShapeTaken) -> None:
    """Raise GuardError where the number of sentences is none."""
    if reply.sentences < 0:
        raise GuardError("sentences is not a count")


def check_weighed(ask: Weigh, reply: Weighed) -> None:
    """Raise GuardError where the gradient is not one of the shared parameter."""
    want = ask.weights[ask.shared].size if ask.shared in ask.weights else -1
    if reply.slope_G.shape != (want,) or reply.slope_G.dtype != np.float32:
        got = str(reply.slope_G.shape)
        raise GuardError("slope_G has another shape", expected=f"({want},)", got=got)
    if want and np.abs(reply.slope_G).max() > MOST:
        raise GuardError("slope_G is absurdly large")


def numbers_of_weighed(ask: Weigh) -> dict[str, int]:
    """How many numbers a reply holds: those of the shared parameter."""
    return {"slope_G": ask.weights[ask.shared].size}


def bounded_weighed(ask: Weigh, reply: Weighed, most: float) -> Weighed:
    """The reply with a gradient that is no larger than `most`."""
    return Weighed(bounded({"slope": reply.slope_G}, most)["slope"])


def check_completed(ask: Complete, reply: Completed) -> None:
    """Raise GuardError where a site's weight in the mean or a count is not what was asked for."""
    if reply.weight < 1 or (ask.weighting == "equal" and reply.weight != 1):
        raise GuardError("weight is not a weight in the mean")
    if reply.sentences < 1 or reply.own < 0 or reply.pseudo < 0:
        raise GuardError("sentences, own or pseudo is not a count")
    if reply.pseudo and not ask.distil:
        raise GuardError("pseudo is not a count")


def start_of_completed(ask: Complete, reply: Completed, name: str) -> np.ndarray:
    """What an array of the reply would be, had the site learnt nothing."""
    start: np.ndarray = ask.weights[name]
    return start if reply.weight == 1.0 else start * np.float32(reply.weight)


def bounded_completed(ask: Complete, reply: Completed, most: float) -> Completed:
    """The reply with weights that are at most `most` away from those that were asked."""
    before = {name: start_of_completed(ask, reply, name) for name in reply.weights}
    kept = near(reply.weights, before, most, times=reply.weight)
    return reply if kept is reply.weights else replace(reply, weights=kept)
