"""FedAtt from two sums: the numbers of the formula, and nothing seen site by site."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import GuardError, QuorumError
from confide.federation.combining import norm_of
from confide.federation.failures import Failure, Refusal
from confide.federation.guards import Guards
from confide.federation.ledger import read_ledger
from confide.federation.messages import Arrays, decode, encode
from confide.federation.secure.lanes import layout_of
from confide.federation.secure.messages import Offered, Opening
from confide.federation.secure.site import Sets
from confide.federation.site import Site
from confide.federation.steps import Turn
from confide.methods import METHODS
from confide.methods.fedatt import (
    ATTEND,
    DIGITS,
    FARTHEST,
    MEASURE,
    Attend,
    Attended,
    Attending,
    attend,
    attended,
    digits_of,
    totals_of,
)
from confide.methods.fedavg import FedAvgState, Train
from confide.runs.run import run
from contract.corpus import tiny
from contract.runs import Asking, Forging, states, use_engine
from kinds.configs import config

FEDATT = ("method=fedatt-tagger", "rounds=1")


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    state = decode(METHODS["fedatt-tagger"].State, states(folder).popitem()[1])
    assert isinstance(state, FedAvgState)
    return state.weights


# --- numbers -----------------------------------------------------------------------------------


@given(st.lists(st.floats(0, FARTHEST), min_size=1, max_size=6))
def test_summed_digits_are_the_sum_of_exponentials(norms: list[float]) -> None:
    summed = np.array([digits_of(norm) for norm in norms]).sum(0)
    wanted = sum(math.exp(norm) for norm in norms)
    assert totals_of(summed[None])[0] == pytest.approx(wanted, rel=1e-9)
    assert len(summed) == DIGITS and summed.min() >= 0


def test_norms_that_no_training_has_count_as_the_largest() -> None:
    assert digits_of(1e30) == digits_of(FARTHEST)
    with pytest.raises(GuardError):
        digits_of(float("nan"))


def test_two_sums_give_the_numbers_of_plain_fedatt(tmp_path: Path) -> None:
    """Of one round, to the precision of lanes: 2^-28 for each site's number, times ε."""
    plain = run(tiny(tmp_path, *FEDATT), out=tmp_path / "plain")
    summed = run(tiny(tmp_path, *FEDATT, "federation.sums=masked"), out=tmp_path / "sums")
    before, after = weights_of(plain.folder), weights_of(summed.folder)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=0, atol=3e-7)
    one, other = plain.result.history[0], summed.result.history[0]
    assert other.loss == pytest.approx(one.loss, rel=1e-6) and other.sentences == one.sentences


def test_where_sums_are_masked_nothing_is_seen_site_by_site(tmp_path: Path) -> None:
    folder = run(tiny(tmp_path, *FEDATT, "federation.sums=masked"), out=tmp_path / "run").folder
    rows = [row for row in read_ledger(folder / "ledger.jsonl") if row.direction == "up"]
    assert not [row for row in rows if row.step == "train_alone"]
    fields = {row.step: {one.field for one in rows if one.step == row.step} for row in rows}
    assert fields["measure"] == fields["attend"]  # offers: keys, boxes, digests
    assert {row.seen for row in rows if row.step == "mask"} == {"masked"}


def test_sites_draw_as_they_do_under_plain_sums() -> None:
    for name, pair in METHODS.items():
        if pair.method == "fedatt":
            steps = {step.name: step for step in pair.steps}
            alone = steps["train_alone"]
            assert steps["measure"].drawn == (alone.drawn or alone.name), name


# --- a site by hand ----------------------------------------------------------------------------


def moved_site(change: list[float], *, round: int = 1) -> Attending[Any]:
    """What a site remembers after the first sum."""
    return Attending(None, moved_round=round, change={"a": np.array(change, np.float32)})


def asks(total: float) -> Attend:
    return Attend(np.array([total]), {"a": np.array([2])})


TURN = Turn(1, "site-1", "attend", 0)
SITE = Site("site-1", [])


def weighed(sites: list[Attending[Any]], total: float) -> np.ndarray:
    """What the server has of one sum."""
    found = [attend(SITE, memory, asks(total), TURN)[0].change["a"] for memory in sites]
    return np.sum(found, axis=0, dtype=np.float64)


def test_attended_changes_sum_to_the_formula() -> None:
    changes = [[3.0, 4.0], [0.5, 0.0], [0.0, -1.0]]
    sites = [moved_site(change) for change in changes]
    total = totals_of(np.array([digits_of(norm_of([np.array(c)])) for c in changes]).sum(0)[None])
    before = {"a": np.zeros(2, np.float32)}
    expected = attended(before, [{"a": np.float32(c)} for c in changes], epsilon=1.0)["a"]
    np.testing.assert_allclose(weighed(sites, float(total[0])), expected, rtol=1e-6)


def test_the_attack_two_asks_of_one_turn_open_a_site() -> None:
    """All attention counts as 1 at most; the difference of two sums is one site alone."""
    changes = [[0.3, -0.4], [3.0, 4.0], [0.0, 6.0]]
    sites = [moved_site(change) for change in changes]
    difference = weighed(sites, 1e-9) - weighed(sites, 2 * math.exp(0.5))
    np.testing.assert_allclose(difference / 0.5, changes[0], rtol=1e-5)


