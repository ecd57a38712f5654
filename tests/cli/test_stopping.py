"""Verbs as processes of their own: SIGTERM, full and read-only disks, two at once, odd clocks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from confide import api
from confide.cli.screen import AGAIN, TERMINATED
from confide.runs.card import OTHER_CARD
from confide.runs.folder import RunFolder
from confide.runs.loading import release_task
from confide.runs.run import run
from confide.settings import dump
from contract.corpus import tiny
from contract.runs import same_run
from flare.waiting import until

DISK = """
import errno, os, resource, signal, sys

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.mkdir": 0, "os.remove": 0, "os.rename": 1, "os.rmdir": 0, "os.chmod": 0}

def changed(place, event, given):
    if event == "open" and isinstance(given[2], int) and given[2] & WRITES:
        path = given[0]
    elif event in CHANGES:
        path = given[CHANGES[event]]
    else:
        return None
    below = isinstance(path, (str, bytes)) and os.path.abspath(os.fsdecode(path)).startswith(place)
    return path if below else None

def refuse(event, given):
    if path := changed(place, event, given):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

def die(event, given):
    if changed(below, event, given):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), 9)

def listen(number, handler, real=signal.signal):
    before = real(number, handler)
    if number == signal.SIGTERM:
        open(up, "w").close()
    return before

if up := os.environ.get("TEST_UP"):
    signal.signal = listen
if place := os.environ.get("TEST_READ_ONLY"):
    sys.addaudithook(refuse)
if below := os.environ.get("TEST_KILL_BELOW"):
    left = [int(os.environ["TEST_KILL_AT"])]
    sys.addaudithook(die)
