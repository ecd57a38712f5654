"""What numbers lose in lanes of two bytes, beside float16, on what sites really send.

    python benchmarks/secure/narrow.py gradients|steps|logits --out runs/narrow [--rounds N]

A plain run in float32, whose replies are kept; the sum of those of its last round is then taken
exactly, of the numbers in float16, and in lanes of two bytes with room for the largest number that
the settings allow. `off` is the root of the mean square of the error over that of the sum, over all
numbers that differ from zero; `lost` the share of these that are zero in the sum that was taken.

gradients   FedNER, one step a round: no number is larger than `training.clip`
steps       FedNER, six steps a round: no number is larger than Adam can go
logits      FedED, relations in GAD: no number is larger than `options.most`

Lines go to measured.jsonl. Needs $CONFIDE_DATA.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from run import note

import confide.runs.run
from confide.federation.changes import restored
from confide.federation.federation import Delivery
from confide.federation.inprocess import SequentialEngine
from confide.federation.messages import decode
from confide.learning.adam import LONGEST
from confide.methods.feded.steps import TRAIN_AND_PREDICT
from confide.methods.fedner.steps import HALF, IMPROVE

RUNS: dict[str, tuple[str, list[str], Any]] = {
    "gradients": ("fedner-cnn-lstm-crf", ["select.every=1000"], IMPROVE),
    "steps": ("fedner-cnn-lstm-crf", ["select.every=1000", "options.local_steps=6"], IMPROVE),
    "logits": (
        "feded-gad",
        ["split.sites=6", "federation.fraction=1", "options.wire_dtype=float32"],
        TRAIN_AND_PREDICT,
    ),
}
Heard = dict[str, tuple[Any, Any]]


def listening(step: Any, heard: Heard) -> type[SequentialEngine]:
    """The engine of one machine, that keeps the newest ask and reply of each site."""

    class Listening(SequentialEngine):
        def deliver(
            self, name: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            for found in super().deliver(name, round, asks=asks, timeout=timeout):
                if name == step.name:
                    ask = decode(step.ask, asks[found.site])
                    reply = restored(step, ask, decode(step.reply, found.reply))
                    heard[found.site] = ask, reply
                yield found

    return Listening


def numbers_of(what: str, heard: Heard) -> tuple[np.ndarray, float, float]:
    """By site what is summed, the largest number that may be sent, and the factor of float16.

    The numbers of sites (times their shares) are rows.
    """
    ask, _ = next(iter(heard.values()))
    if what == "logits":
        rows = [reply.said_SQ.ravel() / len(heard) for _, reply in heard.values()]
        return np.array(rows, np.float64), ask.most, 1.0 * len(heard)
    rows = [
        np.concatenate([reply.update[name].ravel() for name in sorted(reply.update)])
        for _, reply in heard.values()
    ]
    most = ask.how.clip
    if what == "steps":
        most = ask.how.learning_rate * ask.local_steps * LONGEST
    return np.array(rows, np.float64), most, HALF


def compare(summed: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """How far a sum is from the exact one."""
    there = exact != 0
    size = np.sqrt(np.mean(exact[there] ** 2))
    return {
        "off": float(np.sqrt(np.mean((summed - exact)[there] ** 2)) / size),
        "lost": float((summed[there] == 0).mean()),
    }


def main() -> None:
    """Run, and compare the sums of the last round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=list(RUNS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    recipe, overrides, step = RUNS[given.what]
    heard: Heard = {}
    confide.runs.run.SequentialEngine = listening(step, heard)  # type: ignore[misc]
    folder = given.out / given.what
    shutil.rmtree(folder, ignore_errors=True)
    overrides = [*overrides, f"rounds={given.rounds}", 'federation.sums="plain"', "workers=1"]
    confide.runs.run.run(recipe, overrides=overrides, out=folder)
    rows_KN, most, factor = numbers_of(given.what, heard)
    exact_N = rows_KN.sum(0)
    half_N = (rows_KN * factor).astype(np.float16).astype(np.float64).sum(0) / factor
    scale = (2**15 - 1 - len(rows_KN)) / most
    lanes_N = np.rint(rows_KN * scale).sum(0) / scale
    sys.argv = [arg for arg in sys.argv if arg not in ("--out", str(given.out))]
    note(
        what=f"narrow {given.what}", recipe=recipe, rounds=given.rounds, sites=len(rows_KN),
        numbers=int((exact_N != 0).sum()), most=most,
        float16=compare(half_N, exact_N), lanes=compare(lanes_N, exact_N),
    )  # fmt: skip


if __name__ == "__main__":
    main()
