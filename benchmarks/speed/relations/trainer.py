"""Fine-tuning MiniLM on GAD at its own lengths: ours, and transformers' Trainer.

    python benchmarks/speed/relations/trainer.py --json benchmarks/speed/relations/measured.json

In an environment with accelerate, which the Trainer needs. It pads every batch to its own longest
example, in random order and with examples of like length together (`group_by_length`), and has
torch's fused AdamW. Both sides clip gradients at 1.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from common import gad, in_turn, keep, parser_of, ratio
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser

RATE = 2.5e-5


def main() -> None:
    parser = parser_of(__doc__, repeats=3)
    parser.add_argument("--examples", type=int, default=240, help="of GAD")
    parser.add_argument("--batch-size", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    modeller, own = gad("train", options.examples, options.seed)
    ours = modeller.initial(options.seed)
    settings = Optimiser("adamw", learning_rate=RATE, clip=1.0)

    pairs = modeller.annotated(own)

    def fit_ours() -> None:
        modeller.fit(
            ours, pairs, epochs=1, batch_size=options.batch_size, optimiser=settings,
            seed=options.seed,
        )  # fmt: skip

    sides: dict[str, Callable[[], object]] = {"ours": fit_ours}
    pieces = [
        own.ids_N[own.from_S1[row] : own.from_S1[row + 1]].tolist() for row in range(len(own))
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, grouped in (("Trainer", False), ("Trainer, like lengths", True)):
            sides[name] = trainer(folder, modeller, own, pieces, options, grouped=grouped).train
        times = in_turn(sides, options.repeats)
    measured = {}
    for name, taken in times.items():
        measured[f"{name}, steps/s"] = -(-len(own) // options.batch_size) / min(taken)
        if name != "ours":
            measured[f"ours is faster by, {name}"] = ratio(taken, times["ours"])
    measured["pieces of an example"] = float(own.lengths_S.mean())
    keep("trainer", measured, options)


def trainer(
    folder: str, modeller: Any, own: Any, pieces: list[list[int]], options: Any, *, grouped: bool
) -> Trainer:
    """A Trainer with a model of its own over the same pieces."""
    place = load_encoder("minilm").folder
    model = AutoModelForSequenceClassification.from_pretrained(place, num_labels=2)
    model.resize_token_embeddings(modeller.initial(1).encoder.get_input_embeddings().num_embeddings)
    rows = [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": int(relation)}
        for ids, relation in zip(pieces, own.relations_S, strict=True)
    ]
    more = {"train_sampling_strategy": "group_by_length"} if grouped else {}
    settings = TrainingArguments(
        folder, per_device_train_batch_size=options.batch_size, num_train_epochs=1,
        learning_rate=RATE, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused",
        save_strategy="no", logging_strategy="no", report_to="none", use_cpu=True,
        disable_tqdm=True, dataloader_pin_memory=False, **more,
    )  # fmt: skip
    return Trainer(
        model=model, args=settings, train_dataset=rows,
        data_collator=DataCollatorWithPadding(AutoTokenizer.from_pretrained(place)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
