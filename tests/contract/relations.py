"""A small corpus of relations that any classifier can learn, dealt to sites, and a public set."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from confide.text.document import Document, Entity, Relation
from confide.text.formats import write
from contract.models import named

DRUGS = ("aspirin", "codeine", "heparin", "insulin", "morphine", "warfarin")
EFFECTS = ("nausea", "headaches", "rash", "joint pain")
SAID = {"eases": "took", "causes": "head", "": "the patient"}
"""What stands between a drug and an effect, by the relation that it means."""
FILLERS = ("the", "patient", "pain", ".")


def document(draw: random.Random, name: str) -> Document:
    """A drug, what is said, an effect, and fillers around them."""
    parts = draw.choices(FILLERS, k=draw.randint(0, 2))
    relation = draw.choice(sorted(SAID))
    drug, effect = draw.choice(DRUGS), draw.choice(EFFECTS)
    text = " ".join([*parts, drug, SAID[relation], effect, "."])
    entities = [
        Entity(id, kind, ((text.index(word), text.index(word) + len(word)),))
        for id, kind, word in (("T1", "Drug", drug), ("T2", "Pain", effect))
    ]
    relations = (Relation("R1", relation, "T1", "T2"),) if relation else ()
    return Document(name, text, tuple(entities), relations)


def documents(site: str, part: str, count: int) -> list[Document]:
    """The documents of one part of a site; the same for the same arguments."""
    draw = random.Random(f"{site} {part}")
    return [document(draw, f"{site}-{part}-{number}") for number in range(count)]


def write_documents(path: Path, given: Sequence[Document]) -> str:
    """JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write(given, path, "jsonl")
    return str(path)


def write_relation_sites(
    folder: Path, count: int = 3, *, train: int = 18, held_out: int = 8
) -> list[dict[str, Any]]:
    """Files of some sites, and the `[[site]]` tables that name them."""
    parts = {"train": train, "dev": held_out, "test": held_out}
    return [
        {
            "name": name,
            **{
                part: write_documents(folder / name / f"{part}.jsonl", documents(name, part, size))
                for part, size in parts.items()
            },
        }
        for name in [f"site-{n}" for n in range(1, count + 1)]
    ]


def encoder() -> str:
    """The name of a tiny encoder."""
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    from training.encoders import tiny_bert

    return named("tiny-relations", lambda folder: tiny_bert(folder, initializer_range=0.1))


def tiny_relations(folder: Path) -> dict[str, Any]:
    """Settings of a run of half a second, whose public set is written into `folder`."""
    public = folder / "public" / "set.jsonl"
    if not public.exists():
        write_documents(public, documents("public", "set", 24))
    return {
        "rounds": 2,
        "select": {"every": 1, "by": "micro"},
        "data": {"format": "jsonl"},
        "public": {"files": str(public), "format": "jsonl"},
        "classifier": {"encoder": encoder(), "max_length": 32},
        "training": {
            "optimiser": "adamw", "learning_rate": 0.005, "batch_size": 6, "local_epochs": 1,
        },
    }  # fmt: skip
