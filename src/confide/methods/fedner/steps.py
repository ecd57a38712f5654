"""FedNER at a site: the messages, and how a site answers. See `confide.methods.fedner`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.least import check_covers
from confide.errors import GuardError
from confide.federation.failures import Refusal
from confide.federation.guards import bounded
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from confide.kinds.how import How
from confide.kinds.protocol import F, Kept, ModelSpec, S, SiteModel, Taken, check_taken, shown
from confide.learning.adam import Moments, adam
from confide.seeds import derive_seed


@dataclass(frozen=True)
class Enrol(Generic[F]):
    """Take part: the common form, the private parts, and the tables that get word vectors."""

    form: F = carries("the form of the model")
    private: list[str] = carries("parts of the model that stay at the site", rule="varies")
    own_types: bool = carries("whether a site's types are its own or the common ones")
    tables: Arrays = carries("the shared word table at its start, if there is a vector file")


@dataclass(frozen=True)
class TakeShare:
    """How much to train in each round, and how much the result counts."""

    batch_size: int = carries("examples that the site draws in each step", rule="min_batch")
    share: float = carries("the site's share of all training examples")
    total: int = carries(
        "training examples of all sites: batch_size is of all, and a site works out its own"
        " part; 0: batch_size and share are the site's own"
    )


@dataclass(frozen=True)
class ShareTaken:
    """The site agrees."""

    batch_size: int = carries("examples that the site draws in each step", rule="open")


@dataclass(frozen=True)
class Enrolled(Kept[F], Generic[F]):
    """A site's memory: its own form, the private parts and their moments, its best model."""

    private: list[str] = carries("parts of the model that stay here")
    batch_size: int = carries("examples that the site draws in each step")
    share: float = carries("the site's share of all training examples")
    lift_ids: dict[str, NDArray[np.int64]] = carries(
        "rows of each table that the site's vector file has",
        legend="K",
    )
    lift_rows: dict[str, NDArray[np.float32]] = carries(
        "their vectors, minus the table's start", legend="KD"
    )
    own: Arrays = carries("weights of the private parts")
    steps: int = carries("steps of Adam", start=int)
    means: Arrays = carries("Adam's running means of the gradient", start=dict)
    squares: Arrays = carries("Adam's running means of its square", start=dict)
    best_round: int = carries("the round that was best on the site's development text", start=int)
    best_score: float = carries("its score there", start=lambda: -2.0)
    best: Arrays = carries("weights of the whole model in that round", start=dict)


@dataclass(frozen=True)
class Improve:
    """Take a step from these weights of the shared parts."""

    weights: Arrays = carries("weights of the shared parts")
    how: How = carries("how a site trains")
    local_steps: int = carries("steps in a round; more than one: changes are sent, not gradients")


@dataclass(frozen=True)
class Improved:
    """The update of the shared parts, multiplied by the site's share of all sentences."""

    update: Arrays = carries("gradient (or change) of the shared parts, times the share")
    share: float = carries("the site's share of all training sentences")
    loss: float = carries("mean loss per sentence of the batch, times the share")
    sentences: int = carries("sentences in the batches")


@dataclass(frozen=True)
class ScoreOwn:
    """Score your held-out text."""

    weights: Arrays = carries("weights of the shared parts")
    select: str = carries("the score that selects a site's best model; last: the last round's")


def enrol(site: Site, memory: object, ask: Enrol[F], turn: Turn) -> tuple[Taken, Enrolled[F]]:
    """Make a model of the site's own form; the turn's seed draws its private parts."""
    if not set(site.guards.private) <= set(ask.private):
        raise Refusal("private-part")
    common: Any = ask.form
    form: F = common.own(site, ask.private, types=ask.own_types)
    desk = form.at(site)
    vectors = site.files["vectors"] = desk.vectors()
    site.draws = partial(_shared, site=site, form=common, private=ask.private)
    own = of_parts(form.first(turn.seed, site=site), ask.private)
    lift = desk.lift()
    start = {**ask.tables, **own}
    mine = Enrolled(
        form,
        private=list(ask.private),
        batch_size=0,
        share=0.0,
        lift_ids={name: ids_K for name, (ids_K, _) in lift.items()},
        lift_rows={name: rows_KD - start[name][ids_K] for name, (ids_K, rows_KD) in lift.items()},
        own=own,
    )
    return Taken(shown(site, desk.size), vectors), mine


def _shared(seed: int, *, site: Site, form: ModelSpec, private: Sequence[str]) -> Arrays:
    """The first weights of the shared parts."""
    first = form.first(seed, site=site)
    return {name: array for name, array in first.items() if not is_of(name, private)}


def take_share(
    site: Site, memory: Enrolled[F] | None, ask: TakeShare, turn: Turn
) -> tuple[ShareTaken, Enrolled[F]]:
    """Keep the batch size and share. Raises SmallBatchError if its batches would be too small."""
    mine = known(memory)
    batch_size, share = ask.batch_size, ask.share
    if ask.total:
        share = mine.form.at(site).size / ask.total
        if not 0 < share <= 1:
            raise Refusal("bad-ask")
        batch_size = max(1, round(ask.batch_size * share))
    check_covers(min(batch_size, mine.form.at(site).size))
    mine = replace(mine, batch_size=batch_size, share=share)
    return ShareTaken(ask.batch_size), mine


