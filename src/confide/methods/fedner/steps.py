"""FedNER at a site: the messages, and what a site answers. See `confide.methods.fedner`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.batches import drawn_batch
from confide.errors import GuardError
from confide.federation.failures import Refusal
from confide.federation.guards import bounded
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from confide.learning.adam import Moments, adam
from confide.learning.gradients import gradients
from confide.learning.predict import annotate
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, initial
from confide.methods.evaluation import Scored, check_scored, counts_of, score_documents
from confide.methods.taggers import (
    TaggerMemory,
    check_vectors,
    encoded_text,
    forget_text,
    keep_private,
    model_of,
    prepared_text,
    tag_set,
    tagger_sizes,
    vectors_check,
    vectors_of,
)
from confide.methods.vocabulary import training_examples
from confide.scoring import f1, micro

HALF = 1024.0
"""What is sent as float16 is multiplied by this, so that small gradients do not vanish."""


@dataclass(frozen=True)
class Enrol(TaggerMemory):
    """Take part: the common vocabulary, which parts are private, and how much to do."""

    private: list[str] = carries("parts of the tagger that stay at the site")
    own_types: bool = carries("whether a site's tags are its own or the common ones")
    batch_size: int = carries("sentences that the site draws in each step")
    share: float = carries("the site's share of all training sentences")
    word_weights: Arrays = carries("the shared word table at its start, where there is a file")


@dataclass(frozen=True)
class Enrolled:
    """The site has a tagger of its own."""

    vectors: str = carries("keyed check value of the site's vector file; empty without one")


@dataclass(frozen=True)
class FedNERMemory(TaggerMemory):
    """What a site keeps: its own form, the private parts and their moments, its best tagger."""

    private: list[str] = carries("parts of the tagger that stay here")
    batch_size: int = carries("sentences in a step")
    share: float = carries("of all training sentences")
    lift_ids_K: NDArray[np.int64] = carries("rows of the word table that the file has")
    lift_rows_KD: NDArray[np.float32] = carries("its vectors, less the table's start")
    own: Arrays = carries("weights of the private parts")
    steps: int = carries("steps of Adam")
    means: Arrays = carries("Adam's running means of the gradient")
    squares: Arrays = carries("Adam's running means of its square")
    best_round: int = carries("the round that was best on the site's development text")
    best_score: float = carries("its F1 there")
    best: Arrays = carries("weights of the whole tagger in that round")


@dataclass(frozen=True)
class Improve:
    """Take a step from these weights of the shared parts."""

    weights: Arrays = carries("weights of the shared parts")
    learning_rate: float = carries("of Adam")
    weight_decay: float = carries("factor")
    clip: float = carries("largest norm of a gradient")
    word_dropout: float = carries("share of words that are read as the unknown one")
    local_steps: int = carries("steps in a round; more than one: changes are sent, not gradients")
    sparse: bool = carries("whether rows of an update that are zero stay at the site")


@dataclass(frozen=True)
class Improved:
    """What the shared parts should do, multiplied by the site's share of all sentences."""

    update: Arrays = carries("gradient (or change) of the shared parts, times the share")
    share: float = carries("the site's share of all training sentences")
    loss: float = carries("mean loss per sentence of the batch, times the share")
    sentences: int = carries("sentences in the batches")


@dataclass(frozen=True)
class Score:
    """Score your held-out text."""

    weights: Arrays = carries("weights of the shared parts")
    select: str = carries("by which score a site keeps its best tagger: strict, relaxed or last")


