"""The careful loops: what somebody writes in PyTorch who times it.

The tagger is that of `benchmarks/speed/tagger/plain.py`; from equal weights it gives the losses
that ours gives, which is checked first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pieces
import torch
from pieces import IGNORED, TAGS, entities, rows_of
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForTokenClassification, AutoTokenizer

sys.path.append(str(Path(__file__).parents[1] / "tagger"))

from plain import CarefulTagger, PlainTagger
from sides import check_equal, label_plain, prepared, train_plain

from confide.training.optimisers import Optimiser
from confide.training.tagger import shuffled
from training.corpora import train_batches

Calls = dict[str, Callable[[], Any]]
TOKENS = 4096
"""The most padded tokens of a batch that is only read, as ours has it."""


def tagger(work: dict[str, Any]) -> Calls:
    """Our batches of like length, fused Adam, clipped; labelling has a reader of its own."""
    torch.set_num_threads(1)
    ours, own = prepared(work["train"], work["words"])
    model = CarefulTagger(ours.sizes)
    check_equal(ours, own, [PlainTagger(ours.sizes), model])
    words, characters = (
        {text: number for number, text in enumerate(one.texts, 2)}
        for one in (ours.words, ours.characters)
    )
    size, seed = work["batch_size"], work["seed"]
    sentences = [tokens for tokens, _ in work["test"]]

    def train() -> None:
        batches = train_batches(own.text, batch_size=size, seed=seed)
        train_plain(model, batches, Optimiser("adam", work["rate"]), fused=True)

    def label() -> int:
        return label_plain(model, read(sentences, words, characters), ours.tags)

    return {"train": train, "label": label}


@dataclass
class Read:
    """What the careful tagger reads of a batch."""

    words_BL: Tensor
    mask_BL: Tensor
    lengths_B: Tensor
    forms_BL: Tensor
    characters_UC: Tensor
    character_lengths_U: Tensor


def read(
    sentences: list[list[str]], words: dict[str, int], characters: dict[str, int]
) -> Iterator[Read]:
    """Sentences, longest first; every distinct word of a batch is spelled once."""
    left = sorted(sentences, key=len, reverse=True)
    while left:
        count = max(1, TOKENS // len(left[0]))
        batch, left = left[:count], left[count:]
        forms: dict[str, int] = {}
        forms_BL = padded([[forms.setdefault(word, len(forms)) for word in one] for one in batch])
        spelled = [[characters.get(letter, 1) for letter in form] for form in forms]
        lengths_B = torch.tensor([len(one) for one in batch])
        mask_BL = torch.arange(forms_BL.shape[1]) < lengths_B[:, None]
        words_U = torch.tensor([words.get(form.lower(), 1) for form in forms])
        yield Read(
            words_U[forms_BL] * mask_BL, mask_BL, lengths_B, forms_BL, padded(spelled),
            torch.tensor([len(one) for one in spelled]),
        )  # fmt: skip


def padded(rows: list[list[int]], fill: int = 0) -> Tensor:
    made = [torch.tensor(row) for row in rows]
    return pad_sequence(made, batch_first=True, padding_value=fill)


def encoder(work: dict[str, Any]) -> Calls:
    """MiniLM as transformers has it: batches of like length, fused AdamW, clipped."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(work["encoder"])
    torch.manual_seed(work["seed"])
    learner, model = (
        AutoModelForTokenClassification.from_pretrained(work[place], **more)
        for place, more in (("encoder", {"num_labels": len(TAGS)}), ("hf", {}))
    )
    rows = rows_of(tokenizer, work["train"])
    lengths_S = np.array([len(row["input_ids"]) for row in rows])
    optimiser = torch.optim.AdamW(learner.parameters(), work["rate"], weight_decay=0.0, fused=True)
    random = np.random.default_rng(work["seed"])

    def train() -> None:
        learner.train()
        for rows_B in shuffled(lengths_S, work["batch_size"], random=random):
            batch = [rows[row] for row in rows_B]
            ids_BP, mask_BP, labels_BP = (
                padded([one[name] for one in batch], fill)
                for name, fill in (("input_ids", 0), ("attention_mask", 0), ("labels", IGNORED))
            )
            loss = learner(ids_BP, mask_BP, labels=labels_BP).loss
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            optimiser.step()

    def label() -> int:
        model.eval()
        count = 0
        with torch.inference_mode():
            for one in pieces.read(tokenizer, work["texts"], "pt"):
                tags_BP = model(one["input_ids"], one["attention_mask"]).logits.argmax(2).numpy()
                where = (one["offset_mapping"].numpy(), one["special_tokens_mask"].numpy())
                count += len(entities(tags_BP, *where))
        return count

    return {"train": train, "label": label}
