"""Lazy MIL: who bids what, who wins, and that everybody trains on nothing but their own winners."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import GuardError, QuorumError, SettingsError
from confide.federation.engines import Hosting
from confide.federation.guards import Guards, check_reply
from confide.federation.keys import new_key
from confide.federation.messages import decode, encode
from confide.federation.quantising import restore_reply
from confide.kinds.agreement import one_each
from confide.kinds.bags.batches import training_bags
from confide.kinds.bags.model import BagTrainer, sentence_probabilities
from confide.kinds.bags.site import words_of
from confide.kinds.relations.batches import NO_RELATION, candidates
from confide.kinds.relations.site import rules_of
from confide.methods import lazy_mil
from confide.methods.fedavg import Train
from confide.methods.lazy_mil import (
    BID,
    COLDEST,
    HEAR_WINNERS,
    LEVELS,
    Bid,
    Bids,
    HearWinners,
    LazyMilSettings,
    Ranked,
    WinnersHeard,
    blurred,
    leniency,
    levelled,
    ranked_sentences,
    winners,
)
from confide.runs.run import run
from confide.runs.sites import gather
from confide.seeds import derive_seed
from confide.text.document import Document
from confide.training.vocabulary import keyed_digest
from confide.training.weights import arrays, load_weights
from contract.bags import bag_documents, sentence, write_bags
from contract.corpus import KEY, tiny
from contract.runs import Forging, use_engine
from kinds.configs import config
from methods.relation_runs import Seen, started

SAID = {"eases": "took", "causes": "head", "": "the patient", "nothing": "pain"}


def says(name: str, pair: tuple[str, str], relation: str, said: str) -> Document:
    """A sentence about a pair, labelled with the relation, that says something."""
    import random

    return sentence(
        random.Random(name),
        name,
        names=(f"drug{pair[0]}", f"pain{pair[1]}"),
        concepts=pair,
        said=SAID[said],
        relation=relation,
    )


def own_sites(
    folder: Path, sites: dict[str, Sequence[Document]], *overrides: str, at_least: int = 0
) -> tuple[Any, Any, Seen]:
    """Lazy MIL over sites that train on these documents."""
    tables = write_bags(folder / "data", sites)
    settings = tiny(folder, "method=lazy-mil-bags", *overrides, site=tables)
    return started(folder, settings, at_least=at_least)


TWO = {
    "site-1": [
        says("1a", ("D1", "E1"), "eases", "eases"),
        says("1b", ("D1", "E1"), "eases", "nothing"),
        says("1c", ("D2", "E2"), "causes", "nothing"),
        says("1d", ("D3", "E3"), "", ""),
        says("1e", ("D5", "E5"), "causes", "causes"),
        says("1f", ("D6", "E6"), "eases", "nothing"),
    ],
    "site-2": [
        says("2a", ("D1", "E1"), "eases", "nothing"),
        says("2b", ("D2", "E2"), "causes", "causes"),
        says("2c", ("D2", "E2"), "causes", "nothing"),
        says("2d", ("D3", "E3"), "", "nothing"),
        says("2e", ("D4", "E4"), "eases", "eases"),
        says("2f", ("D6", "E6"), "eases", "eases"),
        says("2g", ("E6", "D6"), "eases", "eases"),
    ],
}
"""Bags of both sites, bags of one of them, and a pair that is head and tail of each other."""


# --- choosing -----------------------------------------------------------------------------------


def marks(*numbers: int) -> np.ndarray:
    return np.array([[number] * 16 for number in numbers], np.uint8).reshape(-1, 16)


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_the_highest_bid_wins() -> None:
    bids = {
        "b": Bids(marks(1, 2, 4), f32(0.4, 0.9, 0.1)),
        "a": Bids(marks(1, 2, 3), f32(0.5, 0.2, 0.0)),
        "c": Bids(marks(1, 4), f32(0.4, 0.0)),
        "d": Bids(marks(), f32()),
    }
    found = winners(bids, asked=b"")
    assert list(found) == ["a", "b"]
    assert found["a"].tolist() == marks(1, 3).tolist()
    assert found["b"].tolist() == marks(2, 4).tolist()
    assert winners({}, asked=b"") == {}
    assert winners({"d": bids["d"]}, asked=b"") == {}


def test_of_equal_bids_a_hash_of_ask_triple_and_site_decides() -> None:
    """So no site is favoured, and each ask decides anew; the order of the bids is nothing."""
    digests = np.random.default_rng(0).integers(0, 256, (40, 16)).astype(np.uint8)
    names = [f"site-{n:02}" for n in range(5)]
    bids = {site: Bids(digests, f32(*[0.5] * 40)) for site in names}
    found = {asked: winners(bids, asked=asked) for asked in (b"one", b"other")}
    for asked, won in found.items():
        for mark in digests:
            turns = {
                site: hmac.digest(hashlib.sha256(asked).digest(), bytes(mark) + site.encode(),
                                  "sha256")
                for site in names
            }  # fmt: skip
            (owner,) = (site for site in won if mark.tolist() in won[site].tolist())
            assert owner == max(turns, key=lambda site: turns[site][:8])
    assert any(
        found[b"one"][site].tolist() != found[b"other"][site].tolist() for site in found[b"one"]
    )
    again = winners(dict(reversed(bids.items())), asked=b"one")
    assert all(np.array_equal(again[site], found[b"one"][site]) for site in names)


@each("levels", [0, 32])
def test_ten_equal_sites_win_equally_often(levels: int) -> None:
    random, triples = np.random.default_rng(4), 6000
    digests = random.integers(0, 256, (triples, 16)).astype(np.uint8)
    bids = {
        f"site-{place}": Bids(digests, levelled(random.beta(2, 1, triples).astype("f"), levels))
        for place in range(10)
    }
    won = np.array([len(one) for one in winners(bids, asked=b"an ask").values()])
    assert won.sum() == triples and len(won) == 10
    assert ((won - 600) ** 2 / 600).sum() < 27.9  # chi-squared, 9 free: p = 0.001


def test_winners_are_those_of_a_plain_loop() -> None:
    random = np.random.default_rng(3)
    bids = {}
    for place in range(7):
        numbers = np.sort(random.choice(60, size=random.integers(0, 40), replace=False))
        values = (random.integers(0, 4, len(numbers)) / 4).astype(np.float32)
        bids[f"site-{place}"] = Bids(marks(*numbers.tolist()), values)
    best: dict[int, tuple[float, bytes, str]] = {}
    for site in sorted(bids):
        for mark, value in zip(bids[site].digests_G16, bids[site].values_G, strict=True):
            turn = hmac.digest(hashlib.sha256(b"ask").digest(), bytes(mark) + site.encode(),
                               "sha256")  # fmt: skip
            bid = float(value), turn, site
            best[int(mark[0])] = max(bid, best.get(int(mark[0]), bid))
    found = winners(dict(reversed(bids.items())), asked=b"ask")
    for site in bids:
        mine = sorted(number for number, (*_, owner) in best.items() if owner == site)
        assert found.get(site, marks())[:, 0].tolist() == mine


def test_a_bag_bids_with_its_best_sentence_and_of_equal_ones_the_first() -> None:
    likely_SR = f32(0.1, 0.9, 0.6, 0.4, 0.2, 0.8, 0.5, 0.5, 0.2, 0.8).reshape(5, 2)
    groups = [np.array([1]), np.array([0, 2, 4]), np.array([2, 4]), np.array([0, 3])]
    found = ranked_sentences(likely_SR, groups, np.array([0, 1, 1, 0]))
    assert good_rows(found) == [1, 0, 2, 3]
    assert found.rows_S.tolist() == [1, 0, 2, 4, 2, 4, 3, 0]
    np.testing.assert_array_equal(found.values_S[found.firsts()], f32(0.6, 0.9, 0.8, 0.5))
    none = ranked_sentences(f32().reshape(0, 2), [], np.array([], int))
    assert [len(part) for part in none] == [0, 0, 0]
    assert none.values_S.dtype == np.float32


def good_rows(found: Ranked, temperature: float = 0.0, factor: float = 1.0) -> list[int]:
    good_S = found.good(temperature=temperature, factor=factor)
    return list(found.rows_S[good_S].tolist())


def test_with_a_factor_all_win_that_are_nearly_as_good_as_the_best() -> None:
    """Within a site as over sites; a factor of 1 leaves a site's ties to its first sentence."""
    likely_SR = f32(0.8, 0.2, 0.4, 0.6, 0.39, 0.61, 0.8, 0.2).reshape(4, 2)
    groups, relations = [np.array([0, 1, 2, 3])], np.array([0])
    ranked = ranked_sentences(likely_SR, groups, relations)
    rows = {factor: good_rows(ranked, factor=factor) for factor in (0.1, 0.5, 0.6, 1.0)}
    assert rows == {0.1: [0, 3, 1, 2], 0.5: [0, 3, 1], 0.6: [0, 3], 1.0: [0]}
    bids = {
        "a": Bids(marks(1, 2, 3), f32(0.5, 0.2, 0.0)),
        "b": Bids(marks(1, 2, 4), f32(0.8, 0.1, 0.3)),
        "c": Bids(marks(1, 2, 3), f32(0.399, 0.2, 0.0)),
    }
    found = winners(bids, asked=b"", factor=0.5)
    assert {site: won[:, 0].tolist() for site, won in found.items()} == {
        "a": [1, 2, 3],
        "b": [1, 2, 4],
        "c": [2, 3],
    }


