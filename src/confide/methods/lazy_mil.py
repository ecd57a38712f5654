"""Lazy MIL: sites bid with their sentences, and train on those that win against all sites.

Sui, Chen, Liu & Zhao, "Distantly Supervised Relation Extraction in Federated Settings", Findings of
EMNLP 2021, Algorithms 1 and 2.

A knowledge base knows that a relation holds between two entities, but not which sentence says so:
the sentences of one pair are a *bag*, and most of them may be wrong. In a round each drawn site
reports, for each triple (head, tail, relation), how likely the model finds the relation in the
site's best sentence; the server picks the highest values of each triple; each site trains only on
those of its own sentences that won; the server averages the weights.

What leaves a site: at the start, proof that it holds the common key, keyed digests of its words
with counts (or which public encoder it has), names of relations and entity types, numbers of
sentences and bags; in a round, keyed digests of its triples, the best value of each, and its
trained weights, of which the server keeps only the sum; counts of facts by score, and of bags by
best label.
What never leaves: text, words, entities, identifiers, which sentence won and where it stands.
What this may still reveal: the server sees how many bags a site has, which bags two sites share,
and how many sentences a site trains on; a site that loses a bag learns that another site has the
pair, with a sentence that the model finds clearly better. See docs/methods/lazy-mil.md.

Where we differ from the paper or decide what it leaves open:
- triples travel as HMAC digests under the key that the sites share and the server never sees;
- the index of the best sentence stays in the site's memory: the paper sends it, but the server does
  not need it, and a site that hears which of its bags won knows the sentence;
- a site hears only of its own bags (the authors' code gives every site the list of all winners);
- a bag may have several winners, not one: `factor = "adaptive"` (default) lets every site win whose
  best sentence has at least a share (1 - v)^5 of the bag's best value, v being the mean of the best
  values of all bags in the first round with bids; a site that wins trains on all its sentences
  within that share of its own best. `factor = 1.0` is the paper's: one winner;
- with `temperature` T, a bid is log p + T · Gumbel noise, squashed to 0..1, so that the best one is
  a draw with chances p^(1/T) over the sentences of all sites; T falls by `cooling` a round. The
  paper takes the best (`temperature = 0`, default);
- where sums are secure, a bid is one of 32 values, and digests are of one ask alone (`levels`);
- pairs without a relation are triples too; of equal bids a hash of the ask, the triple and the site
  decides, so that no site wins more than its share; of equal sentences of a site, the first wins;
- `weighting = "examples"` (Eq. 5: by winning sentences; default) or `"equal"` (the authors' code);
- a site with no winners, or fewer than its own guards allow, says so: it is not asked to
  train, and weighs nothing;
- the first `warmup_rounds` (default 4; the paper has none) train on every sentence, before anyone
  bids: an untrained model picks at random, and would then be trained to prefer its picks;
- the learning rate is multiplied by `decay` each round (the paper's 1 - decay);
- a pair's prediction is the maximum over its sentences.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from confide.errors import GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import Within
from confide.federation.memory import known
from confide.federation.messages import Arrays, carries, encode
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.agreement import check_digests, one_each
from confide.kinds.bags.site import BagSiteModel
from confide.kinds.protocol import SCORE, TAKE, F, Kept, ModelSpec, Take, resuming, train_config
from confide.kinds.steps import settle
from confide.methods import fedavg
from confide.methods.method import Carried, Facts, OptionsTable
from confide.settings import Settings
from confide.training.batches import Rows, covered
from confide.training.vocabulary import DIGEST_BYTES

# --- Choice of sentences
#
# Of a bag, the best, a draw, or all that are nearly as good are worth training on.
#
# Shapes: S sentences, N of them, G bags, R relations.


COLDEST = 0.01
"""The lowest temperature: chances of p^100 draw the best sentence, but for near ties."""
LEVELS = 32
"""The number of values that a bid may have where sums are secure."""
MOST_LEVELS = 64
"""Of more values, one would begin to tell one sentence from the others."""
_REACH = 8.0
"""Log odds beyond which all values count as equal, if bids have levels."""
_LEAST, _LARGEST, _BEND = 1e-4, 6.0, 3.0
"""Drawn values beyond these count as equal, if bids have levels: the noise of a probability of 1
is larger once in 400 draws. See `_bent`."""


class Ranked(NamedTuple):
    """A ranking, by bag and the best of each first: values, what has them, sizes of bags.

    At a site `rows_S` are sentences; at the server, where each site has one bid, sites.
    """

    values_S: NDArray[np.float32]
    rows_S: Rows
    sizes_G: Rows

    def firsts(self) -> Rows:
        """Where the best sentence of each bag is."""
        firsts_G: Rows = np.cumsum(self.sizes_G) - self.sizes_G
        return firsts_G

    def good(self, *, temperature: float, factor: float) -> NDArray[np.bool_]:
        """Mark the best of each bag or, with a factor below 1, those `close` to it."""
        good_S = np.zeros(len(self.rows_S), np.bool_)
        if factor < 1:
            best_S = np.repeat(self.values_S[self.firsts()], self.sizes_G)
            good_S = close(self.values_S, best_S, temperature=temperature, factor=factor)
        good_S[self.firsts()] = True
        return good_S


def ranked_sentences(
    likely_SR: NDArray[np.float32],
    groups: Sequence[Rows],
    relations_G: Rows,
    *,
    temperature: float = 0.0,
    seed: int = 0,
) -> Ranked:
    """The sentences of each training bag, best first; of equal ones the first row is the best."""
    sizes_G = np.array([len(rows) for rows in groups], np.int64)
    rows_S = np.concatenate([np.zeros(0, np.int64), *groups]).astype(np.int64)
    bags_S = np.repeat(np.arange(len(sizes_G)), sizes_G)
    values_S = likely_SR[rows_S, relations_G[bags_S]].astype(np.float32)
    if temperature:  # one draw a row, so that the order of the bags does not matter
        noise_S = np.random.default_rng(seed).gumbel(size=len(likely_SR))[rows_S]
        values_S = blurred(values_S, noise_S, temperature)
    order_S = np.lexsort((rows_S, -values_S, bags_S))
    return Ranked(values_S[order_S], rows_S[order_S], sizes_G)


class Compared(NamedTuple):
    """All bids by triple, the best of each first, and the digests of their triples."""

    ranked: Ranked
    digests_N16: NDArray[np.uint8]


def compared(bids: Mapping[str, Bids], *, asked: bytes = b"") -> Compared:
    """The bids of some sites, numbered alphabetically.

    Of equal ones that is best whose hash is largest: of `asked`, the ask as it travels, the triple,
    and the site. So each ask and triple prefers another site, and none wins more than its share.
    """
    sites = sorted(bids)
    digests_N16 = np.concatenate([bids[site].digests_G16 for site in sites])
    values_N = np.concatenate([bids[site].values_G for site in sites])
    sites_N = np.repeat(np.arange(len(sites)), [len(bids[site].values_G) for site in sites])
    _, triples_N = np.unique(one_each(digests_N16), return_inverse=True)
    key = hashlib.sha256(asked).digest()
    names = [site.encode() for site in sites]
    turns_N8 = b"".join(
        hmac.digest(key, digest.tobytes() + names[site], "sha256")[:8]
        for digest, site in zip(digests_N16, sites_N, strict=True)
    )
    turns_N = np.frombuffer(turns_N8, ">u8")
    order_N = np.lexsort((~turns_N, -values_N, triples_N))
    ranked = Ranked(values_N[order_N], sites_N[order_N], np.bincount(triples_N))
    return Compared(ranked, digests_N16[order_N])


def winners(
    bids: Mapping[str, Bids], *, asked: bytes, temperature: float = 0.0, factor: float = 1.0
) -> dict[str, NDArray[np.uint8]]:
    """The triples that each site won with its bids on `asked`: those for which no site bid more.

    Of equal bids one wins, as `compared` says. With a factor below 1, every site wins whose bid is
    `close` to the best. Sites that won nothing are left out.
    """
    if not bids:
        return {}
    ranked, digests_N16 = compared(bids, asked=asked)
    won_N = ranked.good(temperature=temperature, factor=factor)
    found = {
        site: digests_N16[won_N & (ranked.rows_S == place)]
        for place, site in enumerate(sorted(bids))
    }
    return {site: digests for site, digests in found.items() if len(digests)}


def blurred(
    likely_S: NDArray[np.float32], noise_S: NDArray[np.float64], temperature: float
) -> NDArray[np.float32]:
    """Values between 0 and 1, the largest of which is a draw with chances p^(1/T).

    log p + T · g with Gumbel noise g has this property over any set of sentences, whichever sites
    they lie at (Gumbel 1954; Maddison, Tarlow & Minka 2014). x / (1 + |x|) keeps the order of such
    numbers, and tells apart large ones and small ones.
    """
    least = np.finfo(np.float32).tiny
    logs_S = np.log(np.maximum(likely_S, least).astype(np.float64)) + temperature * noise_S
    return _squashed(logs_S)


def levelled(
    values_S: NDArray[np.float32], levels: int, *, temperature: float = 0.0
) -> NDArray[np.float32]:
    """Round to one of N values evenly spaced in log odds (0: no rounding).

    An exact value is as good as a name: whoever has the model and a sentence can look for its value
    among the bids of a site. Values that were `blurred` at a temperature T are evenly spaced in
    units of T, so that as few as possible of those that win are equal.

    >>> found = levelled(np.array([0.5, 0.9, 0.91, 1.0], np.float32), 9)
    >>> [round(float(one), 3) for one in found]
    [0.5, 0.881, 0.881, 1.0]
    """
    if not levels:
        return values_S
    if temperature:
        heat = max(temperature, COLDEST)
        lowest, highest = _bent(np.array([np.log(_LEAST) / heat - 2, _LARGEST]))
        step = (highest - lowest) / (levels - 1)
        bent_S = _bent(_unsquashed(values_S) / heat).clip(lowest, highest)
        bent_S = np.rint((bent_S - lowest) / step) * step + lowest
        return _squashed(heat * _unbent(bent_S))
    sure_S = values_S.astype(np.float64).clip(1e-9, 1 - 1e-9)
    step = 2 * _REACH / (levels - 1)
    odds_S = np.log(sure_S / (1 - sure_S)).clip(-_REACH, _REACH)
    odds_S = np.rint((odds_S + _REACH) / step) * step - _REACH
    found_S: NDArray[np.float32] = (1 / (1 + np.exp(-odds_S))).astype(np.float32)
    return found_S


def _bent(units_S: NDArray[np.float64]) -> NDArray[np.float64]:
    """Below 0, where few draws win, the same distance in units of T counts less and less."""
    low_S = np.minimum(units_S, 0)
    return np.maximum(units_S, 0) - _BEND * np.log1p(-low_S / _BEND)


def _unbent(bent_S: NDArray[np.float64]) -> NDArray[np.float64]:
    low_S = np.minimum(bent_S, 0)
    return np.maximum(bent_S, 0) - _BEND * np.expm1(-low_S / _BEND)


def of_this_ask(digests_G16: NDArray[np.uint8], key: bytes, ask: bytes) -> NDArray[np.uint8]:
    """Other digests of the same triples, equal at all sites that hear this ask, and at no other.

    Those of two asks cannot be told to be of one triple without the sites' key.
    """
    asked = hashlib.sha256(ask).digest()
    made = b"".join(
        hmac.digest(key, b"bid\0" + asked + row.tobytes(), "sha256")[:DIGEST_BYTES]
        for row in digests_G16
    )
    return np.frombuffer(made, np.uint8).reshape(-1, DIGEST_BYTES)


def close(
    values_N: NDArray[np.float32], best_N: NDArray[np.float32], *, temperature: float, factor: float
) -> NDArray[np.bool_]:
    """Mark values of at least `factor` times the best, before it was squashed."""
    found_N: NDArray[np.bool_]
    if temperature:
        found_N = _unsquashed(values_N) >= _unsquashed(best_N) + np.log(factor)
    else:
        found_N = values_N >= factor * best_N.astype(np.float64)
    return found_N


def _squashed(numbers_N: NDArray[np.float64]) -> NDArray[np.float32]:
    found_N: NDArray[np.float32] = (0.5 + 0.5 * numbers_N / (1 + np.abs(numbers_N))).astype("f")
    return found_N


def _unsquashed(values_N: NDArray[np.float32]) -> NDArray[np.float64]:
    """Before squashing. A 0 or a 1, which only a liar bids, is as far away as can be."""
    signed_N = 2 * values_N.astype(np.float64) - 1
    found_N: NDArray[np.float64] = signed_N / np.maximum(1 - np.abs(signed_N), 1e-9)
    return found_N


def leniency(values_N: NDArray[np.float32]) -> float:
    """The factor that suits a model that is so sure of the best sentences of bags.

    Where labels are wrong, a model is not sure of what it has learnt, and few are good enough.
    """
    return float(max((1 - values_N.astype(np.float64).mean()) ** 5, 1e-9)) if len(values_N) else 1.0


Digests = NDArray[np.uint8]
MOST_BIDS = 10_000_000
"""The most bids of a site in a round: no honest text has more bags."""
MOST_SENTENCES = 100_000_000
_NO_ROWS = np.zeros(0, np.int64)
DENOISE = "none"
"""A pair's prediction is the maximum over its sentences."""


