"""The kind that classifies spans, at a site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="needs the extra confide[encoder]")

from confide.api import run
from confide.jobs.predict import predict
from confide.settings import parse
from contract.models import named
from training.encoders import tiny_bert

NOTES = [
    ("signs of liver cancer .", [(0, 21, "Finding"), (9, 21, "Disease"), (9, 14, "Site")]),
    ("signs of kidney cyst .", [(0, 20, "Finding"), (9, 20, "Disease"), (9, 15, "Site")]),
    ("known liver cyst .", [(6, 16, "Disease"), (6, 11, "Site")]),
    ("known kidney cancer .", [(6, 19, "Disease"), (6, 12, "Site")]),
]


@pytest.mark.slow
def test_types_that_occur_only_inside_others_are_learnt(tmp_path: Path) -> None:
    words = sorted({word for text, _ in NOTES for word in text.split()})
    encoder = named("nested", lambda folder: tiny_bert(folder, words=words, initializer_range=0.1))
    file = tmp_path / "notes.jsonl"
    rows = [
        {"text": text, "entities": [{"start": a, "end": b, "type": t} for a, b, t in spans]}
        for text, spans in NOTES
    ]
    file.write_text("\n".join(json.dumps(row) for row in rows * 4), encoding="utf-8")
    tree = {
        "rounds": 10,
        "model": {"kind": "spans"},
        "classifier": {"encoder": encoder, "max_length": 32, "dropout": 0},
        "training": {"learning_rate": 0.005, "batch_size": 4, "local_epochs": 4},
        "split": {"sites": 2, "train": str(file), "test": str(file)},
    }
    done = run(parse(tree), out=tmp_path / "run").result
    assert done.data.sites
    found = predict(tmp_path / "run", [file])
    marks = {(e.start, e.end, e.type) for e in found[0].entities}
    assert marks == set(NOTES[0][1])
