"""Which sentences of a bag are worth training on: the best, a draw, or all that are nearly as good.

Shapes: S sentences, N of them, G bags, R relations.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.vocabulary import DIGEST_BYTES
from confide.kinds.vocabulary import one_each

if TYPE_CHECKING:
    from confide.methods.lazy_mil import Bids

Rows = NDArray[np.int64]
COLDEST = 0.01
"""The lowest temperature: chances of p^100 draw the best sentence, but for near ties."""
LEVELS = 32
"""How many values a bid may have where sums are secure."""
MOST_LEVELS = 64
"""Of more values, one would begin to tell one sentence from the others."""
_REACH = 8.0
"""Log odds beyond which all values count as equal, if bids have levels."""
_LEAST, _LARGEST, _BEND = 1e-4, 6.0, 3.0
"""Drawn values beyond these count as equal, if bids have levels: the noise of a probability of 1
is larger once in 400 draws. See `_bent`."""


class Ranked(NamedTuple):
    """What is compared, by bag and the best of each first: values, what has them, sizes of bags.

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
        """Whether each is the best of its bag or, with a factor below 1, `close` to it."""
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


def best_values(bids: Mapping[str, Bids]) -> NDArray[np.float32]:
    """The best bid for each triple."""
    if not bids:
        return np.zeros(0, np.float32)
    ranked = compared(bids).ranked
    return ranked.values_S[ranked.firsts()]


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
    """The nearest of so many values, which are evenly spaced in log odds; 0: the values themselves.

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
    values_N: NDArray[np.float32],
    best_N: NDArray[np.float32],
    *,
    temperature: float,
    factor: float,
) -> NDArray[np.bool_]:
    """Whether each value is at least `factor` times the best, before it was squashed."""
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
