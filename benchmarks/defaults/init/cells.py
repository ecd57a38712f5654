"""The cells of the grid: a corpus at a number of training sentences, dealt to three sites.

A cell is written as files that `confide init` takes: site1/train.conll, site1/dev.conll, ... Text
is taken in blocks of ten neighbouring sentences, as it stands in documents; which blocks is drawn
once, by the corpus' name. Development text: up to 300 sentences. Test text: up to 1,000.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path

SITES = 3
SIZES = (150, 250, 700, 2000)
BLOCK = 10
DEV, TEST = 300, 1000

Sentence = list[tuple[str, str]]


@dataclass(frozen=True)
class Corpus:
    """Where a corpus' parts lie under $CONFIDE_DATA, and which columns hold a token and its tag.

    Without `dev`, development text is taken from blocks of `train` that no cell trains on.
    """

    train: str
    test: str
    dev: str = ""
    columns: tuple[int, int] = (0, -1)
    language: str = "en"


def _bio(name: str, dev: str = "devel.tsv") -> Corpus:
    return Corpus(f"{name}/train.tsv", f"{name}/test.tsv", f"{name}/{dev}" if dev else "")


def _crossner(domain: str) -> Corpus:
    parts = (f"crossner/{domain}/{part}.txt" for part in ("train", "test", "dev"))
    return Corpus(*parts)


CORPORA = {
    "ncbi-disease": _bio("ncbi_disease_ner"),
    "bc5cdr": _bio("bc5cdr_ner"),
    "bc2gm": _bio("bc2gm_ner"),
    "jnlpba": _bio("jnlpba_ner", dev=""),  # its development part is its test part
    "anatem": _bio("anatem_ner"),
    "bionlp13cg": _bio("bionlp13cg_ner"),
    "linnaeus": _bio("linnaeus_ner"),
    "wnut17": Corpus(
        "wnut17/wnut17train.conll", "wnut17/emerging.test.annotated", "wnut17/emerging.dev.conll"
    ),
    "ewt": Corpus("uner_ewt/en_ewt-ud-dev.iob2", "uner_ewt/en_ewt-ud-test.iob2", columns=(1, 2)),
    "multiconer": Corpus("multiconer1_en/en_train.conll", "multiconer1_en/en_dev.conll"),
    "politics": _crossner("politics"),
    "science": _crossner("science"),
    "german-legal": Corpus("german_ler/ler_dev.conll", "german_ler/ler_test.conll", language="de"),
}
"""Thirteen corpora: eight of biomedicine, one of social media, one of the web, Wikipedia, law."""


def cells(corpora: list[str], sizes: list[int]) -> list[tuple[str, int]]:
    """The cells that the training text suffices for."""
    there = {name: len(read(CORPORA[name], CORPORA[name].train)) for name in corpora}
    spare = {name: 0 if CORPORA[name].dev else DEV for name in corpora}
    return [(n, size) for size in sizes for n in corpora if there[n] - spare[n] >= size - 2 * BLOCK]


def read(corpus: Corpus, part: str) -> list[Sentence]:
    """The sentences of a part; tags as B-TYPE, I-TYPE and O."""
    path = Path(os.environ["CONFIDE_DATA"]) / part
    sentences: list[Sentence] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip():
            sentences.append([])
        elif len(cells) > 1 and not line.startswith(("# ", "-DOCSTART-")):
            token, tag = (cells[column].strip() for column in corpus.columns)
            tag = f"{tag}-ENTITY" if tag in ("B", "I") else tag  # a corpus of one type
            sentences[-1].append((token or "_", tag if tag[:2] in ("B-", "I-") else "O"))
    return [one for one in sentences if one]


def drawn(name: str, size: int) -> dict[str, list[list[Sentence]]]:
    """The blocks of a cell's train, dev and test text."""
    corpus = CORPORA[name]
    chance = random.Random(name)
    train = _blocks(read(corpus, corpus.train), chance)
    test = _blocks(read(corpus, corpus.test), chance)
    count = min(size // BLOCK, len(train))
    if corpus.dev:
        dev = _blocks(read(corpus, corpus.dev), chance)
    else:
        dev = train[-(DEV // BLOCK) :]
        count = min(count, len(train) - DEV // BLOCK)
    return {"train": train[:count], "dev": dev[: DEV // BLOCK], "test": test[: TEST // BLOCK]}


def _blocks(sentences: list[Sentence], chance: random.Random) -> list[list[Sentence]]:
    blocks = [sentences[n : n + BLOCK] for n in range(0, len(sentences), BLOCK)]
    chance.shuffle(blocks)
    return blocks


def written(name: str, size: int, out: Path) -> Path:
    """Write a cell's files, block by block to its sites in turn; the folder."""
    folder = out / f"{name}-{size}"
    for part, blocks in drawn(name, size).items():
        for site in range(SITES):
            path = folder / f"site{site + 1}" / f"{part}.conll"
            path.parent.mkdir(parents=True, exist_ok=True)
            own = [sentence for block in blocks[site::SITES] for sentence in block]
            text = "\n\n".join("\n".join(f"{t}\t{tag}" for t, tag in one) for one in own)
            path.write_text(f"{text}\n", encoding="utf-8")
    return folder
