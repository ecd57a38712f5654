"""A site's memory: versions by turn, re-asks, rollback, and forgetting what no re-ask can need."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from confide.errors import MessageError
from confide.federation.memory import MemoryStore
from confide.federation.messages import carries
from federation.secure import summed
from federation.toys import Memory


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path / "memory", Memory)


def memory(turns: int) -> Memory:
    return Memory(turns, [turns])


def turn(store: MemoryStore, round: int, step: str) -> int:
    """One turn that adds one to the memory; gives what it found."""
    before = store.before(round, step)
    found = before.turns if before else 0
    store.commit(round, step, memory(found + 1))
    return found


def test_there_is_nothing_before_the_first_turn(store: MemoryStore) -> None:
    assert store.before(0, "start") is None
    assert store.latest() is None


def test_a_turn_finds_what_the_last_one_left(store: MemoryStore) -> None:
    assert [turn(store, *t) for t in [(0, "a"), (0, "b"), (1, "a"), (2, "a")]] == [0, 1, 2, 3]
    assert store.latest() == memory(4)


def test_memory_is_there_for_another_process(store: MemoryStore, tmp_path: Path) -> None:
    turn(store, 0, "a")
    assert MemoryStore(tmp_path / "memory", Memory).before(1, "a") == memory(1)


def test_a_step_asked_again_finds_what_it_found_before(store: MemoryStore) -> None:
    for name in "ab":
        turn(store, 0, name)
    assert turn(store, 1, "a") == 2
    assert turn(store, 1, "a") == 2
    assert turn(store, 1, "b") == 3
    assert turn(store, 1, "a") == 2  # and forgets what "b" made of it
    assert store.latest() == memory(3)


def test_a_server_that_resumes_from_an_earlier_round_finds_that_round(store: MemoryStore) -> None:
    for round in range(4):
        turn(store, round, "a")
    assert turn(store, 2, "a") == 2
    assert turn(store, 3, "a") == 3


def test_memory_goes_back_to_what_a_turn_left(store: MemoryStore) -> None:
    """Where that turn's reply is sent again; what later turns made of it is made again."""
    for one in [(0, "a"), (1, "a"), (1, "b"), (2, "a")]:
        turn(store, *one)
    assert not store.after(1, "c") and store.latest() == memory(4)
    assert store.after(1, "a") and store.latest() == memory(2)
    assert not store.after(1, "b")
    assert turn(store, 1, "b") == 2


def test_memory_as_of_a_turn_is_read_and_nothing_is_dropped(store: MemoryStore) -> None:
    """A sum that is opened again has the name that it had, and what it made is still there."""
    for one in [(0, "a"), (1, "a"), (1, "b")]:
        turn(store, *one)
    assert store.as_of(0, "a") is None
    assert store.as_of(1, "b") == memory(2)
    assert store.as_of(2, "a") == memory(3) == store.latest()


def test_memory_without_the_digests_of_asks_is_read(tmp_path: Path) -> None:
    """As it was written before memories held them."""

    @dataclass(frozen=True)
    class Kept:
        turns: int = carries("how often")

    MemoryStore(tmp_path, Kept).commit(0, "a", Kept(3))
    store = MemoryStore(tmp_path, summed.Kept)
    assert store.latest() == store.written() == summed.Kept(3)


def test_between_checkpoints_every_step_of_the_round_before_can_be_asked_again(
    tmp_path: Path,
) -> None:
    store = MemoryStore(tmp_path / "memory", Memory, every=10)
    assert [turn(store, *t) for t in [(1, "a"), (1, "b"), (1, "c"), (2, "a")]] == [0, 1, 2, 3]
    assert turn(store, 1, "b") == 1


def test_a_turn_that_changed_nothing_is_found_again_too(store: MemoryStore) -> None:
    turn(store, 0, "a")
    assert store.before(1, "look") == memory(1)
    store.unchanged(1, "look")
    turn(store, 1, "change")
    assert store.latest() == memory(2)
    assert store.before(1, "look") == memory(1)
    assert store.before(1, "change") == memory(1)


