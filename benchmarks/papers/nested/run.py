"""Entities in one another: a classifier of spans against a tagger on the same encoder.

python benchmarks/papers/nested/run.py [--seeds 1] [--rounds 4] [--reviews 0] [--json LINES]
python benchmarks/papers/nested/run.py --methods fedavg feded feddf --kinds spans

Corpora under $CONFIDE_DATA: PsyTAR's workbook, and a corpus of nested entities that is generated.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from confide.api import run
from confide.jobs.predict import predict
from confide.scoring import count_entities, f1, micro
from confide.scoring.counts import EntityCounts
from confide.settings import parse
from confide.text.document import Document, Entity
from confide.text.formats import read, write
from confide.text.published.catalogue import locate
from confide.text.segment import segmented

KINDS = ("encoder", "spans")
PUBLIC = ("feded", "feddf")
"""Methods that take 30 % of the training text as a public set, with its annotation if they can."""
ORGANS = ("liver", "kidney", "lung", "spleen", "bladder", "thyroid", "pancreas", "breast")
ILLS = ("cancer", "abscess", "cyst", "infarction", "failure", "tumour")


def generated(count: int, *, seed: int) -> list[Document]:
    """Notes in which a Site lies in a Disease, and a Disease may lie in a Finding."""
    drawn = random.Random(seed)
    notes = []
    for number in range(count):
        organ, ill = drawn.choice(ORGANS), drawn.choice(ILLS)
        start = drawn.choice(("She has ", "History of ", "Known ", "CT showed "))
        lead = drawn.choice(("signs of ", "suspicion of ", ""))
        text = f"{start}{lead}{organ} {ill} ."
        at = len(start) + len(lead)
        end = at + len(organ) + 1 + len(ill)
        spans = [("Site", at, at + len(organ)), ("Disease", at, end)]
        if lead:
            spans.append(("Finding", len(start), end))
        entities = tuple(Entity(f"T{n}", type, ((a, b),)) for n, (type, a, b) in enumerate(spans))
        notes.append(Document(f"n{number}", text, entities))
    return notes


def psytar() -> list[Document]:
    return read(locate("$CONFIDE_DATA/psytar/PsyTAR_dataset.xlsx")).documents


def parts(documents: Sequence[Document], *, seed: int) -> tuple[list[Document], list[Document]]:
    """Training and test documents, 80 and 20 %."""
    order = list(documents)
    random.Random(seed).shuffle(order)
    cut = len(order) * 4 // 5
    return order[:cut], order[cut:]


def sharing(documents: Sequence[Document]) -> list[set[str]]:
    """Of each document, the entities that share a character with another one."""
    found = []
    for document in documents:
        ids: set[str] = set()
        spread = [(a, b, one.id) for one in document.entities for a, b in one.fragments]
        for a, b, one in spread:
            for c, d, other in spread:
                if one != other and a < d and c < b:
                    ids |= {one, other}
        found.append(ids)
    return found


def recall_among(
    gold: Sequence[Document], predicted: Sequence[Document], ids: Sequence[set[str]]
) -> tuple[int, int]:
    """Of the entities with these ids: how many were found exactly, and how many there are."""
    right = total = 0
    for one, other, own in zip(gold, predicted, ids, strict=True):
        found = {(entity.type, entity.fragments) for entity in other.entities}
        wanted = [entity for entity in one.entities if entity.id in own]
        total += len(wanted)
        right += sum((entity.type, entity.fragments) in found for entity in wanted)
    return right, total


def measured(
    name: str, documents: Sequence[Document], pair: tuple[str, str], *, seed: int, rounds: int
) -> dict[str, object]:
    method, kind = pair
    train, test = parts([segmented(one) for one in documents], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        files = {"train": Path(folder) / "train.jsonl", "test": Path(folder) / "test.jsonl"}
        write(train, files["train"], "jsonl")
        write(test, files["test"], "jsonl")
        tree = {
            "seed": seed,
            "rounds": rounds,
            "model": {"kind": kind},
            "classifier": {"encoder": "minilm", "max_length": 96, "max_span_width": 12},
            "training": {"learning_rate": 2e-4, "batch_size": 16, "local_epochs": 1},
            "select": {"every": rounds, "by": "last"},
            "split": {"sites": 3, "train": str(files["train"]), "test": str(files["test"])},
        }
        if method in PUBLIC:
            tree |= {"method": method, "public": {"share": 0.3}, "options": {"distil_epochs": 2}}
        else:
            tree |= {"method": method}
        start = time.perf_counter()
        run(parse(tree), out=Path(folder) / "run")
        seconds = time.perf_counter() - start
        predicted = predict(Path(folder) / "run", [files["test"]])
    counts: EntityCounts = count_entities(test, predicted)
    right, total = recall_among(test, predicted, sharing(test))
    return {
        "corpus": name,
        "method": method,
        "kind": kind,
        "seed": seed,
        "strict": round(100 * f1(micro(counts.strict)), 1),
        "relaxed": round(100 * f1(micro(counts.relaxed)), 1),
        "sharing": total,
        "sharing_found": right,
        "seconds": round(seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--reviews", type=int, default=0, help="of PsyTAR; 0: all")
    parser.add_argument("--methods", nargs="+", default=["fedavg"])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--json", type=Path, help="append a line for each run")
    asked = parser.parse_args()
    reviews = [replace(one) for one in psytar()][: asked.reviews or None]
    for seed in range(1, asked.seeds + 1):
        for name, documents in (("generated", generated(400, seed=seed)), ("psytar", reviews)):
            for pair in product(asked.methods, asked.kinds):
                row = measured(name, documents, pair, seed=seed, rounds=asked.rounds)
                print(row, flush=True)
                if asked.json:
                    with asked.json.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
