"""GAD as a relation classifier reads it, the plain loops it is compared with, and time in turn."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread on every side

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from confide.kinds.pieces import EncodedRelations, RelationBatch, relation_batch
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.model import RelationClassifier, RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training.devices import WideLinear
from confide.training.encoder import load_encoder
from confide.training.weights import arrays, load_weights

sys.path.append(str(Path(__file__).parents[1]))

from turns import in_turn as in_turn
from turns import ratio as ratio

CORPUS = "$CONFIDE_DATA/gad_re/1"
PADDED = 128  # pieces, as tutorials have it
FORM = RelationSpec(("no-relation", "related"), longest=PADDED)


def gad(split: str, limit: int, seed: int) -> tuple[RelationTrainer, EncodedRelations]:
    """So many examples of the first fold, drawn by the seed."""
    trainer = RelationTrainer(load_encoder("minilm"), FORM)
    found = candidates(read(locate(f"{CORPUS}/{split}.tsv")).documents).examples
    order = np.random.default_rng(seed).permutation(len(found))[: limit or None]
    return trainer, trainer.prepared([found[place] for place in sorted(order)])


def all_as_long(encoded: EncodedRelations, count: int) -> EncodedRelations:
    """`count` examples of `PADDED` pieces each, of GAD's pieces in a row."""
    return replace(
        encoded,
        ids_N=np.resize(encoded.ids_N, count * PADDED),
        from_S1=np.arange(count + 1) * PADDED,
        heads_S2=np.tile(np.array([[9, 11]], np.int32), (count, 1)),
        tails_S2=np.tile(np.array([[90, 93]], np.int32), (count, 1)),
        relations_S=np.resize(encoded.relations_S, count),
    )


def plain_model(trainer: RelationTrainer, like: RelationClassifier) -> RelationClassifier:
    """transformers' model with its own layers, and our weights."""
    model = trainer.initial(1)
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, WideLinear):
                plain = nn.Linear(layer.in_features, layer.out_features)
                plain.weight, plain.bias = layer.weight, layer.bias
                setattr(module, name, plain)
    load_weights(model, arrays(like))
    return model


def padded_batches(
    encoded: EncodedRelations, size: int, seed: int | None = None
) -> Iterator[RelationBatch]:
    """In the order of the text, or a random one; every batch padded to `PADDED` pieces."""
    order = np.arange(len(encoded))
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    for start in range(0, len(order), size):
        yield padded(relation_batch(encoded, order[start : start + size]))


def padded(batch: RelationBatch) -> RelationBatch:
    more = (0, PADDED - batch.ids_BP.shape[1])
    mask_BP = torch.ones_like(batch.ids_BP) if batch.mask_BP is None else batch.mask_BP
    return replace(
        batch,
        ids_BP=functional.pad(batch.ids_BP, more),
        mask_BP=functional.pad(mask_BP, more),
        head_BP=functional.pad(batch.head_BP, more),
        tail_BP=functional.pad(batch.tail_BP, more),
    )


def train_plain(
    model: RelationClassifier, encoded: EncodedRelations, *, size: int, rate: float, seed: int
) -> None:
    """An epoch as a tutorial writes it, with torch's fastest AdamW."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
    model.train()
    for batch in padded_batches(encoded, size, seed):
        loss = functional.cross_entropy(model(batch), batch.relations_B)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        loss.item()
    model.eval()


def logits_plain(model: RelationClassifier, encoded: EncodedRelations, size: int) -> np.ndarray:
    with torch.inference_mode():
        return np.concatenate([model(b).numpy() for b in padded_batches(encoded, size)])


def check_equal(ours: np.ndarray, plain: np.ndarray) -> None:
    np.testing.assert_allclose(ours, plain, atol=1e-4)


def parser_of(about: str | None, *, repeats: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured, beside what is there")
    return parser


def keep(part: str, measured: dict[str, Any], options: argparse.Namespace) -> None:
    """Prints it, and writes it where `--json` says."""
    for name, value in measured.items():
        print(f"{name:52} {value:10.3f}")
    if options.json:
        about = {name: version(name) for name in ("torch", "transformers", "numpy")}
        about |= {**vars(options), "json": None}
        everything = json.loads(options.json.read_text()) if options.json.exists() else {}
        everything[part] = {"about": about, "measured": measured}
        options.json.write_text(json.dumps(everything, indent=1) + "\n")