@dataclass(frozen=True)
class LazyMemory(Kept[F], Generic[F]):
    """A site's memory: the form of the model and, between bidding and training, its bids."""

    bid_round: int = carries("the round of its last bids; -1 before the first", start=lambda: -1)
    bid_digests_G16: Digests = carries(
        "the triples that it bid for", start=lambda: np.zeros((0, DIGEST_BYTES), np.uint8)
    )
    bid_temperature: float = carries("how much chance there was in its last bids", start=float)
    bid_values_S: NDArray[np.float32] = carries(
        "the value of each sentence, by triple, best first: never sent",
        start=lambda: np.zeros(0, np.float32),
    )
    bid_rows_S: Rows = carries("which sentences these are: never sent", start=lambda: _NO_ROWS)
    bid_sizes_G: Rows = carries("how many each triple has: never sent", start=lambda: _NO_ROWS)
    won_W: Rows = carries(
        "its winning sentences, on which it trains", start=lambda: np.zeros(0, np.int64)
    )


@dataclass(frozen=True)
class LazyState(fedavg.FedAvgState[F], Generic[F]):
    """The server's state from round to round."""

    factor: float = carries("share of the best value that wins; 0 before any bids", start=float)


@dataclass(frozen=True)
class Bid:
    """Score your best sentence of each triple with these weights."""

    weights: Arrays = carries("the common weights")
    vectors: bool = carries("whether rows of the site's vector file are filled in first")
    temperature: float = carries("how much chance there is in a value; 0: none", start=float)
    levels: int = carries(
        "how many values there are; digests are then of this ask alone; 0: any, of the run",
        start=int,
    )


