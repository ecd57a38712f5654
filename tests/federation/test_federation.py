"""`ask` and `sum`: order cannot matter, faults have names, and nobody has to be trusted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import FederationError, GuardError, QuorumError
from confide.federation import site
from confide.federation.combining import mismatched_field, reply_form
from confide.federation.events import Event
from confide.federation.federation import Federation, round_half_up
from confide.federation.ledger import Ledger
from confide.federation.messages import decode, encode
from federation.toys import (
    MULTIPLY,
    SECRET,
    TELL,
    Reply,
    Said,
    Tampering,
    ask,
    federation,
    sequential,
)


def equal(one: Reply, other: Reply) -> bool:
    return (
        all(np.array_equal(one.weights[k], other.weights[k]) for k in one.weights | other.weights)
        and np.array_equal(one.vector_3, other.vector_3)
        and (one.count, one.loss) == (other.count, other.loss)
    )


# --- asking ------------------------------------------------------------------------------


def test_replies_come_sorted_by_site(tmp_path: Path) -> None:
    engine = Tampering(sequential(tmp_path), order=lambda sites: sites[::-1])
    replies = federation(engine).ask(TELL, ask(), round=1)
    assert list(replies) == ["site-1", "site-2", "site-3"]
    assert replies["site-2"] == Said(["site-2", "tell"], 0)


def test_every_site_can_be_asked_something_else(tmp_path: Path) -> None:
    sites = federation(sequential(tmp_path))
    replies = sites.ask(TELL, {"site-3": ask(), "site-1": ask("x")}, round=1)
    assert list(replies) == ["site-1", "site-3"]
    assert list(sites.ask(TELL, ask(), round=1, sites=["site-2"])) == ["site-2"]


def test_an_ask_is_opened_once_for_all_sites_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bytes] = []
    real = site.ask_in
    monkeypatch.setattr(site, "ask_in", lambda kind, data: opened.append(data) or real(kind, data))
    sites = federation(sequential(tmp_path))
    sites.ask(TELL, ask(), round=1)
    assert len(opened) == 1
    sites.ask(TELL, {"site-1": ask("x"), "site-2": ask("y")}, round=1)
    assert len(opened) == 3


def test_asking_nobody_is_not_asking_everybody(tmp_path: Path) -> None:
    assert federation(sequential(tmp_path)).ask(TELL, ask(), round=1, sites=[]) == {}


def test_an_unknown_site_is_named(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="no site 'nowhere'"):
        federation(sequential(tmp_path)).ask(TELL, ask(), round=1, sites=["nowhere"])


def test_a_federation_may_be_a_part_of_the_engines_sites(tmp_path: Path) -> None:
    part = Federation(sequential(tmp_path), seed=1, ledger=Ledger(), sites=["site-2"])
    assert list(part.ask(TELL, ask(), round=1)) == ["site-2"]


def test_only_the_door_that_a_step_declares_is_open(tmp_path: Path) -> None:
    sites = federation(sequential(tmp_path))
    with pytest.raises(FederationError, match="may only be summed"):
        sites.ask(MULTIPLY, ask(), round=1)
    with pytest.raises(FederationError, match="was not declared as one that is summed"):
        sites.sum(TELL, ask(), round=1)


# --- summing -----------------------------------------------------------------------------


def test_a_sum_is_the_sum_of_the_replies_in_double_precision(tmp_path: Path) -> None:
    """The oracle: the sites' replies, seen on the wire, added by hand."""
    seen: dict[str, Reply] = {}

    def look(site: str, data: bytes) -> bytes:
        seen[site] = decode(Reply, data)
        return data

    total = federation(Tampering(sequential(tmp_path), look)).sum(MULTIPLY, ask(), round=1)
    for name, array in ask().weights.items():
        assert total.weights[name].dtype == np.float64
        by_hand = sum(seen[site].weights[name].astype(np.float64) for site in sorted(seen))
        assert np.array_equal(total.weights[name], by_hand)
        assert np.allclose(total.weights[name], 6 * array)
    assert np.array_equal(total.vector_3, sum(seen[site].vector_3 for site in sorted(seen)))
    assert total.count == 3
    assert total.loss == 3.0


def test_float32_is_not_added_in_float32(tmp_path: Path) -> None:
    big = dataclasses.replace(ask(), weights={"a": np.array([2.0**24], np.float32)})

    def one_more(site: str, data: bytes) -> bytes:
        reply = decode(Reply, data)
        value = 2.0**24 if site == "site-1" else 1.0
        weights = {"a": np.array([value], np.float32)}
        return encode(dataclasses.replace(reply, weights=weights))

    total = federation(Tampering(sequential(tmp_path), one_more)).sum(MULTIPLY, big, round=1)
    assert total.weights["a"][0] == 2.0**24 + 2  # in float32 both ones would be lost


