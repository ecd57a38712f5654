"""Bags at a site: what the methods that train a bag model share.

The form of the model and the common words are a site's memory; encoded sentences are its cache; one
model instance, and one table of the common words, serve all sites of a process.

Shapes: S sentences (examples), G bags, R relations (class 0 is no relation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.data.bags import held_out_bags, training_bags
from confide.data.relations import candidates, with_labels
from confide.data.vectors import VectorFile, read_vectors
from confide.data.vocabulary import DIGEST_BYTES
from confide.errors import ConfideError, GuardError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.keys import key_check
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.bags import (
    BagModeller,
    EncodedBags,
    bag_scores,
    fit_bags,
    fit_sentences,
    set_vectors,
)
from confide.learning.fit import FitReport
from confide.learning.seeds import derive_seed
from confide.learning.weights import arrays, load
from confide.methods.bag_form import (
    PCNN,
    BagMemory,
    agree_on_bags,
    bag_form_of,
    modeller_without_key,
    triple_digest,
    words_of,
)
from confide.methods.context import encoder_of
from confide.methods.evaluation import (
    HELD_OUT,
    BagsScored,
    bag_counts_of,
    bags_scored,
    check_bags_scored,
)
from confide.methods.relation_averaging import RelationsTrained, TrainRelations
from confide.methods.relation_form import rules_of
from confide.methods.relations import optimiser_of
from confide.methods.taggers import check_vectors, compare_vectors, vectors_check
from confide.models.bags import BagModel
from confide.scoring.bags import BagCounts, count_bags
from confide.settings import Settings as RunSettings

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class BagState(BagMemory):
    """What the server carries from round to round: the form of the model, and its weights."""

    weights: Arrays = carries("weights of the model")
    idle: list[str] = carries("sites without training text: they are not asked to train")


@dataclass(frozen=True)
class BagFormTaken:
    """A site has the form of the model, and has looked at its training text with it."""

    vectors: str = carries("keyed check value of the site's vector file; empty without one")
    sentences: int = carries("number of its training sentences")
    bags: int = carries("number of its training bags, those without a relation included")


@dataclass(frozen=True)
class TrainBags(TrainRelations):
    """Train from these weights."""

    vectors: bool = carries("whether rows of the site's vector file are filled in first")


@dataclass
class _Desk:
    """What the sites of one process share: the model of one form, and what makes it."""

    modeller: BagModeller
    words_V16: NDArray[np.uint8]
    vectors: dict[Path, VectorFile] = field(default_factory=dict)

    @cached_property
    def model(self) -> BagModel:
        return self.modeller.initial(0)

    def knows(self, memory: BagMemory) -> bool:
        """Whether these are the common words."""
        ours, theirs = self.words_V16, memory.word_digests_V16
        return ours is theirs or np.array_equal(ours, theirs)


def key_of(site: Site, memory: BagMemory) -> bytes:
    """The site's key. Raises Refusal where it is not the one that the sites agreed on."""
    key = site.key()
    if key_check(key, memory.nonce) != memory.check:
        raise Refusal("other-key")
    return key


def desk_of(site: Site, memory: BagMemory) -> _Desk:
    """That of the site's process. Raises Refusal where key or encoder is not the common one."""
    key = key_of(site, memory)
    encoder = None
    if memory.reader != PCNN:
        encoder = encoder_of(site, memory.encoder)
        if encoder.digest != memory.digest:
            raise Refusal("other-encoder")
    desks: dict[Any, _Desk] = site.scratch.setdefault("bag desks", {})
    place = (bag_form_of(memory), memory.check)
    if place not in desks or not desks[place].knows(memory):
        modeller = BagModeller(bag_form_of(memory), encoder or words_of(memory, key))
        desks[place] = _Desk(modeller, memory.word_digests_V16)
    return desks[place]


