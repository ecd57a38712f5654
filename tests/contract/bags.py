"""A small corpus of bags that any reader can learn, dealt to sites.

A knowledge base says what holds between a drug and an effect; of a site's training sentences some
say something else. Most bags are a site's own, some are several sites'.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confide.text.document import Document, Entity, Relation
from contract.relations import DRUGS, EFFECTS, FILLERS, SAID, encoder, write_documents

HOLDS = ("eases", "causes", "")
"""By the numbers of drug and effect: their sum decides which of these."""
WRONG = 0.1
"""The share of training sentences that say something else than what holds."""


def holds(drug: int, effect: int) -> str:
    """What the knowledge base says; nothing: empty."""
    return HOLDS[(drug + effect) % 3]


def document(draw: random.Random, name: str, *, site: str, wrong: float) -> Document:
    """A sentence about a drug and an effect, whose concepts are the site's own or everybody's."""
    drug, effect = draw.randrange(len(DRUGS)), draw.randrange(len(EFFECTS))
    relation = holds(drug, effect)
    said = draw.choice(sorted(set(SAID) - {relation})) if draw.random() < wrong else relation
    owner = "" if draw.random() < 0.3 else f":{site}"
    return sentence(
        draw,
        name,
        names=(DRUGS[drug], EFFECTS[effect]),
        concepts=(f"D{drug}", f"E{effect}{owner}"),
        said=SAID[said],
        relation=relation,
    )


def sentence(
    draw: random.Random,
    name: str,
    *,
    names: tuple[str, str],
    concepts: tuple[str, str],
    said: str,
    relation: str,
) -> Document:
    """Fillers, a drug, what is said, an effect; the relation is the label, whatever is said."""
    text = ""
    spans = []
    for part in (*draw.choices(FILLERS, k=draw.randint(0, 2)), names[0], said, names[1], "."):
        text += " " if text else ""
        spans.append((len(text), len(text) + len(part)))
        text += part
    entities = (
        Entity("T1", "Drug", (spans[-4],), concepts=(concepts[0],)),
        Entity("T2", "Pain", (spans[-2],), concepts=(concepts[1],)),
    )
    relations = (Relation("R1", relation, "T1", "T2"),) if relation else ()
    return Document(name, text, entities, relations)


def bag_documents(site: str, part: str, count: int) -> list[Document]:
    """The documents of one part of a site; the same for the same arguments."""
    draw = random.Random(f"bags {site} {part}")
    wrong = WRONG if part == "train" else 0.0
    return [
        document(draw, f"{site}-{part}-{number}", site=site, wrong=wrong) for number in range(count)
    ]


def write_bag_sites(
    folder: Path, count: int = 3, *, train: int = 48, held_out: int = 32
) -> list[dict[str, Any]]:
    """Files of some sites, and the `[[site]]` tables that name them."""
    parts = {"train": train, "dev": held_out, "test": held_out}
    return [
        {
            "name": name,
            **{
                part: write_documents(
                    folder / name / f"{part}.jsonl", bag_documents(name, part, size)
                )
                for part, size in parts.items()
            },
        }
        for name in [f"site-{n}" for n in range(1, count + 1)]
    ]


def write_bags(folder: Path, sites: dict[str, Sequence[Document]]) -> list[dict[str, Any]]:
    """Tables of sites that train on these documents, and hold the small corpus out."""
    tables = write_bag_sites(folder, len(sites))
    for table, (name, documents) in zip(tables, sites.items(), strict=True):
        table |= {"name": name}
        table["train"] = write_documents(folder / name / "own.jsonl", documents)
    return tables


def tiny_bags(reader: str = "pcnn") -> dict[str, Any]:
    """Settings of a run of half a second."""
    tree: dict[str, Any] = {
        "rounds": 2,
        "select": {"every": 1},
        "data": {"format": "jsonl"},
        "bags": {"reader": reader},
        "pcnn": {
            "word_dim": 8, "position_dim": 2, "filters": 12, "dropout": 0.1, "max_length": 32,
            "max_distance": 10,
        },
        "training": {
            "learning_rate": 0.2, "batch_size": 6, "local_epochs": 1,
        },
    }  # fmt: skip
    if reader == "encoder":
        tree["classifier"] = {"encoder": encoder(), "max_length": 32}
    return tree
