"""Kills runs: `python -m contract.killing SETTINGS.json` in a process of its own.

Every run is a forked child that dies by SIGKILL: at an event, in the middle of writing a file, or
after some time. Then another child resumes it, which may be killed as well, until one comes
through. Forking spares each child the seconds that torch takes to be imported.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confide import files
from confide.federation import memory
from confide.federation import memory as checkpoints
from confide.runs.run import run
from confide.settings import Settings

Kill = dict[str, Any]
"""{"event": n}, {"write": n, "at": "half" | "before" | "after"}, {"seconds": s}, or {} for none."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_event(number: int) -> Callable[[Any], None]:
    """A watcher that dies at the n-th event."""
    seen = iter(range(number, -1, -1))
    return lambda event: die() if next(seen, 1) == 0 else None


def at_write(number: int, stage: str) -> None:
    """Die in the n-th file that is written: half way, before its renaming or right after it."""
    left = [number]
    real_replace = Path.replace

    def replace(path: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] != 0:
            return real_replace(path, target)
        if stage == "half":
            os.truncate(path, path.stat().st_size // 2)
        if stage == "after":
            real_replace(path, target)
        die()
        raise AssertionError("still alive")

    Path.replace = replace  # type: ignore[method-assign, assignment]
    assert checkpoints.write_atomically is memory.write_atomically is files.write_atomically


def attempt(settings: Settings, out: Path, kill: Kill) -> bool:
    """One life: a forked child that begins or resumes the run. Whether it came through."""
    child = os.fork()
    if child == 0:
        try:
            watch = at_event(kill["event"]) if "event" in kill else None
            if "write" in kill:
                at_write(kill["write"], kill["at"])
            run(settings, out=out, resume=(out / "settings.toml").exists(), on_event=watch)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    if "seconds" in kill:
        time.sleep(kill["seconds"])
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit(f"{out.name}: {kill}: the run failed")
    return os.WIFEXITED(status)


def kills(
    draw: random.Random, count: int, *, events: int, writes: int, seconds: float
) -> list[Kill]:
    """Kills of every kind, spread over a whole run."""
    found: list[Kill] = []
    for number in range(count):
        kind = number % 3
        if kind == 0:
            found.append({"event": draw.randrange(1, events)})
        elif kind == 1:
            stage = ["half", "before", "after"][number // 3 % 3]
            found.append({"write": draw.randint(1, writes), "at": stage})
        else:
            found.append({"seconds": draw.uniform(0.05, 1.0) * seconds})
    return found


def main(task: Path) -> None:
    """Run straight once, then kill and resume; the folders are compared by who called."""
    asked = json.loads(task.read_text())
    settings, folder = Settings.model_validate(asked["settings"]), Path(asked["folder"])
    import torch

    torch.set_num_threads(1)
    start = time.perf_counter()
    attempt(settings, folder / "straight", {})
    seconds = time.perf_counter() - start
    draw = random.Random(asked["seed"])
    planned = kills(draw, asked["count"], events=asked["events"], writes=asked["writes"],
                    seconds=seconds)  # fmt: skip
    done = []
    for number, kill in enumerate(planned):
        lives = [kill, *(draw.choice(planned) for _ in range(number % 2)), {}]
        survived = [attempt(settings, folder / f"killed-{number:03d}", life) for life in lives]
        done.append({"lives": lives, "survived": survived})
    (folder / "done.json").write_text(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
