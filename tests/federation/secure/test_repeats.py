"""One set for one sum: in another round, run or process, and of two that race only one wins."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.federation.failures import Refusal
from confide.federation.secure.site import Sets, SumTurn
from federation.secure.plays import named

FIVE = named(5)
TURN = SumTurn("run", 3, "train", b"ask")


def allowed(folder: Path, turn: SumTurn, names: list[str]) -> bool:
    """Whether a process that starts now may help to sum this set."""
    try:
        Sets(folder).claim(turn, names)
    except Refusal as error:
        assert error.code == "other-set"
        return False
    return True


def test_the_same_set_of_the_same_turn_may_be_claimed_again(tmp_path: Path) -> None:
    for _ in range(3):
        assert allowed(tmp_path / "sums", TURN, FIVE)
        assert allowed(tmp_path / "sums", TURN, FIVE)


def test_a_run_whose_set_has_shrunk_gets_the_sums_again_that_it_had_before_and_no_others(
    tmp_path: Path,
) -> None:
    earlier, later = TURN._replace(round=2, ask=b"earlier"), TURN
    assert allowed(tmp_path, earlier, FIVE)
    assert allowed(tmp_path, earlier._replace(round=1), FIVE)
    assert allowed(tmp_path, later, FIVE[1:])
    assert allowed(tmp_path, earlier, FIVE)
    assert not allowed(tmp_path, earlier, FIVE[1:])
    for other in ({"step": "score"}, {"ask": b"new"}, {"round": 4}, {"run": "other", "ask": b"x"}):
        known = other.get("run") is not None
        assert allowed(tmp_path, earlier._replace(**other), FIVE) == known
    assert not allowed(tmp_path, later, FIVE)


@each("second", [FIVE[:4], FIVE[1:], [*FIVE, "site-06"], FIVE[:1]])
def test_another_set_of_the_same_turn_is_refused(second: list[str], tmp_path: Path) -> None:
    assert allowed(tmp_path, TURN, FIVE)
    assert not allowed(tmp_path, TURN, second)
    assert not allowed(tmp_path, TURN._replace(ask=b"other"), second)


@each("elsewhere", [TURN._replace(run="other"), TURN._replace(run="other", round=1)])
def test_the_same_ask_for_another_set_is_refused_in_every_run(
    elsewhere: SumTurn, tmp_path: Path
) -> None:
    """The difference of the two sums would be one site's reply."""
    assert allowed(tmp_path, TURN, FIVE)
    assert not allowed(tmp_path, elsewhere, FIVE[:4])
    assert allowed(tmp_path, elsewhere, FIVE)


def test_the_same_ask_in_another_round_for_a_smaller_set_is_refused(tmp_path: Path) -> None:
    assert allowed(tmp_path, TURN, FIVE)
    assert not allowed(tmp_path, TURN._replace(round=4), FIVE[:4])