def enrol(
    site: Site, memory: FedNERMemory | None, ask: Enrol, turn: Turn
) -> tuple[Enrolled, FedNERMemory]:
    """Make a tagger of the site's own form; its private parts start from the turn's seed."""
    forget_text(site)
    _check_guards(site, ask)
    form = _own_form(site, ask)
    own = of_parts(arrays(initial(tagger_sizes(form), turn.seed)), ask.private)
    found = vectors_of(site, form)
    ids_K = found.ids_K.astype(np.int64) if found else np.zeros(0, np.int64)
    rows_KD = found.rows_KD if found else np.zeros((0, form.sizes["word_dim"]), np.float32)
    start = own if "word" in ask.private else ask.word_weights
    mine = FedNERMemory(
        **vars(form),
        private=list(ask.private),
        batch_size=ask.batch_size,
        share=ask.share,
        lift_ids_K=ids_K,
        lift_rows_KD=rows_KD - start["word.weight"][ids_K] if found else rows_KD,
        own=own,
        steps=0,
        means={},
        squares={},
        best_round=0,
        best_score=-2.0,
        best={},
    )
    return Enrolled(vectors_check(site, found)), mine


def improve(
    site: Site, memory: FedNERMemory | None, ask: Improve, turn: Turn
) -> tuple[Improved, FedNERMemory]:
    """Steps on batches of the site's text; private parts are updated here (Algorithm 1)."""
    memory = known(memory)
    _check_guards(site, memory)
    encoded = encoded_text(site, memory)
    if not len(encoded):
        raise Refusal("no-training-text")
    if ask.weights.keys() & memory.own.keys():
        raise Refusal("bad-ask")  # the update of a private part would leave
    received = _received(ask.weights)
    shared, own, moments = received, memory.own, Moments(memory.steps, memory.means, memory.squares)
    update: Arrays = {}
    losses = []
    for number in range(ask.local_steps):
        seed = derive_seed(turn.seed, number)
        batch = drawn_batch(encoded, memory.batch_size, seed=seed, word_dropout=ask.word_dropout)
        model = model_of(site, memory, lifted({**shared, **own}, memory), lent=True)
        loss, slope = gradients(model, batch, seed=seed, clip=ask.clip)
        losses.append(loss)
        moved = own if ask.local_steps == 1 else {**shared, **own}
        moved, moments = adam(
            moved,
            slope,
            moments=moments,
            learning_rate=ask.learning_rate,
            weight_decay=ask.weight_decay,
        )
        own = {name: moved[name] for name in own}
        if ask.local_steps == 1:
            update = {name: slope[name] for name in shared}
        else:
            shared = {name: moved[name] for name in shared}
            update = {name: shared[name] - received[name] for name in shared}
    mine = replace(memory, own=own, **vars(moments))
    reply = Improved(
        update={name: _sent(memory.share * update[name], ask.weights[name]) for name in update},
        share=memory.share,
        loss=memory.share * float(np.mean(losses)),
        sentences=ask.local_steps * min(memory.batch_size, len(encoded)),
    )
    return reply, mine


def score(
    site: Site, memory: FedNERMemory | None, ask: Score, turn: Turn
) -> tuple[Scored, FedNERMemory]:
    """Count on the site's development text, and keep the tagger if it is the best yet there."""
    memory = known(memory)
    weights = _current(ask, memory)
    counted = _counted(site, memory, "dev", weights=weights)
    value = -1 / max(turn.round, 1)  # grows from round to round, and is under every F1
    if counted.sentences and ask.select != "last":
        value = f1(micro(getattr(counts_of(counted), ask.select)))
    if value <= memory.best_score:
        return counted, memory
    kept = {name: array.copy() for name, array in weights.items()}
    return counted, replace(memory, best_round=turn.round, best_score=value, best=kept)


def test(
    site: Site, memory: FedNERMemory | None, ask: Score, turn: Turn
) -> tuple[Scored, FedNERMemory]:
    """Count on the site's test text, with the tagger that the site kept."""
    memory = known(memory)
    weights = memory.best or _current(ask, memory)
    return _counted(site, memory, "test", weights=weights), memory


def check_improved(ask: Improve, reply: Improved) -> None:
    """Raise GuardError where the share is none."""
    if not 0 < reply.share <= 1:
        raise GuardError("the share is not one")


def start_of_improved(ask: Improve, reply: Improved, name: str) -> np.ndarray | None:
    """An update that says nothing, where only the rows that say something are to travel."""
    return np.zeros_like(ask.weights[name]) if ask.sparse else None


