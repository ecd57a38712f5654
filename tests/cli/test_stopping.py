"""Verbs as processes of their own: SIGTERM, full and read-only disks, two at once, odd clocks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from confide import api
from confide.cli.screen import AGAIN, TERMINATED
from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.settings import dump
from contract.corpus import tiny
from contract.runs import same_run
from flare.waiting import until

DISK = """
import errno, os, resource, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir": 0, "os.remove": 0, "os.rename": 1, "os.rmdir": 0, "os.chmod": 0}

def refuse(event, given):
    if event == "open" and isinstance(given[2], int) and given[2] & WRITES:
        path = given[0]
    elif event in CHANGES:
        path = given[CHANGES[event]]
    else:
        return
    if isinstance(path, (str, bytes)) and os.path.abspath(os.fsdecode(path)).startswith(place):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

if place := os.environ.get("TEST_READ_ONLY"):
    sys.addaudithook(refuse)
if most := os.environ.get("TEST_MOST_BYTES"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))
"""
"""A sitecustomize: a process that writes nothing below a folder, or no file above a size."""


class Verbs:
    """Runs verbs as processes of their own, over disks that take no more."""

    def __init__(self, hook: Path) -> None:
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(DISK)
        self._path = os.pathsep.join([str(hook), *sys.path])

    def start(self, *words: object, **own: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "confide", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": self._path, **own},
        )

    def __call__(self, *words: object, **own: str) -> tuple[int, str, str]:
        """The exit code and the words on both streams."""
        process = self.start(*words, **own)
        shown, said = process.communicate(timeout=240)
        return process.returncode, shown, said

    def terminated(self, process: subprocess.Popen[str], ready: Callable[[], object]) -> str:
        """What a verb says that gets SIGTERM once it is ready."""
        until(lambda: process.poll() is not None or ready())
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == TERMINATED, said
        assert "Traceback" not in said
        return said


@pytest.fixture
def verbs(tmp_path: Path) -> Verbs:
    return Verbs(tmp_path / "hook")


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --- SIGTERM ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_is_terminated_resumes_to_the_same_numbers(
    tmp_path: Path, verbs: Verbs, workers: int
) -> None:
    """As a service manager or a container ends it. It ended with -15 and without a word."""
    longer = ("name=same", "rounds=40", "training.local_epochs=3", f"workers={workers}")
    settings, out = tiny(tmp_path, *longer), tmp_path / "run"
    (tmp_path / "settings.toml").write_text(dump(settings))
    words = ("run", tmp_path / "settings.toml", "--out", out, "--quiet")
    said = verbs.terminated(verbs.start(*words), lambda: list(out.glob("checkpoints/*.ckpt")))
    assert said.strip() == (
        "stopped; repeat the command with --resume to continue from the last checkpoint"
    )
    code, _, said = verbs(*words, "--resume")
    assert code == 0, said
    same_run(run(settings, out=tmp_path / "straight").folder, out)


@pytest.mark.slow
def test_sigterm_at_any_moment_ends_with_one_sentence(
    tmp_path: Path, verbs: Verbs, small_demo: Path
) -> None:
    """Also while the interpreter still imports: nothing half written stays, and no trace is told."""
    text, out = small_demo / "corpus" / "oncology" / "test.jsonl", tmp_path / "found.jsonl"
    text = next((small_demo / "corpus" / "oncology").glob("test*"))
    words = ("predict", small_demo / "federated", *[text] * 20, "--out", out)
    begun = time.monotonic()
    assert verbs(*words)[0] == 0
    whole, seconds = out.read_bytes(), time.monotonic() - begun
    for part in range(1, 8):
        out.unlink(missing_ok=True)
        process = verbs.start(*words)
        time.sleep(0.15 + part / 8 * seconds)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        if process.returncode == 0:  # it was done
            assert out.read_bytes() == whole
            continue
        assert process.returncode == TERMINATED, said
        assert said.strip().endswith(AGAIN)
        assert "Traceback" not in said
        assert not [path for path in tmp_path.iterdir() if "found" in path.name]


@pytest.mark.slow
def test_a_server_of_pages_that_is_terminated_says_so_and_keeps_corrections(
    tmp_path: Path, verbs: Verbs, small_demo: Path
) -> None:
    pytest.importorskip("starlette", reason="needs the extra confide[serve]")
    text = tmp_path / "note.txt"
    text.write_text("Rash after varelozil.")
    words = ("serve", "--at", "127.0.0.1:0", "--corrections", tmp_path / "kept", "--text", text)
    process = verbs.start(*words, small_demo / "federated")
    assert process.stderr is not None
    assert "serving at" in process.stderr.readline()
    said = verbs.terminated(process, lambda: True)
    assert AGAIN in said
