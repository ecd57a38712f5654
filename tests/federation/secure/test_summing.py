"""A masked sum is the sum of exactly the sites that stayed, bit for bit, or none at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import FederationError, QuorumError, RunError
from confide.federation.failures import Failure
from confide.federation.messages import encode
from confide.federation.secure.messages import threshold
from confide.federation.secure.server import AWAY, LostSites
from confide.federation.secure.site import Sets
from confide.federation.steps import Step
from federation.secure.plays import named
from federation.secure.summed import (
    CODE,
    COUNT,
    EXCHANGES,
    HALVE,
    MOVE,
    SCORE,
    SENT,
    SLOPE,
    Lost,
    Sites,
    ask,
    by_hand,
    federation_of,
    same,
    sites_of,
    summing_of,
    without_masks,
)


def slow(*values: object) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


SUMMED = [MOVE, COUNT, CODE, HALVE, SLOPE]


def whole_of(step: Step, engine: Sites) -> float:
    return 40.0 * len(engine.sites) if step in (MOVE, HALVE) else float(len(engine.sites))


# --- exactness ---------------------------------------------------------------------------


@each("step", SUMMED)
def test_a_sum_is_exact(step: Step, tmp_path: Path) -> None:
    """The oracle adds whole numbers of any size, one number after another."""
    engine = sites_of(5, tmp_path)
    summing = summing_of(engine)
    for round in (1, 2, 3):
        total = federation_of(engine, summing).sum(step, ask(), round=round)
        replies = [SENT[round, step.name, site] for site in engine.sites]
        assert same(total, by_hand(step, ask(), replies, whole=whole_of(step, engine)))


def test_where_too_few_agree_to_the_roster_the_error_says_who_did_and_why_others_did_not(
    tmp_path: Path,
) -> None:
    codes = {"site-01": "older-account", "site-02": "other-roster", "site-03": "other-roster"}

    def change(site: str, step: str, reply: bytes) -> bytes:
        failed = step == "meet" and site in codes
        return encode(Failure(codes[site], "", "", "")) if failed else reply

    engine = sites_of(5, tmp_path)
    engine.change = change
    with pytest.raises(FederationError) as caught:
        federation_of(engine, summing_of(engine)).sum(COUNT, ask(), round=1)
    said = str(caught.value)
    assert "got site-04, site-05; others failed with older-account, other-roster" in said
    assert "; older-account means: " in said and "; other-roster means: " in said


def test_a_run_that_goes_on_has_lost_the_same_sites_in_the_same_sums(tmp_path: Path) -> None:
    """Sites open the sum of a turn for one set only, so it is asked for that set again."""
    engine, kept = sites_of(5, tmp_path, record=Sets), tmp_path / "lost.json"

    def go() -> None:
        federation = federation_of(engine, summing_of(engine, lost=LostSites(kept)))
        for round in (1, 2, 3):
            engine.lost = [Lost("site-04", "work")] if round == 2 and not kept.exists() else []
            asked = ask(many=round)
            total = federation.sum(COUNT, asked, round=round)
            stayed = [one for one in engine.sites if round == 1 or one != "site-04"]
            replies = [SENT[round, "count", site] for site in stayed]
            assert same(total, by_hand(COUNT, asked, replies, whole=5.0))

    go()
    assert kept.exists()
    go()


def test_a_run_goes_on_without_a_site_that_is_away_and_no_further_than_its_threshold(
    tmp_path: Path,
) -> None:
    """By the greeting that it once gave; all others have processes, and so keys, of their own."""
    kept, count = tmp_path / "greetings.json", 5

    def go(away: Sequence[str], *, round: int) -> Any:
        engine, lost = sites_of(count, tmp_path / str(round)), LostSites(tmp_path / f"{round}.json")
        engine.lost = [Lost(site, "work") for site in away]
        absent = encode(Failure("absent", "", "", ""))
        engine.change = lambda site, step, reply: absent if site in away else reply
        summing = summing_of(engine, greetings=kept, lost=lost)
        federation = federation_of(engine, summing)
        federation.go_on_without(summing.leave_out(away))
        return federation.sum(COUNT, ask(), round=round), engine

    with pytest.raises(FederationError, match=r"did not greet.*: site-04"):
        go(["site-04"], round=1)
    go([], round=2)
    total, engine = go(["site-04"], round=3)
    stayed = [one for one in engine.sites if one != "site-04"]
    assert same(total, by_hand(COUNT, ask(), [SENT[3, "count", one] for one in stayed], whole=5.0))
    rosters = {member._roster.least for member in engine.members.values() if member._roster}
    assert rosters == {threshold(count, 1)}, "it did not sink"
    assert LostSites(tmp_path / "3.json").at(AWAY, "") == {"site-04"}, "also if it comes back"
    with pytest.raises(FederationError, match="at least 4 of 5"):
        go(["site-03", "site-04"], round=4)
    kept.write_text("{]")
    with pytest.raises(RunError, match="greetings cannot be read"):
        go([], round=5)


def test_what_cannot_be_summed_unseen_is_asked_of_nobody(tmp_path: Path) -> None:
    engine = sites_of(4, tmp_path)
    federation = federation_of(engine, summing_of(engine))
    asked: list[object] = []
    federation._watch = asked.append
    with pytest.raises(FederationError, match="step count cannot be summed unseen"):
        federation.sum(COUNT, dict.fromkeys(engine.sites, ask()), round=1)
    federation.summing = None
    with pytest.raises(FederationError, match="step score cannot be summed unseen"):
        federation.tally(SCORE, ask(), round=1, labels=["a"])
    assert not asked


def test_counts_by_label_are_exact_and_show_no_other_label(tmp_path: Path) -> None:
    engine = sites_of(4, tmp_path)
    federation = federation_of(engine, summing_of(engine))
    total = federation.tally(SCORE, ask(), round=1, labels=["a", "b", "c"])
    expected = dict.fromkeys(["a", "b", "c", "(other)"], 0)
    for site in named(4):
        reply = SENT[1, "score", site]
        for name, count in zip(reply.names, reply.count_N.tolist(), strict=True):
            expected[name if name in expected else "(other)"] += count
    assert dict(zip(total.names, total.count_N.tolist(), strict=True)) == expected


@settings(max_examples=8)
@given(count=st.integers(3, 12), lost=st.integers(0, 3), seed=st.integers(0, 999))
def test_masks_change_no_bit(count: int, lost: int, seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        gone = [Lost(site, "work") for site in named(count)[seed % 3 :: 3][:lost]]
        totals: list[Any] = []
        for how in ("bare", "masked"):
            engine = sites_of(count, Path(folder) / how)
            engine.lost = gone
            try:
                with pytest.MonkeyPatch.context() as patch:
                    if how == "bare":
                        without_masks(patch)
                    found = federation_of(engine, summing_of(engine))
                    totals.append(found.sum(MOVE, ask(), round=1 + seed))
            except QuorumError:
                totals.append(None)
        bare, masked = totals
        least = threshold(count, summing_of(engine).colluding)
        assert (masked is None) == (bare is None) == (count - len(gone) < least)
        if masked is not None:
            for name in bare.weights:
                assert np.array_equal(bare.weights[name], masked.weights[name])
            assert (bare.loss, bare.weight, bare.examples) == (
                masked.loss,
                masked.weight,
                masked.examples,
            )


def test_the_plain_sum_is_near(tmp_path: Path) -> None:
    """Fixed point costs less than the last bits of float32."""
    engine = sites_of(6, tmp_path)
    total = federation_of(engine, summing_of(engine)).sum(MOVE, ask(), round=1)
    for name, array in total.weights.items():
        plain = sum(SENT[1, "move", site].weights[name].astype(float) for site in engine.sites)
        assert np.abs(array - plain).max() < 6 * 0.5 * 2.0**-27 * 240 + 1e-5


# --- drop-out ----------------------------------------------------------------------------


def expected_set(count: int, lost: Sequence[Lost], least: int) -> list[str] | None:
    """Whose numbers are in the sum; None if it must stay closed."""
    left = []
    for exchange in range(4):
        gone = {one.site for one in lost if EXCHANGES.index(one.exchange) <= exchange}
        left.append([site for site in named(count) if site not in gone])
    return left[1] if all(len(one) >= least for one in left) else None


def check_lost(engine: Sites, summing: Any, lost: Sequence[Lost], round: int) -> bool:
    """Whether a sum came, and was right; a sum that may not come fails as a quorum does."""
    engine.lost = list(lost)
    count = len(engine.sites)
    wanted = expected_set(count, lost, threshold(count, summing.colluding))
    federation = federation_of(engine, summing)
    if wanted is None:
        with pytest.raises(QuorumError):
            federation.sum(COUNT, ask(), round=round)
        return False
    total = federation.sum(COUNT, ask(), round=round)
    replies = [SENT[round, "count", site] for site in wanted]
    assert same(total, by_hand(COUNT, ask(), replies, whole=1.0)), lost
    assert federation.sites == tuple(wanted)
    return True


def every(count: int) -> Iterator[list[Lost]]:
    """Every way in which sites are lost at the exchanges."""
    for places in product((*EXCHANGES, ""), repeat=count):
        yield [
            Lost(site, place, late=(sum(map(len, places)) + number) % 2 == 0)
            for number, (site, place) in enumerate(zip(named(count), places, strict=True))
            if place
        ]


def each_kind(count: int) -> Iterator[list[Lost]]:
    """The same up to who is lost, with a few who."""
    for number, places in enumerate(combinations_with_replacement((*EXCHANGES, ""), count)):
        turned = places[number % count :] + places[: number % count]
        yield [
            Lost(site, place, late=number % 2 == 0)
            for site, place in zip(named(count), turned, strict=True)
            if place
        ]


def test_every_way_to_lose_some_of_three_sites(tmp_path: Path) -> None:
    """All three must stay to the end."""
    engine = sites_of(3, tmp_path)
    summing = summing_of(engine)
    cases = list(every(3))
    assert len(cases) == 125
    assert sum(check_lost(engine, summing, lost, n) for n, lost in enumerate(cases)) == 1


@pytest.mark.parametrize("count", [5, slow(4), slow(6), slow(7)])
def test_every_kind_of_loss_among_more_sites(count: int, tmp_path: Path) -> None:
    engine = sites_of(count, tmp_path)
    summing = summing_of(engine)
    came = [check_lost(engine, summing, lost, n) for n, lost in enumerate(each_kind(count))]
    assert len(came) > sum(came) >= (1 if count == 4 else 5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 5, 6])
def test_every_way_to_lose_more_sites(count: int, tmp_path: Path) -> None:
    engine = sites_of(count, tmp_path)
    summing = summing_of(engine)
    for number, lost in enumerate(every(count)):
        check_lost(engine, summing, lost, number)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_losses_among_many_sites(data: st.DataObject) -> None:
    import tempfile

    count = data.draw(st.integers(7, 24))
    places = data.draw(
        st.lists(st.sampled_from((*EXCHANGES, *[""] * 8)), min_size=count, max_size=count)
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = sites_of(count, Path(folder))
        lost = [
            Lost(site, place, late=data.draw(st.booleans()))
            for site, place in zip(named(count), places, strict=True)
            if place
        ]
        check_lost(engine, summing_of(engine), lost, 1)
