"""Gradient inversion: which word piece stood where, from one step's change of an encoder.

The embedding of a piece at a place is the sum of a row of the table of pieces and a row of the
table of places, so one step's gradient gives both the same slope. The row of a piece that occurs
once is one of the terms of the row of its place: places = A · pieces, where A says which piece
stood where, and A follows by least squares while a batch has no more pieces than the encoder is
wide (384). It reads what Lu et al., "APRIL: Finding the Achilles' Heel on Privacy for Vision
Transformers" (CVPR 2022) read from the slopes of places, without their need for a single example;
dropout is no obstacle. Optimising an input until its gradient fits (DLG, TAG) recovers less of a
batch, and takes hours.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from listening import changes_in, ran, settings_of, site_tables
from lying import dealt, read_conll, written

SITES, BATCH = 5, 4
PIECES = "encoder.embeddings.word_embeddings.weight"
PLACES = "encoder.embeddings.position_embeddings.weight"


def inversion(given: argparse.Namespace, sums: str) -> list[dict[str, Any]]:
    """Five sites with one batch of four sentences each, one step of gradient descent."""
    from confide.training.encoder import load_encoder, tokenizer_of

    corpus = Path(os.environ["CONFIDE_DATA"]) / "ncbi_disease_ner"
    train = dealt(read_conll(str(corpus / "train.tsv")), SITES, each=BATCH, seed=given.seed)
    public = read_conll(str(corpus / "devel.tsv"))
    texts = [{"train": written(one), "dev": written(public[:2]), "test": written(public[2:4])}
             for one in train]  # fmt: skip
    tree = settings_of(given, sums) | {
        "site": site_tables(given, texts, "conll"),
        "data": {"format": "conll", "scheme": "iob2", "types": ["Disease"]},
        "model": {"kind": "encoder"},
        "training": {"optimiser": "sgd", "learning_rate": 0.1, "batch_size": BATCH,
                     "local_epochs": 1},
    }  # fmt: skip
    if sums != "noise":
        tree["training"]["clip"] = float("inf")
    heard, _ = ran(given, tree)
    method = f"{tree['method']}-encoder"
    tokenizer = tokenizer_of(load_encoder("minilm").folder)

    def cut(sentence: Any) -> list[int]:
        words = [tokenizer(w, add_special_tokens=False)["input_ids"] for w, _ in sentence]
        return [piece for pieces in words for piece in pieces]

    text = [cut(sentence) for sentence in train[0]]
    common = Counter(piece for sentence in public for piece in cut(sentence))
    changed = {name: changes_in(heard, method, name, sums) for name in (PIECES, PLACES)}
    return [
        {"attack": "inversion", "seen": seen}
        | inverted(changed[PIECES][number], changed[PLACES][number], text, common)
        for number, seen in ((1, "bytes"), (2, "sum"))
    ]


def inverted(
    pieces_VD: np.ndarray, places_PD: np.ndarray, text: list[list[int]], common: Counter[int]
) -> dict[str, Any]:
    """The share of the pieces of the text that are read at their place.

    At each place as many are guessed as sentences reach it. `chance` is the share that the most
    frequent pieces of public text get there.
    """
    norms_V = np.linalg.norm(pieces_VD.astype(np.float64), axis=1)
    rows = np.argsort(-norms_V, kind="stable")[: pieces_VD.shape[1]]
    rows = rows[norms_V[rows] > 1e-9 * norms_V.max()]
    longest = max(map(len, text))
    there_PD = places_PD[1 : 1 + longest].astype(np.float64)  # after the special piece
    slopes_PV = there_PD @ np.linalg.pinv(pieces_VD[rows].astype(np.float64), rcond=1e-5)
    usual = [piece for piece, _ in common.most_common()]
    read = by_chance = 0
    for place in range(longest):
        true = [sentence[place] for sentence in text if len(sentence) > place]
        taken = rows[np.argsort(-slopes_PV[place], kind="stable")[: len(true)]].tolist()
        read += sum(piece in taken for piece in true)
        by_chance += sum(piece in usual[: len(true)] for piece in true)
    total = sum(map(len, text))
    return {
        "sentences": len(text), "pieces": total, "moved": float((norms_V > 0).mean()),
        "found": read / total, "chance": by_chance / total,
    }  # fmt: skip