def test_a_mark_before_any_memory_is_nothing(store: MemoryStore) -> None:
    store.unchanged(0, "look")
    assert store.latest() is None
    turn(store, 0, "a")
    assert store.before(0, "look") is None


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from("abc"), st.booleans()),
        min_size=1,
        max_size=12,
        unique_by=lambda t: t[:2],
    ),
    st.data(),
)
def test_a_crash_anywhere_and_a_replay_come_to_the_same(
    turns: list[tuple[int, str, bool]], data: st.DataObject
) -> None:
    """The oracle is a plain list: what each turn found when nothing went wrong."""
    import tempfile

    turns = sorted(turns, key=lambda t: t[0])

    def play(store: MemoryStore, part: list[tuple[int, str, bool]]) -> list[int]:
        found = []
        for round, step, changes in part:
            before = store.before(round, step)
            found.append(before.turns if before else 0)
            if changes:
                store.commit(round, step, memory(found[-1] + 1))
            else:
                store.unchanged(round, step)
        return found

    straight, expected = 0, []
    for _, _, changes in turns:
        expected.append(straight)
        straight += changes
    stop = data.draw(st.integers(0, len(turns)))
    reached = turns[stop - 1][0] if stop else 0
    # The server goes on from the checkpoint of the round before, or before that.
    again = data.draw(st.integers(max(0, reached - 1), reached))
    start = next((n for n, t in enumerate(turns) if t[0] >= again), len(turns))
    with tempfile.TemporaryDirectory() as folder:
        assert play(MemoryStore(Path(folder), Memory), turns[:stop]) == expected[:stop]
        resumed = MemoryStore(Path(folder), Memory)
        if start < stop or start == stop:
            assert play(resumed, turns[start:]) == expected[start:]


@settings(max_examples=60)
@given(st.integers(2, 4), st.integers(1, 12), st.integers(0, 2), st.integers(0, 1))
def test_rounds_between_checkpoints_are_played_again_after_a_crash(
    every: int, reached: int, steps: int, behind: int
) -> None:
    """The process dies in round `reached` after `steps` of two steps; the server goes on from its
    last checkpoint, or from the one before where it died before it had written that one."""
    import tempfile

    def play(store: MemoryStore, since: int, until: int, cut: int = 2) -> list[int]:
        found = []
        for round in range(since, until + 1):
            before = store.before(round, "change")
            found.append(before.turns if before else 0)
            if round == until and cut == 0:
                return found
            store.commit(round, "change", memory(found[-1] + 1))
            store.before(round, "look")
            if round < until or cut == 2:
                store.unchanged(round, "look")
        return found

    finished = reached if steps == 2 else reached - 1
    checkpoint = finished // every * every
    if behind and checkpoint == reached:
        checkpoint = max(0, checkpoint - every)
    with tempfile.TemporaryDirectory() as folder:
        play(MemoryStore(Path(folder), Memory, every=every), 0, reached, steps)
        resumed = MemoryStore(Path(folder), Memory, every=every)
        assert play(resumed, checkpoint + 1, reached + 3) == list(
            range(checkpoint + 1, reached + 4)
        )


def test_rounds_between_checkpoints_write_nothing(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path / "memory", Memory, every=10, last=25)
    seen = {}
    for round in range(26):
        turn(store, round, "a")
        seen[round] = sorted(path.name for path in (tmp_path / "memory").iterdir())
    assert len(seen[0]) == len(seen[9]) == 1
    assert [name[9:21] for name in seen[24]] == ["round-000010", "round-000020"]
    assert seen[25][-1].split(".")[1] == "round-000025"  # the last round is always written
    assert MemoryStore(tmp_path / "memory", Memory, every=10).latest() == memory(26)


def test_old_versions_are_forgotten_but_for_what_a_resume_needs(
    store: MemoryStore, tmp_path: Path
) -> None:
    for round in range(50):
        turn(store, round, "a")
        store.unchanged(round, "look")
    assert len(list((tmp_path / "memory").iterdir())) <= 7
    assert store.before(49, "a") == memory(49)
    assert store.before(48, "a") == memory(48)


def test_memory_that_never_changes_again_is_kept(store: MemoryStore, tmp_path: Path) -> None:
    turn(store, 0, "vocabulary")
    for round in range(1, 20):
        assert store.before(round, "train") == memory(1)
        store.unchanged(round, "train")
    assert len(list((tmp_path / "memory").iterdir())) <= 4


def test_a_full_disk_leaves_the_last_good_version(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn(store, 0, "a")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            store.commit(1, "a", memory(2))
    assert store.latest() == memory(1)
    assert turn(store, 1, "a") == 1


def test_what_a_killed_process_left_half_written_is_ignored(
    store: MemoryStore, tmp_path: Path
) -> None:
    turn(store, 0, "a")
    (tmp_path / "memory" / "00000002.round-000001.a.memory.tmp").write_bytes(b"half")
    (tmp_path / "memory" / "notes.txt").write_text("of the site's owner")
    assert store.latest() == memory(1)


def test_damaged_memory_is_an_error_in_words(store: MemoryStore, tmp_path: Path) -> None:
    turn(store, 0, "a")
    next((tmp_path / "memory").iterdir()).write_bytes(b"not memory")
    with pytest.raises(MessageError, match="not a confide message"):
        MemoryStore(tmp_path / "memory", Memory).before(1, "a")
