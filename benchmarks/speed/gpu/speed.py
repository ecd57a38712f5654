"""Training and labelling with an encoder on a GPU: ours, a plain loop, transformers' Trainer.

    python benchmarks/speed/gpu/speed.py --device cuda --sizes minilm base large --json FILE

Random weights of MiniLM's, BERT-base's and BERT-large's sizes; a step is 32 sentences of 128 pieces
each, so that nothing is padded. All sides compute in bfloat16 under autocast, with float32 weights
and torch's fused AdamW, and clip gradients at 1; a plain loop is also timed compiled (`--compile`).

Work is counted as in benchmarks/speed/relations/training.py: for each piece, forwards, twice the
numbers in the weights of linear layers and, in each layer, four times the length times the width;
backwards twice that. The peak is that of a product of 8,192 x 8,192 matrices in bfloat16, timed in
the same run; divide by it, or by what the device's maker says, for the share of the peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import nn

from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.training.batches import Example
from confide.training.devices import computing_at, place_of
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser

SIZES = {  # layers, width, heads
    "tiny": (2, 64, 2),
    "minilm": (6, 384, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
RATE, TYPES = 2e-5, ("drug", "effect")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["minilm", "base", "large"])
    parser.add_argument("--sides", nargs="+", default=["ours", "plain", "Trainer"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="pieces of a sentence")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="the plain loop too, compiled")
    parser.add_argument("--json", type=Path, help="write what was measured")
    given = parser.parse_args()
    place = place_of(given.device, given.precision)
    measured: dict[str, Any] = {
        "product": product(place.device, 8192 if given.device != "cpu" else 512)
    }
    print(f"{place.device}: a product runs at {measured['product'] / 1e12:.1f} TFLOP/s")
    for size in given.sizes:
        with tempfile.TemporaryDirectory() as folder, computing_at(place):
            measured[size] = of_size(size, Path(folder), given)
    if given.json:
        about = {**vars(given), "json": None, "torch": torch.__version__, "date": str(date.today())}
        about["device"] = torch.cuda.get_device_name() if given.device != "cpu" else "cpu"
        given.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


def of_size(size: str, folder: Path, given: argparse.Namespace) -> dict[str, float]:
    """Pieces a second, and the share of the peak, of every side."""
    encoder = load_encoder(str(encoder_of(size, folder / "encoder", given.length)))
    trainer = TokenTrainer(encoder, EncoderSpec(TYPES, longest=given.length))
    count = given.steps * given.batch_size
    words = [f"piece{number}" for number in range(given.length - 2)]
    spans = ((0, 2, TYPES[0]), (5, 6, TYPES[1]))
    examples = [Example(0, number, tuple(words), spans) for number in range(count)]
    text = trainer.prepared(examples)
    own = trainer.annotated(text, [one.spans for one in examples], source=set(TYPES))
    ours = trainer.initial(1)
    layers, width, _ = SIZES[size]
    linear = sum(one.weight.numel() for one in ours.modules() if isinstance(one, nn.Linear))
    forwards = count * given.length * (2 * linear + layers * 4 * given.length * width)
    adamw = Optimiser("adamw", learning_rate=RATE, clip=1.0)
    calls: dict[str, tuple[Callable[[], object], float]] = {}
    if "ours" in given.sides:
        calls["ours, training"] = (
            lambda: trainer.fit(
                ours, own, weights_S=None, epochs=1, batch_size=given.batch_size, optimiser=adamw,
                seed=1,
            ),
            3 * forwards,
        )  # fmt: skip
        calls["ours, labelling"] = (lambda: trainer.find(ours, text), forwards)
    rows = pieces_of(text, given.length)
    if "plain" in given.sides:
        plain = Plain(encoder.folder, rows, given)
        calls["plain, training"] = plain.train, 3 * forwards
        calls["plain, labelling"] = plain.label, forwards
    if given.compile:
        compiled = Plain(encoder.folder, rows, given, compiled=True)
        calls["compiled, training"] = compiled.train, 3 * forwards
    if "Trainer" in given.sides:
        calls["Trainer, training"] = trainer(encoder.folder, rows, folder, given), 3 * forwards
    found = {}
    for name, (call, work) in calls.items():
        taken = statistics.median(timed(call, given))
        found[name] = count * given.length / taken
        found[f"{name}, TFLOP/s"] = work / taken / 1e12
        shown = f"{found[name]:12,.0f} pieces/s {found[f'{name}, TFLOP/s']:7.1f} TFLOP/s"
        print(f"{size:7} {name:20} {shown}", flush=True)
    return found


def timed(call: Callable[[], object], given: argparse.Namespace) -> list[float]:
    """Seconds of each call after the first, to the end of what the device does."""
    taken = []
    for _ in range(given.repeats + 1):
        wait(given)
        started = time.perf_counter()
        call()
        wait(given)
        taken.append(time.perf_counter() - started)
    return taken[1:]


def wait(given: argparse.Namespace) -> None:
    if given.device.startswith("cuda"):
        torch.cuda.synchronize()


def product(device: torch.device, size: int) -> float:
    """Operations a second of a product of square matrices in bfloat16."""
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        left @ left
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(20):
        left @ left
    if device.type == "cuda":
        torch.cuda.synchronize()
    return 20 * 2.0 * size**3 / (time.perf_counter() - started)


def encoder_of(size: str, folder: Path, length: int) -> Path:
    """Random weights of this size in a folder, with a tokenizer that knows each word as a piece."""
    folder.mkdir()
    layers, width, heads = SIZES[size]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += [f"piece{number}" for number in range(30_522 - len(pieces))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    made = tokenizers.BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=width, num_hidden_layers=layers,
        intermediate_size=4 * width, num_attention_heads=heads,
        max_position_embeddings=max(512, length),
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    return folder


def pieces_of(text: Any, length: int) -> np.ndarray:
    """ids_SP of all sentences, which have equal lengths."""
    ids_SP: np.ndarray = text.ids_N.reshape(-1, length)
    return ids_SP


class Plain:
    """A loop as a tutorial writes it, over tensors that lie on the device."""

    def __init__(
        self, folder: Path, rows: np.ndarray, given: argparse.Namespace, *, compiled: bool = False
    ) -> None:
        self.device, self.size = torch.device(given.device), given.batch_size
        model = transformers.AutoModelForTokenClassification.from_pretrained(folder, num_labels=9)
        self.model: Any = model.to(self.device)
        if compiled:
            self.model = torch.compile(self.model)
        self.ids_SP = torch.from_numpy(rows.astype(np.int64)).to(self.device)
        self.labels_SP = torch.zeros_like(self.ids_SP)
        self.mask_BP = torch.ones_like(self.ids_SP[: self.size])
        self.optimiser = torch.optim.AdamW(self.model.parameters(), RATE, fused=True)

    def batches(self) -> Any:
        return zip(self.ids_SP.split(self.size), self.labels_SP.split(self.size), strict=True)

    def train(self) -> None:
        self.model.train()
        for ids_BP, labels_BP in self.batches():
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.model(ids_BP, self.mask_BP, labels=labels_BP).loss
            self.optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimiser.step()

    def label(self) -> None:
        self.model.eval()
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16):
            for ids_BP, _ in self.batches():
                self.model(ids_BP, self.mask_BP).logits.argmax(2).cpu()


def trainer(
    folder: Path, rows: np.ndarray, work: Path, given: argparse.Namespace
) -> Callable[[], object]:
    """transformers' Trainer over the same sentences."""
    model = transformers.AutoModelForTokenClassification.from_pretrained(folder, num_labels=9)
    data = [
        {"input_ids": row, "attention_mask": [1] * len(row), "labels": [0] * len(row)}
        for row in rows.tolist()
    ]
    own = transformers.TrainingArguments(
        str(work / "trainer"), per_device_train_batch_size=given.batch_size, num_train_epochs=1,
        learning_rate=RATE, weight_decay=0.0, max_grad_norm=1.0, optim="adamw_torch_fused",
        bf16=given.precision == "bfloat16", save_strategy="no", logging_strategy="no",
        report_to="none", disable_tqdm=True, use_cpu=given.device == "cpu",
    )  # fmt: skip
    return transformers.Trainer(model=model, args=own, train_dataset=data).train


if __name__ == "__main__":
    main()
