"""SIGKILL at any moment, then resume: the same numbers as a run that nobody killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from confide.runs.run import run
from confide.settings import Settings, dump
from contract.corpus import tiny
from contract.runs import differences, result, same_run, states
from flare.waiting import until


def counted(folder: Path, settings: Settings) -> tuple[int, int]:
    """How many events a run has, and how many files it writes atomically."""
    events: list[Any] = []
    writes: list[Path] = []
    real = Path.replace
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", lambda p, to: (writes.append(p), real(p, to))[1])
        run(settings, out=folder / "counted", on_event=events.append)
    return len(events), len(writes)


def same_numbers(one: Path, other: Path) -> None:
    """Both runs came to the same numbers and weights; sites that mask greet once more to resume."""
    found = [{**result(each), "bytes": None} for each in (one, other)]
    for each in found:
        each["history"] = [{**record, "bytes": None} for record in each["history"]]
    assert not list(differences(*found))
    assert not list(differences(states(one), states(other)))


def killed(
    folder: Path,
    root: Path,
    *overrides: str,
    count: int,
    seed: int,
    same: Callable[[Path, Path], None] = same_run,
    **tree: Any,
) -> list[Any]:
    """Kill that many runs and resume them; what happened to each."""
    settings = tiny(folder, *(overrides or ("rounds=3",)), **tree)
    events, writes = counted(folder, settings)
    task = folder / "task.json"
    plain = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    task.write_text(
        json.dumps(
            {"settings": plain, "folder": str(folder), "seed": seed, "count": count,
             "events": events, "writes": writes}
        )
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "contract.killing", str(task)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "tests"), *sys.path])},
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[Any] = json.loads((folder / "done.json").read_text())
    for number, one in enumerate(found):
        try:
            same(folder / "straight", folder / f"killed-{number:03d}")
        except AssertionError as error:
            raise AssertionError(f"killed {one['lives']}: {error}") from error
    return found


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path: Path, root: Path) -> None:
    """Nine runs: killed at events, in the middle of writing files, and by the clock."""
    found = killed(tmp_path, root, count=9, seed=1)
    died = [one for one in found if not one["survived"][0]]
    assert len(died) >= 6
    assert all(one["survived"][-1] for one in found)


@pytest.mark.slow
def test_sites_that_remember_between_checkpoints_resume_to_the_same_numbers(
    tmp_path: Path, root: Path
) -> None:
    """FedNER's private parts: written with every third round's checkpoint, played again after."""
    settings = ("method=fedner", "base=fedner", "rounds=8", "select.every=3")
    found = killed(tmp_path, root, *settings, count=6, seed=3)
    assert sum(not one["survived"][0] for one in found) >= 4
    assert all(one["survived"][-1] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "count"), [("fedavg", 3), ("fedner", 9)])
def test_a_run_killed_in_a_masked_sum_resumes_to_the_same_numbers(
    tmp_path: Path, root: Path, method: str, count: int
) -> None:
    """Keys and shares die with the process; the sum that was under way is made anew."""
    settings = (f"method={method}", "rounds=3", "federation.sums=masked")
    found = killed(tmp_path, root, *settings, count=count, seed=4, same=same_numbers)
    assert sum(not one["survived"][0] for one in found) >= count // 2
    assert all(one["survived"][-1] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "alone", "pooled", "fedner"])
def test_many_killed_runs_resume_to_the_same_numbers(
    tmp_path: Path, root: Path, method: str
) -> None:
    found = killed(tmp_path, root, count=30, seed=2, method=method)
    assert sum(not one["survived"][0] for one in found) > 20


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_was_set_changes_no_number_of_a_resumed_run(tmp_path: Path, days: int) -> None:
    """Every file is a day older than now, or lies a day ahead: the clock was set back meanwhile."""
    settings = tiny(tmp_path, "rounds=4")
    straight, out = tmp_path / "straight", tmp_path / "out"
    run(settings, out=straight)

    def stop(event: Any) -> None:
        if event.kind == "round" and event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(settings, out=out, on_event=stop)
    then = time.time() + 86_400 * days
    for path in (*out.rglob("*"), *(tmp_path / "data").rglob("*")):
        os.utime(path, (then, then))
    run(settings, out=out, resume=True)
    same_run(straight, out)


# --- the command line, with processes of its own ------------------------------------------


def command(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = ["run", str(folder / "settings.toml"), "--out", str(folder / "run"), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "confide", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell's background jobs ignore Ctrl-C, and so would this.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def living(mark: str) -> list[str]:
    """Processes whose environment holds the mark."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark in (process / "environ").read_text(errors="replace"):
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
@pytest.mark.parametrize("seed", range(3))
def test_the_command_line_is_killed_with_its_workers_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    settings = tiny(tmp_path, "name=same", "rounds=6", "workers=2")
    (tmp_path / "settings.toml").write_text(dump(settings))
    start = time.perf_counter()
    run(settings, out=tmp_path / "straight")
    seconds = time.perf_counter() - start
    mark = f"CONFIDE_TEST_MARK={tmp_path.name}-{seed}"
    monkeypatch.setenv(*mark.split("="))
    process = command(tmp_path)
    time.sleep(random.Random(seed).uniform(0.2, 1.2) * seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(  # or workers outlive the run that was killed
        lambda: not [one for one in living(mark) if one != str(os.getpid())],
        what=lambda: living(mark),
    )
    resume = ["--resume"] if (tmp_path / "run" / "settings.toml").exists() else []
    process = command(tmp_path, *resume)
    shown, _ = process.communicate()
    assert process.returncode == 0, shown
    same_run(tmp_path / "straight", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_a_run_that_resumes(tmp_path: Path, workers: int) -> None:
    longer = ("name=same", "rounds=40", "training.local_epochs=3", f"workers={workers}")
    settings = tiny(tmp_path, *longer)
    (tmp_path / "settings.toml").write_text(dump(settings))
    process = command(tmp_path)
    until(lambda: process.poll() is not None or list((tmp_path / "run").glob("checkpoints/*.ckpt")))
    process.send_signal(signal.SIGINT)
    shown, _ = process.communicate()
    assert process.returncode == 130, shown
    assert "--resume" in shown
    assert not any(word in shown for word in ("Traceback", "leaked", "Error"))
    done = command(tmp_path, "--resume")
    shown, _ = done.communicate()
    assert done.returncode == 0, shown
    same_run(run(settings, out=tmp_path / "straight").folder, tmp_path / "run")
