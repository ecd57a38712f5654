"""Federated NER and RE on the corpora of Peng et al. (npj Digital Medicine 2024).

    python benchmarks/papers/npj/run.py --out runs/npj [--corpora ncbi ...] [--models tagger ...]
                                        [--methods fedavg ...] [--sites 10] [--seeds 1 2 3]
    python benchmarks/papers/npj/run.py --out runs/npj --corpora ncbi --split twice
    python benchmarks/papers/npj/run.py --table

Every finished run is a line of measured.jsonl and is not made again; one that was stopped goes on.
`--split twice` holds each sentence twice before it cuts 80, 10 and 10 percent at random.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from confide.runs.folder import RunFolder
from confide.runs.run import run
from confide.tasks import TASKS

sys.path.append(str(Path(__file__).parents[2]))

from resumable import measure, read_lines

HERE = Path(__file__).parent
ENTITIES = {
    "ncbi": "ncbi_disease_ner",
    "bc2gm": "bc2gm_ner",
    "jnlpba": "jnlpba_ner",
    "bc5cdr-disease": "bc5cdr_ner",
}
PAIRS = ("gad", "euadr")
ENCODER = (
    "options={}", "model.kind=encoder", "training.word_dropout=0", "training.optimiser=adamw",
)  # fmt: skip
MODELS: dict[str, tuple[str, ...]] = {
    "tagger": (),
    "tagger on MiniLM": ("model.context=minilm",),
    "MiniLM": (*ENCODER, "classifier.encoder=minilm", "training.learning_rate=2e-4"),
    "MPNet": (*ENCODER, "classifier.encoder=mpnet", "training.learning_rate=5e-5"),
}
"""What each adds to the recipe; of pairs there are the two encoders only."""
METHODS: dict[str, tuple[str, ...]] = {
    "pooled": ("method=pooled",),
    "alone": ("method=alone",),
    "fedavg": ("method=fedavg",),
    "fedprox": ("method=fedprox",),
    "scaffold": ("method=scaffold",),
    "fedavg, masked": ("method=fedavg", "federation.sums=masked"),
    "fedavg, int2": ("method=fedavg", "federation.up=int2", "federation.down=int2"),
    "feded": ("method=feded",),
}
PASSES = {"pooled": 3, "alone": 6}
"""Rounds of an encoder on entities; 8 of the others."""
PAPER: dict[tuple[str, str], tuple[float, ...]] = {  # strict (lenient): pooled, alone, fedavg
    ("ncbi", "BiLSTM-CRF"): (94.4, 97.1, 58.9, 73.3, 76.7, 86.5),
    ("ncbi", "BERT"): (97.3, 98.9, 84.7, 91.7, 94.9, 97.6),
    ("jnlpba", "BiLSTM-CRF"): (92.4, 96.1, 67.0, 82.2, 81.0, 90.2),
    ("jnlpba", "BERT"): (93.9, 96.9, 81.5, 90.5, 89.6, 94.9),
    ("bc2gm", "BiLSTM-CRF"): (86.6, 92.4, 41.5, 62.2, 64.5, 79.3),
    ("bc2gm", "BERT"): (92.8, 97.2, 75.9, 88.8, 89.7, 95.9),
    ("gad", "BERT"): (73.8, 73.8, 64.2, 64.2, 70.3, 70.3),
    ("euadr", "BERT"): (75.0, 75.0, 52.2, 52.2, 52.7, 52.7),
}
"""Tables 1 and 2 of the paper, in points; of pairs macro F1."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/npj"))
    parser.add_argument("--keep", type=Path, default=HERE / "measured.jsonl")
    parser.add_argument("--corpora", nargs="+", choices=(*ENTITIES, *PAIRS), default=list(ENTITIES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["tagger"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS)[:4])
    parser.add_argument("--sites", nargs="+", type=int, default=[10])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--split", choices=("published", "twice"), default="published")
    parser.add_argument("--share", type=float, default=1.0, help="of the training text")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    given = parser.parse_args()
    if given.table:
        table(read_lines(given.keep))
        return
    cells = (
        {"corpus": corpus, "model": model, "method": method, "sites": sites, "split": given.split,
         "share": given.share, "set": given.set, "seed": seed}
        for seed in given.seeds
        for corpus in given.corpora
        for model in given.models
        for method in given.methods
        for sites in given.sites
    )  # fmt: skip
    measure(cells, given.keep, lambda cell: measured(cell, given.out))


def measured(cell: dict[str, Any], out: Path) -> dict[str, Any]:
    """One run: scores in points at the round that was best on development text, bytes, seconds."""
    corpus, model, method = cell["corpus"], cell["model"], cell["method"]
    chosen = [*METHODS[method], *MODELS[model], f"seed={cell['seed']}", "key=simulated"]
    chosen += [f"split.sites={cell['sites']}", f"data.train_share={cell['share']}"]
    if model in ("MiniLM", "MPNet"):
        if corpus in PAIRS:
            chosen = [one for one in chosen if one not in ENCODER and "learning_rate" not in one]
        else:
            chosen.append(f"rounds={PASSES.get(method, 8)}")
    if cell["split"] == "twice":
        chosen += twice(ENTITIES[corpus], cell["seed"], out)
    label = "-".join(str(value) for value in cell.values() if value).replace(" ", "-")
    folder = out / label.replace("/", "_").replace("[]", "")
    began = time.process_time()
    found = run(
        f"npj-{corpus}",
        overrides=[*chosen, *cell["set"]],
        out=folder,
        resume=RunFolder(folder).is_taken(),
    ).result
    task = TASKS[found.task]
    values = {kind: task.value(found.scores.overall, kind) for kind in task.kinds}
    scores = {kind: round(100 * (value or 0.0), 2) for kind, value in values.items()}
    return {
        **scores,
        "rounds": found.rounds,
        "up": round(statistics.mean(found.bytes.up.values())) if found.bytes else 0,
        "processor_seconds": round(time.process_time() - began),
    }


def twice(folder: str, seed: int, out: Path) -> list[str]:
    """Settings for files of 80, 10 and 10 percent of all sentences, each of them there twice."""
    source = Path(os.environ["CONFIDE_DATA"]) / folder
    sentences = [
        sentence
        for part in ("train", "devel")
        for sentence in (source / f"{part}.tsv").read_text("utf-8").strip().split("\n\n")
    ]
    both = sentences * 2
    random.Random(seed).shuffle(both)
    eight, nine = len(both) * 8 // 10, len(both) * 9 // 10
    parts = {"train": both[:eight], "dev": both[eight:nine], "test": both[nine:]}
    seen = sum(sentence in set(parts["train"]) for sentence in parts["test"][:500]) / 500
    print(f"{folder}: {100 * seen:.0f} % of test sentences are in training", file=sys.stderr)
    target = (out / f"twice-{folder}-{seed}").resolve()
    target.mkdir(parents=True, exist_ok=True)
    for part, own in parts.items():
        (target / f"{part}.tsv").write_text("\n\n".join(own) + "\n", "utf-8")
    return [f"split.{part}={target / part}.tsv" for part in parts]


def table(lines: list[dict[str, Any]]) -> None:
    """One row a corpus, model and number of sites, the paper's figures between them."""
    methods = [method for method in METHODS if any(one["method"] == method for one in lines)]
    print("| | sites | " + " | ".join(methods) + " |")
    print("|---" * (2 + len(methods)) + "|")
    rows: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for one in lines:
        corpus, model = (*ENTITIES, *PAIRS).index(one["corpus"]), list(MODELS).index(one["model"])
        own = (corpus, one["split"], model, one["sites"], one["share"], tuple(one["set"]))
        rows[own].append(one)
    shown = set()
    for key in sorted(rows):
        corpus = (*ENTITIES, *PAIRS)[key[0]]
        for (name, model), paper in PAPER.items():
            if name == corpus and (name, model) not in shown:
                shown.add((name, model))
                pairs = [f"{paper[k]:.1f} ({paper[k + 1]:.1f})" for k in (0, 2, 4)]
                cells = dict(zip(("pooled", "alone", "fedavg"), pairs, strict=True))
                print(f"| {name}, the paper's {model} | 10 |", end="")
                print("".join(f" {cells.get(method, '')} |" for method in methods))
        more = [key[1]] if key[1] != "published" else []
        more += [f"{100 * key[4]:g} % of the text"] if key[4] != 1 else []
        print(f"| {', '.join([corpus, list(MODELS)[key[2]], *more, *key[5]])} | {key[3]} |", end="")
        for method in methods:
            print(f" {_cell([one for one in rows[key] if one['method'] == method])} |", end="")
        print()


def _cell(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    first, *others = [kind for kind in ("strict", "relaxed", "micro") if kind in runs[0]]
    said = f"{statistics.mean(one[first] for one in runs):.1f}"
    if len(runs) > 1:
        said += f" ± {statistics.stdev(one[first] for one in runs):.1f}"
    if others:
        said += f" ({statistics.mean(one[others[0]] for one in runs):.1f})"
    return said


if __name__ == "__main__":
    main()