@dataclass(frozen=True)
class Bids:
    """A site's triples and their best values. G bags."""

    digests_G16: Digests = carries(
        "keyed digests of the site's triples (two entities and a relation, or none), sorted",
        most=MOST_BIDS,
        rule="open",
    )
    values_G: NDArray[np.float32] = carries(
        "probability of each triple's relation in the site's best sentence, blurred by chance if "
        "there is a temperature; the nearest of the values that there are",
        most=MOST_BIDS,
        rule="open",
    )


@dataclass(frozen=True)
class HearWinners:
    """The triples that you won: your best sentence is (nearly) that of all sites. W triples."""

    digests_W16: Digests = carries("keyed digests of the triples that the site won", most=MOST_BIDS)
    factor: float = carries(
        "share of a site's best value at which its other sentences win too; 1: none does",
        start=lambda: 1.0,
    )


@dataclass(frozen=True)
class WinnersHeard:
    """A site's answer: the number of winning sentences that it will train on."""

    sentences: int = carries(
        "number of sentences it will train on; 0 if too few for its own guard", rule="open"
    )


def bid(
    site: Site, memory: LazyMemory[F] | None, ask: Bid, turn: Turn
) -> tuple[Bids, LazyMemory[F]]:
    """Score the site's own sentences, and bid the best value of each triple (Algorithm 2)."""
    memory = known(memory)
    if not 0 <= ask.temperature < np.inf or ask.levels < 0 or ask.levels == 1:
        raise Refusal("bad-ask")
    if site.guards.masked and not 0 < ask.levels <= MOST_LEVELS:
        raise Refusal("only-masked")
    site_model = _site_model(site, memory)
    looked = site_model.looked("train")
    likely_SR = site_model.likely(ask.weights, vectors=ask.vectors)
    digests_G16 = looked.digests_G16
    if ask.levels:
        digests_G16 = of_this_ask(digests_G16, site_model.key, encode(ask))
    order_G = np.argsort(one_each(digests_G16), kind="stable")
    found = ranked_sentences(
        likely_SR,
        [looked.groups[bag] for bag in order_G],
        looked.relations_G[order_G],
        temperature=ask.temperature,
        seed=turn.seed,
    )
    digests_G16 = digests_G16[order_G]
    kept = replace(
        memory,
        bid_round=turn.round,
        bid_digests_G16=digests_G16,
        bid_temperature=ask.temperature,
        bid_values_S=found.values_S,
        bid_rows_S=found.rows_S,
        bid_sizes_G=found.sizes_G,
        won_W=_NO_ROWS,
    )
    best_G = found.values_S[found.firsts()]
    return Bids(digests_G16, levelled(best_G, ask.levels, temperature=ask.temperature)), kept