if most := os.environ.get("TEST_MOST_BYTES"):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(most), int(most)))
"""
"""A sitecustomize: a process that writes nothing below a folder, or no file above a size, that
dies at its n-th change below a folder, or that makes a file once it hears SIGTERM."""


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
    """Also while modules are imported: nothing half written stays, and no trace is told."""
    out, up = tmp_path / "found.jsonl", tmp_path / "up"
    text = next((small_demo / "corpus" / "oncology").glob("test*"))
    words = ("predict", small_demo / "federated", *[text] * 20, "--out", out)
    begun = time.monotonic()
    assert verbs(*words)[0] == 0
    whole, seconds = out.read_bytes(), time.monotonic() - begun
    ended = 0
    for part in range(1, 8):
        for path in (out, up):
            path.unlink(missing_ok=True)
        process = verbs.start(*words, TEST_UP=str(up))
        until(up.exists)  # before it hears, Python itself ends
        time.sleep((part - 1) / 8 * seconds)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        if out.exists():  # it was done
            assert out.read_bytes() == whole
            continue
        ended += 1
        assert process.returncode == TERMINATED, said
        assert said.strip().endswith(AGAIN)
        assert "Traceback" not in said
        assert not [path for path in tmp_path.iterdir() if "found" in path.name]
    assert ended > 1


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


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "every"), [("release", 3), ("export", 9)])
def test_a_release_or_export_that_is_killed_is_made_by_the_same_command(
    tmp_path: Path, verbs: Verbs, demo_run: Callable[[Path], Path], verb: str, every: int
) -> None:
    """At its changes on disk: half a release is none, half an export has another name."""
    if verb == "export":
        pytest.importorskip("onnx", reason="needs the extra confide[export]")
    run, out = demo_run(tmp_path / "demo") / "federated", tmp_path / "out"
    out.mkdir()
    words = WRITING[verb](run, run, out)
    code, _, said = verbs(*words)
    assert code == 0, said
    whole = files_of(out / verb)
    for change in range(1, 200, every):
        shutil.rmtree(out)
        out.mkdir()
        code, _, said = verbs(*words, TEST_KILL_BELOW=str(out), TEST_KILL_AT=str(change))
        there = files_of(out / verb) if (out / verb).exists() else {}
        done = there.keys() == whole.keys()
        assert done or release_task(out / verb) is None
        assert done or verb == "release" or not there
        if code == 0:
            break
        assert code == -signal.SIGKILL, said
        if not done:
            code, _, said = verbs(*words)
            assert code == 0, said
        left = files_of(out).keys() - {f"{verb}/{name}" for name in whole}
        assert left <= {f"{verb}/{OTHER_CARD}"}  # a README that is there already is kept
    assert change > 1


# --- disks --------------------------------------------------------------------------------

WRITING = {
    "predict": lambda run, text, out: ("predict", run, text, "--out", out / "found.jsonl"),
    "folder": lambda run, text, out: ("predict", run, text, "--to", "brat", "--out", out / "brat"),
    "report": lambda run, text, out: ("report", run, "--out", out / "report.html"),
    "release": lambda run, text, out: ("release", run, "--out", out / "release"),
    "export": lambda run, text, out: ("export", run, "--to", "onnx", "--out", out / "export"),
    "init": lambda run, text, out: ("init", text, "--out", out / "confide.toml", "--no-map"),
    "convert": lambda run, text, out: (
        "data", "convert", text, "--to", "jsonl", "--out", out / "other.jsonl",
    ),
    "split": lambda run, text, out: ("data", "split", text, "--sites", "2", "--out", out / "split"),
    "demo": lambda run, text, out: ("demo", "--out", out / "demo"),
    "run": lambda run, text, out: (
        "run", run.parent / "corpus" / "settings.toml", "--set", "rounds=1", "--out", out / "run",
    ),
}  # fmt: skip
"""What writes below a folder `out`, of a run and a file of text."""


def refused(done: tuple[int, str, str]) -> None:
    """A verb ended in a message that says what, where and what to do."""
    code, _, said = done
    assert code == 2, said
    assert "Traceback" not in said
    assert "error: " in said and ("written" in said or "made" in said), said


@pytest.mark.slow
@pytest.mark.parametrize("verb", sorted(WRITING))
@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_a_disk_that_takes_no_more_is_said_and_leaves_nothing_by_half(
    tmp_path: Path, verbs: Verbs, demo_run: Callable[[Path], Path], verb: str, disk: str
) -> None:
    """`init`, `export`, `home` and `demo` showed pages of code, and left half of what they make."""
    if verb == "export":
        pytest.importorskip("onnx", reason="needs the extra confide[export]")
    demo, out = demo_run(tmp_path / "demo"), tmp_path / "out"
    out.mkdir()
    text = next((demo / "corpus" / "oncology").glob("test*"))
    words = WRITING[verb](demo / "federated", text, out)
    own = {"TEST_READ_ONLY": str(out)} if disk == "read-only" else {"TEST_MOST_BYTES": "200"}
    refused(verbs(*words, **own))
    whole = {path for path in out.rglob("*") if path.is_file() and path.stat().st_size > 200}
    assert not whole
    names = [path.name for path in out.rglob("*")]
    assert not [name for name in names if name.endswith((".new", ".tmp"))]
    if verb not in ("demo", "run"):  # the same command, once there is room
        code, _, said = verbs(*words)
        assert code == 0, said


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["personalise", "audit"])
@pytest.mark.parametrize("disk", ["full", "read-only"])
def test_a_disk_that_takes_no_more_leaves_a_run_that_can_be_used(
    tmp_path: Path, verbs: Verbs, demo_run: Callable[[Path], Path], verb: str, disk: str
) -> None:
    run = demo_run(tmp_path / "demo") / "federated"
    words = {
        "personalise": ("personalise", run, "--passes", "1", "--no-alone"),
        "audit": ("audit", run, "--most", "20"),
    }[verb]
    before = files_of(run)
    own = {"TEST_READ_ONLY": str(run)} if disk == "read-only" else {"TEST_MOST_BYTES": "200"}
    refused(verbs(*words, **own))
    assert files_of(run) == before
    code, _, said = verbs(*words)
    assert code == 0, said


@pytest.mark.slow
def test_a_result_that_no_disk_takes_is_said() -> None:
    """What goes to stdout is flushed when the command is nearly over: it was said by Python."""
    with open("/dev/full", "w") as full:
        process = subprocess.run(
            [sys.executable, "-m", "confide", "recipes"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert process.returncode == 2
    assert "No space left on device" in process.stderr and "Traceback" not in process.stderr
    gone, pipe = os.pipe()
    os.close(gone)  # whoever reads may stop reading
    process = subprocess.run(
        [sys.executable, "-m", "confide", "recipes"],
        stdout=pipe, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(pipe)
    assert "Traceback" not in process.stderr


# --- two at once --------------------------------------------------------------------------


@pytest.mark.slow
def test_two_runs_in_one_folder_are_one_run(tmp_path: Path, verbs: Verbs) -> None:
    settings, out = tiny(tmp_path, "name=same", "rounds=6"), tmp_path / "run"
    (tmp_path / "settings.toml").write_text(dump(settings))
    words = ("run", tmp_path / "settings.toml", "--out", out, "--quiet")
    both = [verbs.start(*words) for _ in range(2)]
    said = [one.communicate(timeout=240)[1] for one in both]
    codes = sorted(one.returncode for one in both)
    assert codes == [0, 2], said
    (loser,) = (words for one, words in zip(both, said, strict=True) if one.returncode)
    assert "under way" in loser or "already a run" in loser
    same_run(run(settings, out=tmp_path / "straight").folder, out)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["predict", "personalise"])
def test_two_at_once_leave_what_one_of_them_would(
    tmp_path: Path, verbs: Verbs, demo_run: Callable[[Path], Path], verb: str
) -> None:
    demo, out = demo_run(tmp_path / "demo"), tmp_path / "found.jsonl"
    text = next((demo / "corpus" / "oncology").glob("test*"))
    words = {
        "predict": ("predict", demo / "federated", text, "--out", out),
        "personalise": ("personalise", demo / "federated", "--passes", "1", "--no-alone"),
    }[verb]
    both = [verbs.start(*words) for _ in range(2)]
    said = [one.communicate(timeout=240)[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    if verb == "predict":
        assert len(out.read_text().splitlines()) == len(api.predict(demo / "federated", [text]))
        return
    folder = RunFolder(demo / "federated")
    for site in folder.result().data.sites:
        held = json.loads((folder.home(site) / "home.json").read_text())
        assert (held["kept"] == "federated") is not (
            folder.home(site) / "kept.safetensors"
        ).exists()
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith((".new", ".tmp"))]
