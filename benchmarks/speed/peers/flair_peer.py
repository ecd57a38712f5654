"""flair's `SequenceTagger` over a trained vector per word and its character BiLSTM, from scratch.

One BiLSTM layer of our size and a CRF. Training is the inner loop of its `ModelTrainer` without
scores, checkpoints and logs, so the comparison leans towards flair.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flair
import torch
from flair.data import Dictionary, Sentence
from flair.embeddings import CharacterEmbeddings, OneHotEmbeddings, StackedEmbeddings
from flair.models import SequenceTagger
from flair.training_utils import store_embeddings
from torch import nn

sys.path.append(str(Path(__file__).parents[2] / "defaults" / "init"))

from spans import spans

Calls = dict[str, Callable[[], Any]]
WORD_DIM, CHARACTER_DIM, CHARACTER_HIDDEN, HIDDEN = 100, 25, 25, 200


def tagger(work: dict[str, Any]) -> Calls:
    """An epoch, and sentences of words to entities."""
    logging.getLogger("flair").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    flair.set_seed(work["seed"])
    flair.device = torch.device("cpu")
    learn = [sentence(*pair) for pair in work["train"]]
    model = made(learn)
    optimiser = torch.optim.Adam(model.parameters(), work["rate"], fused=True)
    size = work["batch_size"]

    def train() -> None:
        model.train()
        order = random.sample(learn, len(learn))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            optimiser.zero_grad()
            loss, count = model.forward_loss(batch)
            (loss / count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
            store_embeddings(batch, "none")

    def label() -> int:
        model.eval()
        others = [Sentence(tokens) for tokens, _ in work["test"]]
        model.predict(others, mini_batch_size=32, embedding_storage_mode="none")
        return sum(len(one.get_spans("ner")) for one in others)

    return {"train": train, "label": label}


def made(learn: list[Sentence]) -> SequenceTagger:
    words, characters, tags = Dictionary(), Dictionary(), Dictionary(add_unk=False)
    for one in learn:
        for token in one:
            words.add_item(token.text)
            for character in token.text:
                characters.add_item(character)
    tags.add_item("Disease")
    tags.span_labels = True
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "characters")
        characters.save(file)
        embeddings = [
            OneHotEmbeddings(words, embedding_length=WORD_DIM),
            CharacterEmbeddings(str(file), CHARACTER_DIM, CHARACTER_HIDDEN),
        ]
    return SequenceTagger(
        embeddings=StackedEmbeddings(embeddings), tag_dictionary=tags, tag_type="ner",
        hidden_size=HIDDEN, rnn_layers=1, use_crf=True, reproject_embeddings=False,
    )  # fmt: skip


def sentence(tokens: list[str], tags: list[str]) -> Sentence:
    found = Sentence(tokens)
    for start, end, name in spans(tags):
        found[start : end + 1].add_label("ner", name)
    return found