@settings(max_examples=15)
@given(st.permutations(["site-1", "site-2", "site-3", "site-4", "site-5"]))
def test_the_order_of_arrival_cannot_matter(order: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        straight = federation(sequential(Path(folder), 5)).sum(MULTIPLY, ask(), round=1)
        engine = Tampering(sequential(Path(folder), 5), order=lambda sites: order)
        assert equal(federation(engine).sum(MULTIPLY, ask(), round=1), straight)


def test_asking_again_gives_the_same_bytes_and_the_same_memory(tmp_path: Path) -> None:
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*.memory")}

    engine, data = sequential(tmp_path), encode(ask())
    asks = dict.fromkeys(engine.sites, data)
    first = [d.reply for d in engine.deliver("multiply", 1, asks=asks, timeout=None)]
    kept = files()
    assert len(kept) == 3
    assert [d.reply for d in engine.deliver("multiply", 1, asks=asks, timeout=None)] == first
    assert files() == kept
    other = [d.reply for d in engine.deliver("multiply", 2, asks=asks, timeout=None)]
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_asking_again_forgets_what_came_after_even_where_nothing_was_changed(
    tmp_path: Path,
) -> None:
    """`tell` leaves the memory alone; asked again, it must not see what `multiply` then made."""
    sites = federation(sequential(tmp_path))
    sites.sum(MULTIPLY, ask(), round=0)
    first = sites.ask(TELL, ask(), round=1)
    sites.sum(MULTIPLY, ask(), round=1)
    assert sites.ask(TELL, ask(), round=1) == first
    assert {reply.turns for reply in first.values()} == {1}


# --- who takes part ------------------------------------------------------------------------


def test_a_fraction_is_drawn_by_seed_and_round(tmp_path: Path) -> None:
    sites = federation(sequential(tmp_path, 10))
    drawn = [sites.draw(0.3, round) for round in range(1, 30)]
    assert drawn == [sites.draw(0.3, round) for round in range(1, 30)]
    assert {len(names) for names in drawn} == {3}
    assert all(list(names) == sorted(names) for names in drawn)
    assert len(set(drawn)) > 10
    assert {name for names in drawn for name in names} == set(sites.sites)
    assert sites.draw(1.0, 1) == sites.sites
    assert len(sites.draw(0.01, 1)) == 1


def test_half_is_rounded_up() -> None:
    assert [round_half_up(x) for x in (0.4, 0.5, 1.5, 2.5)] == [0, 1, 2, 3]


def test_who_fails_is_named_and_skipped(tmp_path: Path) -> None:
    events: list[Event] = []
    sites = federation(sequential(tmp_path), at_least=2)
    sites._watch = events.append
    total = sites.sum(MULTIPLY, ask("site-2=raise"), round=4)
    assert total.count == 2
    assert np.allclose(total.weights["b"], 4 * ask().weights["b"])
    (fault,) = sites.take_faults()
    assert (fault.site, fault.step, fault.round, fault.code) == ("site-2", "multiply", 4, "error")
    assert sites.take_faults() == []
    assert [event.site for event in events if event.kind == "failed"] == ["site-2"]


def test_too_few_answers_end_the_round_and_say_who_failed(tmp_path: Path) -> None:
    mood = "site-2=raise site-3=nan"
    with pytest.raises(QuorumError) as caught:
        federation(sequential(tmp_path), at_least=2).sum(MULTIPLY, ask(mood), round=1)
    words = str(caught.value)
    assert "expected at least 2 of 3; got 1" in words
    assert "site site-2, step multiply, round 1" in words
    assert "site site-3, step multiply, round 1: the site's own guard held back its reply" in words


def test_at_least_zero_is_everybody(tmp_path: Path) -> None:
    with pytest.raises(QuorumError, match="at least 3 of 3"):
        federation(sequential(tmp_path)).sum(MULTIPLY, ask("site-1=raise"), round=1)
    with pytest.raises(QuorumError, match="at least 5 of 5"):
        federation(sequential(tmp_path, 5)).sum(MULTIPLY, ask("site-1=raise"), round=1)
    sites = federation(sequential(tmp_path), at_least=3)
    assert sites.sum(MULTIPLY, ask(), round=1, sites=["site-1"]).count == 1


@each("mood", ["raise", "raise-own"])
def test_a_sites_error_travels_without_its_words(tmp_path: Path, mood: str) -> None:
    seen: list[bytes] = []

    def look(site: str, data: bytes) -> bytes:
        seen.append(data)
        return data

    engine = Tampering(sequential(tmp_path), look)
    sites = federation(engine, at_least=1)
    sites.sum(MULTIPLY, ask(f"site-1={mood}"), round=1)
    (fault,) = sites.take_faults()
    for word in SECRET.split():
        assert not any(word.encode() in data for data in seen)
        assert word not in str(fault)
    expected = "DataError" if mood == "raise" else "Exception"
    assert f"({expected} at " in str(fault)
    assert SECRET in (tmp_path / "site-1" / "site.log").read_text()


def test_a_step_or_an_ask_that_the_site_does_not_know(tmp_path: Path) -> None:
    engine = sequential(tmp_path)
    engine._hosts["site-1"]._steps = {}
    sites = federation(engine, at_least=1)
    sites.ask(TELL, ask(), round=1)
    assert [fault.code for fault in sites.take_faults()] == ["unknown-step"]
    (delivery,) = engine.deliver("tell", 1, asks={"site-2": b"no message"}, timeout=None)
    assert b"bad-ask" in delivery.reply


# --- a site that is not what it says it is -------------------------------------------------


POISON = {
    "nan": "not finite",
    "one-inf": "wrong shape|not finite",
    "two-infs": "not finite",
    "shape": "wrong shape",
    "dtype": "the wrong number type",
    "more": "the same arrays",
    "fewer": "the same arrays",
    "absurd": "absurdly large",
    "negative-absurd": "absurdly large",
}


@each("mood", POISON)
def test_the_sites_own_guard_holds_back_what_is_wrong(tmp_path: Path, mood: str) -> None:
    sites = federation(sequential(tmp_path), at_least=2)
    total = sites.sum(MULTIPLY, ask(f"site-2={mood}"), round=1)
    assert total.count == 2
    (fault,) = sites.take_faults()
    assert (fault.site, fault.code) == ("site-2", "guard")
    assert not list((tmp_path / "site-2").rglob("*.memory"))  # a turn without reply never was


@each("mood", POISON)
def test_the_server_refuses_it_where_the_sites_guard_is_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mood: str
) -> None:
    monkeypatch.setattr("confide.federation.site.check_reply", lambda *_: None)
    sites = federation(sequential(tmp_path), at_least=2)
    total = sites.sum(MULTIPLY, ask(f"site-2={mood}"), round=1)
    assert total.count == 2
    assert np.allclose(total.weights["b"], 4 * ask().weights["b"])
    (fault,) = sites.take_faults()
    assert (fault.site, fault.code) == ("site-2", "refused")
    assert fault.args[0].startswith("site site-2, step multiply, round 1: the server refused")


