"""Federated NER and RE on the corpora of Peng et al. (npj Digital Medicine 2024).

    python benchmarks/papers/npj/run.py --out runs/npj [--corpora ncbi ...] [--models tagger ...]
                                        [--methods fedavg ...] [--sites 10] [--seeds 1 2 3]
    python benchmarks/papers/npj/run.py --out runs/npj --corpora ncbi --split twice
    python benchmarks/papers/npj/run.py --table
    python benchmarks/papers/npj/run.py --plot          # methods.svg and sites.svg beside this file

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

from confide.tasks import TASKS

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished, measure, read_lines

HERE = Path(__file__).parent
ENTITIES = {
    "ncbi": "ncbi_disease_ner",
    "bc2gm": "bc2gm_ner",
    "jnlpba": "jnlpba_ner",
    "bc5cdr-disease": "bc5cdr_ner",
}
PAIRS = ("gad", "euadr")
NAMES = {
    "ncbi": "NCBI-disease", "bc2gm": "BC2GM", "jnlpba": "JNLPBA", "gad": "GAD", "euadr": "EU-ADR",
    "bc5cdr-disease": "BC5CDR-disease", "pooled": "pooled", "alone": "alone", "fedavg": "FedAvg",
    "fedprox": "FedProx", "scaffold": "SCAFFOLD", "fedavg, masked": "FedAvg, masked",
    "fedavg, int2": "FedAvg, int2", "feded": "FedED", "ε = 8": "ε = 8 (dp-fedsgd, masked)",
}  # fmt: skip
"""As the tables name corpora and methods."""
ENCODER = (
    "options={}", "model.kind=encoder", "training.word_dropout=0", "training.optimiser=adamw",
)  # fmt: skip
SMALL = (
    "options={}", "model.context=minilm", "model.character=none", "model.word_dim=4",
    "model.bilstm_hidden=32", "model.dropout=0",
)  # fmt: skip
MODELS: dict[str, tuple[str, ...]] = {
    "tagger": (),
    "tagger on MiniLM": ("model.context=minilm",),
    "small tagger on MiniLM": SMALL,
    "MiniLM": (*ENCODER, "classifier.encoder=minilm", "training.learning_rate=2e-4"),
    "MPNet": (*ENCODER, "classifier.encoder=mpnet", "training.learning_rate=2e-4"),
}
"""What each adds to the recipe; of pairs there are the two encoders only."""
POOLED = {"MPNet": ("training.learning_rate=5e-5",)}
"""A rate for pooled text. By development F1 MPNet learns no entity there at 2e-4, nor under FedAvg
at 5e-5."""
METHODS: dict[str, tuple[str, ...]] = {
    "pooled": ("method=pooled",),
    "alone": ("method=alone",),
    "fedavg": ("method=fedavg",),
    "fedprox": ("method=fedprox",),
    "scaffold": ("method=scaffold", "options={}", "options.rate=0.3"),
    "fedavg, masked": ("method=fedavg", "federation.sums=masked"),
    "fedavg, int2": ("method=fedavg", "federation.up=int2", "federation.down=int2"),
    "feded": ("method=feded",),
    "ε = 8": (
        "method=dp-fedsgd", "federation.sums=masked", "select.by=last", "rounds=100",
        "select.every=100", "options={}", "options.server_rate=0.1", "privacy.unit=sentence",
        "privacy.units=5400", 'data.types=["Disease"]', "privacy.epsilon=8", "privacy.rate=0.5",
        "privacy.rounds=100", "privacy.clip=0.3", "privacy.holdout_scores=sent",
        "guards.max_epsilon=8",
    ),
}  # fmt: skip
"""The last with the settings of benchmarks/security/privacy: the small tagger on NCBI-disease."""
NARROW = "precision=bfloat16"
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
    parser.add_argument("--plot", type=Path, nargs="?", const=HERE, help="draw it in this folder")
    given = parser.parse_args()
    if given.plot:
        plot(read_lines(given.keep), given.plot)
    if given.table:
        table(read_lines(given.keep))
    if given.table or given.plot:
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
    chosen = [*MODELS[model], *METHODS[method], f"seed={cell['seed']}", "key=simulated"]
    chosen += [f"split.sites={cell['sites']}", f"data.train_share={cell['share']}"]
    if method == "feded":  # a fifth of the text that is there
        chosen.append(f"public.share={0.2 * cell['share']:g}")
    if model in ("MiniLM", "MPNet"):
        if corpus in PAIRS:
            chosen = [one for one in chosen if one not in ENCODER and "learning_rate" not in one]
        else:
            chosen.append(f"rounds={PASSES.get(method, 8)}")
            chosen += POOLED.get(model, ()) if method == "pooled" else ()
    if cell["split"] == "twice":
        chosen += twice(ENTITIES[corpus], cell["seed"], out)
    label = "-".join(str(value) for value in cell.values() if value).replace(" ", "-")
    folder = out / label.replace("/", "_").replace("[]", "")
    began = time.process_time()
    found = finished(f"npj-{corpus}", [*chosen, *cell["set"]], folder)
    task = TASKS[found.task]
    values = {kind: task.value(found.scores.overall, kind) for kind in task.kinds}
    if "confusion" in found.scores.overall:
        values["both"] = class_mean(found.scores.overall["confusion"])
    scores = {kind: round(100 * (value or 0.0), 2) for kind, value in values.items()}
    return {
        **scores,
        "rounds": found.rounds,
        "up": round(statistics.mean(found.bytes.up.values())) if found.bytes else 0,
        "processor_seconds": round(time.process_time() - began),
    }


def class_mean(confusion: dict[str, dict[str, int]]) -> float:
    """The paper's F1 of pairs: the mean of that of related pairs and that of all others.

    `confusion` counts pairs by true and predicted label.
    """
    labels = {*confusion, *(label for row in confusion.values() for label in row)}
    found = []
    for label in labels:
        right = confusion.get(label, {}).get(label, 0)
        true = sum(confusion.get(label, {}).values())
        said = sum(row.get(label, 0) for row in confusion.values())
        found.append(2 * right / (true + said) if true + said else 0.0)
    return statistics.mean(found)


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


Key = tuple[int, str, int, float, int, tuple[str, ...]]
"""Corpus, split, model, -share, sites and settings: what the methods of one row have in common."""


def rows_of(lines: list[dict[str, Any]]) -> dict[Key, dict[str, list[dict[str, Any]]]]:
    """The lines of each row by method, in the order of the table."""
    rows: dict[Key, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for one in lines:
        corpus, model = (*ENTITIES, *PAIRS).index(one["corpus"]), list(MODELS).index(one["model"])
        key = (corpus, one["split"], model, -one["share"], one["sites"], tuple(one["set"]))
        rows[key][one["method"]].append(one)
    return {key: rows[key] for key in sorted(rows)}


def name_of(key: Key) -> str:
    corpus, split, model, less, _, own = key
    share = -less
    parts = [NAMES[(*ENTITIES, *PAIRS)[corpus]], list(MODELS)[model]]
    parts += [f"`--split {split}`"] if split != "published" else []
    parts += [f"{100 * share:g} % of the text"] if share != 1 else []
    more = (one.rpartition(".")[2].replace(NARROW, "bfloat16") for one in own)
    return ", ".join([*parts, *more])


def table(lines: list[dict[str, Any]]) -> None:
    """The paper's methods, a row a corpus, model and number of sites; then every cell's cost."""
    methods = list(METHODS)[:4]
    print("| | sites | " + " | ".join(NAMES[method] for method in methods) + " |")
    print("|---" * (2 + len(methods)) + "|")
    shown = set()
    for key, by_method in rows_of(lines).items():
        corpus = (*ENTITIES, *PAIRS)[key[0]]
        if corpus not in shown:
            shown.add(corpus)
            for (name, model), paper in PAPER.items():
                if name == corpus:
                    pairs = [f"{paper[k]:.1f} ({paper[k + 1]:.1f})" for k in (0, 2, 4)]
                    print(f"| {NAMES[name]}, the paper's {model} | 10 | {' | '.join(pairs)} | |")
        if any(method in by_method for method in methods):
            cells = " | ".join(_cell(by_method[method]) for method in methods)
            print(f"| {name_of(key)} | {key[4]} | {cells} |")
    print()
    print("| | sites | method | F1 | rounds | MB up, a site and round | minutes of processor |")
    print("|---|---|---|---|---|---|---|")
    for key, by_method in rows_of(lines).items():
        for method, runs in by_method.items():
            up, rounds, seconds = (
                statistics.mean(one[name] for one in runs)
                for name in ("up", "rounds", "processor_seconds")
            )
            sent = "" if method in ("pooled", "alone") else f"{up / 1e6 / rounds:.3g}"
            print(
                f"| {name_of(key)} | {key[4]} | {NAMES[method]} | {_cell(runs)} | {rounds:g} |"
                f" {sent} | {seconds / 60:.1f} |"
            )
    hours = sum(one["processor_seconds"] for one in lines) / 3600
    print(f"\n{len(lines)} cells, {hours:.1f} hours of processor")


def plot(lines: list[dict[str, Any]], folder: Path) -> None:
    """F1 by method and corpus at ten sites, and by the number of sites on NCBI-disease."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams |= {
        "svg.fonttype": "none", "svg.hashsalt": "confide", "font.size": 9,
        "axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True,
    }  # fmt: skip
    colours = {"alone": "#a0aec0", "fedavg": "#2b6cb0", "fedprox": "#63b3ed", "pooled": "#2f855a"}
    plain = [one for one in lines if one["split"] == "published" and one["set"] in ([], [NARROW])]
    rows = {
        key: by_method
        for key, by_method in rows_of(plain).items()
        if key[4] == 10 and {"alone", "fedavg", "pooled"} <= {*by_method}
    }
    axes = pyplot.subplots(figsize=(7.6, 3.2))[1]
    for place, (method, colour) in enumerate(colours.items()):
        values = [_f1(by_method[method]) for by_method in rows.values()]
        at = [n + 0.2 * (place - 1.5) for n in range(len(rows))]
        bars = axes.bar(at, values, 0.18, label=NAMES[method], color=colour)
        axes.bar_label(bars, [f"{one:.0f}" if one else "" for one in values], size=7)
    said = [name_of(key).removesuffix(", bfloat16").removesuffix(" of the text") for key in rows]
    names = [name.replace(", ", "\n") for name in said]
    axes.set_xticks(range(len(rows)), names, fontsize=8)
    axes.set_ylabel("F1 on test text, points")
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.15))
    pyplot.savefig(folder / "methods.svg", metadata={"Date": None})

    axes = pyplot.subplots(figsize=(6.4, 2.6))[1]
    for key in rows_of([one for one in plain if one["corpus"] == "ncbi"]):
        if key[4] == 2 and not key[5]:  # the first of a line: 2, 5 and 10 sites
            for method in ("alone", "fedavg"):
                by_sites = {
                    sites: _f1(own[method])
                    for (*alike, sites, more), own in rows_of(plain).items()
                    if (*alike, more) == (*key[:4], key[5]) and own[method]
                }
                axes.plot(
                    list(by_sites),
                    list(by_sites.values()),
                    "o-" if key[2] == 0 else "s--",
                    color=colours[method],
                    label=f"{NAMES[method]}: {', '.join(name_of(key).split(', ')[1:])}",
                )
    axes.set_xticks([2, 5, 10])
    axes.set_xlabel("sites that share the text of NCBI-disease")
    axes.set_ylabel("F1 on test text, points")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    pyplot.savefig(folder / "sites.svg", metadata={"Date": None})


def _f1(runs: list[dict[str, Any]]) -> float:
    return statistics.mean(one.get("strict", one.get("both")) for one in runs or [{"both": 0.0}])


def _cell(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return ""
    first, *others = [kind for kind in ("strict", "relaxed", "both", "micro") if kind in runs[0]]
    said = f"{statistics.mean(one[first] for one in runs):.1f}"
    if len(runs) > 1:
        said += f" ± {statistics.stdev(one[first] for one in runs):.1f}"
    if others:
        said += f" ({statistics.mean(one[others[0]] for one in runs):.1f})"
    return said


if __name__ == "__main__":
    main()
