"""FedED in Flower: five of fifty clients train and predict the public set, and the server distils.

The strategy is Flower's own for averages, whose replies are predictions instead of weights.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2] / "relations"))

from common import plain_model

from confide.kinds.pieces import EncodedRelations, RelationBatch, relation_batch
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.model import RelationClassifier, RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.runs.sites import Gathered
from confide.settings import Settings
from confide.training.encoder import load_encoder

client = ClientApp()
RELATIONS = ("no-relation", "related")


@dataclass(frozen=True)
class Text:
    """All sites' text and the public set in numbers, and how they are learnt."""

    longest: int
    train: list[EncodedRelations]
    dev: list[EncodedRelations]
    test: list[EncodedRelations]
    public: EncodedRelations
    rate: float
    clip: float
    batch_size: int
    epochs: int
    temperature: float
    fraction: float


def prepared(settings: Settings, gathered: Gathered) -> Text:
    """The text as MiniLM's pieces."""
    trainer = trainer_of(settings.classifier.max_length)
    parts = {
        part: [
            trainer.prepared(candidates(getattr(spec, part)).examples) for spec in gathered.specs
        ]
        for part in ("train", "dev", "test")
    }
    own = settings.training
    return Text(
        settings.classifier.max_length, **parts,
        public=trainer.prepared(candidates(gathered.public).examples), rate=own.learning_rate,
        clip=own.clip, batch_size=own.batch_size, epochs=own.local_epochs,
        temperature=float(settings.options.get("temperature", 2.0)),
        fraction=settings.federation.fraction,
    )  # fmt: skip


def trainer_of(longest: int) -> RelationTrainer:
    return RelationTrainer(load_encoder("minilm"), RelationSpec(RELATIONS, longest=longest))


def new_model(longest: int) -> RelationClassifier:
    trainer = trainer_of(longest)
    return plain_model(trainer, trainer.initial(1))


@cache
def here() -> tuple[Text, RelationClassifier]:
    """This process's text and model."""
    written = Path(os.environ["PEER_TEXT"]).read_bytes()
    text: Text = pickle.loads(written)  # noqa: S301  # peer.py wrote it
    return text, new_model(text.longest)


def strategy(text: Text, *, test: bool = False) -> tuple[FedAvg, ArrayRecord]:
    """FedED, and the first weights."""
    if test:
        return FedAvg(fraction_train=0.0, min_train_nodes=0), ArrayRecord({})
    own = Distilling(text)
    return own, ArrayRecord(own.model.state_dict())


class Distilling(FedAvg):
    """Replies are predictions of the public set; their mean teaches the central model."""

    def __init__(self, text: Text) -> None:
        super().__init__(fraction_train=text.fraction)
        self.text, self.model = text, new_model(text.longest)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, None]:
        found = [one.content for one in replies]
        sizes = [one["metrics"]["num-examples"] for one in found]
        logits = [one["arrays"]["logits"].numpy() for one in found]
        mean_SR = torch.from_numpy(np.average(logits, axis=0, weights=sizes)).float()
        fit(self.model, self.text, self.text.public, seed=server_round, teacher_SR=mean_SR)
        return ArrayRecord(self.model.state_dict()), None


def batches(
    encoded: EncodedRelations, size: int, order: np.ndarray
) -> Iterator[tuple[np.ndarray, RelationBatch]]:
    """Every batch padded to its longest example."""
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield rows, relation_batch(encoded, rows)


def fit(
    model: RelationClassifier,
    text: Text,
    encoded: EncodedRelations,
    *,
    seed: int,
    teacher_SR: Tensor | None = None,
) -> None:
    """An epoch over the public set, or a client's epochs over its own text."""
    optimiser = torch.optim.AdamW(model.parameters(), text.rate, weight_decay=0.0, fused=True)
    draws = np.random.default_rng(seed)
    model.train()
    for _ in range(1 if teacher_SR is not None else text.epochs):
        for rows, batch in batches(encoded, text.batch_size, draws.permutation(len(encoded))):
            logits_BR = model(batch)
            loss = functional.cross_entropy(logits_BR, batch.relations_B)
            if teacher_SR is not None:
                loss = loss + softened(logits_BR, teacher_SR[rows], text.temperature)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), text.clip)
            optimiser.step()
    model.eval()


def softened(logits_BR: Tensor, teacher_BR: Tensor, heat: float) -> Tensor:
    return functional.kl_div(
        functional.log_softmax(logits_BR / heat, 1),
        functional.softmax(teacher_BR / heat, 1),
        reduction="batchmean",
    )


def logits_of(model: RelationClassifier, encoded: EncodedRelations) -> np.ndarray:
    with torch.inference_mode():
        order = np.arange(len(encoded))
        return np.concatenate([model(one).numpy() for _, one in batches(encoded, 32, order)])


@client.train()
def train(message: Message, context: Context) -> Message:
    text, model = here()
    site, turn = int(context.node_config["partition-id"]), message.content["config"]["server-round"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    fit(model, text, text.train[site], seed=1000 * site + int(turn))
    content = RecordDict(
        {
            "arrays": ArrayRecord({"logits": torch.from_numpy(logits_of(model, text.public))}),
            "metrics": MetricRecord({"num-examples": len(text.train[site])}),
        }
    )
    return Message(content=content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    text, model = here()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part: list[EncodedRelations] = getattr(text, str(message.content["config"]["part"]))
    own = part[int(context.node_config["partition-id"])]
    counts = {"gold": 0, "predicted": 0, "right": 0, "num-examples": 1}
    if len(own):
        found, gold = logits_of(model, own).argmax(1) == 1, own.relations_S == 1
        counts |= {
            "gold": int(gold.sum()),
            "predicted": int(found.sum()),
            "right": int((gold & found).sum()),
        }
    return Message(content=RecordDict({"metrics": MetricRecord(counts)}), reply_to=message)