def model_at(
    site: Site, memory: BagMemory, weights: Arrays, *, vectors: bool = False, lent: bool = False
) -> BagModel:
    """The one model of this form in this process, with these weights.

    `vectors`: rows of the site's own vector file stand at their words. `lent`: it computes with
    these very arrays, so it must not be trained.
    """
    model = desk_of(site, memory).model
    found = vectors_of(site, memory) if vectors else None
    load(model, weights, lent=lent and found is None)
    if found is not None:
        set_vectors(model, found)
    return model


def vectors_of(site: Site, memory: BagMemory) -> VectorFile | None:
    """Rows of the site's own file of vectors for the common words, read once in a process."""
    if site.vectors is None or memory.reader != PCNN:
        return None
    read = desk_of(site, memory).vectors
    if site.vectors not in read:
        words = words_of(memory, site.key())
        try:
            found = read_vectors(site.vectors, words, how=memory.how)  # type: ignore[arg-type]
        except (OSError, ConfideError) as error:
            raise Refusal("vectors-missing") from error
        if found.dims != memory.sizes["word_dim"]:
            raise Refusal("vectors-dimension")
        read[site.vectors] = found
    return read[site.vectors]


# --- text ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Looked:
    """A part of a site's text as bags of numbered sentences.

    Training bags have a class each, `relations_G`, and the digest of their triple,
    `digests_G16`; held-out bags have `facts`.
    """

    encoded: EncodedBags
    groups: Sequence[Rows]
    relations_G: Rows
    digests_G16: NDArray[np.uint8]
    facts: Sequence[frozenset[str]] = ()


def looked_at(site: Site, memory: BagMemory, part: str) -> Looked:
    """The bags of a part of the site's text, made once.

    Raises Refusal where a relation of training text is outside the agreed set, or where training
    sentences are fewer than the site's own guard asks for.
    """
    place = f"bags {part}"
    if place not in site.cache:
        site.cache[place] = _looked(site, memory, part)
    kept: Looked = site.cache[place]
    return kept


def _looked(site: Site, memory: BagMemory, part: str) -> Looked:
    documents = site.documents(part)
    examples = candidates(documents, rules_of(memory)).examples
    modeller = desk_of(site, memory).modeller
    number = {name: place for place, name in enumerate(memory.relations)}
    if part != "train":
        held = held_out_bags(examples, documents, same=memory.same)  # type: ignore[arg-type]
        encoded = modeller.encoded(with_labels(examples, ()))
        return Looked(encoded, held.groups, _NONE, _NO_DIGESTS, held.facts)
    if examples and len(examples) < site.guards.min_sentences:
        raise Refusal("too-few-sentences")
    bags = training_bags(examples, documents, same=memory.same)  # type: ignore[arg-type]
    if not number.keys() >= set(bags.relations):
        raise Refusal("relation-outside-set")
    key = key_of(site, memory)
    marks = [
        triple_digest(memory, key, (*names, relation))
        for names, relation in zip(bags.pairs, bags.relations, strict=True)
    ]
    return Looked(
        encoded=modeller.encoded(bags.examples),
        groups=bags.groups,
        relations_G=np.array([number[name] for name in bags.relations], np.int64),
        digests_G16=np.frombuffer(b"".join(marks), np.uint8).reshape(-1, DIGEST_BYTES),
    )


_NONE = np.zeros(0, np.int64)
_NO_DIGESTS = np.zeros((0, DIGEST_BYTES), np.uint8)


def forget_bags(site: Site) -> None:
    """Forget all that was made of text with another form."""
    for part in ("train", *HELD_OUT):
        site.cache.pop(f"bags {part}", None)


# --- the start ----------------------------------------------------------------------------------


def take_bag_form(
    site: Site, memory: BagMemory | None, ask: BagMemory, turn: Turn
) -> tuple[BagFormTaken, BagMemory]:
    """Keep the form of the model and the common words, and look at the training text with them."""
    return form_taken(site, ask), ask


def form_taken(site: Site, form: BagMemory) -> BagFormTaken:
    """What a site says when it has looked at its training text with this form."""
    forget_bags(site)
    check = vectors_check(site, vectors_of(site, form))
    looked = looked_at(site, form, "train")
    return BagFormTaken(check, len(looked.encoded), len(looked.groups))


