"""Pseudo-complete annotation at a site: what it answers.

See `confide.methods.pseudo_complete`. Shapes: S rows (training sentences, or windows of long ones),
G numbers of the shared part by whose gradient sentences are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.completing import completed
from confide.data.examples import Example, Span
from confide.federation.failures import Refusal
from confide.federation.guards import bounded
from confide.federation.memory import known
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.federation.steps import Learnt, Step, Turn
from confide.learning.modelling import Slopes, annotate_with, read
from confide.learning.optimisers import Optimiser
from confide.learning.weights import load, trained
from confide.methods.context import with_features
from confide.methods.evaluation import HELD_OUT, Scored, check_scored, score_documents
from confide.methods.pseudo_complete.asks import (
    Complete,
    Completed,
    ScoreTypes,
    ShapeTaken,
    Weigh,
    Weighed,
    bounded_completed,
    bounded_weighed,
    check_completed,
    check_taken,
    check_weighed,
    numbers_of_weighed,
    start_of_completed,
)
from confide.methods.pseudo_complete.extractor import among
from confide.methods.pseudo_complete.forms import (
    BartMemory,
    BartShape,
    Memory,
    TaggedMemory,
    TokenMemory,
    TokenShape,
    counted_anew,
    desk_of,
    own_types,
    training_modeller,
    weighed_now,
)
from confide.methods.taggers import TaggerMemory, keep_private
from confide.methods.vocabulary import training_examples

# --- a site's text ------------------------------------------------------------------------------


class _Annotated(NamedTuple):
    """A site's training text with the annotation of a round."""

    encoded: Any
    own: int
    pseudo: int


def take_tagger(
    site: Site, memory: TaggedMemory | None, ask: TaggerMemory, turn: Turn
) -> tuple[ShapeTaken, TaggedMemory]:
    """Keep the form of the tagger and the common vocabulary."""
    keep_private(site, set())
    return _taken(site, counted_anew(ask, TaggedMemory))


def take_token_shape(
    site: Site, memory: TokenMemory | None, ask: TokenShape, turn: Turn
) -> tuple[ShapeTaken, TokenMemory]:
    """Keep the form of the encoder that tags."""
    return _taken(site, counted_anew(ask, TokenMemory))


def take_bart_shape(
    site: Site, memory: BartMemory | None, ask: BartShape, turn: Turn
) -> tuple[ShapeTaken, BartMemory]:
    """Keep the form of the LightNER."""
    return _taken(site, counted_anew(ask, BartMemory))


def _taken(site: Site, memory: Any) -> tuple[ShapeTaken, Any]:
    for name in ("text", "annotated", "slopes", *HELD_OUT):
        site.cache.pop(f"completing {name}", None)
    if not own_types(site) <= set(memory.types):
        raise Refusal("tag-outside-set")
    desk_of(site, memory)
    return ShapeTaken(len(training_examples(site))), memory


def _model_at(site: Site, memory: Memory, weights: Arrays, *, lent: bool = False) -> nn.Module:
    """The one model of this form in this process, with these weights."""
    model = desk_of(site, memory).model
    load(model, weights, lent=lent)
    return model


def _text_of(site: Site, memory: Memory) -> Any:
    """The site's training sentences as numbers, made once."""
    if "completing text" not in site.cache:
        examples = training_examples(site)
        made = desk_of(site, memory).modeller.prepared(examples)
        site.cache["completing text"] = _featured(site, memory, made, examples)
    return site.cache["completing text"]


def _featured(site: Site, memory: Memory, text: Any, examples: Sequence[Example]) -> Any:
    """The text with the features of the tagger's frozen encoder, if it has one."""
    if not isinstance(memory, TaggerMemory):
        return text
    return with_features(text, examples, site=site, name=memory.context)