def spread(numbers: np.ndarray, sites: Sequence[int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The probabilities of one bag's sentences, at sites that have so many of them each."""
    cuts = np.cumsum([0, *sites])
    return {
        f"site-{place}": (f32(*numbers[a:b]).reshape(-1, 1), np.arange(b - a))
        for place, (a, b) in enumerate(zip(cuts, cuts[1:], strict=False), start=1)
    }


def won_at(
    sites: dict[str, tuple[np.ndarray, np.ndarray]], turn: int, **how: float
) -> dict[str, list[int]]:
    """The rows of one bag that win in a turn, by site: what `bid` and `round` do."""
    heat = how["temperature"]
    found = {
        site: ranked_sentences(
            likely, [rows], np.zeros(1, int), seed=derive_seed(turn, site), temperature=heat
        )
        for site, (likely, rows) in sites.items()
    }
    bids = {site: Bids(marks(1), one.values_S[one.firsts()]) for site, one in found.items()}
    for one in bids.values():
        check_reply(BID, Bid({}, False), one)
    return {site: good_rows(found[site], **how) for site in winners(bids, asked=b"", **how)}


@each("levels", [0, 32])
@each("temperature", [0.3, 2.0])
def test_a_draw_takes_each_sentence_with_its_chance_over_all_sites(
    temperature: float, levels: int
) -> None:
    """Chances are p^(1/T) over the sentences of all sites; the oracle is this formula."""
    held = {"a": [0.9, 0.1], "b": [0.5, 0.5, 0.3], "c": [0.95]}
    draws = 20_000  # one for each of so many bags, which all sites have
    digests = np.unique(np.random.default_rng(0).integers(0, 256, (draws, 16)), axis=0).astype("u1")
    bids, first = {}, {}
    for site, own in held.items():
        found = ranked_sentences(
            np.tile(f32(*own), draws).reshape(-1, 1),
            [*np.arange(draws * len(own)).reshape(draws, -1)],
            np.zeros(draws, int),
            temperature=temperature,
            seed=derive_seed(7, site),
        )
        best = levelled(found.values_S[found.firsts()], levels, temperature=temperature)
        bids[site] = Bids(digests, best)
        first[site] = found.rows_S[found.firsts()] % len(own)
        check_reply(BID, Bid({}, False, temperature=temperature, levels=levels), bids[site])
    counts = []
    for site, won in winners(bids, asked=b"an ask", temperature=temperature).items():
        rows = first[site][np.isin(one_each(digests), one_each(won))]
        counts += np.bincount(rows, minlength=len(held[site])).tolist()
    chances = np.concatenate([*held.values()]) ** (1 / temperature)
    expected = draws * chances / chances.sum()
    assert sum(counts) == draws
    assert ((counts - expected) ** 2 / expected).sum() < 20.5  # chi-squared, 5 free: p = 0.001
    if temperature == 0.3:
        shares = [sum(counts[:2]) / draws, sum(counts[2:5]) / draws, counts[5] / draws]
        np.testing.assert_allclose(shares, (0.399, 0.123, 0.478), atol=0.01)


def test_a_cold_draw_is_the_best_and_a_hot_one_is_any() -> None:
    sites = spread(np.array([0.9, 0.5, 0.7, 1e-6]), (2, 2))
    cold = [won_at(sites, turn, temperature=0.01) for turn in range(200)]
    assert all(one == {"site-1": [0]} for one in cold)
    hot = {(*one, *map(tuple, one.values())) for one in
           (won_at(sites, turn, temperature=100.0) for turn in range(200))}  # fmt: skip
    assert len(hot) == 4


def test_a_factor_holds_for_drawn_values_too() -> None:
    """The oracle compares p · exp(T · g) in the clear."""
    likely = np.array([0.9, 0.02, 0.3, 0.5, 0.05])
    sites = spread(likely, (1, 1, 1, 1, 1))
    for turn in range(300):
        noise = [np.random.default_rng(derive_seed(turn, site)).gumbel(size=1)[0] for site in sites]
        noisy = likely * np.exp(0.7 * np.array(noise))
        good = [site for site, one in zip(sites, noisy, strict=True) if one >= 0.4 * noisy.max()]
        assert list(won_at(sites, turn, temperature=0.7, factor=0.4)) == good


def test_chance_is_of_the_row_whatever_the_order_of_the_bags() -> None:
    """The order of bags is that of digests, which another key changes."""
    likely = np.random.default_rng(1).random((6, 1)).astype(np.float32)
    groups = [np.array([0, 3]), np.array([1, 2]), np.array([4, 5])]
    drawn = {}
    for name, own, seed in (("one", groups, 5), ("other", groups[::-1], 5), ("third", groups, 6)):
        found = ranked_sentences(likely, own, np.zeros(3, int), temperature=1.0, seed=seed)
        drawn[name] = dict(zip(found.rows_S.tolist(), found.values_S.tolist(), strict=True))
    assert drawn["one"] == drawn["other"]
    assert drawn["one"] != drawn["third"]


def test_values_tell_very_likely_and_very_unlikely_sentences_apart() -> None:
    """And stay between 0 and 1, whatever the noise."""
    likely = f32(0.0, 1e-38, 1e-20, 0.5, 0.500001, 1.0)
    for temperature in (COLDEST, 1.0, 100.0):
        for noise in (-3.0, 0.0, 20.0):
            values = blurred(likely, np.full(6, noise), temperature)
            assert ((values >= 0) & (values <= 1)).all()
            assert (np.diff(values)[1:3] > 0).all()
            assert (np.diff(values) >= 0).all()


def test_the_temperature_falls_from_the_first_bids_on(tmp_path: Path) -> None:
    how = ("options.temperature=2.0", "options.cooling=0.5", "options.warmup_rounds=1")
    method, federation, engine = own_sites(tmp_path, TWO, *how, "options.factor=0.3")
    state = method.start(federation)
    asked = []
    for number in (1, 2, 3, 4):
        state, _ = method.round(state, federation, number)
        if number > 1:
            ask = engine.asks["bid", "site-1"]
            heard = engine.asks["hear_winners", "site-1"]
            asked.append((ask.temperature, heard.factor))
    assert asked == [(2.0, 0.3), (1.0, 0.3), (0.5, 0.3)]
    assert method.temperature(60) == COLDEST


def test_a_bid_that_is_asked_for_again_is_the_same_draw(tmp_path: Path) -> None:
    """And another round draws anew."""
    method, federation, engine = own_sites(tmp_path, TWO, "options.temperature=1.0")
    state = method.start(federation)
    ask = Bid(state.weights, False, 1.0)
    first = federation.ask(BID, ask, round=1)
    sent = dict(engine.sent)
    rows = engine.memory("site-1").bid_rows_S.tolist()
    federation.ask(BID, ask, round=1)
    assert all(engine.sent["bid", site] == sent["bid", site] for site in TWO)
    assert engine.memory("site-1").bid_rows_S.tolist() == rows
    second = federation.ask(BID, ask, round=2)
    assert second["site-1"].values_G.tolist() != first["site-1"].values_G.tolist()


def test_of_a_triple_that_is_won_all_good_sentences_are_trained_on(tmp_path: Path) -> None:
    """The oracle is a plain loop; a site's own best decides whether it wins."""
    method, federation, engine = own_sites(tmp_path, TWO, "options.factor=0.6")
    state = method.start(federation)
    values = {site: scored(state, documents) for site, documents in TWO.items()}
    best = {}
    for likely in values.values():
        for triple, own in likely.items():
            best[triple] = max(best.get(triple, 0.0), *own)
    _, facts = method.round(state, federation, 1)
    for site, likely in values.items():
        start, rows = 0, []
        for triple, own in likely.items():
            if max(own) >= 0.6 * best[triple]:
                rows += [start + n for n, one in enumerate(own) if one >= 0.6 * max(own)]
            start += len(own)
        assert engine.memory(site).won_W.tolist() == rows
        assert facts["winners"][site] == len(rows)
    assert facts["sentences"] > 7


def test_the_surer_the_model_is_the_more_sentences_win() -> None:
    assert leniency(f32(0.5, 0.5, 0.8)) == pytest.approx(0.4**5)
    assert leniency(f32(0.1, 0.1)) == pytest.approx(0.9**5)
    assert 0 < leniency(f32(1.0, 1.0)) < 1e-6
    assert leniency(f32()) == 1.0


def test_the_adaptive_factor_is_of_the_best_values_of_all_bags(tmp_path: Path) -> None:
    method, federation, engine = own_sites(tmp_path, TWO, "options.factor=adaptive")
    state = method.start(federation)
    best: dict[tuple[str, str, str], float] = {}
    for documents in TWO.values():
        for triple, own in scored(state, documents).items():
            best[triple] = max(best.get(triple, 0.0), *own)
    state, facts = method.round(state, federation, 1)
    assert facts["factor"] == pytest.approx((1 - np.mean(list(best.values()))) ** 5)
    assert {engine.asks["hear_winners", site].factor for site in TWO} == {facts["factor"]}
    assert len(best) < facts["sentences"] <= 13
    for number in (2, 3):  # a model that has learnt wrong sentences by heart must not let them in
        state, later = method.round(state, federation, number)
        assert later["factor"] == facts["factor"] == state.factor


def test_the_default_is_several_winners_after_warm_rounds() -> None:
    own = LazyMilSettings()
    assert (own.warmup_rounds, own.factor, own.temperature) == (4, "adaptive", 0.0)


@each("wrong", ["factor=0.0", "factor=1.1", "factor=other", "temperature=-1.0",
                                   "temperature=101.0", "cooling=0.0", "cooling=1.5"])  # fmt: skip
def test_options_that_cannot_be_are_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(SettingsError):
        own_sites(tmp_path, TWO, f"options.{wrong}")


def test_drawn_values_have_no_adaptive_factor(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="drawn values say nothing of the model"):
        own_sites(tmp_path, TWO, "options.temperature=1.0", "options.factor=adaptive")


def test_drawn_winners_at_a_site_are_close_to_its_best_before_squashing(tmp_path: Path) -> None:
    """The oracle draws the noise again and compares p · exp(T · g) in the clear."""
    how = ("options.temperature=2.0", "options.cooling=1.0", "options.factor=0.05")
    method, federation, engine = own_sites(tmp_path, TWO, *how)
    state = method.start(federation)
    values = {site: scored(state, documents) for site, documents in TWO.items()}
    noisy, best = {}, {}
    for site, likely in values.items():
        seed = derive_seed(federation.seed, 1, site, "bid")
        noise = iter(np.random.default_rng(seed).gumbel(size=sum(map(len, likely.values()))))
        for triple, own in likely.items():
            noisy[site, triple] = [one * np.exp(2.0 * next(noise)) for one in own]
            best[triple] = max(best.get(triple, 0.0), *noisy[site, triple])
    method.round(state, federation, 1)
    for site, likely in values.items():
        start, rows = 0, []
        for triple, own in likely.items():
            mine = noisy[site, triple]
            if max(mine) >= 0.05 * best[triple]:
                rows += [start + n for n, one in enumerate(mine) if one >= 0.05 * max(mine)]
            start += len(own)
        assert engine.memory(site).won_W.tolist() == rows


@each("wrong", [-1.0, float("inf"), float("nan")])
def test_a_server_that_asks_for_an_impossible_draw_is_refused(tmp_path: Path, wrong: float) -> None:
    method, federation, _ = own_sites(tmp_path, TWO)
    state = method.start(federation)
    with pytest.raises(QuorumError):
        federation.ask(BID, Bid(state.weights, False, wrong), round=1)


@each("wrong", [0.0, -0.5, 1.5, float("nan")])
def test_a_server_with_an_impossible_factor_is_refused(tmp_path: Path, wrong: float) -> None:
    method, federation, _ = own_sites(tmp_path, TWO)
    state = method.start(federation)
    bids = federation.ask(BID, Bid(state.weights, False), round=1)
    told = {site: HearWinners(won, wrong) for site, won in winners(bids, asked=b"").items()}
    with pytest.raises(QuorumError):
        federation.ask(HEAR_WINNERS, told, round=1)


# --- levels -------------------------------------------------------------------------------------


@each("levels", [2, 3, 32, 64])
@each("temperature", [COLDEST, 0.3, 1.0, 100.0])
def test_drawn_bids_of_so_many_values_stay_what_they_are(levels: int, temperature: float) -> None:
    """Their values are close where draws lie: around the log of a probability, in units of T."""
    random = np.random.default_rng(0)
    likely = np.exp(random.uniform(np.log(1e-5), 0, 20_000) * random.random(20_000)).astype("f")
    noise = random.uniform(-2.5, 7, 20_000)
    values = np.sort(np.concatenate([f32(0, 1), blurred(likely, noise, temperature)]))
    found = levelled(values, levels, temperature=temperature)
    assert len(np.unique(found)) == levels
    assert np.array_equal(levelled(found, levels, temperature=temperature), found)
    assert (np.diff(found) >= 0).all() and found[0] > 0 and found[-1] < 1
    if levels < 32:
        return
    units = [(2 * one - 1) / (1 - np.abs(2 * one - 1)) / temperature
             for one in (found[1:-1].astype(float), values[1:-1].astype(float))]  # fmt: skip
    inner = (units[1] > 0) & (units[1] < 6)
    assert np.abs(units[0] - units[1])[inner].max() < 0.5


@each("levels", [2, 3, 32, 64])
def test_bids_of_so_many_values_are_the_nearest_and_stay_what_they_are(levels: int) -> None:
    values = np.concatenate([f32(0, 1, 1e-30), np.linspace(0, 1, 5001, dtype=np.float32)])
    found = levelled(values, levels)
    assert len(np.unique(found)) == levels
    assert np.array_equal(levelled(found, levels), found)
    assert (np.diff(found[3:]) >= 0).all()
    inner = (values > 4e-4) & (values < 1 - 4e-4)  # log odds within 8
    odds = [np.log(one / (1 - one)) for one in (found[inner].astype(float), values[inner])]
    assert np.abs(odds[0] - odds[1]).max() <= 8 / (levels - 1) + 2e-2
    assert np.array_equal(levelled(values, 0), values)


@each("temperature", [0.0, 0.3])
def test_bids_with_levels_name_no_sentence_and_no_triple_twice(
    tmp_path: Path, temperature: float
) -> None:
    """The attack of benchmarks/security/attacks/bids.py compares two rounds' values and digests."""
    method, federation, engine = own_sites(tmp_path, TWO)
    state = method.start(federation)
    said: dict[tuple[int, int], Any] = {}
    for levels in (0, 32):
        for turn in (1, 2):
            asked = Bid(state.weights, False, temperature, levels)
            moved = {name: value + np.float32(0.01 * turn) for name, value in asked.weights.items()}
            asked = replace(asked, weights=moved)
            said[levels, turn] = federation.ask(BID, asked, round=turn)
            exact = engine.memory("site-1")
            own = said[levels, turn]["site-1"]
            best = exact.bid_values_S[np.cumsum(exact.bid_sizes_G) - exact.bid_sizes_G]
            nearest = levelled(best, levels, temperature=temperature)
            assert np.array_equal(own.values_G, nearest)
            assert levels == 0 or not np.isin(best, own.values_G).any()
    marks_of = {
        (key, site): {row.tobytes() for row in one.digests_G16}
        for key, found in said.items()
        for site, one in found.items()
    }
    for site in ("site-1", "site-2"):
        assert marks_of[(0, 1), site] == marks_of[(0, 2), site]
        assert not marks_of[(32, 1), site] & marks_of[(32, 2), site]
    for key in said:  # and in one round, sites still meet
        assert len(marks_of[key, "site-1"] & marks_of[key, "site-2"]) == 4


def test_the_same_sites_win_by_levels_that_tell_their_bids_apart(tmp_path: Path) -> None:
    wins = {}
    for levels in (0, 64):
        method, federation, engine = own_sites(
            tmp_path / f"{levels}", TWO, "options.warmup_rounds=1", "options.factor=0.2",
            f"options.levels={levels}", "training.local_epochs=8",
        )  # fmt: skip
        state = method.start(federation)
        for number in (1, 2):
            state, _ = method.round(state, federation, number)
        wins[levels] = {site: engine.memory(site).won_W.tolist() for site in TWO}
    assert wins[0] == wins[64]
    assert all(wins[0].values())


@each(("sums", "more"), [("plain", ()), ("masked", ()), ("masked", (0,))])
def test_bids_have_levels_wherever_sums_are_secure_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sums: str, more: tuple[int, ...]
) -> None:
    said: list[np.ndarray] = []

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        said.extend([decode(Bids, reply).values_G] if name == "bid" else [])
        return reply

    use_engine(monkeypatch, Forging, change=staticmethod(change))
    overrides = ("options.warmup_rounds=0", "rounds=1", f"federation.sums={sums}")
    levels = [f"options.levels={one}" for one in more]
    settings = tiny(tmp_path, "method=lazy-mil-bags", *overrides, *levels)
    if sums == "masked" and more:  # no site would bid so
        with pytest.raises(SettingsError, match=r"options\.levels.*expected 2 to 64; got 0"):
            run(settings, out=tmp_path / "run")
        return
    run(settings, out=tmp_path / "run")
    assert len(said) == 3
    for values in said:
        assert np.array_equal(levelled(values, LEVELS), values) == (sums != "plain")


@each(
    ("levels", "masked", "refused"),
    [(1, False, True), (-3, False, True), (0, True, True), (65, True, True), (64, True, False)],
)
def test_a_site_bids_with_no_more_values_than_its_guard_allows(
    tmp_path: Path, levels: int, masked: bool, refused: bool
) -> None:
    method, federation, engine = own_sites(tmp_path, TWO)
    state = method.start(federation)
    for host in engine._hosts.values():
        object.__setattr__(host.site, "guards", replace(host.site.guards, masked=masked))
        host.site.member = SimpleNamespace()  # as in a run under masks
    ask = Bid(state.weights, False, levels=levels)
    if refused:
        with pytest.raises(QuorumError):
            federation.ask(BID, ask, round=1)
    else:
        assert len(federation.ask(BID, ask, round=1)) == 2


# --- two sites ----------------------------------------------------------------------------------


def scored(state: Any, documents: Sequence[Document]) -> dict[tuple[str, str, str], list[float]]:
    """Of each triple how likely the model finds each of its sentences, by means of its own."""
    form = state.form
    trainer = BagTrainer(form, words_of(form, KEY))
    model = trainer.initial(0)
    load_weights(model, state.weights)
    bags = training_bags(candidates(documents, rules_of(form)).examples, documents, same="concept")
    likely = sentence_probabilities(model, trainer.prepared(bags.examples))
    return {
        (*pair, relation): [float(likely[row, form.relations.index(relation)]) for row in rows]
        for pair, relation, rows in zip(bags.pairs, bags.relations, bags.groups, strict=True)
    }


def mark_of(state: Any, triple: tuple[str, str, str]) -> bytes:
    return keyed_digest(KEY, "triple", json.dumps([state.form.nonce, *triple]))


def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """Fills up with the words of the sentences of each training, site after site."""
    seen: list[list[list[int]]] = []

    def watched(made: Any, model: Any, own: Any, **how: Any) -> Any:
        text, cuts = own.text, own.text.from_S1
        seen.append([text.words_N[a:b].tolist() for a, b in zip(cuts, cuts[1:], strict=False)])
        return fit(made, model, own, **how)

    fit = BagTrainer.fit
    monkeypatch.setattr(BagTrainer, "fit", watched)
    return seen


def words_at(engine: Seen, site: str, state: Any, rows: Sequence[int]) -> list[list[int]]:
    """The words of these of a site's sentences."""
    form = state.form
    trainer = BagTrainer(form, words_of(form, KEY))
    documents = engine.site(site).train
    bags = training_bags(candidates(documents, rules_of(form)).examples, documents, same="concept")
    encoded = trainer.prepared([bags.examples[row] for row in rows])
    cuts = encoded.from_S1
    return [encoded.words_N[a:b].tolist() for a, b in zip(cuts, cuts[1:], strict=False)]


def test_every_site_trains_on_its_own_winners_and_on_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is a plain loop over all sentences of both sites with their names in the clear."""
    seen = trained_on(monkeypatch)
    method, federation, engine = own_sites(tmp_path, TWO)
    state = method.start(federation)
    for number in (1, 2, 3):
        seen.clear()
        values = {site: scored(state, documents) for site, documents in TWO.items()}
        best: dict[tuple[str, str, str], str] = {}
        for site in ("site-1", "site-2"):
            for triple, likely in values[site].items():
                owner = best.get(triple)
                if owner is None or max(likely) > max(values[owner][triple]):
                    best[triple] = site
        state, facts = method.round(state, federation, number)
        assert len(best) == 7
        trained = [site for site in ("site-1", "site-2") if site in best.values()]
        assert len(seen) == len(trained)
        for site, words in zip(trained, seen, strict=True):
            mine = [triple for triple, owner in best.items() if owner == site]
            order = list(values[site])
            rows = {}
            start = 0
            for triple in order:  # sentences of a bag lie together in TWO
                likely = values[site][triple]
                rows[triple] = start + int(np.argmax(likely))
                start += len(likely)
            own = sorted(rows[triple] for triple in mine)
            assert words == words_at(engine, site, state, own)
            assert engine.memory(site).won_W.tolist() == own
            told = engine.asks["hear_winners", site].digests_W16
            assert sorted(map(bytes, told)) == sorted(mark_of(state, one) for one in mine)
            assert facts["winners"][site] == len(mine)
        assert facts["sentences"] == 7
        assert facts["bids"] == sum(len(one) for one in values.values())


def test_no_site_is_told_of_a_bag_that_it_does_not_have(tmp_path: Path) -> None:
    method, federation, engine = own_sites(tmp_path, TWO)
    state = method.start(federation)
    method.round(state, federation, 1)
    digests = {}
    for site, documents in TWO.items():
        reply = engine.replies["bid", site]
        mine = sorted(mark_of(state, triple) for triple in scored(state, documents))
        assert [bytes(row) for row in reply.digests_G16] == mine  # sorted, one for each triple
        digests[site] = set(mine)
    shared = digests["site-1"] & digests["site-2"]
    assert len(shared) == 4
    told = [set(map(bytes, engine.asks["hear_winners", site].digests_W16)) for site in TWO]
    assert not told[0] & told[1]
    assert told[0] | told[1] == digests["site-1"] | digests["site-2"]
    assert told[0] <= digests["site-1"]
    assert told[1] <= digests["site-2"]


def test_bids_travel_as_digests_only(tmp_path: Path) -> None:
    """Neither a name, nor an identifier, nor where the best sentence stands, is in any byte."""
    method, federation, engine = own_sites(tmp_path, TWO)
    state = method.start(federation)
    method.round(state, federation, 1)
    sent = b"".join(engine.sent.values())
    asked = b"".join(encode(ask) for ask in engine.asks.values())
    for text in ("drugD1", "painE1", "D1", "E6"):
        mark = keyed_digest(KEY, "word", text.lower())
        assert text.encode() not in asked
        assert len(text) < 4 or text.encode() not in sent
        assert mark != text
    bids = engine.replies["bid", "site-1"]
    assert {name: value.dtype.name for name, value in vars(bids).items()} == {
        "digests_G16": "uint8",
        "values_G": "float32",
    }
    other = [
        keyed_digest(
            b"another key " * 3, "triple", json.dumps([state.form.nonce, "D1", "E1", "eases"])
        )
    ]
    other += [keyed_digest(KEY, "triple", json.dumps(["another run", "D1", "E1", "eases"]))]
    assert mark_of(state, ("D1", "E1", "eases")) in set(map(bytes, bids.digests_G16))
    assert not set(other) & set(map(bytes, bids.digests_G16))
    assert mark_of(state, ("D3", "E3", NO_RELATION)) in set(map(bytes, bids.digests_G16))


@each("weighting", ["sentences", "equal"])
def test_the_next_weights_are_the_mean_of_what_winners_teach(
    tmp_path: Path, weighting: str
) -> None:
    """The oracle trains models of its own, from the first weights, on each site's winners."""
    method, federation, engine = own_sites(tmp_path, TWO, f"options.weighting={weighting}")
    state = method.start(federation)
    after, facts = method.round(state, federation, 1)
    trainer = BagTrainer(state.form, words_of(state.form, KEY))
    ask = engine.asks["train_on_winners", "site-1"]
    found, losses, counts = [], [], []
    for site, documents in TWO.items():
        rows = engine.memory(site).won_W
        examples = candidates(documents, rules_of(state.form)).examples
        model = trainer.initial(0)
        load_weights(model, state.weights)
        text = trainer.prepared(examples).only(rows)
        report = trainer.fit(
            model,
            trainer.annotated(text, [np.arange(len(text))]),
            epochs=1,
            batch_size=6,
            optimiser=ask.config.steps,
            seed=derive_seed(federation.seed, 1, site, "train_on_winners"),
        )
        found.append(arrays(model))
        losses.append(report.loss)
        counts.append(len(rows))
    assert min(counts) > 0
    weights = counts if weighting == "sentences" else [1, 1]
    assert facts["loss"] == pytest.approx(np.average(losses, weights=weights))
    for name, array in after.weights.items():
        mean = np.average([one[name].astype(np.float64) for one in found], axis=0, weights=weights)
        np.testing.assert_allclose(array, mean, rtol=1e-5, atol=1e-7)


# --- sites without winners ------------------------------------------------------------------------


def test_of_sites_that_are_all_tied_each_wins_some(tmp_path: Path) -> None:
    """Both have the same sentences: each bag trains at one of them."""
    same = bag_documents("common", "train", 12)
    method, federation, engine = own_sites(tmp_path, {"site-1": same, "site-2": same})
    state = method.start(federation)
    _, facts = method.round(state, federation, 1)
    one, two = engine.replies["bid", "site-1"], engine.replies["bid", "site-2"]
    np.testing.assert_array_equal(one.digests_G16, two.digests_G16)
    np.testing.assert_array_equal(one.values_G, two.values_G)
    told = [engine.asks["hear_winners", site].digests_W16 for site in ("site-1", "site-2")]
    assert all(len(won) for won in told)
    assert np.array_equal(np.sort(np.concatenate(told), axis=0), np.sort(one.digests_G16, axis=0))
    assert facts["winners"] == {
        site: len(won) for site, won in zip(("site-1", "site-2"), told, strict=True)
    }


def whole(engine: Seen, site: str, step: str = "train_on_winners") -> Any:
    """A site's whole reply."""
    kind = engine._hosting.steps[step]
    return restore_reply(kind, engine.asks[step, site], engine.replies[step, site])


def test_a_site_without_training_text_is_scored_and_never_asked_to_bid(tmp_path: Path) -> None:
    nothing = [Document("empty", "nothing is said here .")]
    sites = {**TWO, "site-3": nothing}
    method, federation, engine = own_sites(tmp_path, sites)
    state = method.start(federation)
    assert engine.replies["take", "site-3"].size == 0
    assert state.idle == ["site-3"]
    after, facts = method.round(state, federation, 1)
    assert not [place for place in engine.asks if place[0] == "bid" and place[1] == "site-3"]
    assert facts["sentences"] == 7
    counts = method.score(after, federation, part="test", round=1)
    assert counts["site-3"].bags > 0
    assert not federation.faults


def test_a_round_in_which_nobody_can_train_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = [Document("empty", "nothing is said here .")]
    method, federation, engine = own_sites(tmp_path, {"site-1": nothing, "site-2": TWO["site-1"]})
    state = method.start(federation)
    monkeypatch.setattr(federation, "draw", lambda *_: ("site-1",))
    after, facts = method.round(state, federation, 1)
    assert after is state
    assert (facts["loss"], facts["sentences"], facts["winners"]) == (None, 0, {})
    assert not [place for place in engine.asks if place[0] in ("bid", "train_on_winners")]


def test_a_site_with_fewer_winners_than_its_guard_wants_does_not_train(tmp_path: Path) -> None:
    method, federation, engine = own_sites(tmp_path, TWO)
    state = method.start(federation)
    engine.site("site-2").guards = Guards(min_sentences=7)
    _, facts = method.round(state, federation, 1)
    assert facts["winners"]["site-2"] == 0
    assert ("train_on_winners", "site-2") not in engine.asks
    assert facts["sentences"] == facts["winners"]["site-1"] > 0
    assert not federation.faults


# --- memory -------------------------------------------------------------------------------------


def test_a_site_that_starts_again_between_bidding_and_training_gives_the_same_reply(
    tmp_path: Path,
) -> None:
    """Everything that was in the process is gone; what the folder holds is enough."""
    tables = write_bags(tmp_path / "data", TWO)
    settings = tiny(tmp_path, "method=lazy-mil-bags", site=tables)
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    straight, _ = method.round(state, federation, 1)
    sent = engine.sent["train_on_winners", "site-2"]

    _, second, _ = started(tmp_path / "again", settings)
    state = method.start(second)
    bids = second.ask(BID, Bid(state.weights, True), round=1)
    told = {site: HearWinners(won) for site, won in winners(bids, asked=b"").items()}
    heard = second.ask(HEAR_WINNERS, told, round=1)
    assert all(reply.sentences for reply in heard.values())
    steps = {step.name: step for step in method.pair.steps}
    specs = gather(settings, tmp_path / "again" / "sites", key_file=tmp_path / "shared.key").specs
    second._engine = fresh = Seen(specs, Hosting(steps, method.pair.Memory, settings.seed))
    ask = engine.asks["train_on_winners", "site-2"]
    total = second.sum(lazy_mil.TRAIN_ON_WINNERS, ask, round=1)
    assert fresh.sent["train_on_winners", "site-2"] == sent
    for name, array in straight.weights.items():
        assert np.array_equal((total.weights[name] / total.weight).astype(np.float32), array)


# --- what is refused ----------------------------------------------------------------------------


def test_a_triple_that_the_site_did_not_bid_for_is_refused(tmp_path: Path) -> None:
    method, federation, _ = own_sites(tmp_path, TWO, at_least=1)
    state = method.start(federation)
    bids = federation.ask(BID, Bid(state.weights, False), round=1)
    mine, theirs = bids["site-1"].digests_G16, bids["site-2"].digests_G16
    foreign = np.array([row for row in theirs if row.tobytes() not in set(map(bytes, mine))])
    assert len(foreign)
    for digests, number in (
        (foreign[:1], 1),
        (np.concatenate((mine, foreign)), 1),
        (np.concatenate((mine[:1], mine[:1])), 1),
        (mine, 2),  # of another round
    ):
        with pytest.raises(QuorumError, match=r"site-1.*that it did not bid for in this round"):
            federation.ask(HEAR_WINNERS, {"site-1": HearWinners(digests)}, round=number, at_least=1)
    with pytest.raises(QuorumError, match="did not bid for in this round"):
        ask = Train(state.weights, config(), "equal", [])
        federation.sum(lazy_mil.TRAIN_ON_WINNERS, ask, round=1, sites=["site-1"])


GOOD = Bids(marks(1, 2), f32(0.25, 1.0))


@each(
    "changes",
    [
        {"values_G": f32(0.25)},
        {"values_G": f32(0.25, 1.5)},
        {"values_G": f32(-0.25, 1)},
        {"values_G": f32(np.nan, 1)},
        {"values_G": np.array([0.25, 1.0])},
        {"digests_G16": marks(1, 1)},
        {"digests_G16": marks(1, 2)[:, :8]},
        {"digests_G16": marks(1, 2).astype(np.int64)},
        {"digests_G16": marks(1, 2, 3)},
    ],
)
def test_bids_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(GuardError, match="values that were asked for"):
        check_reply(BID, Bid({}, False, levels=32), GOOD)
    ask = Bid({}, False)
    check_reply(BID, ask, GOOD)
    check_reply(BID, ask, Bids(marks(), f32()))
    with pytest.raises(GuardError):
        check_reply(BID, ask, replace(GOOD, **changes))


def test_a_site_trains_on_what_it_won_or_on_nothing() -> None:
    ask = HearWinners(marks(1, 2, 3))
    for number in (0, 3):
        check_reply(HEAR_WINNERS, ask, WinnersHeard(number))
    for number in (-1, 1, 4, 10**15):
        with pytest.raises(GuardError):
            check_reply(HEAR_WINNERS, ask, WinnersHeard(number))
    for number in (0, 3, 4):
        check_reply(HEAR_WINNERS, replace(ask, factor=0.5), WinnersHeard(number))
    for number in (-1, 1, 2, 10**15):
        with pytest.raises(GuardError):
            check_reply(HEAR_WINNERS, replace(ask, factor=0.5), WinnersHeard(number))
    with pytest.raises(GuardError):
        check_reply(HEAR_WINNERS, HearWinners(marks(), factor=0.5), WinnersHeard(1))


# --- keys ---------------------------------------------------------------------------------------


def test_a_site_without_the_key_or_with_another_is_refused_by_name(tmp_path: Path) -> None:
    method, federation, engine = own_sites(tmp_path, TWO)
    engine.site("site-2").key_file = None
    with pytest.raises(QuorumError, match=r"site site-2, step check_key.*has no key"):
        method.start(federation)
    engine.site("site-2").key_file = new_key(tmp_path / "other.key", bytes(range(32)))
    with pytest.raises(Exception, match=r"do not share one key: .*site-2"):
        method.start(federation)


def test_a_key_that_changes_during_a_run_is_refused(tmp_path: Path) -> None:
    method, federation, engine = own_sites(tmp_path, TWO, at_least=1)
    state = method.start(federation)
    engine.site("site-1").key_file = new_key(tmp_path / "other.key", bytes(range(32)))
    method.round(state, federation, 1)
    assert [(fault.site, fault.code) for fault in federation.faults] == [("site-1", "other-key")]


def test_warm_rounds_are_those_of_plain_averaging_and_then_sites_bid(tmp_path: Path) -> None:
    warm, federation, engine = started(
        tmp_path / "warm", tiny(tmp_path, "method=lazy-mil-bags", "options.warmup_rounds=2")
    )
    plain, other, _ = started(
        tmp_path / "plain", tiny(tmp_path, "method=fedavg-bags", "bags.denoise=none")
    )
    state, expected = warm.start(federation), plain.start(other)
    for number in (1, 2):
        state, _ = warm.round(state, federation, number)
        expected, _ = plain.round(expected, other, number)
    for name, array in expected.weights.items():
        assert np.array_equal(state.weights[name], array), name
    assert not any(step == "bid" for step, _ in engine.asks)
    state, facts = warm.round(state, federation, 3)
    assert facts["bids"] > 0
    assert {step for step, _ in engine.asks} >= {"bid", "hear_winners", "train_on_winners"}