def check_form_taken(ask: object, reply: BagFormTaken) -> None:
    """Raise GuardError where the numbers cannot be."""
    if not 0 <= reply.bags <= reply.sentences or (reply.sentences and not reply.bags):
        raise GuardError("bags or sentences is not a count")
    check_vectors(ask, reply)


TAKE_BAG_FORM = Step.of(take_bag_form, check=check_form_taken)


def start_of_bags(
    run: RunSettings, federation: Federation, step: Step, *, denoise: str
) -> BagState:
    """Agree on the model, hand its form out by `step`, and draw its first weights.

    Raises what `agree_on_bags` raises, and FederationError where sites have other vectors.
    """
    form, sites = agree_on_bags(run, federation, denoise=denoise)
    taken = federation.ask(step, form, round=0, sites=sites)
    same = compare_vectors(federation, step, taken)
    first = modeller_without_key(form).initial(derive_seed(federation.seed, "weights"))
    idle = sorted(site for site in same if not taken[site].sentences)
    return BagState(**vars(form), weights=arrays(first), idle=idle)


# --- training -----------------------------------------------------------------------------------


def train_at(
    site: Site,
    memory: BagMemory,
    ask: TrainBags,
    *,
    seed: int,
    winners_W: Rows | None = None,
) -> tuple[BagModel, FitReport]:
    """Train from these weights on the site's own bags; the model is the process's.

    `winners_W`: only on these of its sentences, each by itself.
    """
    looked = looked_at(site, memory, "train")
    encoded = looked.encoded if winners_W is None else looked.encoded.only(winners_W)
    if not len(encoded):
        raise Refusal("no-training-text")
    model = model_at(site, memory, ask.weights, vectors=ask.vectors)
    how: dict[str, Any] = {
        "epochs": ask.local_epochs,
        "batch_size": ask.batch_size,
        "optimiser": optimiser_of(ask),
        "seed": seed,
    }
    if winners_W is not None:
        return model, fit_sentences(model, encoded, **how)
    denoise: Any = memory.denoise
    return model, fit_bags(model, encoded, looked.groups, denoise=denoise, **how)


def trained(model: BagModel, report: FitReport, *, weight: float) -> RelationsTrained:
    """What training came to, times the site's weight in the mean."""
    found = arrays(model)
    if weight != 1.0:
        found = {name: array * np.float32(weight) for name, array in found.items()}
    return RelationsTrained(found, weight, report.loss * weight, report.sentences)


def mean_of(total: RelationsTrained) -> Arrays:
    """The weighted mean of what the sites arrived at."""
    return {name: (a / total.weight).astype(np.float32) for name, a in total.weights.items()}


# --- scores -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreBags:
    """Score the bags of a part of your held-out text with these weights."""

    weights: Arrays = carries("the common weights")
    part: str = carries("dev or test")


def score_bags(
    site: Site, memory: BagMemory | None, ask: ScoreBags, turn: Turn
) -> tuple[BagsScored, BagMemory]:
    """Count how highly the model ranks what holds between the pairs of the held-out text."""
    memory = known(memory)
    if ask.part not in HELD_OUT:
        raise Refusal("bad-ask")
    looked = looked_at(site, memory, ask.part)
    model = model_at(site, memory, ask.weights, lent=True)
    denoise: Any = memory.denoise
    scores_GR = bag_scores(model, looked.encoded, looked.groups, denoise=denoise)
    return bags_scored(count_bags(scores_GR, memory.relations, looked.facts)), memory


SCORE_BAGS = Step.of(score_bags, check=check_bags_scored)


def bag_scores_from(
    federation: Federation, weights: Arrays, *, part: str, round: int
) -> dict[str, BagCounts]:
    """Every site's counts."""
    replies: Mapping[str, BagsScored] = federation.ask(
        SCORE_BAGS, ScoreBags(weights, part), round=round
    )
    return {site: bag_counts_of(reply) for site, reply in replies.items()}
