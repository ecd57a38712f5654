"""How often Lazy MIL picks a right sentence, by round: the mechanism that the paper claims.

    python benchmarks/papers/lazymil/picks.py --out runs/lazymil [--seeds 1 2 3 4 5] \
        [--shares 25 50 75] [--warm | --adaptive] [--half]

Runs `lazy-mil` (with `--warm` after some rounds on every sentence; with `--adaptive` as by default;
with `--half` half of the sites take part in a round, the runs `half-W` of run.py, instead of all)
on the bags that `corpora.py` made and looks at which sentences sites train on, over their shoulder:
a site's own code never reads what is right. Of bags with a relation: the share of right ones among
all sentences of the sites drawn (what picking blindly gives), among each site's best sentence of
each of its bags, and among those that won; how many of all winners won in the round before as well,
and how many sentences ever did. They are added up in the run's `picks.json`, of which `table.py`
makes a table.
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
from run import FEDERATED, TAKING_PART

from confide.methods import METHODS
from confide.methods.lazy_mil import TRAIN_ON_WINNERS
from confide.runs.folder import RunFolder
from confide.runs.run import run
from corpora import corpora_in

HERE = Path(__file__).parent
seen: dict[int, list[tuple[int, int, int, int, int, int]]] = defaultdict(list)
"""By round, of each site that trained: right and all of its sentences, its bids, its winners."""
won: dict[int, set[str]] = defaultdict(set)
"""By round: the documents that sites trained on."""
right: dict[str, bool] = {}
"""By the id of a document."""


def watched(site, memory, ask, turn):
    """The step, and a look at what it trains on."""
    looked = memory.form.at(site).looked("train")
    related = {
        int(row) for g, r in zip(looked.groups, looked.relations_G, strict=True) if r for row in g
    }

    def told(rows) -> tuple[int, int]:
        picked = [int(row) for row in rows if int(row) in related]
        return sum(right[site.train[row].id] for row in picked), len(picked)

    firsts_G = np.cumsum(memory.bid_sizes_G) - memory.bid_sizes_G
    best_G = memory.bid_rows_S[firsts_G]
    seen[turn.round].append((*told(related), *told(best_G), *told(memory.won_W)))
    won[turn.round].update(site.train[row].id for row in memory.won_W)
    return TRAIN_ON_WINNERS.answer(site, memory, ask, turn)


PAIR = "lazy-mil-bags"


class Watched(METHODS[PAIR].of):  # type: ignore[misc]
    steps = tuple(
        replace(step, answer=watched) if step.name == TRAIN_ON_WINNERS.name else step
        for step in METHODS[PAIR].of.steps
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/lazymil"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--shares", nargs="*", default=["25", "50", "75"])
    how = parser.add_mutually_exclusive_group()
    for name in ("warm", "adaptive"):
        how.add_argument(f"--{name}", dest="how", action="store_const", const=f"-{name}")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], help="for every run")
    given = parser.parse_args()
    given.out = given.out.absolute()
    METHODS[PAIR] = replace(METHODS[PAIR], of=Watched)
    method = f"lazy-mil{given.how or ''}"
    only = "half" if given.half else "scattered"
    overrides = [TAKING_PART[only], *FEDERATED[method], *given.overrides]
    for share in given.shares:
        for seed in given.seeds:
            out = given.out / "runs" / f"{only}-{share}" / f"{method}-{seed}"
            if not (out / "picks.json").exists():
                one(corpora_in(given.out), share, seed, out=out, overrides=overrides)


def one(corpora: Path, share: str, seed: int, *, out: Path, overrides: list[str]) -> None:
    """One run, whole: what was picked before a resume nobody would have seen."""
    name = f"scattered-{share}"
    seen.clear()
    won.clear()
    right.clear()
    right.update(json.loads((corpora / f"truth-{share}.json").read_text()))
    files = [f"split.{part}={corpora / file}.jsonl" for part, file in
             (("train", name), ("test", "scattered-test"))]  # fmt: skip
    assert not RunFolder(out).is_taken(), f"remove {out}: it was not watched"
    run(HERE / "scattered.toml", overrides=[*files, f"seed={seed}", *overrides], out=out)
    sums, ever = {}, set()
    for number in sorted(seen):
        again, ever = won[number] & won[number - 1], ever | won[number]
        counts = [sum(column) for column in zip(*seen[number], strict=True)]
        sums[number] = [*counts, len(again), len(won[number]), len(ever)]
    (out / "picks.json").write_text(json.dumps(sums))


if __name__ == "__main__":
    main()
