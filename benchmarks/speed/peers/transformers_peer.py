"""transformers' Trainer and pipeline, and onnxruntime over what confide exports."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pieces
import torch
from pieces import TAGS, entities, rows_of
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    pipeline,
)

Calls = dict[str, Callable[[], Any]]


def encoder(work: dict[str, Any]) -> Calls:
    """An epoch of the Trainer; raw text to entities by the pipeline and by onnxruntime."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(work["encoder"])
    exported = AutoTokenizer.from_pretrained(work["hf"])
    model = AutoModelForTokenClassification.from_pretrained(work["hf"])
    how: Any = {"aggregation_strategy": "simple", "device": -1}
    peer = pipeline("token-classification", model=model, tokenizer=exported, **how)
    texts = work["texts"]

    def labelled(size: int) -> int:
        return sum(map(len, peer(texts, batch_size=size)))

    return {
        "train (Trainer)": trainer(work, tokenizer, grouped=False),
        "train (Trainer, like lengths)": trainer(work, tokenizer, grouped=True),
        "label (pipeline)": lambda: labelled(1),
        "label (pipeline, batches of 32)": lambda: labelled(32),
        "label (onnxruntime)": looping(exported, Path(work["onnx"]), texts),
        "label in int8 (onnxruntime)": looping(exported, Path(work["int8"]), texts),
    }


def trainer(work: dict[str, Any], tokenizer: Any, *, grouped: bool) -> Callable[[], None]:
    """Every batch padded to its own longest sentence, torch's fused AdamW, clipped at 1."""
    torch.manual_seed(work["seed"])
    model = AutoModelForTokenClassification.from_pretrained(work["encoder"], num_labels=len(TAGS))
    more = {"train_sampling_strategy": "group_by_length"} if grouped else {}
    settings = TrainingArguments(
        tempfile.gettempdir(), per_device_train_batch_size=work["batch_size"], num_train_epochs=1,
        learning_rate=work["rate"], weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused",
        save_strategy="no", logging_strategy="no", report_to="none", use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False, **more,
    )  # fmt: skip
    made = Trainer(
        model=model, args=settings, train_dataset=rows_of(tokenizer, work["train"]),
        data_collator=DataCollatorForTokenClassification(tokenizer),
    )  # fmt: skip

    def train() -> None:
        made.train()

    return train


def looping(tokenizer: Any, folder: Path, texts: list[str]) -> Callable[[], int]:
    """A loop over batches of like length."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)

    def label() -> int:
        count = 0
        for one in pieces.read(tokenizer, texts, "np"):
            ids_BP = one["input_ids"]
            given = {"input_ids": ids_BP, "attention_mask": one["attention_mask"]}
            given["firsts"] = np.broadcast_to(np.arange(ids_BP.shape[1]), ids_BP.shape)
            tags_BP = session.run(None, given)[0].argmax(2)
            count += len(entities(tags_BP, one["offset_mapping"], one["special_tokens_mask"]))
        return count

    return label
