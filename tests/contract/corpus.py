"""A small corpus that any tagger can learn, dealt to sites, as files and settings of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from confide.federation.keys import new_key
from confide.methods import METHODS
from confide.settings import Settings, parse
from contract.bags import tiny_bags, write_bag_sites
from contract.models import named
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


KNOWS = {
    "ner": (["Drug", "Effect"], ["Drug", "Effect"], ["Drug"]),
    "re": (["causes", "eases"], ["causes", "eases"], ["eases"]),
}
"""What sites annotate in turn, of a method for sites with other tag sets, by task."""


def lacking(task: str, number: int) -> dict[str, Any]:
    """What the table of the site of this number says of the types that it annotates.

    Relations that it lacks are dropped from all of its text, and not looked for in its test text.
    """
    both = sorted({kind for knows in KNOWS[task] for kind in knows})
    knows = KNOWS[task][number % len(KNOWS[task])]
    if task == "ner":
        return {"annotates": knows, "test_annotates": both}
    return {"annotates": knows, "relations": dict.fromkeys({*both} - {*knows}, "")}


def _usual(folder: Path, task: str, overrides: Sequence[str]) -> dict[str, Any]:
    if task == "ner":
        return TINY
    if task == "re":
        return tiny_relations(folder)
    return tiny_bags("encoder" if "bags.reader=encoder" in overrides else "pcnn")


WORDS = sorted({*DRUGS, *FILLERS, *(word for effect in EFFECTS for word in effect)})


def reader(kind: str) -> str:
    """The name of a tiny encoder, or of a tiny BART, that knows these words."""
    pytest.importorskip("transformers", reason="needs the extra confide[encoder]")
    from training.barts import bart_folder
    from training.encoders import tiny_bert

    if kind == "lightner":
        return named("tiny-bart", lambda folder: bart_folder(folder, words=WORDS))
    return named("tiny", lambda folder: tiny_bert(folder, words=WORDS, initializer_range=0.1))


def tiny_kind(kind: str) -> dict[str, Any]:
    """What a run of entities needs besides, by the kind of model."""
    slow = {**TINY["training"], "optimiser": "adamw", "learning_rate": 0.005}
    own: dict[str, Any] = {}
    if kind in ("encoder", "spans"):
        own = {"classifier": {"encoder": reader(kind), "max_length": 32}, "training": slow}
    elif kind == "lightner":
        own = {
            "lightner": {"bart": reader(kind), "tune": "all", "max_length": 32},
            "training": slow,
        }
    return own | {"model": {**TINY["model"], "kind": kind}}


def public_sentences(folder: Path) -> Path:
    """A file of a public set of sentences, with what is annotated in them."""
    path = folder / "public" / "set.conll"
    return path if path.exists() else write_conll(path, sentences("public", "set", 24))


def tiny_private(task: str, kind: str, usual: dict[str, Any]) -> dict[str, Any]:
    """What a run under (little) noise needs besides."""
    named: dict[str, Any] = {"types": ["Drug", "Effect"]}
    found: dict[str, Any] = {}
    if task == "re":
        named = {"types": ["Drug", "Pain"], "relations": ["causes", "eases"]}
        found["pairs"] = {"types": [["Drug", "Pain"]]}
    if kind == "tagger":
        own = {"character": "none", "context": reader("encoder")}
        found["model"] = {**usual["model"], **own}
    return found | {
        "data": {**usual["data"], **named},
        "federation": {"sums": "masked"},
        "guards": {"max_epsilon": 1000.0},
        "privacy": {
            "unit": "document" if task == "re" else "sentence",
            "noise": 2.0, "rate": 0.8, "rounds": 60, "units": 54, "holdout_scores": "sent",
        },
    }  # fmt: skip


def tiny(folder: Path, *overrides: str, sites: int = 3, **tree: Any) -> Settings:
    """Settings of a tiny run of `sites` sites, whose files are written into `folder`.

    `method=` and `base=` may name a pair ("fedavg-relations"): that decides the task, and the kind
    of model; of a method for sites with other tag sets, every third site lacks a type.
    """
    chosen = [override.split("=", 1) for override in overrides]
    named = [name for key, name in chosen if key in ("method", "base") and name in METHODS]
    pair = METHODS[named[-1]] if named else METHODS["fedavg-tagger"]
    overrides = tuple(
        f"{key}={METHODS[value].method if value in named else value}" for key, value in chosen
    )
    task, kind, completes = pair.task, pair.kind.name, pair.method == "pseudo-complete"
    tables = tree.pop("site", None) or WRITE[task](folder / "data", sites)
    if completes:
        tables = [{**lacking(task, number), **table} for number, table in enumerate(tables)]
    key = folder / "shared.key"
    if not key.exists():
        new_key(key, KEY)
    usual = {"task": task, **_usual(folder, task, overrides)}
    if pair.public and task == "ner":
        usual["public"] = {"files": str(public_sentences(folder)), "format": "conll"}
    if task == "ner" and (completes or kind != "tagger"):
        usual |= tiny_kind(kind)
    if completes:
        usual["options"] = {"warmup_rounds": 0}
    if pair.method == "lazy-mil":  # the paper's, so that sites bid from the first round on
        usual["options"] = {"warmup_rounds": 0, "factor": 1.0}
    if pair.private:
        usual |= tiny_private(task, pair.kind.name, usual)
    if pair.method == "fedner":  # which takes its steps with no other
        usual["training"] = {**usual["training"], "optimiser": "adam"}
    return parse({"key": str(key), **usual, **tree, "site": tables}, overrides)
