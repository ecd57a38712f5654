"""Cells of relations: one corpus at a number of training pairs, which `init` deals to sites.

Lines are those of the published files. Pairs of one sentence stay beside each other: text is taken
in blocks of ten pairs. Development text: up to 300 pairs, from blocks of training text that no cell
trains on. Test text: up to 1,000 pairs.
"""

from __future__ import annotations

import json
import os
import random
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path

BLOCK, DEV, TEST = 10, 300, 1000


@dataclass(frozen=True)
class Pairs:
    """Where the parts lie under $CONFIDE_DATA, and how they are written."""

    train: str
    test: str
    form: str
    suffix: str = ".txt"


CORPORA = {
    "euadr": Pairs("euadr_re/1/train.tsv", "euadr_re/1/test.tsv", "biobert", ".tsv"),
    "gad": Pairs("gad_re/1/train.tsv", "gad_re/1/test.tsv", "biobert", ".tsv"),
    "chemprot": Pairs("chemprot_re/train.txt", "chemprot_re/test.txt", "chemprot"),
    "semeval": Pairs("training/TRAIN_FILE.TXT", "testing_keys/TEST_FILE_FULL.TXT", "semeval"),
}
SIZES = (250, 700, 2000, 7000)


def cells(corpora: list[str], sizes: list[int]) -> list[tuple[str, int]]:
    return [
        (name, size)
        for size in sizes
        for name in corpora
        if len(records(name, CORPORA[name].train)) - (DEV if name != "euadr" else 30) >= size
    ]


def records(name: str, part: str) -> list[str]:
    """The pairs of a part, each as it stands in its file."""
    root = Path(os.environ["CONFIDE_DATA"])
    if CORPORA[name].form == "semeval":
        with tarfile.open(root / "semeval2010_task8" / "SemEval2010_task8_all_data.tar.gz") as tar:
            file = tar.extractfile(f"SemEval2010_task8_all_data/SemEval2010_task8_{part}")
            assert file is not None
            text = file.read().decode("utf-8").replace("\r\n", "\n")
        return [block for block in text.split("\n\n") if block.strip()]
    lines = (root / part).read_text(encoding="utf-8").splitlines()
    if CORPORA[name].form == "biobert" and lines[0].startswith("index\t"):
        lines = [line.split("\t", 1)[1] for line in lines[1:]]  # as training text is written
    return [line for line in lines if line.strip()]


def written(name: str, size: int, out: Path) -> Path:
    """Write a cell's files; the folder."""
    corpus = CORPORA[name]
    chance = random.Random(name)
    train = _blocks(records(name, corpus.train), chance)
    test = _blocks(records(name, corpus.test), chance)
    dev = DEV // BLOCK if name != "euadr" else 3
    folder = out / f"{name}-{size}"
    folder.mkdir(parents=True, exist_ok=True)
    glue = "\n\n" if corpus.form == "semeval" else "\n"
    parts = {"train": train[: size // BLOCK], "dev": train[-dev:], "test": test[: TEST // BLOCK]}
    for part, blocks in parts.items():
        text = glue.join(one for block in blocks for one in block)
        (folder / f"{part}{corpus.suffix}").write_text(f"{text}\n", encoding="utf-8")
    return folder


def _blocks(found: list[str], chance: random.Random) -> list[list[str]]:
    blocks = [found[n : n + BLOCK] for n in range(0, len(found), BLOCK)]
    chance.shuffle(blocks)
    return blocks


def labelled(name: str, part: Path) -> list[tuple[str, str]]:
    """(text with its pair marked, label) of each pair; the label "" where there is no relation."""
    text = part.read_text(encoding="utf-8").strip()
    if CORPORA[name].form == "semeval":
        blocks = [block.split("\n") for block in text.split("\n\n")]
        found = [(_blind(block[0].split("\t", 1)[1]), block[1]) for block in blocks]
        return [(one, "" if label == "Other" else label) for one, label in found]
    if CORPORA[name].form == "chemprot":
        rows = [json.loads(line) for line in text.splitlines()]
        return [(_blind(row["text"]), row["label"]) for row in rows]
    pairs = [line.rsplit("\t", 1) for line in text.splitlines()]
    return [(one, "related" if label == "1" else "") for one, label in pairs]


def _blind(text: str) -> str:
    """The marks stay, as words; what they hold stays too."""
    return re.sub(r"(<</?|>>|\[\[|\]\]|</?e[12]>)", r" \1 ", text)
