"""What a promise costs: F1 under noise, by corpus, model and ε.

    python benchmarks/security/privacy/run.py --out runs/privacy [--cells NAME...] \
        [--epsilons 1 3 8 inf] [--seeds 1 2 3] [--set KEY=VALUE...] [--keep FILE] [--masked]
    python benchmarks/security/privacy/run.py --table

Ten sites of which three may collude; δ = 1e-5. What each of them draws, clips and adds depends on
no other, so a sum over ten sites is distributed as one over a single site that has all the text and
adds the noise of ten: that is what runs, unless --masked says to run the ten. `--local` adds the
noise that every site would need without a sum that hides it. `inf` is training on all text in one
place, without noise.
Finished cells are lines of measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

import by_itself  # noqa: E402
from resumable import finished, measure, read_lines  # noqa: E402

from confide.jobs.planning import privacy_plan  # noqa: E402
from confide.runs.run import run  # noqa: E402
from confide.settings import load_settings  # noqa: E402

SITES, COLLUDING = 10, 3
HEAD = ("model.kind=encoder", 'encoder.tune="frozen"')
TAGGER = (
    "model.kind=tagger", "model.context=minilm", "model.character=none", "model.word_dim=4",
    "model.bilstm_hidden=32", "model.dropout=0",
)  # fmt: skip
LOW_RANK = ("model.kind=encoder", 'encoder.tune="lora"')
CORPORA = {
    "ncbi": "NCBI-disease", "bc5cdr": "BC5CDR", "crossner": "CrossNER", "gad": "GAD",
    "chemprot": "ChemProt",
}  # fmt: skip
MODELS = {"head": HEAD, "tagger": TAGGER, "low rank": LOW_RANK}
CELLS: dict[str, tuple[str, ...]] = {
    f"{name}, {model}": (corpus, *own)
    for corpus, name in CORPORA.items()
    for model, own in MODELS.items()
    if model != "tagger" or corpus not in ("gad", "chemprot")
}
CELLS |= {
    "NCBI-disease, head from BC5CDR": ("ncbi", *HEAD, "start_from=bc5cdr"),
    "NCBI-disease, tagger from BC5CDR": ("ncbi", *TAGGER, "start_from=bc5cdr"),
}
"""Cells whose first weights were trained on another corpus, as if that were public."""
DROPPED = {("bc5cdr", "ncbi"): 'split.tags={Chemical=""}'}
"""The types of that corpus that this one does not have."""
PRIVATE = (
    "method=dp-fedsgd", "federation.sums=masked", "select.by=last", "privacy.holdout_scores=sent",
    "guards.max_epsilon=1000", "privacy.rate=0.5", "privacy.rounds=100", "rounds=100",
    "select.every=100", "options.server_rate=0.1", "privacy.clip=0.3",
)  # fmt: skip
UNITS: dict[str, tuple[str, ...]] = {
    "ncbi": ("privacy.unit=sentence", "privacy.units=5400"),
    "bc5cdr": ("privacy.unit=sentence", "privacy.units=4600"),
    "crossner": ("privacy.unit=sentence", "privacy.units=700"),
    "gad": ("privacy.unit=document", "privacy.units=4300"),
    "chemprot": ("privacy.unit=document", "privacy.units=4200"),
}
PLAIN = (
    "method=fedavg", "split.sites=1", "rounds=40", "select.every=40", "training.optimiser=adam",
    "training.learning_rate=0.01", "training.decay=0.95", "training.batch_size=32",
    "training.local_epochs=1",
)  # fmt: skip


RATES = {"gad": "training.learning_rate=0.001", "chemprot": "training.learning_rate=0.001"}
"""Rates without noise where another was better on development text."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/privacy"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0, 8.0, math.inf])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--local", action="store_true", help="every site's noise hides it alone")
    parser.add_argument("--masked", action="store_true", help="ten sites, under masks")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    how = "local" if given.local else "masked" if given.masked else "as ten"
    cells = (
        {"cell": cell, "epsilon": str(epsilon), "seed": seed, "how": how, "set": given.set}
        for cell in given.cells
        for epsilon in given.epsilons
        for seed in given.seeds
    )
    measure(cells, given.keep, lambda named: measured(named, out=given.out))


def measured(named: dict[str, Any], *, out: Path) -> dict[str, Any]:
    """Run a cell; F1 in percent on development and test text."""
    cell, epsilon = named["cell"], float(named["epsilon"])
    seed, how, own = named["seed"], named["how"], named["set"]
    corpus, *model = CELLS[cell]
    file = HERE / f"{corpus}.toml"
    if model[-1].startswith("start_from="):
        before = model.pop().partition("=")[2]
        model.append(f"start_from={begun(before, model, like=corpus, out=out)}")
    usual = [*model, f"seed={seed}", "key=simulated"]
    noise = rate = 0.0
    if math.isinf(epsilon):
        rates = [RATES[corpus]] if corpus in RATES else []
        chosen = [*usual, *PLAIN, *rates, *(one for one in own if one.startswith("training."))]
    else:
        usual += [*PRIVATE, *UNITS[corpus], *own]
        plan = privacy_plan(load_settings(file, [*usual, f"privacy.epsilon={epsilon}"]))
        noise, rate = plan.noise, plan.rate
        chosen = [*usual, f"privacy.noise={noise}"]
        if how != "masked":
            many = SITES if how == "local" else SITES / plan.honest
            chosen += [
                f"privacy.noise={noise * math.sqrt(many)}", "split.sites=1",
                "federation.sums=masked",
            ]  # fmt: skip
            by_itself.allow()
    folder = out / f"{cell}-{epsilon}-{seed}-{how}-{time.time_ns()}".replace(", ", "-")
    started = time.process_time()
    found = run(file, overrides=chosen, out=folder).result
    kind = "micro" if "micro" in found.scores.overall else "strict"
    last = found.history[-1].model_dump()
    return {
        "f1": round(100 * found.scores.overall[kind]["f1"], 2),
        "dev": round(100 * last["dev"][kind], 2) if last.get("dev") else None,
        "noise": noise,
        "rate": rate,
        "rounds": found.rounds,
        "parameters": found.parameters,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def begun(corpus: str, model: list[str], *, like: str, out: Path) -> Path:
    """The folder of a run on a corpus without noise, with the types of another one; made once."""
    folder = (out / f"{corpus}-{like}-{'tagger' if TAGGER[0] in model else 'head'}").resolve()
    types = tomllib.loads((HERE / f"{like}.toml").read_text())["data"]["types"]
    own = [f"data.types={json.dumps(types)}", DROPPED[corpus, like], "key=simulated"]
    finished(HERE / f"{corpus}.toml", [*model, *PLAIN, *own], folder)
    return folder


def table(lines: list[dict]) -> None:
    """F1 by cell and ε: the mean and the standard deviation over seeds."""
    groups: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for one in lines:
        place = one["cell"], one["how"], " ".join(one["set"])
        groups.setdefault(place, {}).setdefault(one["epsilon"], []).append(one["f1"])
    found = {one["epsilon"] for one in lines}
    epsilons = sorted(found, key=float)
    print("| cell | how | " + " | ".join(f"ε = {one}" for one in epsilons) + " |")
    print("|---" * (2 + len(epsilons)) + "|")
    for (cell, how, own), by in groups.items():
        values = [
            f"{statistics.mean(by[one]):.1f}{spread(by[one])} ({len(by[one])})"
            if one in by
            else "–"
            for one in epsilons
        ]
        print(f"| {cell} {own} | {how} | " + " | ".join(values) + " |")


def spread(values: list[float]) -> str:
    return f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""


if __name__ == "__main__":
    main()
