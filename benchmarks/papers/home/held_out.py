"""How many held-out entities a model has read before, by how text without document marks is cut.

    CONFIDE_DATA=... python benchmarks/papers/home/held_out.py

Of the first 700 training sentences of a corpus of abstracts, a tenth is held out with 20 seeds: one
by one, or by blocks of neighbours. Printed is the share of its entities whose words and type occur
in the rest, and the same of the corpus's test text.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from confide.runs.sites import neighbour_blocks
from confide.text.document import Document
from confide.text.formats import read


def known(train: Sequence[Document], held: Sequence[Document]) -> float:
    """Of a hundred entities in `held`, how many are in `train`."""
    seen, other = (
        [(one.type, text.surface(one).lower()) for text in part for one in text.entities]
        for part in (train, held)
    )
    return 100 * fmean(one in set(seen) for one in other)


def drawn(units: Sequence[Sequence[Document]], seed: int) -> tuple[list[Document], list[Document]]:
    """A tenth of the units, and the rest, as documents."""
    order = random.Random(seed).sample(list(units), len(units))
    cut = int(0.1 * len(units) + 0.5)
    held, train = ([one for unit in part for one in unit] for part in (order[:cut], order[cut:]))
    return train, held


def main() -> None:
    print("| corpus | one by one | by blocks | its test text |")
    print("|---" * 4 + "|")
    for name in ("ncbi_disease_ner", "bc5cdr_ner"):
        folder = Path(os.environ["CONFIDE_DATA"]) / name
        train = read(folder / "train.tsv", "conll").documents[:700]
        test = read(folder / "test.tsv", "conll").documents
        ways = [[one] for one in train], neighbour_blocks(train, share=0.1)
        shares = [fmean(known(*drawn(units, seed)) for seed in range(20)) for units in ways]
        cells = [f"{one:.0f}" for one in (*shares, known(train, test))]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