def _site_model(site: Site, memory: LazyMemory[F]) -> BagSiteModel:
    site_model = memory.form.at(site)
    assert isinstance(site_model, BagSiteModel)
    return site_model


def check_bids(ask: Bid, reply: Bids) -> None:
    """Raise GuardError if bids are not distinct digests with a probability each."""
    check_digests("triple", reply.digests_G16)
    values_G = reply.values_G
    if values_G.shape != (len(reply.digests_G16),) or values_G.dtype != np.float32:
        raise GuardError("values_G is not one float32 for each digest", got=str(values_G.shape))
    if not ((values_G >= 0) & (values_G <= 1)).all():
        raise GuardError("values_G must lie between 0 and 1")
    nearest_G = levelled(values_G, ask.levels, temperature=ask.temperature)
    if not np.array_equal(nearest_G, values_G):
        raise GuardError("values_G must be of the values that were asked for")


def hear_winners(
    site: Site, memory: LazyMemory[F] | None, ask: HearWinners, turn: Turn
) -> tuple[WinnersHeard, LazyMemory[F]]:
    """Look up which of the site's own sentences won. Raises Refusal for a triple without a bid."""
    memory = known(memory)
    place = {mark: row for row, mark in enumerate(_marks(memory.bid_digests_G16))}
    won = _marks(ask.digests_W16)
    if memory.bid_round != turn.round or len(set(won)) != len(won) or not place.keys() >= set(won):
        raise Refusal("not-bid")
    if not 0 < ask.factor <= 1:
        raise Refusal("bad-ask")
    wins_G = np.zeros(len(place), np.bool_)
    wins_G[[place[mark] for mark in won]] = True
    own = Ranked(memory.bid_values_S, memory.bid_rows_S, memory.bid_sizes_G)
    good_S = own.good(temperature=memory.bid_temperature, factor=ask.factor)
    won_W = np.sort(own.rows_S[good_S & np.repeat(wins_G, own.sizes_G)])
    if len(won_W) < site.guards.min_sentences or not covered(len(won_W)):
        won_W = _NO_ROWS
    return WinnersHeard(len(won_W)), replace(memory, won_W=won_W)