def _annotated(site: Site, memory: Memory, weights: Arrays | None, *, round: int) -> _Annotated:
    """The training text with its own annotation, and with that of a model with these weights.

    Made once in a round (3.2): both steps of a round see the same weights.
    """
    key = (round, weights is not None)
    kept = site.cache.get("completing annotated")
    if kept is not None and kept[0] == key:
        found: _Annotated = kept[1]
        return found
    modeller, text = desk_of(site, memory).modeller, _text_of(site, memory)
    examples, own = training_examples(site), own_types(site)
    spans = [list(example.spans) for example in examples]
    if weights is not None:
        spans = _with_pseudo(site, memory, spans, weights=weights)
    made = _Annotated(
        modeller.annotated(text, spans, source=own),
        own=sum(len(example.spans) for example in examples),
        pseudo=sum(map(len, spans)) - sum(len(example.spans) for example in examples),
    )
    site.cache["completing annotated"] = (key, made)
    return made


def _with_pseudo(
    site: Site, memory: Memory, spans: Sequence[Sequence[Span]], *, weights: Arrays
) -> list[list[Span]]:
    """The spans of each sentence, and what the common model finds of the types it lacks (Eq. 5)."""
    missing = set(memory.types) - own_types(site)
    if not missing:
        return [list(one) for one in spans]
    model = _model_at(site, memory, weights, lent=True)
    found = desk_of(site, memory).modeller.find(model, _text_of(site, memory))
    return [
        completed(own, [one[:3] for one in spotted], missing=missing)
        for own, spotted in zip(spans, found, strict=True)
    ]


def _slopes(site: Site, memory: Memory, ask: Weigh | Complete, *, round: int) -> Slopes:
    """The gradients of every training sentence, under the weights of the round, made once."""
    kept = site.cache.get("completing slopes")
    if kept is None or kept[0] != round:
        encoded = _annotated(site, memory, ask.weights, round=round).encoded
        model = _model_at(site, memory, ask.weights, lent=True)
        kept = (round, desk_of(site, memory).modeller.slopes(model, encoded))
        site.cache["completing slopes"] = kept
    found: Slopes = kept[1]
    return found


def _known(memory: Memory | None) -> Memory:
    return cast(Memory, known(memory))


# --- what a site answers --------------------------------------------------------------------------


def weigh(site: Site, memory: Memory | None, ask: Weigh, turn: Turn) -> tuple[Weighed, Memory]:
    """The target gradient; those of single sentences stay here (Algorithm 2)."""
    mine = _known(memory)
    return Weighed(_slopes(site, mine, ask, round=turn.round).target_SG.sum(0)), mine


def complete(
    site: Site, memory: Memory | None, ask: Complete, turn: Turn
) -> tuple[Completed, Memory]:
    """Bring the instance weights up to date, and train on the pseudo-complete annotation."""
    mine = _known(memory)
    annotated = _annotated(site, mine, ask.weights if ask.distil else None, round=turn.round)
    if not len(annotated.encoded):
        raise Refusal("no-training-text")
    after: Memory = mine
    if ask.slope_G.size:
        after = _reweighed(site, mine, ask, round=turn.round)
    site.cache.pop("completing slopes", None)
    model = _model_at(site, mine, ask.weights)
    report = training_modeller(site, mine, ask.reversal).fit(
        model,
        annotated.encoded,
        weights_S=(
            counting(after.instance_weights_S, centred=ask.centred) if after.weighed else None
        ),
        epochs=ask.local_epochs,
        batch_size=ask.batch_size,
        optimiser=_optimiser(ask),
        seed=turn.seed,
    )
    weight = float(len(training_examples(site))) if ask.weighting == "sentences" else 1.0
    weights = trained(model)
    if weight != 1.0:
        weights = {name: array * np.float32(weight) for name, array in weights.items()}
    reply = Completed(
        weights=weights,
        weight=weight,
        loss=report.loss * weight,
        sentences=report.sentences,
        own=annotated.own,
        pseudo=annotated.pseudo,
    )
    return reply, after


def _reweighed(site: Site, memory: Memory, ask: Complete, *, round: int) -> Memory:
    """The memory with the weights of this round (Eq. 12), from all other sites' target gradient."""
    slopes = _slopes(site, memory, ask, round=round)
    before_S = memory.instance_weights_S
    if len(before_S) != len(slopes.source_SG):
        before_S = np.ones(len(slopes.source_SG), np.float32)
    others_G = ask.slope_G - _as_sent(site, slopes.target_SG.sum(0))
    after_S = moved_weights(
        before_S, slopes.source_SG, others_G=others_G, momentum=ask.momentum_of_weights
    )
    return weighed_now(memory, after_S, round)


