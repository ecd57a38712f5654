"""How far confidences can be trusted after little development text: five corpora of 700 sentences.

    python benchmarks/defaults/calibration/few.py --out runs/few [--corpora NAME...]

A tagger with a frozen MiniLM is trained on each corpus's first 700 training sentences, dealt to
three sites, for 9 rounds; a tenth is held out, and calibrates the run. Beside that, calibrators are
fitted to stretches of the corpus's own development text with so many entities (ten places, chosen
by seed). Printed is the expected calibration error on at most 1,500 sentences of test text, in
points.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from confide.jobs.predict import read_sources
from confide.runs.folder import RunFolder
from confide.runs.loading import open_models
from confide.scoring import count_entities
from confide.scoring.calibration import (
    AS_IS,
    USUAL,
    Calibrator,
    Right,
    Sure,
    calibration_error,
    fitted,
    reliability_bins,
    sum_sure,
)

sys.path.append(str(Path(__file__).parents[2]))

from resumable import finished

CORPORA = {
    "ncbi": [f"ncbi_disease_ner/{part}.tsv" for part in ("train", "devel", "test")],
    "bc5cdr": [f"bc5cdr_ner/{part}.tsv" for part in ("train", "devel", "test")],
    "wnut": [
        "wnut17/wnut17train.conll",
        "wnut17/emerging.dev.conll",
        "wnut17/emerging.test.annotated",
    ],
    "jnlpba": [f"jnlpba_ner/{part}.tsv" for part in ("train", "devel", "test")],
    "politics": [
        "crossner/politics/train.txt+crossner/politics/dev.txt",
        "crossner/politics/dev.txt",
        "crossner/politics/test.txt",
    ],
}
"""Files of training, development and test text. Of politics, whose training text has 200 sentences,
the development text is learnt from as well."""
SIZES = {"train": 700, "dev": 700, "test": 1500}
SETTINGS = """name = "{name}"
method = "fedavg"
seed = 1
rounds = 9
options.rows = "seen"
data = {{ format = "conll", dev_share = 0.1 }}
split = {{ sites = 3, by = "iid", train = "{train}", test = "{test}" }}
model = {{ context = "minilm", word_dim = 50, bilstm_hidden = 64 }}
[training]
optimiser = "adam"
learning_rate = 0.008
decay = 1.0
batch_size = 8
local_epochs = 2
word_dropout = 0.25
"""
Found = list[tuple[int, Sure]]
"""Of each document, how many entities it has, and what was found there."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/few"))
    parser.add_argument("--corpora", nargs="+", default=list(CORPORA), choices=CORPORA)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = (40, 80, 300)
    heads = [
        "",
        "as the model",
        "usual",
        "the run's own (finds)",
        *(f"{n} entities" for n in sizes),
    ]
    print("| " + " | ".join([*heads, "all (finds)"]) + " |")
    print("|---" * (len(heads) + 1) + "|")
    for name in given.corpora:
        dev, test, own = found(name, given.out)
        sure = sum_sure(one for _, one in test)
        cells = [error(sure, AS_IS), error(sure, USUAL), f"**{error(sure, own)}** ({own.finds})"]
        for many in sizes:
            errors = [float(error(sure, fitted(stretch(dev, many, seed)))) for seed in range(10)]
            cells.append(f"{fmean(errors):.1f} (at most {max(errors):.1f})")
        whole = fitted(sum_sure(one for _, one in dev))
        cells.append(f"{error(sure, whole)} ({whole.finds})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def found(name: str, out: Path) -> tuple[Found, Found, Calibrator]:
    """What a corpus's model finds in development and test text, and the run's own calibrator."""
    files = {
        part: first(file, SIZES[part], out / f"{name}-{part}.conll")
        for part, file in zip(SIZES, CORPORA[name], strict=True)
    }
    settings, folder, kept = out / f"{name}.toml", out / name, out / f"{name}.json"
    settings.write_text(SETTINGS.format(name=name, **files), encoding="utf-8")
    finished(settings, (), folder)
    if not kept.exists():
        model: Any = replace(open_models(folder).entities, calibrator=AS_IS)  # type: ignore[type-var]
        parts = []
        for part in ("dev", "test"):
            texts = read_sources([files[part]], format="conll")
            sure = [count_entities([a], [b]).sure for a, b in zip(texts, model(texts), strict=True)]
            rows = zip(texts, sure, strict=True)
            parts.append([(len(text.entities), list(own.items())) for text, own in rows])
        kept.write_text(json.dumps(parts))
    dev, test = (
        [(many, {tuple(place): Right(*count) for place, count in sure}) for many, sure in part]
        for part in json.loads(kept.read_text())
    )
    return dev, test, RunFolder(folder).calibrator(None)


def first(files: str, many: int, out: Path) -> Path:
    """The first sentences of files joined by +, as a file of their own."""
    texts = [
        (Path(os.environ["CONFIDE_DATA"]) / file).read_text(encoding="utf-8")
        for file in files.split("+")
    ]
    sentences = [one for text in texts for one in re.split(r"\n\s*\n", text) if one.strip()]
    out.write_text("\n\n".join(sentences[:many]) + "\n\n", encoding="utf-8")
    return out


def stretch(dev: Found, many: int, seed: int) -> Sure:
    """What was found in documents that follow each other, until they have so many entities."""
    at, held, parts = random.Random(seed).randrange(len(dev)), 0, list[Sure]()
    while held < many:
        held += dev[at % len(dev)][0]
        parts.append(dev[at % len(dev)][1])
        at += 1
    return sum_sure(parts)


def error(sure: Sure, calibrator: Calibrator) -> str:
    """The expected calibration error, in points."""
    return f"{100 * (calibration_error(reliability_bins([(sure, calibrator)])) or 0):.1f}"


if __name__ == "__main__":
    main()
