"""Handing out the common weights: what travels, what a site makes of it, and of lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.federation.broadcast import (
    CACHED,
    FIRST,
    FROM,
    GIVES,
    KEEP,
    MISSING,
    Broadcast,
    CachedWeights,
    Down,
    digest_of_weights,
    whole,
)
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays, decode, encode
from federation.toys import MULTIPLY, Ask, federation, sequential


def weights(seed: int) -> Arrays:
    draw = np.random.default_rng(seed).standard_normal
    shapes = {"table": (30, 20), "bias": (5,)}
    return {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}


def ask(of: Arrays) -> Ask:
    return Ask(of, "", 1)


def size(of: Arrays) -> int:
    return sum(array.nbytes for array in of.values())


def raw(of: Arrays) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in of.items()}


class Server:
    """A server that rounds, sends and hears; and the weights that one site holds."""

    def __init__(self, down: Down, *, seed: int | None = None) -> None:
        self.broadcast = Broadcast(down)
        self.now = self.broadcast.begin(weights(0), seed=seed)
        self.held = CachedWeights()

    def moved(self, seed: int, size: float = 0.01) -> None:
        after = {n: a + np.float32(size) * weights(seed)[n] for n, a in self.now.items()}
        self.now = self.broadcast.rounded(self.now, after)

    def sent(self, site: str = "a", *, heard: bool = True) -> Arrays:
        data = encode(self.broadcast.packed(ask(self.now), [site]))
        packed = decode(Ask, data)
        assert raw(whole(packed, self.held, draws=weights).weights) == raw(self.now)
        if heard:
            self.broadcast.answered(site)
        return packed.weights


@each("down", ["float16", "int8", "int4", "int2", "top"])
def test_a_site_has_what_the_server_has_bit_for_bit(down: Down) -> None:
    server = Server(down)
    first = server.sent()
    assert first.keys() == {GIVES, "table", "bias"}
    assert first["table"].dtype == np.float16
    assert server.sent().keys() == {GIVES}
    for seed in range(1, 5):
        server.moved(seed)
        sent = server.sent()
        assert sent.keys() >= {GIVES, FROM}
        assert (
            sum(a.nbytes for a in sent.values()) < sum(a.nbytes for a in server.now.values()) / 1.5
        )
        assert server.sent().keys() == {GIVES}


@each("down", ["cached", "float16", "int2"])
def test_first_weights_that_are_drawn_need_not_travel(down: Down) -> None:
    server = Server(down, seed=0)
    assert server.sent().keys() == {GIVES, FIRST}
    assert server.sent().keys() == {GIVES}
    server.moved(1)
    assert FIRST not in server.sent()
    assert FIRST not in server.sent("b")  # a site that comes later
    assert server.broadcast.begin(weights(0)) is not None
    assert Server(down).sent().keys() == {GIVES, "table", "bias"}


@each("down", ["cached", "int2"])
def test_a_site_that_draws_other_weights_is_given_them_whole(down: Down) -> None:
    server = Server(down, seed=3)  # from which a site draws weights(3), not weights(0)
    for draws in (weights, None):
        packed = server.broadcast.packed(ask(server.now), ["a"])
        assert packed.weights.keys() == {GIVES, FIRST}
        with pytest.raises(Refusal) as refused:
            whole(packed, server.held, draws=draws)
        assert refused.value.code == MISSING
        assert not server.held
    assert server.broadcast.lost("a", packed)
    assert server.broadcast.packed(ask(server.now), ["a", "b"]).weights.keys() > {"table"}
    assert server.broadcast.packed(ask(server.now), ["b"]).weights.keys() == {GIVES, FIRST}
    assert server.sent("a").keys() == {GIVES, "table", "bias"}
    assert not Broadcast(down).lost("a", packed)


def test_what_rounding_leaves_out_comes_later() -> None:
    server = Server("int2")
    wanted = {name: array.astype(np.float64) for name, array in weights(0).items()}
    for _ in range(40):
        after = {n: a + np.float32(0.01) * weights(9)[n] for n, a in server.now.items()}
        wanted = {n: a + 0.01 * weights(9)[n] for n, a in wanted.items()}
        server.now = server.broadcast.rounded(server.now, after)
    off = max(float(np.abs(wanted[n] - server.now[n]).max()) for n in wanted)
    assert off < 0.05  # without it: of the order of 40 · 0.01
    for name in wanted:
        left = server.broadcast.residual[name]
        np.testing.assert_allclose(server.now[name] + left, wanted[name], atol=1e-4)


def test_without_codes_nothing_is_rounded() -> None:
    for down in ("whole", "cached"):
        server = Server(down)  # type: ignore[arg-type]
        assert server.now["table"].tobytes() == weights(0)["table"].tobytes()
        after = weights(3)
        assert server.broadcast.rounded(server.now, after) is after
        assert server.broadcast.residual == {}
    assert Broadcast("whole").packed(ask(weights(0)), ["a"]).weights.keys() == {"table", "bias"}


def test_a_site_that_missed_a_round_is_given_the_weights_whole() -> None:
    server = Server("int8")
    server.sent()
    server.moved(1)
    server.moved(2)
    assert server.sent().keys() == {GIVES, "table", "bias"}
    server.moved(3)
    server.sent(heard=False)  # the reply never came: who knows what the site has
    server.moved(4)
    assert server.sent().keys() == {GIVES, "table", "bias"}


def test_sites_that_are_asked_alike_get_what_all_of_them_can_read() -> None:
    server = Server("int8")
    server.sent("a")
    server.moved(1)
    both = server.broadcast.packed(ask(server.now), ["a", "b"]).weights
    assert both.keys() == {GIVES, "table", "bias"}
    server.broadcast.answered("a")
    server.broadcast.answered("b")
    assert server.broadcast.packed(ask(server.now), ["a", "b"]).weights.keys() == {GIVES}
    server.moved(2)
    server.broadcast.packed(ask(server.now), ["a"])
    server.broadcast.answered("a")
    assert FROM in server.broadcast.packed(ask(server.now), ["a", "b"]).weights


def test_other_weights_than_the_common_ones_travel_as_they_are() -> None:
    server = Server("int8")
    server.sent()
    other = ask(weights(8))
    assert server.broadcast.packed(other, ["a"]) is other
    assert server.sent().keys() == {GIVES}


def test_after_a_step_back_the_weights_are_whole_and_nothing_is_left() -> None:
    server = Server("int4")
    server.sent()
    good = server.now
    server.moved(1)
    server.sent()
    server.broadcast.go_on(good)
    server.now = good
    assert server.broadcast.residual == {}
    assert server.sent().keys() == {GIVES, "table", "bias"}


def test_two_sets_of_weights_are_held_and_no_more() -> None:
    server = Server("int8")
    for seed in range(1, 6):
        server.sent()
        server.moved(seed)
    assert len(server.held) == 2


@each("down", ["cached", "int8"])
def test_the_best_weights_are_kept_until_the_end_and_given_once(down: Down) -> None:
    server = Server(down)
    server.sent()
    server.moved(1)
    server.sent()
    best = {name: array.copy() for name, array in server.now.items()}  # read from a file, say
    server.broadcast.keep(server.now)
    assert server.sent().keys() == {GIVES, KEEP}
    assert server.sent().keys() == {GIVES}  # it was said
    for seed in range(2, 7):
        server.moved(seed)
        assert KEEP not in server.sent()
    assert len(server.held) == 3
    packed = decode(Ask, encode(server.broadcast.packed(ask(best), ["a"])))
    assert packed.weights.keys() == {GIVES}
    assert raw(whole(packed, server.held).weights) == raw(best)
    assert server.broadcast.packed(ask(best), ["a", "b"]).weights is best  # b was never told
    server.broadcast.keep(server.now)
    server.sent()
    server.moved(7)
    server.sent()
    assert server.broadcast.packed(ask(best), ["a"]).weights is best  # others are kept now
    server.moved(8)
    server.sent()
    assert digest_of_weights(best) not in server.held and len(server.held) == 2 + 1


def test_other_weights_than_the_common_ones_are_not_kept() -> None:
    server = Server("int8")
    server.sent()
    server.broadcast.keep(weights(4))
    assert server.sent().keys() == {GIVES}


def test_a_site_that_lost_what_it_was_to_keep_is_given_it_whole() -> None:
    server = Server("int8")
    server.sent()
    best = server.now
    server.broadcast.keep(best)
    server.sent()
    server.moved(1)
    server.sent()
    server.held.clear()
    packed = server.broadcast.packed(ask(best), ["a"])
    with pytest.raises(Refusal) as refused:
        whole(packed, server.held)
    assert refused.value.code == MISSING
    assert server.broadcast.lost("a", ask(best))
    assert server.broadcast.packed(ask(best), ["a"]).weights is best
    assert not server.broadcast.lost("a", ask(best))


def lies(server: Server) -> list[tuple[str, Arrays]]:
    server.sent()
    server.moved(1)
    good = server.broadcast.packed(ask(server.now), ["a"]).weights
    other = np.frombuffer(digest_of_weights(weights(5)), np.uint8)
    return [
        (MISSING, {GIVES: other}),
        (MISSING, {**good, FROM: other}),
        ("bad-ask", {**good, GIVES: other}),
        ("bad-ask", {**good, GIVES: other[:31]}),
        ("bad-ask", {**good, KEEP: other}),
        ("bad-ask", {**good, KEEP: other[:31]}),
        ("bad-ask", {**good, FROM: good[FROM].astype(np.int16)}),
        ("bad-ask", {**good, "more": good["table"]}),
        ("bad-ask", {**good, "table": good["table"][:-3]}),
        ("bad-ask", {GIVES: other, "table": np.ones(3, np.float32)}),
        (MISSING, {GIVES: other, FIRST: np.ones(8, np.uint8)}),
        ("bad-ask", {GIVES: other, FIRST: np.ones(8, np.int8)}),
        ("bad-ask", {GIVES: other, FIRST: np.ones(9, np.uint8)}),
    ]


@each("place", range(13))
def test_what_is_not_what_it_says_is_refused(place: int) -> None:
    server = Server("int8")
    code, lie = lies(server)[place]
    before = dict(server.held)
    with pytest.raises(Refusal) as refused:
        whole(ask(lie), server.held, draws=weights)
    assert refused.value.code == code
    assert server.held == before


def test_a_site_that_lost_its_weights_is_asked_again_at_once(tmp_path: Path) -> None:
    engine = sequential(tmp_path)
    fed = federation(engine)
    fed.broadcast = Broadcast("int8")
    now = fed.broadcast.begin(weights(0))
    fed.sum(MULTIPLY, ask(now), round=1)
    now = fed.broadcast.rounded(now, weights(1))
    for host in engine._hosts.values():
        host.site.scratch[CACHED].clear()
    asked: list[str] = []
    fed._watch = lambda event: asked.append(f"{event.kind} {event.site}")
    total: Any = fed.sum(MULTIPLY, ask(now), round=2)
    np.testing.assert_allclose(
        total.weights["table"], 6 * now["table"].astype(np.float64), rtol=1e-6
    )
    assert fed.faults == []
    assert asked.count("ask site-1") == 2
    assert asked.count("ask site-3") in (1, 2)  # sites of one process hold them together


def test_a_site_that_refuses_whole_weights_is_not_asked_for_ever(tmp_path: Path) -> None:
    engine = sequential(tmp_path)
    fed = federation(engine, at_least=1)
    fed.broadcast = Broadcast("int8")
    now = fed.broadcast.begin(weights(0))
    fed.sum(MULTIPLY, ask(now), round=1)

    class Forgetful(CachedWeights):
        def __setitem__(self, key: object, value: object) -> None:
            raise Refusal(MISSING)

    engine._hosts["site-2"].site.scratch = {CACHED: Forgetful()}
    now = fed.broadcast.rounded(now, weights(1))
    fed.sum(MULTIPLY, ask(now), round=2)
    assert [(one.site, one.code) for one in fed.faults] == [("site-2", MISSING)]


def test_the_largest_changes_are_those_of_all_arrays_together() -> None:
    """Arrays are rounded one by one only where the codes of one do not depend on the others."""
    before = {"b": np.zeros(100, np.float32), "a": np.zeros(100, np.float32)}
    after = {"b": np.full(100, 5.0, np.float32), "a": np.full(100, 1.0, np.float32)}
    broadcast = Broadcast("top", share=0.5)
    broadcast.go_on(before)
    found = broadcast.rounded(before, after)
    assert list(found) == ["b", "a"]
    assert found["b"].all()
    assert not found["a"].any()
    assert np.array_equal(broadcast.residual["a"], after["a"])