def _marks(digests_G16: Digests) -> list[bytes]:
    if digests_G16.dtype != np.uint8 or digests_G16.shape[1:] != (DIGEST_BYTES,):
        raise Refusal("bad-ask")
    return [row.tobytes() for row in digests_G16]


def check_heard(ask: HearWinners, reply: WinnersHeard) -> None:
    """Raise GuardError if the site would train on another number of sentences than it won."""
    triples = len(ask.digests_W16)
    most = MOST_SENTENCES if ask.factor < 1 and triples else triples
    if reply.sentences and not triples <= reply.sentences <= most:
        raise GuardError("sentences must be 0 or the number of triples won, or more if several win")


def train_on_winners(
    site: Site, memory: LazyMemory[F] | None, ask: fedavg.Train, turn: Turn
) -> tuple[fedavg.Update, LazyMemory[F]]:
    """Train the common model on the site's own winning sentences."""
    memory = known(memory)
    if memory.bid_round != turn.round or not len(memory.won_W):
        raise Refusal("not-bid")
    site_model = _site_model(site, memory)
    won_W = memory.won_W
    config, memory_after = resuming(memory, ask.config)
    fitted = site_model.fit(ask.weights, config, seed=turn.seed, only_W=won_W)
    memory = memory_after()
    weight = float(len(won_W)) if ask.weighting == "examples" else 1.0
    return fedavg.Update.of(fitted, weight=weight), memory