def change(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: encode(dataclasses.replace(decode(Reply, data), **changes))


FORGED: dict[str, Callable[[bytes], bytes]] = {
    "another message": lambda data: encode(Said(["hello"], 0)),
    "its ask": lambda data: encode(ask()),
    "garbage": lambda data: b"\x00" * 40,
    "nothing": lambda data: b"",
    "cut short": lambda data: data[:-3],
    "a loss that is not a number": change(loss=float("nan")),
    "half a count": lambda data: data.replace(b'\\"count\\":1', b'\\"count\\":1.5'),
    "the least integer": change(vector_3=np.array([np.iinfo(np.int64).min])),
}


@each("forgery", FORGED)
def test_forged_bytes_are_refused_by_the_name_of_the_site(tmp_path: Path, forgery: str) -> None:
    def forge(site: str, data: bytes) -> bytes:
        return FORGED[forgery](data) if site == "site-3" else data

    sites = federation(Tampering(sequential(tmp_path), forge), at_least=2)
    assert sites.sum(MULTIPLY, ask(), round=1).count == 2
    (fault,) = sites.take_faults()
    assert (fault.site, fault.code) == ("site-3", "refused")


@each("vector", [np.zeros(1), np.zeros(4), np.zeros((3, 1)), np.zeros(3, np.int64)])
def test_what_is_not_like_the_others_is_not_added(tmp_path: Path, vector: np.ndarray) -> None:
    """Nothing is broadcast: an array is of the form that its field declares."""

    def forge(site: str, data: bytes) -> bytes:
        return change(vector_3=vector)(data) if site == "site-2" else data

    sites = federation(Tampering(sequential(tmp_path), forge), at_least=2)
    assert sites.sum(MULTIPLY, ask(), round=1).vector_3.shape == (3,)
    (fault,) = sites.take_faults()
    assert (fault.site, fault.code) == ("site-2", "refused")
    assert "Reply.vector_3 has " in str(fault)


def test_what_no_field_declares_is_still_like_that_of_the_sites_before() -> None:
    one = Reply({"a": np.ones(2)}, np.ones(3), 1, 0.5)
    for weights in ({"a": np.ones(3)}, {"b": np.ones(2)}, {"a": np.ones(2, np.int64)}):
        other = dataclasses.replace(one, count=7, weights=weights)
        assert mismatched_field(reply_form(other), reply_form(one)) == "weights"
    assert mismatched_field(reply_form(one), reply_form(one)) is None
    with pytest.raises(GuardError, match="loss is missing"):
        reply_form(dataclasses.replace(one, count=7, loss=None))
