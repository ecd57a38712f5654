"""One site of five lies: F1 of the honest four, for each attack and each way to combine.

    python benchmarks/security/attacks/run.py --out runs/attacks [--only CELL]... [--seed N]

A cell is ATTACK/COMBINE, "honest/mean" say; `--only` takes parts of it ("honest", "/median").
Finished cells are in OUT/measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from lying import LIES, TEXTS, dealt, engine_with, read_conll, written

import confide.runs.run
from confide.errors import ConfideError
from confide.runs.result import Result
from confide.settings import parse

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure

SITES, EACH, LIAR = 5, 300, "site-5"
ATTACKS = ("honest", "without-the-fifth", *LIES, *TEXTS)
COMBINES: dict[str, dict[str, Any]] = {
    "before": {"max_norm_ratio": math.inf},
    "mean": {},
    "trimmed": {"combine": "trimmed"},
    "median": {"combine": "median"},
    "clipped": {"combine": "clipped"},
    "trimmed-alone": {"combine": "trimmed", "max_norm_ratio": math.inf},
    "median-alone": {"combine": "median", "max_norm_ratio": math.inf},
    "clipped-alone": {"combine": "clipped", "max_norm_ratio": math.inf},
}
FIRST = ("honest", "change-times-minus-10", "random-weights", "1e30", "without-the-fifth")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[], metavar="CELL")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", choices=("all", "seen"), default="seen")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    given.out.mkdir(parents=True, exist_ok=True)
    named = (
        {"attack": attack, "combine": combine, "seed": given.seed, "rows": given.rows,
         "rounds": given.rounds, "overrides": given.overrides}
        for attack, combine in cells(given.only)
    )  # fmt: skip
    kept = given.out / "measured.jsonl"
    measure(named, kept, lambda cell: measured(given, cell["attack"], cell["combine"]))


def cells(only: list[str]) -> list[tuple[str, str]]:
    """The most telling first."""
    order = [*FIRST, *(attack for attack in ATTACKS if attack not in FIRST)]
    named = [(attack, combine) for attack in order for combine in COMBINES]
    return [
        (attack, combine)
        for attack, combine in named
        if not only or any(part in f"{attack}/{combine}" for part in only)
    ]


def measured(given: argparse.Namespace, attack: str, combine: str) -> dict[str, Any]:
    """One attack on one way to combine."""
    folder = given.out / "run"
    shutil.rmtree(folder, ignore_errors=True)
    start = time.time()
    confide.runs.run.SequentialEngine = engine_with(LIES.get(attack), LIAR)  # type: ignore[misc]
    found: dict[str, Any] = {}
    try:
        result = confide.runs.run.run(
            settings_of(given, attack, combine), out=folder / "run"
        ).result
        found = {"f1": 100 * f1_of_honest(result), "refused": refused_in(result)}
    except ConfideError as error:
        found = {"f1": None, "ended": str(error)}
    return found | {"seconds": round(time.time() - start, 1)}


def settings_of(given: argparse.Namespace, attack: str, combine: str) -> Any:
    corpus = Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner"
    folder = given.out / "run" / "data"
    train = dealt(read_conll(str(corpus / "train.tsv")), SITES, each=EACH, seed=given.seed)
    test = read_conll(str(corpus / "test.tsv"))
    dev = read_conll(str(corpus / "devel.tsv"))
    if attack in TEXTS:
        train[SITES - 1] = TEXTS[attack](train[SITES - 1])
    tables = []
    honest = SITES - 1
    for place in range(honest if attack == "without-the-fifth" else SITES):
        name = f"site-{place + 1}"
        parts = {
            "train": train[place],
            "dev": dev[place * 10 : place * 10 + 10],
            # all test text lies at the four that are honest
            "test": test[place::honest] if place < honest else dev[100:110],
        }
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, sentences in parts.items():
            (folder / name / f"{part}.conll").write_text(written(sentences), encoding="utf-8")
        tables.append({"name": name} | {p: str(folder / name / f"{p}.conll") for p in parts})
    chosen = {k: v for k, v in COMBINES[combine].items() if combine != "before" or PLAIN}
    tree = {
        "name": "attacks",
        "method": "fedavg",
        "key": "simulated",
        "seed": given.seed,
        "rounds": given.rounds,
        "options": {"rows": given.rows},
        "data": {"format": "conll", "scheme": "iob2"},
        "site": tables,
        "select": {"by": "last", "every": given.rounds},
        "federation": {"at_least": 3 if attack != "without-the-fifth" else 0, **chosen},
        "training": {
            "optimiser": "adam", "learning_rate": 0.008, "decay": 0.96, "batch_size": 16,
            "local_epochs": 1,
        },
    }  # fmt: skip
    return parse(tree, given.overrides)


PLAIN = True


def f1_of_honest(result: Result) -> float:
    """Strict, of the counts of the honest sites together."""
    sites = [of["strict"] for name, of in result.scores.sites.items() if name != LIAR]
    true, predicted, support = (
        sum(site[key] for site in sites) for key in ("true", "predicted", "support")
    )
    return 2 * true / max(predicted + support, 1)


def refused_in(result: Result) -> dict[str, int]:
    """In how many rounds each site was refused or failed."""
    rounds: dict[str, int] = {}
    for turn in result.history:
        for site in turn.failed:
            rounds[site] = rounds.get(site, 0) + 1
    return rounds


if __name__ == "__main__":
    sys.exit(main())
