"""Checkpoints: whole or not at all, never changed unnoticed, and no more of them than needed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.errors import CheckpointError
from confide.federation.memory import Checkpoint, CheckpointStore, as_array
from confide.federation.messages import encode
from federation.toys import Said


def checkpoint(round: int, size: int = 100) -> Checkpoint:
    state = as_array(bytes(round % 256 for _ in range(size)))
    return Checkpoint(round, state, "binding", "{}", 10 * round)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_was_saved_is_loaded(store: CheckpointStore) -> None:
    store.save(checkpoint(1), best=1)
    back = store.load(1)
    assert (back.round, back.binding, back.ledger) == (1, "binding", 10)
    assert np.array_equal(back.state, checkpoint(1).state)


def test_nothing_is_there_before_the_first(store: CheckpointStore) -> None:
    assert store.rounds() == []
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        store.load(1)


def test_the_last_two_and_the_best_are_kept(store: CheckpointStore) -> None:
    for round in range(1, 11):
        store.save(checkpoint(round), best=min(round, 3))
    assert store.rounds() == [3, 9, 10]
    assert store.load(3).round == 3


def test_what_a_killed_run_did_not_forget_is_forgotten_later(store: CheckpointStore) -> None:
    for round in (1, 2, 3, 4):
        store.save(checkpoint(round), best=round)
    store.path(1).write_bytes(b"left over")
    store.prune(4, best=4)
    assert store.rounds() == [3, 4]


def test_every_changed_byte_is_noticed(store: CheckpointStore) -> None:
    store.save(checkpoint(1, 20), best=1)
    good = store.path(1).read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1
        store.path(1).write_bytes(bytes(bad))
        with pytest.raises(CheckpointError, match="damaged or was changed"):
            store.load(1)


@each("length", [0, 5, 21, 60, 86, 200, -1])
def test_a_truncated_file_is_refused(store: CheckpointStore, length: int) -> None:
    store.save(checkpoint(1), best=1)
    store.path(1).write_bytes(store.path(1).read_bytes()[:length])
    with pytest.raises(
        CheckpointError, match=r"damaged or was changed.*delete the file to continue"
    ):
        store.load(1)


def test_another_message_under_a_right_digest_is_refused(store: CheckpointStore) -> None:
    import hashlib

    data = encode(Said([], 0))
    digest = hashlib.sha256(data).hexdigest().encode()
    store.folder.mkdir()
    store.path(1).write_bytes(b"confide checkpoint 1\n" + digest + b"\n" + data)
    with pytest.raises(CheckpointError, match="another version of confide"):
        store.load(1)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_last_good_one(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.save(checkpoint(1), best=1)
    before = store.path(1).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os if call == "fsync" else Path, call, full)
        for round in (1, 2):
            with pytest.raises(CheckpointError, match=r"No space left.*that of round 1 is safe"):
                store.save(checkpoint(round), best=1)
    assert store.rounds() == [1]
    assert store.path(1).read_bytes() == before
    assert [path.name for path in store.folder.iterdir()] == ["round-000001.ckpt"]
    store.save(checkpoint(2), best=1)
    assert store.rounds() == [1, 2]


def test_nothing_is_called_safe_that_is_not_there(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left") as raised:
        store.save(checkpoint(1), best=1)
    assert "is safe" not in str(raised.value)


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from confide.errors import CheckpointError
from confide.federation.memory import Checkpoint, CheckpointStore, as_array
store = CheckpointStore(Path(sys.argv[1]))
store.save(Checkpoint(1, as_array(bytes(1000)), "b", "{}", 0), best=1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    store.save(Checkpoint(2, as_array(bytes(1_000_000)), "b", "{}", 0), best=1)
except CheckpointError as error:
    print(store.rounds(), store.load(1).round, sorted(p.name for p in store.folder.iterdir()))
    print(error)
"""


def test_a_disk_that_really_takes_no_more(tmp_path: Path) -> None:
    """The system itself refuses the write half way: files may not grow beyond 50 kB."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path / "checkpoints")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.startswith("[1] 1 ['round-000001.ckpt']"), done.stderr
    assert "that of round 1 is safe" in done.stdout