def test_in_a_run_sets_only_shrink(tmp_path: Path) -> None:
    assert allowed(tmp_path, TURN, FIVE[:4])
    assert allowed(tmp_path, TURN._replace(round=4, ask=b"4"), FIVE[:3])
    assert not allowed(tmp_path, TURN._replace(round=5, ask=b"5"), FIVE[:4])
    assert not allowed(tmp_path, TURN._replace(round=5, ask=b"6"), [*FIVE[:2], "site-05"])
    assert allowed(tmp_path, TURN._replace(round=5, ask=b"7"), FIVE[:3])
    assert allowed(tmp_path, TURN._replace(round=5, ask=b"8", step="score"), FIVE[1:3])
    assert allowed(tmp_path, SumTurn("other", 1, "train", b"9"), FIVE)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 2),
            st.sets(st.integers(0, 3), min_size=1),
        ),
        max_size=14,
    )
)  # fmt: skip
def test_whatever_is_claimed_no_two_sums_differ_exactly(claims: list[Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        kept: list[tuple[SumTurn, set[int]]] = []
        for run, round, step, ask, chosen in claims:
            turn = SumTurn(f"run-{run}", round, f"step-{step}", bytes([ask]))
            if allowed(Path(folder), turn, [FIVE[k] for k in sorted(chosen)]):
                for before, names in kept:
                    if before[:3] == turn[:3] or before[2:4] == turn[2:4]:
                        assert names == chosen
                    if before.run == turn.run and (turn, chosen) not in kept:
                        assert chosen <= names
                kept.append((turn, chosen))


@each("taken", ["_shrink", "_put"])
def test_without_what_is_written_down_another_set_would_pass(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = {"_shrink": lambda self, run, said: None, "_put": lambda self, names, said: True}
    monkeypatch.setattr(Sets, taken, fake[taken])
    assert allowed(tmp_path, TURN, FIVE[:4])
    assert allowed(tmp_path, TURN._replace(round=4, ask=b"4"), FIVE)
    if taken == "_put":
        assert allowed(tmp_path, TURN, FIVE)


def _race(folder: str, place: int, gate: Any, found: Any) -> None:
    gate.wait()
    found.put((place, allowed(Path(folder), TURN, FIVE if place % 2 else FIVE[:4])))


def test_of_processes_that_race_one_set_wins(tmp_path: Path) -> None:
    """Two processes of one site, started by a server that plays them against each other."""
    context = multiprocessing.get_context("fork")
    for turn in range(4):
        gate, found = context.Event(), context.Queue()
        runners = [
            context.Process(target=_race, args=(str(tmp_path / str(turn)), place, gate, found))
            for place in range(6)
        ]
        for one in runners:
            one.start()
        gate.set()
        results = dict(found.get(timeout=60) for _ in runners)
        for one in runners:
            one.join()
        won = {place % 2 for place, came in results.items() if came}
        assert len(won) <= 1
        later = [allowed(tmp_path / str(turn), TURN, names) for names in (FIVE[:4], FIVE)]
        assert sum(later) <= 1


def test_of_two_that_come_between_each_others_steps_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process claims just before this one's file is linked."""
    real = os.link

    def late(source: Any, target: Any) -> None:
        if not Path(target).exists():
            Path(target).write_text("\n".join(FIVE[:4]) + "\n")
        real(source, target)

    monkeypatch.setattr(os, "link", late)
    assert not allowed(tmp_path, TURN, FIVE)
    monkeypatch.undo()
    assert not allowed(tmp_path, TURN, FIVE)


def test_of_two_that_see_no_mark_the_later_one_does_not_take_the_other_set_for_its_own(
    tmp_path: Path,
) -> None:
    """The other process claims after this one has looked for marks, and before it looks further."""
    assert allowed(tmp_path, TURN, FIVE[:4])
    for path in [*tmp_path.glob("turn-*"), *tmp_path.glob("ask-*")]:
        path.unlink()
    assert not allowed(tmp_path, TURN, FIVE)
    assert allowed(tmp_path, TURN, FIVE[:4])


def test_the_files_of_a_set_are_flushed_to_disk_before_they_are_there_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flushing is what a claim takes its time for."""
    assert allowed(tmp_path, TURN, FIVE)
    real, there = os.fsync, []

    def flush(file: int) -> None:
        there.append(len(list(tmp_path.glob("[!.]*"))))
        real(file)

    monkeypatch.setattr(os, "fsync", flush)
    assert allowed(tmp_path, TURN._replace(round=TURN.round + 1, ask=b"another"), FIVE)
    assert there == [4] and len(list(tmp_path.glob("[!.]*"))) == 7


def test_files_are_the_owners_alone_and_nothing_is_left_over(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    assert allowed(folder, TURN, FIVE)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert len(files) == 4 and not any(one.name.startswith(".") for one in files)
    for one in files:
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
        assert one.read_text() == "\n".join(FIVE) + "\n"


def test_a_disk_that_fails_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*parts: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        Sets(tmp_path).claim(TURN, FIVE)


def test_a_turn_has_one_ask_where_it_is_fixed(tmp_path: Path) -> None:
    """In every process; another round, step or run has an ask of its own."""
    Sets(tmp_path).fix(TURN)
    Sets(tmp_path).fix(TURN)
    with pytest.raises(Refusal) as caught:
        Sets(tmp_path).fix(TURN._replace(ask=b"other"))
    assert caught.value.code == "second-ask"
    for elsewhere in ({"round": 4}, {"step": "attend"}, {"run": "other"}):
        Sets(tmp_path).fix(TURN._replace(ask=b"other", **elsewhere))


def test_what_was_fixed_is_known_once_its_sum_was_opened(tmp_path: Path) -> None:
    later = TURN._replace(round=TURN.round + 1)
    assert Sets(tmp_path).fixed(TURN) == ""
    Sets(tmp_path).fix(TURN)
    assert Sets(tmp_path).fixed(TURN) == ""
    Sets(tmp_path).claim(TURN, FIVE)
    assert Sets(tmp_path).fixed(TURN) == TURN.ask.hex()
    Sets(tmp_path).claim(later._replace(ask=b"other"), FIVE)
    assert Sets(tmp_path).fixed(later) == ""
