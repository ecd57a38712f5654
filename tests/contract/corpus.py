"""A small corpus that any tagger can learn, dealt to sites, as files and settings of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confide.federation.keys import new_key
from confide.methods import METHODS
from confide.settings import OF_THE_TASK, Settings, parse
from contract.bags import tiny_bags, write_bag_sites
from contract.relations import tiny_relations, write_relation_sites

DRUGS = ("aspirin", "codeine", "heparin", "insulin", "morphine", "warfarin")
EFFECTS = (("nausea",), ("skin", "rash"), ("severe", "joint", "pain"))
FILLERS = ("the", "patient", "took", "then", "had", "today", "after", "again", "with")
Tagged = list[tuple[str, str]]


def sentence(draw: random.Random, accent: str) -> Tagged:
    """Fillers, a drug, and perhaps an effect; `accent` is a word of the site's own."""
    words = [(word, "O") for word in draw.choices(FILLERS, k=draw.randint(1, 3))]
    words += [(accent, "O"), (draw.choice(DRUGS), "B-Drug")]
    words += [(word, "O") for word in draw.choices(FILLERS, k=draw.randint(1, 2))]
    if draw.random() < 0.7:
        first, *rest = draw.choice(EFFECTS)
        words += [(first, "B-Effect"), *((word, "I-Effect") for word in rest)]
    return [*words, (".", "O")]


def sentences(site: str, part: str, count: int) -> list[Tagged]:
    """The sentences of one part of a site; the same for the same arguments."""
    draw = random.Random(f"{site} {part}")
    accent = "ward" + (chr(96 + int(site[-1])) if site[-1].isdigit() else site)
    return [sentence(draw, accent) for _ in range(count)]


def write_conll(path: Path, tagged: Sequence[Tagged]) -> Path:
    """Token and tag columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = ("".join(f"{token}\t{tag}\n" for token, tag in one) for one in tagged)
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


def write_sites(
    folder: Path, count: int = 3, *, train: int = 18, held_out: int = 6
) -> list[dict[str, Any]]:
    """Files of some sites, and the `[[site]]` tables that name them."""
    tables = []
    for name in [f"site-{n}" for n in range(1, count + 1)]:
        parts = {"train": train, "dev": held_out, "test": held_out}
        for part, size in parts.items():
            write_conll(folder / name / f"{part}.conll", sentences(name, part, size))
        tables.append(
            {"name": name, **{part: str(folder / name / f"{part}.conll") for part in parts}}
        )
    return tables


KEY = bytes(range(100, 132))
"""The key that the sites share. Numbers depend on it: it decides how words are numbered."""

TINY: dict[str, Any] = {
    "rounds": 2,
    "select": {"every": 1},
    "data": {"format": "conll", "scheme": "iob2"},
    "model": {
        "word_dim": 8, "character_dim": 4, "character_filters": 4, "character_hidden": 4,
        "bilstm_hidden": 8, "dropout": 0.2,
    },
    "training": {
        "optimiser": "adam", "learning_rate": 0.02, "batch_size": 6, "local_epochs": 1,
    },
}  # fmt: skip
"""Settings of a run that takes half a second."""


WRITE = {"ner": write_sites, "re": write_relation_sites, "bags": write_bag_sites}
"""What writes the files of sites, by task."""


def _usual(folder: Path, task: str, overrides: Sequence[str]) -> dict[str, Any]:
    if task == "ner":
        return TINY
    if task == "re":
        return tiny_relations(folder)
    return tiny_bags("encoder" if "bags.reader=encoder" in overrides else "pcnn")


_SHORT = {full: name for (_, name), full in OF_THE_TASK.items()}


def tiny(folder: Path, *overrides: str, sites: int = 3, **tree: Any) -> Settings:
    """Settings of a tiny run of `sites` sites, whose files are written into `folder`.

    `method=` and `base=` may be a method's full name ("fedavg-re"): that decides the task.
    """
    chosen = [override.split("=", 1) for override in overrides]
    named = [name for key, name in chosen if key in ("method", "base")]
    tasks = {METHODS[name].task for name in named if name in METHODS}
    task = next((one for one in ("re", "bags") if one in tasks), "ner")
    overrides = tuple(
        f"{key}={_SHORT.get(value, value) if key in ('method', 'base') else value}"
        for key, value in chosen
    )
    tables = tree.pop("site", None) or WRITE[task](folder / "data", sites)
    key = folder / "shared.key"
    if not key.exists():
        new_key(key, KEY)
    usual = {"task": task, **_usual(folder, task, overrides)}
    return parse({"key": str(key), **usual, **tree, "site": tables}, overrides)