def _as_sent(site: Site, slope_G: NDArray[np.float32]) -> NDArray[np.float32]:
    """The site's own target gradient as it is in the sum: bounded, where its guard says so."""
    most = site.guards.max_norm
    return slope_G if most is None else bounded({"slope": slope_G}, most)["slope"]


def moved_weights(
    before_S: NDArray[np.float32],
    source_SG: NDArray[np.float32],
    *,
    others_G: NDArray[np.float32],
    momentum: float,
) -> NDArray[np.float32]:
    """The weight w of each sentence becomes α w + (1 - α) cos(g_i, g) (Eq. 12).

    A sentence without a source gradient keeps its weight; so do all, where nobody else has a target
    gradient.

    >>> moved_weights(np.ones(2, np.float32), np.float32([[1, 0], [0, 0]]),
    ...               others_G=np.float32([2, 0]), momentum=0.9).tolist()
    [1.0, 1.0]
    """
    own_S = np.linalg.norm(source_SG.astype(np.float64), axis=1)
    other = float(np.linalg.norm(others_G.astype(np.float64)))
    both_S = own_S * other
    moved_S = both_S > 0.0
    likeness_S = source_SG.astype(np.float64) @ others_G.astype(np.float64)
    likeness_S[moved_S] /= both_S[moved_S]
    after_S = momentum * before_S.astype(np.float64) + (1 - momentum) * np.clip(likeness_S, -1, 1)
    kept_S: NDArray[np.float32] = np.where(moved_S, after_S, before_S).astype(np.float32)
    return kept_S


def counting(weights_S: NDArray[np.float32], *, centred: bool) -> NDArray[np.float32]:
    """What a loss is multiplied by: a sentence below 0 counts nothing.

    Of a loss that is to grow there is no end: the model would unlearn its sentences for ever. If
    `centred` the weights are moved to a mean of 1 before.

    >>> counting(np.float32([-0.5, 0.0, 0.5]), centred=True).tolist()
    [0.5, 1.0, 1.5]
    """
    if centred and weights_S.size:
        weights_S = weights_S - weights_S.mean() + np.float32(1)
    return np.maximum(weights_S, np.float32(0))


def _optimiser(ask: Complete) -> Optimiser:
    return Optimiser(
        name=ask.optimiser,
        learning_rate=ask.learning_rate,
        momentum=ask.momentum,
        weight_decay=ask.weight_decay,
        clip=ask.clip,
    )


def score_types(
    site: Site, memory: Memory | None, ask: ScoreTypes, turn: Turn
) -> tuple[Scored, Memory]:
    """Count what the common model gets right on the site's held-out text.

    Of types that nobody annotated in that text, nothing is counted: what is found may be right.
    """
    mine = _known(memory)
    if ask.part not in HELD_OUT:
        raise Refusal("bad-ask")
    modeller, gold = desk_of(site, mine).modeller, site.documents(ask.part)
    key = f"completing {ask.part}"
    if key not in site.cache:
        found = read(modeller, gold)
        text = _featured(site, mine, found.text, found.examples)
        site.cache[key] = replace(found, text=text)
    model = _model_at(site, mine, ask.weights, lent=True)
    predicted = annotate_with(modeller, model, site.cache[key])
    annotated = {*own_types(site), *(site.test_knows if ask.part == "test" else ())}
    return score_documents(gold, among(predicted, gold, annotated)), mine


TAKE_TAGGER = Step.of(take_tagger, check=check_taken)
TAKE_TOKEN_SHAPE = Step.of(take_token_shape, check=check_taken)
TAKE_BART_SHAPE = Step.of(take_bart_shape, check=check_taken)
WEIGH = Step.of(
    weigh,
    summed=True,
    check=check_weighed,
    bound=bounded_weighed,
    numbers=numbers_of_weighed,
    # each site takes its own part out of the sum again, so it must be one
    learnt=Learnt("slope_G", combined=False, slack=4.0),
)
COMPLETE = Step.of(
    complete,
    summed=True,
    like=(("weights", "weights"),),
    check=check_completed,
    bound=bounded_completed,
    start=start_of_completed,
    learnt=Learnt("weights", "weight", start="weights"),
)
SCORE_TYPES = Step.of(score_types, check=check_scored)
