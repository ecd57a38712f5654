"""One site of nine lies, under sums that nobody can open: F1 of all, with and without groups.

    python benchmarks/security/attacks/grouped.py --out runs/attacks [--only CELL]... \
        [--seed N] [--skewed]

A cell is ATTACK/COLUMN, "honest/groups" say. `largest` is, round by round, the largest norm of a
group's mean change, as a multiple of the median of the groups'. Finished cells are in
OUT/grouped.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from lying import LIES, dealt, read_conll, written

import confide.runs.run
from confide.errors import ConfideError
from confide.federation.combining import TOO_FAR, Pile
from confide.federation.engines import SequentialEngine
from confide.federation.failures import Failure
from confide.federation.messages import decode, encode, peek
from confide.federation.secure.messages import Masked
from confide.federation.steps import Delivery
from confide.runs.result import Result
from confide.runs.run import run
from confide.settings import Settings, parse

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure

SITES, EACH, LIAR = 9, 300, "site-5"
SKEWED = (900, 60, 120, 600, 80, 160, 400, 120, 200)
"""Sentences of nine sites whose groups are as unlike as can be: 1,900, 260 and 480."""
NOISE = "any-lanes"
"""Random lanes in place of the site's numbers: code that checks nothing."""
ATTACKS = ("honest", "change-times-minus-10", "change-times-minus-4", "random-weights", NOISE)
COLUMNS: dict[str, dict[str, Any]] = {
    "mean": {},
    "mean-roll-back": {"roll_back": 0.05},
    "groups": {"groups": 3, "combine": "median", "colluding": 1, "max_norm_ratio": math.inf},
    "groups-norm": {"groups": 3, "combine": "median", "colluding": 1},
    "groups-norm-clipped": {"groups": 3, "combine": "clipped", "colluding": 1},
}
NORMS: list[list[float]] = []
"""Of the run that goes on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="CELL")
    parser.add_argument("--exact", action="append", default=[], metavar="CELL")
    parser.add_argument("--skewed", action="store_true", help="sites of 60 to 900 sentences")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    heed_norms()
    how = {"seed": given.seed, "rounds": given.rounds} | ({"skewed": True} if given.skewed else {})
    cells = (
        {"attack": attack, "column": column, **how}
        for attack in ATTACKS
        for column in COLUMNS
        if is_chosen(f"{attack}/{column}", given)
    )
    kept = given.out / "grouped.jsonl"
    measure(cells, kept, lambda cell: measured(given, cell["attack"], cell["column"]))


def is_chosen(cell: str, given: argparse.Namespace) -> bool:
    chosen = any(part in cell for part in given.only) or cell in given.exact
    return chosen or not (given.only or given.exact)


def measured(given: argparse.Namespace, attack: str, column: str) -> dict[str, Any]:
    """One attack on one way to combine."""
    folder = given.out / "grouped"
    shutil.rmtree(folder, ignore_errors=True)
    start = time.time()
    confide.runs.run.SequentialEngine = engine_with(attack)  # type: ignore[misc]
    NORMS.clear()
    try:
        done = run(settings_of(given, column, folder / "data"), out=folder / "run")
        line = told(done.result)
    except ConfideError as error:  # the server ends a run whose state no site could train from
        line = {"f1": None, "ended": error.what}
    if NORMS:
        line["largest"] = [round(max(one) / float(np.median(one)), 2) for one in NORMS]
    line["seconds"] = round(time.time() - start, 1)
    return line


def told(result: Result) -> dict[str, Any]:
    """F1 in percent on test text, and on development text of the last round."""
    dev = result.history[-1].dev or {}
    faults = [one for turn in result.history for one in turn.faults]
    return {
        "f1": 100 * result.scores.overall["strict"]["f1"],
        "dev": 100 * (dev.get("strict") or 0.0),
        "undone": sum(bool((turn.model_extra or {}).get("rolled_back")) for turn in result.history),
        "too_far": sum(one.code == TOO_FAR for one in faults),
    }


def heed_norms() -> None:
    """Note the norms of the groups' mean changes, round by round."""
    real = Pile.leave_out

    def leave_out(pile: Pile) -> dict[str, tuple[str, str]]:
        NORMS.append([one.norm for one in pile._kept.values()])
        return real(pile)

    Pile.leave_out = leave_out  # type: ignore[method-assign]


def engine_with(attack: str) -> type[SequentialEngine]:
    """The engine of one machine, one site of which lies."""

    class Lying(SequentialEngine):
        def __init__(self, specs: Any, hosting: Any) -> None:
            super().__init__(specs, hosting)
            lie, host = LIES.get(attack), self._hosts[LIAR]
            if lie is None:
                return
            step = host._steps["train"]

            def lying(site: Any, memory: Any, ask: Any, turn: Any) -> Any:
                reply, after = step.answer(site, memory, ask, turn)
                before = {name: step.learnt.begun(ask, reply, name) for name in reply.weights}
                told = lie(before, reply.weights, turn.round)
                for name, seen_V in reply.seen.items():
                    told[name] = told[name] * (seen_V[:, None] > 0)
                return dataclasses.replace(reply, weights=told), after

            host._steps = {**host._steps, "train": dataclasses.replace(step, answer=lying)}

        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            for found in super().deliver(step, round, asks=asks, timeout=timeout):
                is_it = attack == NOISE and step == "mask" and found.site == LIAR
                if not is_it or peek(found.reply).message == Failure.__name__:
                    yield found
                    continue
                lanes_B = decode(Masked, found.reply).lanes_B.copy()
                wide = 64 * 8  # numbers such as the weight stay as they are
                draws = np.random.default_rng(round)
                lanes_B[wide:] = draws.integers(0, 256, len(lanes_B) - wide, dtype=np.uint8)
                yield Delivery(found.site, encode(Masked(lanes_B)), found.seconds)

    return Lying


def settings_of(given: argparse.Namespace, column: str, folder: Path) -> Settings:
    corpus = Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner"
    train = dealt(read_conll(str(corpus / "train.tsv")), SITES, each=EACH, seed=given.seed)
    if given.skewed:
        every = [sentence for some in train for sentence in some]
        ends = np.cumsum(SKEWED).tolist()
        train = [every[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    test = read_conll(str(corpus / "test.tsv"))
    dev = read_conll(str(corpus / "devel.tsv"))
    tables = []
    for place in range(SITES):
        name = f"site-{place + 1}"
        parts = {
            "train": train[place],
            "dev": dev[place * 20 : place * 20 + 20],
            "test": dev[-1:] if name == LIAR else test[place::SITES],
        }
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, sentences in parts.items():
            (folder / name / f"{part}.conll").write_text(written(sentences), encoding="utf-8")
        tables.append({"name": name} | {p: str(folder / name / f"{p}.conll") for p in parts})
    tree = {
        "name": "attacks-grouped",
        "method": "fedavg",
        "key": "simulated",
        "seed": given.seed,
        "rounds": given.rounds,
        "data": {"format": "conll", "scheme": "iob2"},
        "site": tables,
        "select": {"by": "last", "every": 1 if "roll_back" in COLUMNS[column] else given.rounds},
        "federation": {"sums": "masked", "at_least": 3, **COLUMNS[column]},
        "training": {
            "optimiser": "adam", "learning_rate": 0.008, "decay": 0.96, "batch_size": 16,
            "local_epochs": 1,
        },
    }  # fmt: skip
    return parse(tree)


if __name__ == "__main__":
    sys.exit(main())