BID = Step.of(bid, check=check_bids)
HEAR_WINNERS = replace(Step.of(hear_winners, check=check_heard), to_each=True)
TRAIN_ON_WINNERS = Step.of(train_on_winners, summed=True)


class LazyMilSettings(OptionsTable):
    """The table `[options]` of Lazy MIL.

    `weighting`: how much a site's weights count in the mean. `warmup_rounds`: rounds before the
    first bids, which train on every sentence. `factor`: sentences win whose probability is at least
    this share of the best of their bag; 1: only the best. "adaptive": the surer the model is of the
    best sentences of all bags when sites first bid, the smaller the share. `temperature`: above 0,
    the best sentence is drawn, p with a chance of p^(1/T); T falls by `cooling` each round.
    `levels`: how many values a bid may have; 0: any; by default 32 where sums are secure, else any.
    The paper has `factor = 1`, `warmup_rounds = 0`, `temperature = 0` and `levels = 0`.
    """

    weighting: Literal["sentences", "examples", "equal"] = "examples"
    warmup_rounds: Annotated[int, Field(ge=0)] = 4
    factor: Literal["adaptive"] | Annotated[float, Field(gt=0, le=1)] = "adaptive"
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    cooling: Annotated[float, Field(gt=0, le=1)] = 0.8
    levels: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _fits(self) -> LazyMilSettings:
        if self.temperature and self.factor == "adaptive":
            raise ValueError("drawn values say nothing of the model: give a factor, such as 1.0")
        if self.levels == 1:
            raise ValueError("bids of one value say nothing: give levels of 2 or more, or 0")
        return self

    def check(self, run: Settings) -> None:
        """Raise SettingsError if a bid may have more values than sites allow under masks."""
        levels = self.levels
        if run.federation.sums == "masked" and levels is not None and not 0 < levels <= MOST_LEVELS:
            raise SettingsError(
                "under masks a bid has one of a few values, so that it names no sentence",
                where="options.levels",
                expected=f"2 to {MOST_LEVELS}",
                got=str(levels),
                fix="leave it out",
            )


