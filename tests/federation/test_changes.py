"""Of uploaded tables only changed rows travel; what is added up is the same bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import GuardError
from confide.federation.broadcast import Left, Up, Uploading
from confide.federation.memory import MemoryStore
from confide.federation.messages import Arrays, Learnt, carries, decode, encode
from confide.federation.quantising import drop_unchanged_rows, restore_reply
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.protocol import TrainConfig
from confide.methods.fedavg import TRAIN, Train, Update
from federation.toys import MULTIPLY


@dataclass(frozen=True)
class From:
    """What a site is asked with."""

    weights: Arrays = carries("weights")


@dataclass(frozen=True)
class To:
    """What it comes to."""

    weights: Arrays = carries(
        "weights", value=Learnt(like="weights", weight="times", weighting="any")
    )
    times: float = carries("a factor")


def go(site: Site, memory: None, ask: From, turn: Turn) -> tuple[To, None]:
    return To(ask.weights, 1.0), None


GO = Step.of(go, summed=True)
TABLE_64 = np.arange(24, dtype=np.float32).reshape(6, 4)
ASK = From({"bias": np.ones(3, np.float32), "table": TABLE_64})


def moved(*rows: int, times: float = 1.0) -> To:
    table = TABLE_64 * np.float32(times)
    table[list(rows)] += 1
    return To({"bias": np.full(3, 2, np.float32), "table": table}, times)


def travelled(ask: From, reply: To) -> To:
    return restore_reply(GO, ask, decode(To, encode(drop_unchanged_rows(GO, ask, reply))))


@each("times", [1.0, 3.0])
def test_rows_that_changed_travel_and_a_bit_for_each(times: float) -> None:
    reply = moved(1, 4, times=times)
    sent = drop_unchanged_rows(GO, ASK, reply).weights
    assert sent["table"].tolist() == reply.weights["table"][[1, 4]].tolist()
    assert np.unpackbits(sent["table?"]).tolist() == [0, 1, 0, 0, 1, 0, 0, 0]
    assert sent["bias"] is reply.weights["bias"]
    assert set(sent) == {"bias", "table", "table?"}
    found = travelled(ASK, reply).weights
    assert list(found) == ["bias", "table"]
    assert found["table"].tobytes() == reply.weights["table"].tobytes()
    assert found["table"] is not ASK.weights["table"]
    assert ASK.weights["table"].tolist() == np.arange(24.0).reshape(6, 4).tolist()


def test_a_table_that_changed_all_over_travels_as_it_is() -> None:
    reply = moved(0, 1, 2, 3, 4, 5)
    assert drop_unchanged_rows(GO, ASK, reply).weights == reply.weights
    assert travelled(ASK, reply).weights["table"].tobytes() == reply.weights["table"].tobytes()


def test_a_table_that_nothing_changed_travels_as_bits_only() -> None:
    sent = drop_unchanged_rows(GO, ASK, moved()).weights
    assert sent["table"].shape == (0, 4)
    assert travelled(ASK, moved()).weights["table"].tobytes() == TABLE_64.tobytes()


def test_zeros_of_another_sign_are_a_change() -> None:
    ask = From({"table": np.zeros((5, 4), np.float32)})
    table = np.zeros((5, 4), np.float32)
    table[2, 1] = -0.0
    found = travelled(ask, To({"table": table}, 1.0)).weights["table"]
    assert found.tobytes() == table.tobytes()


def uploaded(up: Up, folder: Path, *, seed: int) -> np.ndarray:
    """The mean of what a server makes of one change that a site uploads in 40 rounds."""
    site = Uploading(up, share=0.1, memory=MemoryStore(folder, Left))
    reply, total = moved(1, 4), np.zeros_like(TABLE_64)
    reply.weights["table"][2] += np.float32(0.3)
    for round in range(1, 41):
        sent, settle = site.sent(GO, ASK, reply, round=round, seed=seed * 100 + round)
        settle()
        total += restore_reply(GO, ASK, sent).weights["table"] - TABLE_64
    return total / 40


@each("up", ["int8", "int4"])
def test_fine_codes_are_rounded_by_chance_and_nothing_is_kept(up: Up, tmp_path: Path) -> None:
    one, other = (uploaded(up, tmp_path, seed=seed) for seed in (1, 2))
    assert one.tobytes() == uploaded(up, tmp_path, seed=1).tobytes() != other.tobytes()
    assert not list(tmp_path.iterdir())


@each("up", ["int2", "top"])
def test_what_coarse_codes_leave_out_is_kept_and_comes_later(up: Up, tmp_path: Path) -> None:
    one, other = (uploaded(up, tmp_path / str(seed), seed=seed) for seed in (1, 2))
    assert one.tobytes() == other.tobytes()
    np.testing.assert_allclose(one[[1, 4, 2]].mean(axis=1), [1, 1, 0.3], atol=0.1)


def test_a_step_without_a_start_sends_all() -> None:
    reply = moved(1)
    assert drop_unchanged_rows(MULTIPLY, ASK, reply) is reply
    assert restore_reply(MULTIPLY, ASK, reply) is reply


@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.data(),
)
def test_any_table_comes_back(count: int, width: int, kind: Any, data: st.DataObject) -> None:
    rows = data.draw(st.sets(st.integers(0, count - 1)))
    table = np.random.default_rng(count).normal(size=(count, width)).astype(kind)
    after = table.copy()
    after[sorted(rows)] *= np.asarray(-1, kind)
    ask, reply = From({"t": table}), To({"t": after}, 1.0)
    sent = decode(To, encode(drop_unchanged_rows(GO, ask, reply)))
    found = restore_reply(GO, ask, sent).weights["t"]
    assert found.dtype == after.dtype
    assert found.tobytes() == after.tobytes()
    assert sum(array.nbytes for array in sent.weights.values()) <= after.nbytes


BITS = np.packbits(np.array([1, 0, 0, 0, 0, 0], bool))
ROW = np.zeros((1, 4), np.float32)


@each(
    ("sent", "words"),
    [
        ({"table?": BITS}, "weights/table? belongs to no table"),
        ({"other": ROW, "other?": BITS}, "do not hold the same arrays: other"),
        ({"bias": ROW, "bias?": BITS}, "weights/bias is not a table"),
        ({"table": ROW, "table?": BITS.astype(np.int64)}, "table? does not hold one bit per row"),
        ({"table": ROW, "table?": np.zeros(2, np.uint8)}, "table? does not hold one bit per row"),
        ({"table": ROW, "table?": BITS | 1}, "table? names rows that are not there"),
        ({"table": TABLE_64[:2], "table?": BITS | 1}, "table? names rows that are not there"),
        ({"table": TABLE_64[:2], "table?": BITS}, "does not hold the rows that"),
        ({"table": TABLE_64[:1, :3], "table?": BITS}, "does not hold the rows that"),
        ({"table": np.zeros((), np.float32), "table?": BITS}, "does not hold the rows that"),
        ({"table": ROW.astype(np.float64), "table?": BITS}, "table has the wrong number type"),
    ],
)
def test_rows_that_do_not_fit_are_refused(sent: Arrays, words: str) -> None:
    with pytest.raises(GuardError) as caught:
        restore_reply(GO, ASK, To(sent, 1.0))
    assert words in caught.value.what


# --- FedAvg ---------------------------------------------------------------------------------


def trained(weight: float, seen_V: np.ndarray | None) -> tuple[Train, Update]:
    """Training that moved rows 1 and 2 of five, of which a site has rows 1, 2 and 3."""
    table = np.random.default_rng(1).normal(size=(5, 8)).astype(np.float32)
    config = TrainConfig(0.1, "adam", 0.9, 0.0, 5.0, 8, 1, 0.0, True, 0.0)
    tables = [] if seen_V is None else ["word.weight"]
    ask = Train({"word.weight": table}, config, "equal" if weight == 1 else "examples", tables)
    after = table.copy()
    after[1:3] += 0.5
    after *= np.float32(weight)
    seen = {}
    if seen_V is not None:
        after *= seen_V[:, None]
        seen = {"word.weight": seen_V * np.float32(weight)}
    return ask, Update({"word.weight": after}, weight, seen, 1.0, 9)


@each("weight", [1.0, 7.0])
@each("seen", [None, [0, 1, 1, 1, 0]])
def test_what_training_left_alone_stays_at_the_site(weight: float, seen: list[int] | None) -> None:
    ask, reply = trained(weight, None if seen is None else np.array(seen, np.float32))
    sent = decode(Update, encode(drop_unchanged_rows(TRAIN, ask, reply)))
    assert sent.weights["word.weight"].shape == (2, 8)
    found = restore_reply(TRAIN, ask, sent)
    assert found.weights["word.weight"].tobytes() == reply.weights["word.weight"].tobytes()


def test_seen_that_does_not_fit_is_refused_before_it_is_used() -> None:
    ask, reply = trained(1.0, np.array([0, 1, 1, 1, 0], np.float32))
    sent = drop_unchanged_rows(TRAIN, ask, reply)
    for odd in (np.ones(4, np.float32), np.ones((5, 8), np.float32), np.float32(1)):
        with pytest.raises(GuardError, match="seen must be 0 or the weight for each row"):
            restore_reply(TRAIN, ask, replace(sent, seen={"word.weight": np.asarray(odd)}))
