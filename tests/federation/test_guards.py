"""Guards: what is not finite, not of its shape or absurd is refused; by field, never by value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from confide.errors import GuardError
from confide.federation.guards import MOST, check_reply
from confide.federation.steps import Step
from federation.toys import MULTIPLY, Ask, Reply, Said, ask, multiply

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


@pytest.mark.parametrize(
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
        ({"weights": {"a": A}}, "weights has other arrays than weights: b"),
        (changed("c", A), "weights has other arrays than weights: c"),
        (changed("a", A[:-1]), r"weights/a has another shape; expected \(5,\); got \(4,\)"),
        (changed("a", A[None]), "weights/a has another shape"),
        (changed("a", A.astype(np.float64)), "another type of number; expected float32"),
        (changed("a", A.astype(np.int8)), "another type of number"),
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

    step = Step.of(multiply, summed=True, like=MULTIPLY.like, check=refuse)
    with pytest.raises(GuardError, match="a count of 1"):
        check_reply(step, ASK, reply())
    with pytest.raises(GuardError, match="not finite"):
        check_reply(step, ASK, reply(loss=float("nan")))
