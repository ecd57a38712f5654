"""confide's sides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "tagger"))

from sides import examples_of, prepared

import confide
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser

Calls = dict[str, Callable[[], Any]]


def tagger(work: dict[str, Any]) -> Calls:
    """The BiLSTM-CNN-CRF: an epoch, and sentences of words to entities."""
    torch.set_num_threads(1)
    ours, own = prepared(work["train"], work["words"])
    model, settings = ours.initial(work["seed"]), Optimiser("adam", work["rate"])
    others = examples_of(work["test"])

    def train() -> None:
        ours.fit(
            model, own, epochs=1, batch_size=work["batch_size"], optimiser=settings,
            seed=work["seed"],
        )  # fmt: skip

    def label() -> int:
        return sum(map(len, ours.find(model, ours.prepared(others))))

    return {"train": train, "label": label}


def encoder(work: dict[str, Any]) -> Calls:
    """MiniLM that tags words, all of it tuned: an epoch, and raw text to entities."""
    torch.set_num_threads(1)
    types = ("Disease",)
    ours = TokenTrainer(load_encoder("minilm"), EncoderSpec(types))
    examples = examples_of(work["train"])
    spans = [one.spans for one in examples]
    own = ours.annotated(ours.prepared(examples), spans, source=set(types))
    model = ours.initial(work["seed"])
    settings = Optimiser("adamw", work["rate"], clip=1.0)
    run = Path(work["run"])
    nlp, narrow = confide.load(run), confide.load(run, int8=True)

    def train() -> None:
        ours.fit(
            model, own, epochs=1, batch_size=work["batch_size"], optimiser=settings,
            seed=work["seed"],
        )  # fmt: skip

    def labelled(model: Any) -> int:
        return sum(len(one.entities) for one in model.pipe(work["texts"]))

    return {
        "train": train,
        "label": lambda: labelled(nlp),
        "label in int8": lambda: labelled(narrow),
    }
