"""FedAvg of the plain tagger in Flower: ten clients, an epoch each, scored after every round."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

sys.path.insert(0, str(Path(__file__).parents[2] / "tagger"))

from plain import PlainTagger

from confide.kinds.agreement import AgreedWords
from confide.kinds.tagger.site import TaggerSpec
from confide.runs.sites import Gathered
from confide.settings import Settings
from confide.training.batches import Encoded, TagSet, encode_examples, examples_from
from confide.training.tagger import TaggerSizes, batch_of
from confide.training.vocabulary import count_characters, count_words, numbered

client = ClientApp()


@dataclass(frozen=True)
class Text:
    """All sites' text in numbers, and how it is learnt."""

    sizes: TaggerSizes
    tags: TagSet
    train: list[Encoded]
    dev: list[Encoded]
    test: list[Encoded]
    rate: float
    decay: float
    clip: float
    batch_size: int


def prepared(settings: Settings, gathered: Gathered) -> Text:
    """One vocabulary, of all training text: a simulation can have it without keys."""
    parts = {
        part: [examples_from(getattr(spec, part))[0] for spec in gathered.specs]
        for part in ("train", "dev", "test")
    }
    how = settings.vocabulary.normalise
    tokens = [token for site in parts["train"] for one in site for token in one.tokens]
    words, characters = numbered(count_words(tokens, how)), numbered(count_characters(tokens))
    types = sorted({span[2] for site in parts["train"] for one in site for span in one.spans})
    vocabulary = AgreedWords(words=words.texts, characters=characters.texts)
    shape = TaggerSpec.of(settings, types, vocabulary, dim=0).shape
    tags = TagSet(tuple(types), settings.model.tag_scheme)
    encoded = {
        part: [
            encode_examples(one, words=words, characters=characters, tags=tags, how=how)
            for one in own
        ]
        for part, own in parts.items()
    }
    own = settings.training
    return Text(
        shape, tags, **encoded, rate=own.learning_rate, decay=own.decay,
        clip=own.clip, batch_size=own.batch_size,
    )  # fmt: skip


@cache
def here() -> tuple[Text, PlainTagger]:
    """This process's text and model."""
    written = Path(os.environ["PEER_TEXT"]).read_bytes()
    text: Text = pickle.loads(written)  # noqa: S301  # peer.py wrote it
    return text, PlainTagger(text.sizes)


def strategy(text: Text, *, test: bool = False) -> tuple[FedAvg, ArrayRecord]:
    """Flower's own, and the first weights."""
    train = 0.0 if test else 1.0
    return FedAvg(fraction_train=train, min_train_nodes=0 if test else 2), ArrayRecord(
        PlainTagger(text.sizes).state_dict()
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    text, model = here()
    site, turn = int(context.node_config["partition-id"]), message.content["config"]["server-round"]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rate = text.rate * text.decay ** (int(turn) - 1)
    optimiser = torch.optim.Adam(model.parameters(), rate, fused=True)
    own = text.train[site]
    order = np.random.default_rng((site, int(turn))).permutation(len(own))
    model.train()
    for start in range(0, len(order), text.batch_size):
        optimiser.zero_grad()
        model.loss(batch_of(own, order[start : start + text.batch_size])).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), text.clip)
        optimiser.step()
    return answer(message, MetricRecord({"num-examples": len(own)}), model)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    text, model = here()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    part: list[Encoded] = getattr(text, str(message.content["config"]["part"]))
    own = part[int(context.node_config["partition-id"])]
    counts = dict.fromkeys(("gold", "predicted", "right"), 0)
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(own), 32):
            batch = batch_of(own, np.arange(start, min(start + 32, len(own))))
            for found, gold in zip(model.decode(batch), batch.tags_BL.numpy(), strict=True):
                there = set(text.tags.spans(np.array(found)))
                right = set(text.tags.spans(gold[: len(found)]))
                counts["gold"] += len(right)
                counts["predicted"] += len(there)
                counts["right"] += len(there & right)
    return answer(message, MetricRecord(counts | {"num-examples": 1}), None)


def answer(message: Message, metrics: MetricRecord, model: Any) -> Message:
    content = RecordDict({"metrics": metrics})
    if model is not None:
        content["arrays"] = ArrayRecord(model.state_dict())
    return Message(content=content, reply_to=message)
