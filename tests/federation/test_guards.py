"""Guards: what is not finite, not of its shape or absurd is refused; by field, never by value."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import GuardError
from confide.federation.failures import Failure, Refusal
from confide.federation.guards import MOST, Guards, bounded, check_reply, clipped, near
from confide.federation.memory import MemoryStore
from confide.federation.messages import carries, decode, encode
from confide.federation.quantising import restore_reply
from confide.federation.site import Site, SiteHost
from confide.federation.steps import Step
from federation.toys import MOVE, MULTIPLY, TELL, Ask, Memory, Moved, Reply, Said, ask, multiply

ASK = ask()


def reply(**changes: Any) -> Reply:
    return replace(Reply(dict(ASK.weights), np.zeros(3), 1, 0.5), **changes)


def changed(name: str, value: np.ndarray) -> dict[str, Any]:
    return {"weights": {**ASK.weights, name: value}}


A = ASK.weights["a"]


def with_(array: np.ndarray, *values: float) -> np.ndarray:
    array = array.copy()
    array.flat[: len(values)] = values
    return array


def test_an_honest_reply_passes() -> None:
    check_reply(MULTIPLY, ASK, reply())
    check_reply(MULTIPLY, ASK, reply(count=MOST, vector_3=np.zeros(0)))
    large = np.array([3e38, 3e38, 0.0], np.float32)  # each is finite, their float32 sum is not
    check_reply(MULTIPLY, ASK, reply(vector_3=large))


@each(
    ("changes", "words"),
    [
        (changed("a", with_(A, np.nan)), "weights/a is not finite"),
        (changed("a", with_(A, np.inf)), "weights/a is not finite"),
        (changed("a", with_(A, np.inf, -np.inf)), "weights/a is not finite"),
        ({"vector_3": np.array([1e308, 1e308, 0])}, "vector_3 is not finite"),
        ({"vector_3": np.array([0, np.nan, 0], np.float16)}, "vector_3 is not finite"),
        ({"vector_3": np.array([MOST + 1])}, "vector_3 is absurdly large"),
        ({"vector_3": np.array([-MOST - 1])}, "vector_3 is absurdly large"),
        ({"vector_3": np.array([np.iinfo(np.int64).min])}, "vector_3 is absurdly large"),
        ({"loss": float("nan")}, "loss is not finite"),
        ({"loss": float("-inf")}, "loss is not finite"),
        ({"loss": 1e13}, "loss is absurdly large"),
        ({"count": MOST + 1}, "count is absurdly large"),
        ({"count": -MOST - 1}, "count is absurdly large"),
        ({"weights": {"a": A}}, "weights and weights do not hold the same arrays: b"),
        (changed("c", A), "weights and weights do not hold the same arrays: c"),
        (changed("a", A[:-1]), r"weights/a has the wrong shape; expected \(5,\); got \(4,\)"),
        (changed("a", A[None]), "weights/a has the wrong shape"),
        (changed("a", A.astype(np.float64)), "the wrong number type; expected float32"),
        (changed("a", A.astype(np.int8)), "the wrong number type"),
    ],
)
def test_a_bad_reply_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(GuardError, match=words):
        check_reply(MULTIPLY, ASK, reply(**changes))


def test_another_message_is_refused() -> None:
    with pytest.raises(GuardError, match="expected Reply; got Said"):
        check_reply(MULTIPLY, ASK, Said([], 0))


def test_a_steps_own_check_comes_last() -> None:
    def refuse(ask: Ask, message: Reply) -> None:
        raise GuardError(f"a count of {message.count}")

    step = Step.of(multiply, summed=True, check=refuse)
    with pytest.raises(GuardError, match="a count of 1"):
        check_reply(step, ASK, reply())
    with pytest.raises(GuardError, match="not finite"):
        check_reply(step, ASK, reply(loss=float("nan")))


# --- how large a change may be ---------------------------------------------------------------


def change(*numbers: float, kind: type = np.float32) -> dict[str, np.ndarray]:
    """Two arrays whose norm is that of the numbers."""
    first, *rest = numbers
    return {"a": np.array([[first]], kind), "b": np.array(rest, kind)}


@each("most", [13.0, 13.5, 1e9])
def test_a_change_that_is_no_larger_is_left_as_it_is(most: float) -> None:
    given = change(3, 4, 12)  # 3² + 4² + 12² = 13²
    assert bounded(given, most) is given
    assert bounded(change(0, 0, 0), 1e-9)["b"].tolist() == [0, 0]


@each("kind", [np.float16, np.float32, np.float64])
def test_a_larger_change_keeps_its_direction(kind: type) -> None:
    found = bounded(change(3, 4, 12, kind=kind), 6.5)
    assert [found["a"].tolist(), found["b"].tolist()] == [[[1.5]], [2, 6]]
    assert {array.dtype for array in found.values()} == {np.dtype(kind)}
    tenfold = bounded(change(30, 40, 120, kind=kind), 6.5, times=10.0)
    assert [tenfold["a"].tolist(), tenfold["b"].tolist()] == [[[15]], [20, 60]]


def test_a_change_beyond_all_numbers_is_not_let_through() -> None:
    found = bounded(change(3e38, -3e38, 1), 5.0)
    assert found["b"].tolist()[0] == pytest.approx(-5 / 2**0.5)
    found = bounded(change(1e200, 1e200, 1, kind=np.float64), 5.0)  # its square is infinite
    assert found["b"].tolist() == [0, 0]
    for odd in (np.inf, np.nan):
        found = bounded(change(odd, 1), 5.0)
        assert np.isnan(found["a"]).all()  # check_reply refuses it


def test_a_sum_of_arrays_must_say_how_it_is_bounded() -> None:
    with pytest.raises(Refusal, match="own guard `max_norm`") as refused:
        clipped(MULTIPLY, ASK, reply(), most=1.0)
    assert refused.value.code == "no-bound"
    whole = reply()
    assert clipped(MULTIPLY, ASK, whole, most=None) is whole
    said = Said([], 0)
    assert clipped(TELL, ASK, said, most=1.0) is said


def test_a_site_bounds_what_it_sends_and_not_what_it_keeps(tmp_path: Path) -> None:
    def asked(most: float | None, step: Step) -> tuple[Any, Any]:
        store = MemoryStore(tmp_path / f"{most} {step.name}", Memory)
        site = Site("site-2", [], guards=Guards(max_norm=most))
        host = SiteHost(site, {step.name: step}, memory=store, seed=7)
        first = host.answer(step.name, 1, encode(ask()))
        assert host.answer(step.name, 1, encode(ask())) == first
        return first, store.latest()

    plain, kept = asked(None, MOVE)
    assert asked(1e6, MOVE) == (plain, kept)
    less, also_kept = asked(0.5, MOVE)
    moved = restore_reply(MOVE, ask(), decode(Moved, less)).weights
    change = [moved[name] - start for name, start in ask().weights.items()]
    assert math.sqrt(sum((one**2).sum() for one in change)) == pytest.approx(0.5, rel=1e-5)
    assert also_kept == kept
    refused, nothing = asked(4.0, MULTIPLY)
    assert (decode(Failure, refused).code, nothing) == ("no-bound", None)


@each(
    ("private", "name", "keeps"),
    [
        (("crf",), "crf.linear.bias", True),
        (("word", "crf"), "crf.linear.bias", True),
        (("prompts",), "prompts", True),
        (("bilstm.backwards",), "bilstm.backwards.0.bias", True),
        (("crf",), "crfs.linear.bias", False),
        (("crf",), "word.crf.weight", False),
        (("crf.linear",), "crf.linearity", False),
        ((), "crf.linear.bias", False),
    ],
)
def test_a_part_is_a_whole_name(private: tuple[str, ...], name: str, keeps: bool) -> None:
    assert Guards(private=private).keeps(name) == keeps


@each("private", [("a",), ("b",), ("other", "b")])
def test_no_step_uploads_what_a_site_keeps(private: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever the step: its host looks at what is asked before the step is."""
    site = Site("site-1", [], guards=Guards(private=private))
    steps = {step.name: step for step in (MULTIPLY, TELL)}
    host = SiteHost(site, steps, memory=MemoryStore(tmp_path, Memory), seed=1)
    assert decode(Failure, host.answer("multiply", 1, encode(ASK))).code == "private-part"
    assert decode(Said, host.answer("tell", 1, encode(ASK))).turns == 0  # nothing is remembered
    others = {name: array for name, array in ASK.weights.items() if name not in private}
    again = host.answer("multiply", 1, encode(replace(ASK, weights=others)))
    assert decode(Failure, again).code == "private-part", "a name that protects nothing is no guard"