def improve(
    site: Site, memory: Enrolled[F] | None, ask: Improve, turn: Turn
) -> tuple[Improved, Enrolled[F]]:
    """Train on batches of the site's text; private parts are updated here (Algorithm 1)."""
    memory = known(memory)
    if ask.weights.keys() & memory.own.keys():
        raise Refusal("bad-ask")  # or the update of a private part would leave
    desk = _desk(site, memory)
    how = replace(ask.how, batch_size=memory.batch_size)
    shared, own = ask.weights, memory.own
    moments = Moments(memory.steps, memory.means, memory.squares)
    update: Arrays = {}
    losses, examples = [], 0
    for number in range(ask.local_steps):
        weights = lifted({**shared, **own}, memory)
        loss, slope, drawn = desk.gradient(weights, how, seed=derive_seed(turn.seed, number))
        losses.append(loss)
        examples += drawn
        moved = own if ask.local_steps == 1 else {**shared, **own}
        moved, moments = adam(
            moved,
            slope,
            moments=moments,
            learning_rate=how.learning_rate,
            weight_decay=how.weight_decay,
        )
        own = {name: moved[name] for name in own}
        if ask.local_steps == 1:
            update = {name: slope[name] for name in shared}
        else:
            shared = {name: moved[name] for name in shared}
            update = {name: shared[name] - ask.weights[name] for name in shared}
    mine = replace(memory, own=own, **vars(moments))
    reply = Improved(
        update={name: memory.share * array for name, array in update.items()},
        share=memory.share,
        loss=memory.share * float(np.mean(losses)),
        sentences=examples,
    )
    return reply, mine


def score(
    site: Site, memory: Enrolled[F] | None, ask: ScoreOwn, turn: Turn
) -> tuple[S, Enrolled[F]]:
    """Count on the site's development text, and keep the model if it is the best yet there."""
    memory = known(memory)
    weights = _current(ask, memory)
    desk = _desk(site, memory)
    counted: S = desk.scored(weights, "dev")
    value = -1 / max(turn.round, 1)  # grows from round to round, and stays below every score
    if ask.select != "last":
        found = desk.worth(counted, ask.select)
        value = value if found is None else found
    if value <= memory.best_score:
        return counted, memory
    kept = {name: array.copy() for name, array in weights.items()}
    return counted, replace(memory, best_round=turn.round, best_score=value, best=kept)


def test(
    site: Site, memory: Enrolled[F] | None, ask: ScoreOwn, turn: Turn
) -> tuple[S, Enrolled[F]]:
    """Count on the site's test text, with the model that the site kept."""
    memory = known(memory)
    weights = memory.best or _current(ask, memory)
    return memory.form.at(site).scored(weights, "test"), memory


def check_share(ask: TakeShare, reply: ShareTaken) -> None:
    """Raise GuardError if the site would draw batches of a different size."""
    if reply.batch_size != ask.batch_size:
        raise GuardError("batch_size must be the one that was asked for")


def check_improved(ask: Improve, reply: Improved) -> None:
    """Raise GuardError if the share is out of range."""
    if not 0 < reply.share <= 1:
        raise GuardError("share must be above 0 and at most 1")


def lanes_of_improved(ask: Improve) -> tuple[int, float]:
    """Lanes of 4 bytes, with room for gradients."""
    return 4, 64.0


def shares_of_improved(ask: Improve, sites: int, examples: float) -> float:
    """Shares are of one whole."""
    return 1.0


def start_of_improved(ask: Improve, reply: Improved, name: str) -> np.ndarray:
    """Zeros: only rows that differ from them travel."""
    return np.zeros_like(ask.weights[name])


def bounded_improved(ask: Improve, reply: Improved, most: float) -> Improved:
    """The reply with an update whose norm, before the share multiplies it, is at most `most`."""
    kept = bounded(reply.update, most, times=reply.share)
    return reply if kept is reply.update else replace(reply, update=kept)


ENROL = Step.of(enrol, check=check_taken)
TAKE_SHARE = Step.of(take_share, check=check_share)
IMPROVE = Step.of(
    improve,
    summed=True,
    like=(("weights", "update"),),
    check=check_improved,
    bound=bounded_improved,
    start=start_of_improved,
    # gradients of one small batch each, of sites with tasks of their own: an honest one was seen to
    # be 32 times as large as the median, so no ratio tells a lie from a hard batch
    learnt=Learnt(
        "update",
        "share",
        slack=math.inf,
        lanes=lanes_of_improved,
        whole=shares_of_improved,
    ),
)
SCORE_OWN = Step.of(score)
TEST_OWN = Step.of(test)


def _desk(site: Site, memory: Enrolled[F]) -> SiteModel:
    return memory.form.at(site)


def is_of(name: str, parts: Sequence[str]) -> bool:
    """Whether a parameter belongs to one of these parts of the model."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def of_parts(weights: Arrays, parts: Sequence[str]) -> Arrays:
    """The parameters that belong to these parts of the model."""
    return {name: value for name, value in weights.items() if is_of(name, parts)}


def lifted(weights: Arrays, memory: Enrolled[F]) -> Arrays:
    """The weights with the vectors of the site's file added to the word table."""
    tables = {}
    for name, ids_K in memory.lift_ids.items():
        table_VD = weights[name].copy()
        table_VD[ids_K] += memory.lift_rows[name]
        tables[name] = table_VD
    return {**weights, **tables}


def _current(ask: ScoreOwn, memory: Enrolled[F]) -> Arrays:
    """The site's model as it is now."""
    return lifted({**ask.weights, **memory.own}, memory)
