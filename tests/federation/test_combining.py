"""Combining: exact against brute force, deaf to order, and one site moves nothing too far."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import stat
import statistics
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import GuardError, QuorumError, RunError
from confide.federation.combining import (
    Combination,
    Combining,
    Pile,
    change_norm,
    changes,
    clip_factors,
    combine_changes,
    fewest_left,
)
from confide.federation.federation import Federation
from confide.federation.ledger import Ledger
from confide.federation.memory import Spool
from confide.federation.messages import Arrays, Learnt, carries, decode, encode
from confide.federation.steps import LARGEST, Step, check_learnt, odd_part
from federation.toys import MULTIPLY, SEED, Ask, Reply, Tampering, ask, sequential

HOWS: tuple[Combination, ...] = ("mean", "trimmed", "median", "clipped")
BY_CHANGE = HOWS[1:]
ROBUST: tuple[Combination, ...] = ("trimmed", "median")
numbers = st.floats(-1e4, 1e4, width=32).map(np.float32)
columns = st.lists(numbers | st.just(np.float32(np.nan)), min_size=1, max_size=12)


def brute(column: Sequence[float], how: str, trim: float, factors: Sequence[float]) -> float:
    """One number of a column, in plain Python."""
    said = [(float(x), f) for x, f in zip(column, factors, strict=True) if not math.isnan(x)]
    there = sorted(x for x, _ in said)
    if not there:
        return 0.0
    if how == "clipped":
        return sum(x * f for x, f in said) / len(said)
    if len(there) < 3:
        return sum(there) / len(there)
    if how == "median":
        return statistics.median(there)
    cut = min(max(1, int(trim * len(there) + 1e-9)), (len(there) - 1) // 2)
    kept = there[cut : len(there) - cut]
    return sum(kept) / len(kept)


@settings(max_examples=100, deadline=None)
@given(
    st.data(),
    st.sampled_from(BY_CHANGE),
    st.floats(0.01, 0.49),
    st.integers(1, 9),
    st.integers(1, 6),
)
def test_it_is_what_brute_force_finds(
    data: st.DataObject, how: Combination, trim: float, sites: int, size: int
) -> None:
    cells = st.lists(numbers | st.just(np.float32(np.nan)), min_size=size, max_size=size)
    said_KB = np.array(data.draw(st.lists(cells, min_size=sites, max_size=sites)), np.float32)
    factors_K = np.array(data.draw(st.lists(st.floats(0, 1), min_size=sites, max_size=sites)))
    found_B = combine_changes(said_KB, Combining(how, trim), factors_K=factors_K)
    wanted = [brute(column, how, trim, factors_K) for column in said_KB.T]
    assert found_B == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(7)), st.sampled_from(ROBUST), st.booleans())
def test_the_order_of_sites_does_not_matter(order: list[int], how: Combination, gaps: bool) -> None:
    said_KB = np.random.default_rng(3).normal(size=(7, 50)).astype(np.float32)
    if gaps:
        said_KB[said_KB > 1] = np.nan
    one = combine_changes(said_KB, Combining(how), factors_K=np.ones(7))
    assert np.array_equal(
        one, combine_changes(said_KB[order], Combining(how), factors_K=np.ones(7))
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(numbers, min_size=3, max_size=9),
    st.floats(-(2.0**127), 2.0**127, width=32),
    st.sampled_from(ROBUST),
)
def test_one_site_of_four_or_more_moves_nothing_out_of_the_honest_range(
    honest: list[np.float32], lie: float, how: Combination
) -> None:
    said_K1 = np.array([*honest, lie], np.float32)[:, None]
    (found,) = combine_changes(said_K1, Combining(how), factors_K=np.ones(len(said_K1)))
    assert min(honest) - 1e-3 <= found <= max(honest) + 1e-3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.just(0.0) | st.floats(1e-9, 1e6), min_size=1, max_size=9))
def test_no_change_is_clipped_to_more_than_the_median(norms: list[float]) -> None:
    said = [norm for norm in norms if norm > 0]
    for norm, factor in zip(norms, clip_factors(norms), strict=True):
        assert factor <= 1
        assert norm * factor <= (statistics.median(said) if said else 0) * (1 + 1e-9)


def test_an_update_of_many_times_the_median_is_too_far() -> None:
    walls = Combining(max_norm_ratio=5)
    assert walls.too_far({"a": 1.0, "b": 1.2, "c": 4.9}) == {}
    assert set(walls.too_far({"a": 1.0, "b": 1.0, "c": 5.1})) == {"c"}
    assert set(walls.too_far({"a": 1.0, "b": 1.0, "c": 1e300, "d": math.inf, "e": 2.0})) == {
        "c",
        "d",
    }
    assert walls.too_far({"a": 1.0, "b": 1e30}) == {}  # nobody can say which of two is odd
    assert walls.too_far({"a": 0.0, "b": 0.0, "c": 7.0}) == {}  # two of them say nothing
    assert Combining().too_far({"a": 1.0, "b": 1.0, "c": 1e30}) == {}


# --- behind `Federation.sum` ----------------------------------------------------------------


CHANGED = Learnt(field="weights", like="weights", weighting="any")
PLAIN_CHANGE = Learnt(field="weights", weighting="any")


def weighed(learnt: Learnt | None = None) -> Step:
    """The toy step: site-K sends its weights times K."""
    return declaring(MULTIPLY, learnt or CHANGED)


def declaring(step: Step, learnt: Learnt) -> Step:
    """The step with another declaration of what its reply holds."""
    found = dataclasses.replace(step)
    vars(found)["learnt"] = learnt
    return found


def forged(change: Callable[[Reply], Reply], site: str = "site-2") -> Callable[[str, bytes], bytes]:
    def tampered(name: str, data: bytes) -> bytes:
        return encode(change(decode(Reply, data))) if name == site else data

    return tampered


def times(factor: float) -> Callable[[Reply], Reply]:
    def change(reply: Reply) -> Reply:
        weights = {name: array * np.float32(factor) for name, array in reply.weights.items()}
        return dataclasses.replace(reply, weights=weights)

    return change


def of_sites(
    folder: Path,
    combining: Combining,
    *,
    change: Callable[[str, bytes], bytes] = lambda site, data: data,
    order: Callable[[Sequence[str]], Sequence[str]] = lambda sites: sites,
    sites: int = 5,
    at_least: int = 0,
) -> Federation:
    engine = Tampering(sequential(folder, sites), change, order)
    return Federation(
        engine,  # type: ignore[arg-type]
        seed=SEED,
        ledger=Ledger(),
        at_least=at_least,
        combining=combining,
    )


def same(one: Reply, other: Reply) -> bool:
    return (
        all(np.array_equal(one.weights[k], other.weights[k]) for k in one.weights | other.weights)
        and np.array_equal(one.vector_3, other.vector_3)
        and (one.count, one.loss) == (other.count, other.loss)
    )


def test_with_nobody_refused_the_mean_is_the_plain_sum_bit_for_bit(tmp_path: Path) -> None:
    plain = of_sites(tmp_path / "a", Combining()).sum(MULTIPLY, ask(), round=1)
    walls = Combining(max_norm_ratio=100)
    for order in (lambda sites: sites, lambda sites: sites[::-1]):
        seen = of_sites(tmp_path / "b", walls, order=order).sum(weighed(), ask(), round=1)
        assert same(plain, seen)
        assert seen.weights["a"].dtype == np.float64
        assert type(seen.count) is int


@each("how", ["trimmed", "median", "clipped"])
@each("weight", ["", "loss"])
def test_what_was_combined_looks_like_a_sum(tmp_path: Path, how: Combination, weight: str) -> None:
    """The oracle: each site's change by hand, combined by brute force, times the weights' sum."""
    seen: dict[str, Reply] = {}

    def look(site: str, data: bytes) -> bytes:
        seen[site] = decode(Reply, data)
        return data

    step = weighed(dataclasses.replace(CHANGED, weight=weight))
    total = of_sites(tmp_path, Combining(how, 0.3), change=look).sum(step, ask(), round=1)
    sites, start = sorted(seen), ask().weights
    by = {site: getattr(seen[site], weight) if weight else 1.0 for site in sites}
    learnt = {
        site: {n: a.astype(float) / by[site] - start[n] for n, a in seen[site].weights.items()}
        for site in sites
    }
    norms = [math.sqrt(sum((a**2).sum() for a in learnt[site].values())) for site in sites]
    most = statistics.median(norm for norm in norms if norm)
    factors = [min(1.0, most / norm) if norm else 1.0 for norm in norms]
    for name in start:
        columns_BK = np.stack([learnt[site][name].ravel() for site in sites]).T
        change = np.array([brute(column, how, 0.3, factors) for column in columns_BK])
        wanted = (start[name].ravel() + change) * sum(by.values())
        assert np.allclose(total.weights[name].ravel(), wanted, rtol=1e-6, atol=1e-6)
        assert total.weights[name].shape == start[name].shape
    assert total.count == 5
    assert total.loss == 0.5 + 1 + 1.5 + 2 + 2.5
    assert np.array_equal(total.vector_3, sum(seen[site].vector_3 for site in sites))


@each("how", HOWS)
@each("factor", [-9.0, 9.5, -9.9])
def test_a_site_too_far_off_is_out_of_the_round_by_name(
    tmp_path: Path, how: Combination, factor: float
) -> None:
    walls = Combining(how, max_norm_ratio=5)
    sites = of_sites(tmp_path / "a", walls, change=forged(times(factor)), at_least=3)
    total = sites.sum(weighed(), ask(), round=4)
    (fault,) = sites.take_faults()
    assert (fault.site, fault.step, fault.round) == ("site-2", "multiply", 4)
    assert fault.code == "too-far"
    assert "times the median of this round" in str(fault)
    assert "the limit is 5 times" in str(fault)
    others = ["site-1", "site-3", "site-4", "site-5"]
    assert sites.took_part == set(others)
    alone = of_sites(tmp_path / "b", walls)
    assert same(total, alone.sum(weighed(), ask(), round=4, sites=others))


@each("at_least", [0, 4, 5])
def test_a_site_too_far_off_has_answered_where_all_have_to(tmp_path: Path, at_least: int) -> None:
    """One site must not end the run of the others by a lie that is found out."""
    walls = Combining(max_norm_ratio=5)
    sites = of_sites(tmp_path, walls, change=forged(times(-9.0)), at_least=at_least)
    if at_least == 5:
        with pytest.raises(QuorumError, match="at least 5 of 5"):
            sites.sum(weighed(), ask(), round=4)
        return
    assert sites.sum(weighed(), ask(), round=4).count == 4
    assert fewest_left(3, 1) == 3  # a sum of two would show each what the other learnt
    sites.take_faults()
    if at_least == 0:
        with pytest.raises(QuorumError, match="at least 5 of 5"):  # the next ask starts anew
            sites.sum(weighed(), ask("site-3=raise"), round=5)


def test_what_no_honest_number_is_is_refused_of_two_sites_and_of_one(tmp_path: Path) -> None:
    def huge(reply: Reply) -> Reply:
        weights = {name: np.full_like(a, 1e30) for name, a in reply.weights.items()}
        return dataclasses.replace(reply, weights=weights)

    for count in (1, 2):
        sites = of_sites(tmp_path / str(count), Combining(), change=forged(huge, "site-1"),
                         sites=count, at_least=1)  # fmt: skip
        with pytest.raises(QuorumError) if count == 1 else contextlib.nullcontext():
            sites.sum(weighed(), ask(), round=1)
        assert [(f.site, f.code) for f in sites.take_faults()] == [("site-1", "refused")]


@each("how", ROBUST)
def test_too_few_for_a_median_end_the_round_in_words(tmp_path: Path, how: Combination) -> None:
    walls = Combining(how, max_norm_ratio=5)
    sites = of_sites(tmp_path, walls, change=forged(times(9.5)), sites=3, at_least=1)
    with pytest.raises(QuorumError) as caught:
        sites.sum(weighed(PLAIN_CHANGE), ask(), round=1)
    words = str(caught.value)
    assert f"at least 3, since combine = '{how}'" in words
    assert "site-2" in words
    assert "federation.fraction" in words
    assert [fault.site for fault in caught.value.faults] == ["site-2"]


def test_rows_of_some_sites_are_combined_among_these(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Rows:  # as fedavg's, rows = seen
        table: Arrays = carries("rows, times the weight; 0 where the site has none")
        seen: Arrays = carries("the weight of each row")

    @dataclasses.dataclass(frozen=True)
    class From:
        table: Arrays = carries("the common rows")

    learnt = Learnt(field="table", like="table", rows="seen")
    step = declaring(Step("rows", From, Rows, lambda *_: None, summed=True), learnt)  # type: ignore[arg-type,return-value]
    start = From({"a": np.full((4, 2), 10, np.float32)})
    seen_K4 = np.float32([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    said_K4 = np.float32([[11, 11, 12, 0], [12, 13, 0, 0], [13, 0, 0, 0], [99, 0, 0, 0]])
    with contextlib.closing(Pile(step, Combining("median"))) as pile:
        for site, (seen_4, said_4) in enumerate(zip(seen_K4, said_K4, strict=True)):
            table = np.repeat(said_4[:, None], 2, 1) * seen_4[:, None]
            pile.put(f"site-{site}", start, Rows({"a": table}, {"a": seen_4}))
        total = Rows(**pile.total())
    means = total.table["a"][:3] / total.seen["a"][:3, None]
    assert means[:, 0].tolist() == [12.5, 12.0, 12.0]  # of four, of two, of one
    assert total.table["a"][3].tolist() == [0.0, 0.0]


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = of_sites(tmp_path / "a", Combining("median")).sum(weighed(), ask(), round=1)
    monkeypatch.setattr("confide.federation.combining.BLOCK", 3)
    monkeypatch.setitem(changes.__kwdefaults__, "most", 3)
    pieces = of_sites(tmp_path / "b", Combining("median")).sum(weighed(), ask(), round=1)
    assert same(whole, pieces)
    reply = decode(Reply, encode(pieces))
    assert change_norm(PLAIN_CHANGE, ask(), reply) == pytest.approx(
        math.sqrt(sum((a**2).sum() for a in pieces.weights.values()))
    )


def test_a_weight_of_nothing_is_refused() -> None:
    reply = Reply({"a": np.ones(2, np.float32)}, np.zeros(3), 0, 0.0)
    with pytest.raises(GuardError, match="loss is not a weight"):
        list(changes(dataclasses.replace(PLAIN_CHANGE, weight="loss"), None, reply))


# --- sizes ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _State:
    weights: Arrays = carries("some arrays")
    rate: float = carries("a number")
    ids_N: np.ndarray = carries("whole numbers")


@each(
    ("spoilt", "words"),
    [
        ({}, None),
        ({"weights": {"a": np.float32([1, LARGEST])}}, None),
        ({"weights": {"a": np.float32([1, -1e3])}}, "weights/a holds numbers larger"),
        ({"weights": {"a": np.float32([1, np.inf])}}, "weights/a is not finite"),
        ({"weights": {"a": np.float32([np.nan, 1])}}, "weights/a is not finite"),
        ({"weights": {"a": np.float16([np.inf, 1])}}, "weights/a is not finite"),
        ({"weights": {"a": np.float32([])}}, None),
        ({"rate": math.nan}, "rate is not finite"),
        ({"ids_N": np.array([10**11])}, None),
    ],
)
def test_a_state_from_which_no_site_could_train_is_odd(
    spoilt: dict[str, Any], words: str | None
) -> None:
    sound = _State({"a": np.ones(2, np.float32)}, 0.1, np.arange(3))
    found = odd_part(dataclasses.replace(sound, **spoilt))
    assert found is None if words is None else found is not None and found.startswith(words)


def test_a_size_is_by_single_weight() -> None:
    step = weighed(dataclasses.replace(PLAIN_CHANGE, weight="count"))
    fits = Reply({"a": np.full(2, 6e3, np.float32)}, np.zeros(3), 100, 0.0)
    check_learnt(step, fits)
    with pytest.raises(GuardError, match="weights/a is absurdly large"):
        check_learnt(step, dataclasses.replace(fits, count=10))


# --- memory -------------------------------------------------------------------------------------


def test_a_spool_is_private_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RuntimeError), contextlib.closing(Spool(in_memory=10)) as spool:
        places = [spool.put(bytes([number]) * 9) for number in range(4)]
        found = [spool.get(*place)[:1] for place in reversed(places)]
        assert found == [b"\x03", b"\x02", b"\x01", b"\x00"]
        file = spool._file._file  # type: ignore[attr-defined]
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        assert os.fstat(file.fileno()).st_size == 36
        assert os.fstat(file.fileno()).st_nlink == 0  # nobody else can open it by a name
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    assert file.closed


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with contextlib.closing(Spool()) as spool:
        monkeypatch.setattr(spool._file, "write", full)
        with pytest.raises(RunError, match=r"No space left.*TMPDIR"):
            spool.put(b"1")


@each("how", HOWS)
def test_memory_does_not_grow_with_the_number_of_sites(
    how: Combination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of 4 MB: the peak of 10 sites is that of 4, and less than seven models in float64."""
    size = 2**20
    monkeypatch.setattr("confide.federation.combining.BLOCK", 2**17)
    monkeypatch.setattr("confide.federation.combining.IN_MEMORY", 2**20)
    monkeypatch.setattr("confide.federation.combining.Spool", lambda: Spool(2**20))
    asked = Ask({"a": np.zeros(size, np.float32)}, "", 0)
    step = weighed()

    def peak(sites: int) -> float:
        draws = np.random.default_rng(0)
        tracemalloc.start()
        with contextlib.closing(Pile(step, Combining(how, max_norm_ratio=5))) as pile:
            for number in range(sites):
                array = draws.normal(size=size).astype(np.float32)
                pile.put(f"site-{number:03d}", asked, Reply({"a": array}, np.zeros(3), 1, 0.0))
                del array
            pile.leave_out()
            pile.total()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most / 2**20

    few, many = peak(4), peak(10)
    assert many < 1.1 * few + 1
    assert many < 7 * size * 8 / 2**20
