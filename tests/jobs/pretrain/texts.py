"""Tiny texts and a tiny encoder to pretrain with."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from confide.jobs.pretrain import Pretraining
from confide.learning.denoising import Denoising
from learning.encoders import tiny_bert

WORDS = ("the", "patient", "took", "pain", "head", "headache", "heads", "a", "bad", "egg")


def write_text(path: Path, *, sentences: int, seed: int) -> Path:
    """A CoNLL file of one column, a sentence a document."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(sentences):
        lines += [f"{word}\tO" for word in rng.choice(WORDS, rng.integers(6, 12))] + [""]
    path.write_text("\n".join(lines) + "\n")
    return path


def tiny_plan(folder: Path) -> Pretraining:
    """Settings of an encoder in `folder`, which is made there; steps of milliseconds."""
    base = tiny_bert(folder, initializer_range=0.1)
    how = Denoising(learning_rate=1e-2, sampled=20, dropout=0.1)
    return Pretraining(
        base=str(base),
        decoder_layers=1,
        longest=24,
        batch=256,
        held_out=0.1,
        measures=4,
        measured=100,
        how=how,
    )
