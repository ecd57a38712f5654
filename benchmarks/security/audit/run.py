"""ε promised beside ε measured: DP-FedSGD with canaries, audited by `confide audit`.

    python benchmarks/security/audit/run.py --out runs/audit [--models heart head] [--epsilons 1 8]
                                   [--seeds 1 2 3] [--without-noise]
    python benchmarks/security/audit/run.py --table

`heart` is the hardest case for noise: 300 beginnings of sentences whose labels are drawn at random,
so that there is nothing to learn but the documents, and a tagger that has room for them; 250 are
canaries. `head` and `tagger` are real text: one site with 1,500 sentences of NCBI-disease, each a
document, of which 1,000 are canaries. Coins leave half of the canaries out.

The site sums by itself (`by_itself.py`), so the noise in the sum is the least that the account
counts: among more sites there is more. `--without-noise` leaves out the noise alone, and draws and
clips as before: what the attack can show where the promise is not kept. `inf` trains the same model
by FedAvg.

`epsilon` is the lower bound of `confide audit`, 95 % sure, δ = 1e-5. `counted` is what the guesses
that it rests on would say if they were all there is: ln(right / wrong), with the 95 % interval of
Clopper and Pearson. Finished cells are lines of measured.jsonl and are not run again.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "attacks")]

import by_itself  # noqa: E402
import numpy as np  # noqa: E402
from lying import dealt, read_conll, written  # noqa: E402
from resumable import measure, read_lines  # noqa: E402

from confide.jobs.audit import audit  # noqa: E402
from confide.methods import noise  # noqa: E402
from confide.runs.run import run  # noqa: E402
from confide.scoring.intervals import clopper_pearson  # noqa: E402
from confide.settings import parse  # noqa: E402

DOCUMENTS, CANARIES = 1500, 1000
HEART_DOCUMENTS, HEART_CANARIES, WORDS = 300, 250, 10
MODELS: dict[str, dict[str, Any]] = {
    "head": {"kind": "encoder"},
    "tagger": {"kind": "tagger", "context": "minilm", "character": "none", "word_dim": 4,
               "bilstm_hidden": 32, "dropout": 0},
}  # fmt: skip
MODELS["heart"] = {**MODELS["tagger"], "bilstm_hidden": 48}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/audit"))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["heart", "head"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 8.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--without-noise", action="store_true")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    kept = HERE / "measured.jsonl"
    if given.table:
        table(read_lines(kept))
        return
    if given.without_noise:
        noise.with_noise = without_noise
    cells = (
        {"model": model, "promised": str(epsilon), "seed": seed,
         "noise_left_out": given.without_noise}
        for seed in given.seeds
        for model in given.models
        for epsilon in given.epsilons
    )  # fmt: skip
    measure(cells, kept, lambda cell: measured(given.out.absolute(), cell))


def without_noise(total: Any, key: bytes, *, variance: int) -> Any:
    return dict(total)


def measured(out: Path, cell: dict[str, Any]) -> dict[str, Any]:
    """One run and its audit."""
    model, epsilon, seed = cell["model"], float(cell["promised"]), cell["seed"]
    folder = out / f"{model}-{epsilon}-{seed}-{time.time_ns()}"
    started = time.time()
    by_itself.allow()
    done = run(settings_of(folder, model, epsilon, seed), out=folder / "run")
    found = audit(done.folder)
    one = found.sites["site-1"]
    own, best = one.canaries, one.membership
    assert own is not None
    wrong = own.guesses - own.right
    spent = done.result.privacy
    ends = clopper_pearson(own.right, own.guesses)
    return {
        "spent": round(spent.epsilon, 3) if spent else None,
        "noise": spent.noise if spent else 0.0,
        "epsilon": round(own.epsilon, 3),
        "guesses": own.guesses,
        "right": own.right,
        "counted": [_odds(own.right, wrong), *(_odds(end, 1 - end) for end in ends)],
        "auc": [round(x, 3) for x in (own.auc.value, own.auc.low, own.auc.high)],
        "losses_auc": [round(x, 3) for x in (best.auc.value, best.auc.low, best.auc.high)],
        "broken": found.broken,
        "f1": round(100 * done.result.scores.overall["strict"]["f1"], 1),
        "seconds": round(time.time() - started, 1),
    }


def _odds(right: float, wrong: float) -> float:
    return round(math.log(max(right, 1e-9) / max(wrong, 1e-9)), 3)


def settings_of(folder: Path, model: str, epsilon: float, seed: int) -> Any:
    corpus = Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner"
    (train,) = dealt(read_conll(str(corpus / "train.tsv")), 1, each=DOCUMENTS, seed=seed)
    parts = {"train": train, "test": read_conll(str(corpus / "test.tsv"))}
    heart = model == "heart"
    if heart:
        draws = np.random.default_rng(seed)
        parts = {
            "train": [at_random(one, draws) for one in train[:HEART_DOCUMENTS]],
            "test": [at_random(one, draws) for one in parts["test"][:HEART_DOCUMENTS]],
        }
    folder.mkdir(parents=True)
    for part, sentences in parts.items():
        (folder / f"{part}.conll").write_text(written(sentences), encoding="utf-8")
    tree: dict[str, Any] = {
        "name": "audit", "key": "simulated", "seed": seed, "model": MODELS[model],
        "encoder": {"tune": "frozen"} if model == "head" else {},
        "data": {"format": "conll", "scheme": "iob2", "types": ["Disease"],
                 "canaries": HEART_CANARIES if heart else CANARIES},
        "site": [{"name": "site-1", "dev": []}
                 | {part: str(folder / f"{part}.conll") for part in parts}],
        "select": {"by": "last", "every": 1000},
    }  # fmt: skip
    if math.isinf(epsilon):
        return parse(
            tree
            | {"method": "fedavg", "rounds": 1, "training": {
                "optimiser": "adam", "learning_rate": 0.01, "batch_size": 16, "local_epochs": 60}}
        )  # fmt: skip
    of_all = {"unit": "document", "epsilon": epsilon}
    private = {"rate": 0.1, "rounds": 200, "clip": 0.3, "units": DOCUMENTS - CANARIES // 2}
    step = 0.1 if model == "head" else 0.03
    if heart:
        units = HEART_DOCUMENTS - HEART_CANARIES // 2
        private = {"rate": 0.5, "rounds": 100, "clip": 1.0, "units": units}
    return parse(
        tree
        | {"method": "dp-fedsgd", "rounds": private["rounds"], "federation": {"sums": "masked"},
           "guards": {"max_epsilon": 1000.0}, "options": {"server_rate": step},
           "privacy": {**of_all, **private, "holdout_scores": "sent"}}
    )  # fmt: skip


def at_random(sentence: Any, draws: np.random.Generator) -> Any:
    """The first words of a sentence, each of which begins an entity or is outside by chance."""
    return [(word, ("O", "B-Disease")[draws.integers(2)]) for word, _ in sentence[:WORDS]]


def table(lines: list[dict[str, Any]]) -> None:
    """One row for each run."""
    print("| model | noise | ε promised | seed | ε at least | right | ln(right/wrong) | AUC |")
    print("|---|---|---|---|---|---|---|---|")
    order = ("model", "noise_left_out", "promised", "seed")
    for one in sorted(lines, key=lambda x: [str(x[name]) for name in order]):
        value, low, high = one["counted"]
        auc = "{:.2f} ({:.2f} to {:.2f})".format(*one["auc"])
        said = "none" if one["promised"] == "inf" else f"{float(one['promised']):g}"
        print(
            f"| {one['model']} | {'left out' if one['noise_left_out'] else one['noise']} | {said} |"
            f" {one['seed']} | {one['epsilon']:.2f} | {one['right']} of {one['guesses']} |"
            f" {value:.2f} ({low:.2f} to {high:.2f}) | {auc} |"
        )


if __name__ == "__main__":
    main()