def test_a_part_that_the_memory_keeps_may_stay_out_of_what_is_asked(tmp_path: Path) -> None:
    site = Site("site-1", [], guards=Guards(private=("b",)))
    memory = MemoryStore(tmp_path, Keeping)
    memory.commit(0, "begin", Keeping(0, [], private=["b"]))
    step = replace(MULTIPLY, answer=lambda *given: (MULTIPLY.answer(*given)[0], given[1]))
    host = SiteHost(site, {"multiply": step}, memory=memory, seed=1)
    others = {name: array for name, array in ASK.weights.items() if name != "b"}
    found = decode(Reply, host.answer("multiply", 1, encode(replace(ASK, weights=others))))
    assert found.weights.keys() == others.keys()
    assert decode(Failure, host.answer("multiply", 2, encode(ASK))).code == "private-part"


@dataclass(frozen=True)
class Keeping(Memory):
    private: list[str] = carries("parts that stay here")


@each(("every", "noisy"), [(0.0, True), (2.0, True), (2.0, False)])
def test_a_sum_under_noise_leaves_in_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float, noisy: bool
) -> None:
    """However long the work took, refused or not; other replies leave at once."""
    slept: list[float] = []
    now = iter([10.0, 10.7, 20.0, 22.5])
    monkeypatch.setattr("confide.federation.site.time.monotonic", lambda: next(now))
    monkeypatch.setattr("confide.federation.site.time.sleep", slept.append)
    step = replace(MULTIPLY, noisy=noisy)
    site = Site("site-1", [], guards=Guards(reply_every=every))
    host = SiteHost(site, {"multiply": step}, memory=MemoryStore(tmp_path, Memory), seed=1)
    host.answer("multiply", 1, b"not an ask")
    host.answer("multiply", 1, b"not an ask")
    if not noisy:
        assert slept == []
    else:
        assert slept == pytest.approx([1.3, 1.5] if every else [0.0, 0.0])


def test_the_distance_of_a_large_array_is_measured_in_blocks() -> None:
    before = {"table": np.zeros((1_500, 4_000), np.float32), "bias": np.zeros((), np.float32)}
    weights = {"table": before["table"] + np.float32(1e-3), "bias": np.float32(1.0)[...]}
    far = np.sqrt(1 + 6e6 * np.float64(np.float32(1e-3)) ** 2)
    tracemalloc.start()
    assert near(weights, before, far * (1 + 1e-9)) is weights
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert near(weights, before, far * (1 - 1e-9)) is not weights
    assert most < 2 * weights["table"].nbytes
