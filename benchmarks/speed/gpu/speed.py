"""Training and labelling with an encoder on a GPU: ours, a plain loop, transformers' Trainer.

    python benchmarks/speed/gpu/speed.py --json FILE

Random weights of BERT-base's, BERT-large's and MiniLM's sizes; a step is 32 sentences of 128 pieces
each, or 256, so that nothing is padded. All sides compute in bfloat16 under autocast, with float32
weights and torch's fused AdamW, and clip gradients at 1; a plain loop is also timed compiled.

First it trains a tiny model there and on the processor, and ends if their weights differ. No side
begins after `--minutes`; what was left out is said. On a GPU it counts how often the processor
waits for it in a training, too.

Work is counted as in benchmarks/speed/relations/training.py: for each piece, forwards, twice the
numbers in the weights of linear layers and, in each layer, four times the length times the width;
backwards twice that. The peak is that of a product of 8,192 x 8,192 matrices in bfloat16, timed in
the same run, and shares are of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import nn

from confide.errors import DeviceError
from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.training.batches import Example
from confide.training.devices import PROCESSOR, computing_at, place_of
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.trainer import FitReport
from confide.training.weights import arrays

SIZES = {  # layers, width, heads
    "tiny": (2, 64, 2),
    "minilm": (6, 384, 12),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
SIDES = ("ours", "plain", "Trainer", "compiled")
RATE, TYPES = 2e-5, ("drug", "effect")
FARTHEST = 1e-3
"""The largest difference of a weight that rounding makes in two steps of a tiny model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "large", "minilm"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--steps", type=int, default=20, help="of the smallest batch")
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--length", type=int, default=128, help="pieces of a sentence")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=7.0, help="no side begins after these")
    parser.add_argument("--json", type=Path, help="write what was measured")
    given = parser.parse_args()
    given.until = time.monotonic() + 60 * given.minutes
    place = place_of(given.device, given.precision)
    measured: dict[str, Any] = {"differs": difference(given)}
    print(f"two steps on {place.device} and the processor: {measured['differs']:.1e} apart at most")
    if not measured["differs"] <= FARTHEST:
        raise SystemExit(f"{place.device} computes something else: nothing is timed")
    measured["product"] = product(place.device, 8192 if given.device != "cpu" else 512)
    print(f"{place.device}: a product runs at {measured['product'] / 1e12:.1f} TFLOP/s")
    for size in given.sizes:
        for batch_size in given.batch_sizes:
            given.batch_size = batch_size
            given.count = max(1, given.steps * min(given.batch_sizes) // batch_size) * batch_size
            with tempfile.TemporaryDirectory() as folder, computing_at(place):
                measured[f"{size} {batch_size}"] = of_size(
                    size, Path(folder), given, measured["product"]
                )
    del given.until, given.batch_size, given.count
    if given.json:
        about = {**vars(given), "json": None, "torch": torch.__version__, "date": str(date.today())}
        about["device"] = torch.cuda.get_device_name() if given.device != "cpu" else "cpu"
        given.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


def difference(given: argparse.Namespace) -> float:
    """The largest difference of a weight after two steps, here and on the processor, in float32."""
    made = []
    for place in (PROCESSOR, place_of(given.device, "float32")):
        with tempfile.TemporaryDirectory() as folder, computing_at(place):
            trainer, own, _ = ours_of("tiny", Path(folder), 16, 4)
            model = trainer.initial(1)
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            fit(trainer, model, own, 2, rate=1e-3)
            made.append(arrays(model))
    return max(float(np.abs(one - made[1][name]).max()) for name, one in made[0].items())


def ours_of(size: str, folder: Path, length: int, count: int) -> tuple[TokenTrainer, Any, Any]:
    """A trainer of an encoder of this size, sentences with entities, and the same without."""
    encoder = load_encoder(str(encoder_of(size, folder / "encoder", length)))
    trainer = TokenTrainer(encoder, EncoderSpec(TYPES, longest=length))
    words = [f"piece{number}" for number in range(length - 2)]
    spans = ((0, 2, TYPES[0]), (5, 6, TYPES[1]))
    examples = [Example(0, number, tuple(words), spans) for number in range(count)]
    text = trainer.prepared(examples)
    return trainer, trainer.annotated(text, [spans] * count, source=set(TYPES)), text


def fit(
    trainer: TokenTrainer, model: Any, own: Any, batch_size: int, *, rate: float = RATE
) -> FitReport:
    """One epoch."""
    adamw = Optimiser("adamw", learning_rate=rate, clip=1.0)
    return trainer.fit(
        model, own, weights_S=None, epochs=1, batch_size=batch_size, optimiser=adamw, seed=1
    )


def waits(call: Callable[[], FitReport]) -> float:
    """How often the processor waits for the GPU, for each step of a training."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            steps = call().steps
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in seen) / steps


def of_size(
    size: str, folder: Path, given: argparse.Namespace, product: float
) -> dict[str, float | str]:
    """Pieces a second, and the share of the peak, of every side; or why there is none."""
    trainer, own, text = ours_of(size, folder, given.length, given.count)
    model = trainer.initial(1)
    layers, width, _ = SIZES[size]
    linear = sum(one.weight.numel() for one in model.modules() if isinstance(one, nn.Linear))
    pieces = given.count * given.length
    forwards = pieces * (2 * linear + layers * 4 * given.length * width)
    rows, place = pieces_of(text, given.length), trainer.encoder.folder

    def train() -> FitReport:
        return fit(trainer, model, own, given.batch_size)

    # each side is made when its turn comes, so that not all models are on the device at once
    sides: dict[str, Callable[[], dict[str, Callable[[], object]]]] = {
        "ours": lambda: {"training": train, "labelling": lambda: trainer.find(model, text)},
        "plain": lambda: Plain(place, rows, given).calls(),
        "Trainer": lambda: {"training": by_trainer(place, rows, folder, given)},
        "compiled": lambda: Plain(place, rows, given, compiled=True).calls(),
    }
    found: dict[str, float | str] = {}
    for side in given.sides:
        if time.monotonic() > given.until:
            found[side] = "left out, for want of time"
            print(f"{size:7} {given.batch_size:4} {side:20} {found[side]}", flush=True)
            continue
        try:
            for what, call in sides[side]().items():
                name, work = f"{side}, {what}", forwards * (3 if what == "training" else 1)
                taken = statistics.median(timed(call, given))
                found[name] = pieces / taken
                found[f"{name}, share of the peak"] = share = work / taken / product
                shown = f"{pieces / taken:12,.0f} pieces/s {100 * share:5.1f} % of the peak"
                print(f"{size:7} {given.batch_size:4} {name:20} {shown}", flush=True)
        except (torch.OutOfMemoryError, DeviceError) as error:
            found[side] = f"out of memory: {error}"
            print(f"{size:7} {given.batch_size:4} {side:20} out of memory", flush=True)
    if given.device.startswith("cuda") and "ours, training" in found:
        found["ours, waits in a step"] = waits(train)
        print(
            f"{size:7} {given.batch_size:4} waits in a step: {found['ours, waits in a step']:.2f}"
        )
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
    torch.manual_seed(1)
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

    def calls(self) -> dict[str, Callable[[], object]]:
        """What is timed."""
        return {"training": self.train, "labelling": self.label}

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


def by_trainer(
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