class LazyMil(fedavg.FedAvg):
    """The method: `round` is bidding, choosing and training (Algorithm 1)."""

    name: ClassVar[str] = "lazy-mil"
    kinds: ClassVar[tuple[str, ...]] = ("bags",)
    steps: ClassVar[tuple[Step, ...]] = (
        TAKE,
        fedavg.TRAIN,
        BID,
        HEAR_WINNERS,
        TRAIN_ON_WINNERS,
        SCORE,
    )
    Settings: ClassVar[type[OptionsTable]] = LazyMilSettings
    State: ClassVar[type] = LazyState

    def start(self, federation: Federation) -> LazyState[ModelSpec]:
        """Agree on a model that is trained on single sentences, and draw the first weights."""

        def take(form: Any) -> Take[Any]:
            return Take(replace(form, denoise=DENOISE))

        _, given, idle = settle(
            self.run, federation, self.kind, step=self.step("take"), start=self._start, ask=take
        )
        return LazyState(given.form, self.first(given.form, federation), idle)

    def temperature(self, n: int) -> float:
        """The temperature of round `n`: it falls from the first round with bids on."""
        first, later = self.options.temperature, n - 1 - self.options.warmup_rounds
        return max(first * self.options.cooling**later, COLDEST) if first else 0.0

    @property
    def _levels(self) -> int:
        """The number of values that a bid may have."""
        levels: int | None = self.options.levels
        if levels is None:
            levels = LEVELS if self.run.federation.sums == "masked" else 0
        return levels

    def fields(self, n: int) -> dict[str, object]:
        """Add to FedAvg's fields how sites bid; an adaptive factor depends on the bids."""
        factor = self.options.factor
        return fedavg.train_fields(self, weighting=self.options.weighting) | {
            "form.denoise": DENOISE,
            "vectors": train_config(self.run, n).vectors,
            "temperature": self.temperature(n),
            "levels": self._levels,
            "factor": Within(0, 1) if isinstance(factor, str) else factor,
        }

    def round(
        self, state: LazyState[ModelSpec], federation: Federation, n: int
    ) -> tuple[Carried, Facts]:
        """Sites bid, the server picks the winners, their sites train, and the server averages."""
        if n <= self.options.warmup_rounds:
            return super().round(state, federation, n)
        bidders, facts = self.drawn(state, federation, n)
        ask = fedavg.train_ask(self, state, n)
        heat = self.temperature(n)
        bid_ask = Bid(ask.weights, ask.config.vectors, heat, self._levels)
        bids = federation.ask(BID, bid_ask, round=n, sites=bidders)
        factor = state.factor or self.options.factor
        if factor == "adaptive":  # the first round with bids decides
            best = compared(bids).ranked if bids else None
            factor = leniency(best.values_S[best.firsts()]) if best else 1.0
        won = winners(bids, asked=encode(bid_ask), temperature=heat, factor=factor)
        told = {site: HearWinners(digests, factor) for site, digests in won.items()}
        heard = federation.ask(HEAR_WINNERS, told, round=n)
        facts |= {
            "bids": sum(len(reply.values_G) for reply in bids.values()),
            "factor": factor,
            "winners": {site: reply.sentences for site, reply in heard.items()},
        }
        if bids:
            state = replace(state, factor=factor)
        sites = [site for site, reply in heard.items() if reply.sentences]
        if not sites:
            return state, facts
        total = federation.sum(TRAIN_ON_WINNERS, ask, round=n, sites=sites)
        facts |= {"loss": total.loss / total.weight, "sentences": total.examples}
        return replace(state, weights=fedavg.mean_of(total, state.weights)), facts