def bounded_improved(ask: Improve, reply: Improved, most: float) -> Improved:
    """The reply with an update that is, before it is multiplied by the share, at most `most`."""
    change = {name: _meant(array) for name, array in reply.update.items()}
    kept = bounded(change, most, times=reply.share)
    if kept is change:
        return reply
    return replace(reply, update={name: _sent(kept[name], reply.update[name]) for name in kept})


ENROL = Step.of(enrol, check=check_vectors)
IMPROVE = Step.of(
    improve,
    summed=True,
    like=(("weights", "update"),),
    check=check_improved,
    bound=bounded_improved,
    start=start_of_improved,
    # gradients of one small batch each, of sites with tasks of their own: an honest one was seen to
    # be 32 times as large as the median, so no ratio tells a lie from a hard batch
    learnt=Learnt("update", "share", slack=math.inf),
)
SCORE = Step.of(score, check=check_scored)
TEST = Step.of(test, check=check_scored)


def _check_guards(site: Site, form: Enrol | FedNERMemory) -> None:
    """Raise Refusal where the site's own guards do not let it take part like this."""
    keep_private(site, set(form.private))
    if min(form.batch_size, len(training_examples(site))) < site.guards.min_batch:
        raise Refusal("small-batch")


def _own_form(site: Site, ask: Enrol) -> TaggerMemory:
    """The form of the site's tagger: the common one, with its own tags. Raises Refusal."""
    types, scheme = list(ask.types), site.tag_scheme or ask.tag_scheme
    if ask.own_types:
        types = sorted({span[2] for one in training_examples(site) for span in one.spans})
    if "crf" not in ask.private and scheme != ask.tag_scheme:
        raise Refusal("tag-scheme")
    fields = {name: getattr(ask, name) for name in TaggerMemory.__dataclass_fields__}
    fields |= {"types": types, "tag_scheme": scheme}
    form = TaggerMemory(**fields)
    return replace(form, sizes={**form.sizes, "tags": len(tag_set(form))})


def is_of(name: str, parts: Sequence[str]) -> bool:
    """Whether a parameter belongs to one of these parts of the tagger."""
    return name.partition(".")[0] in parts


def of_parts(weights: Mapping[str, Any], parts: Sequence[str]) -> Arrays:
    """The parameters that belong to these parts of the tagger."""
    return {name: value for name, value in weights.items() if is_of(name, parts)}


def lifted(weights: Arrays, memory: FedNERMemory) -> Arrays:
    """The weights with the vectors of the site's file laid under the word table."""
    if not len(memory.lift_ids_K):
        return weights
    table_VD = weights["word.weight"].copy()
    table_VD[memory.lift_ids_K] += memory.lift_rows_KD
    return {**weights, "word.weight": table_VD}


def _received(weights: Arrays) -> Arrays:
    """Weights as they are computed with."""
    return {name: value.astype(np.float32, copy=False) for name, value in weights.items()}


def _current(ask: Score, memory: FedNERMemory) -> Arrays:
    """The site's tagger as it is now."""
    received = _received(ask.weights)
    return lifted({**received, **memory.own}, memory)


def _counted(site: Site, memory: FedNERMemory, part: str, *, weights: Arrays) -> Scored:
    """Counts of a part of the site's text under a tagger."""
    prepared = prepared_text(site, memory, part)
    model = model_of(site, memory, weights, lent=True)
    return score_documents(site.documents(part), annotate(model, prepared))


def _sent(update: np.ndarray, like: np.ndarray) -> np.ndarray:
    """An update in the type of number that travels."""
    if like.dtype != np.float16:
        return update
    most = float(np.finfo(np.float16).max)
    return np.clip(update * HALF, -most, most).astype(np.float16)


def _meant(update: np.ndarray) -> np.ndarray:
    """An update as it was before `_sent`."""
    return update if update.dtype != np.float16 else update.astype(np.float32) / np.float32(HALF)
