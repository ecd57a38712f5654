"""What noise costs FedED and FedNER: F1 by corpus, method and ε, beside the same method without it.

    python benchmarks/security/privacy/methods.py --out runs/methods [--cells NAME...] \
        [--epsilons 3 8 inf] [--seeds 1] [--set KEY=VALUE...] [--keep FILE]

FedED: three sites, a frozen MiniLM with a head; 30 % of the training text is the public set,
without its labels, so all that is learnt comes from the sites. FedNER: ten sites under masks, of
which three may collude; low-rank parts of MiniLM are shared, each site's head is private, or words
and a CNN over the states of a frozen one, and each site's BiLSTM-CRF is private. `inf` is `feded`
and `fedner` themselves. δ = 1e-5. Finished cells are lines of measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from run import HEAD, HERE, LOW_RANK, TAGGER, UNITS

from confide.runs.run import run

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure

FEDED = (
    *HEAD, "split.sites=3", "public.share=0.3", "public.labelled=false", "rounds=8",
    "select.every=8", "options.temperature=1", "options.distil_epochs=5",
    "options.distil_batch_size=32", "options.distil_learning_rate=0.005",
)  # fmt: skip
FEDNER = (*LOW_RANK, "split.sites=10", "rounds=100", "select.every=100")
FEDNER_TAGGER = (
    *TAGGER, "model.cnn_filters=32", "split.sites=10", "rounds=100", "select.every=100",
)  # fmt: skip
CELLS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "NCBI-disease, feded": ("ncbi", "feded", FEDED),
    "GAD, feded": ("gad", "feded", FEDED),
    "NCBI-disease, fedner": ("ncbi", "fedner", FEDNER),
    "NCBI-disease, fedner of a tagger": ("ncbi", "fedner", FEDNER_TAGGER),
}
PLAIN: dict[str, tuple[str, ...]] = {
    "feded": (
        "training.optimiser=adam", "training.learning_rate=0.005", "training.local_epochs=3",
        "training.batch_size=32",
    ),
    "fedner": (
        "training.optimiser=adam", "training.learning_rate=0.002", "training.batch_size=64",
    ),
}  # fmt: skip
PRIVATE: dict[str, tuple[str, ...]] = {
    "feded": (
        "privacy.rate=0.2", "privacy.rounds=8", "privacy.steps=25", "options.noisy_rate=0.05",
        "privacy.clip=0.3",
    ),
    "fedner": (
        "privacy.rate=0.2", "privacy.rounds=100", "options.noisy_rate=0.01", "privacy.clip=0.3",
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 8.0, math.inf])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    cells = (
        {"cell": cell, "epsilon": str(epsilon), "seed": seed, "how": "the method", "set": given.set}
        for seed in given.seeds
        for cell in given.cells
        for epsilon in given.epsilons
    )
    measure(cells, given.keep, lambda named: measured(named, out=given.out))


def measured(named: dict[str, Any], *, out: Path) -> dict[str, Any]:
    """Run a cell; F1 in percent on development and test text."""
    cell, epsilon = named["cell"], float(named["epsilon"])
    seed, own = named["seed"], named["set"]
    corpus, method, usual = CELLS[cell]
    chosen = [*usual, f"seed={seed}", "key=simulated", "select.by=last"]
    if math.isinf(epsilon):
        chosen += [f"method={method}", *PLAIN[method]]
    else:
        chosen += [
            f"method=dp-{method}", "federation.sums=masked", "privacy.holdout_scores=sent",
            "guards.max_epsilon=1000", *UNITS[corpus], *PRIVATE[method],
            f"privacy.epsilon={epsilon}",
        ]  # fmt: skip
    folder = out / f"{cell}-{epsilon}-{seed}-{time.time_ns()}".replace(", ", "-")
    started = time.process_time()
    found = run(HERE / f"{corpus}.toml", overrides=[*chosen, *own], out=folder).result
    kind = "micro" if "micro" in found.scores.overall else "strict"
    last = found.history[-1].model_dump()
    return {
        "f1": round(100 * found.scores.overall[kind]["f1"], 2),
        "dev": round(100 * last["dev"][kind], 2) if last.get("dev") else None,
        "noise": found.privacy.noise if found.privacy else 0.0,
        "rounds": found.rounds,
        "parameters": found.parameters,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


if __name__ == "__main__":
    main()