def test_one_site_may_have_all_attention_among_many() -> None:
    """Shares sum to 1, so a lane needs no room for as many large changes as there are sites."""
    layout = layout_of(ATTEND, asks(1.0), sites=50, examples=0.0)
    lanes = layout.lanes_of(ATTEND, asks(1.0), Attended({"a": np.array([7.5, -8.0], np.float32)}))
    total, odd = layout.total_of(ATTEND, asks(1.0), lanes)
    assert total["change"]["a"].tolist() == [7.5, -8.0] and odd == 0
    with pytest.raises(GuardError):
        layout.lanes_of(ATTEND, asks(1.0), Attended({"a": np.array([8.1, 0], np.float32)}))


@each("total", [0.0, -1.0, float("nan"), float("inf")])
def test_totals_that_no_sum_can_be_are_refused(total: float) -> None:
    with pytest.raises(Refusal) as caught:
        attend(SITE, moved_site([1, 1]), asks(total), TURN)
    assert caught.value.code == "bad-ask"


def test_a_change_of_another_round_is_not_attended_to() -> None:
    """It is held back as anything that depends on text: with zeros, not with a refusal."""
    for memory in (moved_site([1, 1], round=2), Attending(None)):
        with pytest.raises(GuardError):
            attend(SITE, memory, asks(5.0), TURN)


def test_a_site_with_private_parts_takes_no_part() -> None:
    site = Site("site-1", [], guards=Guards(private=("crf",)))
    ask = Train({"a": np.zeros(2, np.float32)}, config(), "equal", [])
    with pytest.raises(Refusal) as caught:
        MEASURE.answer(site, moved_site([1, 1]), ask, TURN)
    assert caught.value.code == "private-part"
    assert ATTEND.parts(asks(5.0)) == ["a"]  # the site's host refuses a step with such parts


# --- runs --------------------------------------------------------------------------------------


@each("most", [0.05, 1e6])
def test_max_norm_bounds_the_change_before_its_norm_is_taken(most: float, tmp_path: Path) -> None:
    folders = []
    for sums in ("plain", "masked"):
        overrides = (*FEDATT, f"guards.max_norm={most}", f"federation.sums={sums}")
        folders.append(run(tiny(tmp_path, *overrides), out=tmp_path / sums).folder)
    before, after = map(weights_of, folders)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=0, atol=3e-7)


@each("step", ["measure", "attend"])
def test_a_site_lost_before_or_between_the_two_sums(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost before, the others share all attention; lost between, its own moves nothing."""
    moved: dict[str, Arrays] = {}
    before: dict[str, np.ndarray] = {}

    def look(engine: Any, name: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if name == "attend" and round == 1:
            moved[site] = engine._hosts[site]._memory.latest().change
        if name == "measure" and not before:
            before.update(decode(Train, decode(Opening, ask).ask_B.tobytes()).weights)

    def change(name: str, site: str, round: int, reply: bytes) -> bytes:
        lost = (name, site) == (step, "site-2") and round == 1
        return encode(Failure("lost", "", "", "")) if lost else reply

    both = type("Both", (Forging, Asking), {})
    use_engine(monkeypatch, both, change=staticmethod(change), look=look)
    overrides = (*FEDATT, "federation.sums=masked", "federation.at_least=3")
    folder = run(tiny(tmp_path, *overrides, sites=4), out=tmp_path / "run").folder
    after = weights_of(folder)
    left = sorted(set(moved) - {"site-2"})
    assert left == ["site-1", "site-3", "site-4"]
    counted = left if step == "measure" else sorted(moved)
    for name, start in before.items():
        powers = {site: math.exp(norm_of([moved[site][name]])) for site in counted}
        total = sum(powers.values())
        added = sum(powers[site] / total * moved[site][name] for site in left)
        np.testing.assert_allclose(after[name], start + 1.2 * added, rtol=0, atol=3e-7)


def test_a_site_answers_one_attention_in_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked twice with other totals, it refuses; its file says so to the next process, too."""
    found: dict[str, str] = {}

    def other(ask: bytes, *, times: float) -> bytes:
        opening = decode(Opening, ask)
        inner = decode(Attend, opening.ask_B.tobytes())
        inner = dataclasses.replace(inner, totals_L=inner.totals_L * times)
        data = np.frombuffer(encode(inner), np.uint8)
        later = opening.attempt + len(found)  # a new sum each time
        return encode(dataclasses.replace(opening, ask_B=data, attempt=later))

    def said(engine: Any, ask: bytes) -> str:
        reply = decode((Offered, Failure), engine.again("attend", 1, "site-1", ask))
        return reply.code if isinstance(reply, Failure) else "offer"

    def look(engine: Any, name: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if (name, site, round) == ("attend", "site-1", 1):
            found["same"] = said(engine, ask)
            found["other"] = said(engine, other(ask, times=2.0))
            engine._hosts[site].site.member._sum = None
            found["later"] = said(engine, other(ask, times=0.5))
            found["as asked"] = said(engine, other(ask, times=1.0))
            monkeypatch.setattr(Sets, "fix", lambda self, turn: None)
            found["without the rule"] = said(engine, other(ask, times=2.0))

    use_engine(monkeypatch, Asking, look=look)
    with pytest.raises(QuorumError):  # what was asked in between is another sum
        run(tiny(tmp_path, *FEDATT, "federation.sums=masked"), out=tmp_path / "run")
    assert found == {
        "same": "offer", "other": "second-ask", "later": "second-ask", "as asked": "offer",
        "without the rule": "offer",
    }  # fmt: skip
