"""Sentences for the benchmarks of this folder: NCBI-disease, or generated ones of like statistics.

It imports nothing but the standard library, so that the program for flair can use it too.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

Sentence = tuple[list[str], list[str]]  # tokens, IOB2 tags


def sentences(part: str, *, limit: int, seed: int) -> tuple[str, list[Sentence]]:
    """Where they come from, and up to `limit` sentences of "train" or "test"."""
    folder = os.environ.get("CONFIDE_DATA")
    file = Path(folder or "/nowhere") / "ncbi_disease_ner" / f"{part}.tsv"
    if file.is_file():
        return "NCBI-disease", _read(file)[:limit]
    return "generated", _generated(part, limit, seed)


def _read(file: Path) -> list[Sentence]:
    found: list[Sentence] = []
    for block in file.read_text("utf-8").strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if line.strip()]
        found.append(([row[0] for row in rows], [row[-1].strip() for row in rows]))
    return found


def _generated(part: str, limit: int, seed: int) -> list[Sentence]:
    """Words by Zipf's law out of 10,000, 25 tokens on average, one entity in every second."""
    words = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    lexicon = ["".join(words.choices(letters, k=words.randint(2, 12))) for _ in range(10_000)]
    weights = [1 / rank for rank in range(1, len(lexicon) + 1)]
    draws = random.Random(f"{seed} {part}")
    found: list[Sentence] = []
    for _ in range(limit):
        length = max(3, int(draws.lognormvariate(3.0, 0.6)))
        tags = ["O"] * length
        if draws.random() < 0.5:
            start = draws.randrange(length - 1)
            tags[start : start + 2] = ["B-Disease", "I-Disease"]
        found.append((draws.choices(lexicon, weights, k=length), tags))
    return found
