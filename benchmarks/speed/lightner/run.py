"""LightNER on a BART of MiniLM's sizes: decoding, gradients by q, and decoding against training.

The BART is random (6 + 6 layers, 384 numbers a state, 12 heads) with MiniLM's word pieces, so what
it would write means nothing. What is written is therefore given: each step computes all that it
would, and then the annotated symbol is taken, on every side. All sides must give the same
probabilities, or the same gradients, before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import BartConfig, BartForConditionalGeneration

from confide.kinds.lightner import model as pointing
from confide.kinds.lightner.model import (
    NOTHING,
    EncodedLightner,
    Lightner,
    LightnerTrainer,
    PointerBatch,
    Text,
    Written,
    load_bart,
    logits,
    pointer_batches,
    spelled,
    split_writing_loss,
    write_symbols,
)
from confide.kinds.lightner.site import LightnerSpec
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training.batches import examples_from
from confide.training.devices import has_wide_products
from confide.training.encoder import find_folder
from confide.training.optimisers import Optimiser

sys.path.append(str(Path(__file__).parents[1]))

from turns import in_turn, ratio

CORPUS = "$CONFIDE_DATA/bc5cdr_ner/train.tsv"
PER_BATCH = 4096
SURE = 1e6


def random_bart(folder: Path) -> Path:
    """MiniLM's sizes and word pieces, weights drawn."""
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (file := find_folder("minilm") / name).is_file():
            shutil.copy(file, folder)
    torch.manual_seed(1)
    config = BartConfig(
        vocab_size=30522,
        d_model=384,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        max_position_embeddings=512,
        init_std=0.05,
        bos_token_id=101,
        pad_token_id=0,
        eos_token_id=102,
        decoder_start_token_id=101,
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    return folder


# --- decoding ---------------------------------------------------------------------------------


@contextmanager
def told(symbols_BT: Tensor) -> Iterator[None]:
    """Within, `write` takes these symbols, after it has computed what it would take."""
    rows, step = torch.arange(len(symbols_BT)), 0
    only = pointing._only

    def sure(states_BTD: Tensor, text: Text) -> Tensor:
        nonlocal step
        found_BTV = logits(states_BTD, text)
        wanted_B = symbols_BT[rows, min(step, symbols_BT.shape[1] - 1)]
        wanted_B = wanted_B.where(wanted_B != NOTHING, torch.tensor(2))
        pushed_BTV = torch.zeros_like(found_BTV)
        pushed_BTV[torch.arange(len(rows)), -1, wanted_B] = SURE
        step += 1
        return found_BTV + pushed_BTV

    def leave(text: Text, kept_K: Tensor) -> Text:
        nonlocal rows
        rows = rows[kept_K]
        return only(text, kept_K)

    pointing.logits, pointing._only = sure, leave
    try:
        yield
    finally:
        pointing.logits, pointing._only = logits, only


def again(model: Lightner, batch: PointerBatch, *, everything: bool) -> Written:
    """The plain way: at each step the decoder reads all that was written; all go on to the end."""
    found: list[Tensor] = []
    known = batch.states_BPD
    if not everything and known is None:
        batch = replace(batch, states_BPD=model.encoded(batch))
    for step in range(batch.symbols_BT.shape[1]):
        part = replace(batch, symbols_BT=batch.symbols_BT[:, : step + 1])
        log_probs_BV = functional.log_softmax(model(part)[:, -1], 1)
        wanted_B1 = part.symbols_BT[:, -1:].clamp(min=0)
        found.append(log_probs_BV.gather(1, wanted_B1)[:, 0])
    return Written(batch.symbols_BT, torch.stack(found, 1))


def with_cache(model: Lightner, batch: PointerBatch) -> Written:
    with told(batch.symbols_BT):
        return write_symbols(model, batch)


def decoded(
    made: LightnerTrainer,
    model: Lightner,
    encoded: EncodedLightner,
    *,
    how: Callable[[Lightner, PointerBatch], Written],
) -> list[Written]:
    """All of a text, in the batches that `find` takes, as spans."""
    found = []
    with torch.inference_mode():
        for plain in pointer_batches(
            encoded.text, written=encoded.written, pieces_per_batch=PER_BATCH
        ):
            batch = made._with_states(plain, encoded.text)
            result = how(model, batch)
            for symbols, log_probs in zip(*(part.tolist() for part in result), strict=True):
                spelled(symbols, log_probs, types=made.types)
            found.append(result)
    return found


def check_decoding(made: LightnerTrainer, model: Lightner, encoded: EncodedLightner) -> None:
    """The cache gives the probabilities of reading all again. (Here nothing is pushed.)"""
    batch = made.batch(model, encoded.text, np.arange(min(8, len(encoded))), own=encoded)
    with torch.inference_mode():
        found = write_symbols(model, batch)
        symbols_BT = found.symbols_BT
        expected = again(model, replace(batch, symbols_BT=symbols_BT), everything=True)
    there_BT = symbols_BT != NOTHING
    torch.testing.assert_close(
        found.log_probs_BT[there_BT], expected.log_probs_BT[there_BT], atol=1e-3, rtol=1e-3
    )


# --- gradients --------------------------------------------------------------------------------


def looped(
    made: LightnerTrainer, model: Lightner, encoded: EncodedLightner
) -> tuple[np.ndarray, np.ndarray]:
    """A sentence at a time: one pass forwards, one backwards for each loss, by q alone."""
    frozen = [p for p in model.parameters() if p.requires_grad and p is not model.prompts.q_QD]
    for parameter in frozen:
        parameter.requires_grad_(False)
    found: tuple[list[Any], list[Any]] = ([], [])
    for row in range(len(encoded)):
        batch = made.batch(model, encoded.text, np.array([row]), own=encoded)
        losses = split_writing_loss(model, batch)
        for part, slopes in enumerate(found):
            (slope,) = torch.autograd.grad(
                losses[part].sum(), model.prompts.q_QD, retain_graph=part == 0
            )
            slopes.append(slope.flatten().numpy())
    for parameter in frozen:
        parameter.requires_grad_(True)
    return np.stack(found[0]), np.stack(found[1])


def check_slopes(made: LightnerTrainer, model: Lightner, encoded: EncodedLightner) -> None:
    for ours, theirs in zip(
        made.row_gradients(model, encoded), looped(made, model, encoded), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-3 * np.abs(theirs).max())


# --- times ------------------------------------------------------------------------------------


def measure(where: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    examples, _ = examples_from(read(locate(CORPUS)).documents)
    order = np.random.default_rng(options.seed).permutation(len(examples))[: options.sentences]
    some = [examples[place] for place in sorted(order)]
    form = LightnerSpec(types=("Chemical", "Disease"), where=where)  # type: ignore[arg-type]
    made = LightnerTrainer(load_bart(str(folder)), form)
    model = made.initial(options.seed)
    encoded = made.annotated(made.prepared(some), [one.spans for one in some], source={"Chemical"})
    made.find(model, encoded.text)  # from here on what can be kept is kept
    check_decoding(made, model, encoded)
    check_slopes(made, model, encoded)

    def decode(how: Callable[[Lightner, PointerBatch], Written]) -> Callable[[], object]:
        return lambda: decoded(made, model, encoded, how=how)

    def epoch() -> None:
        made.fit(
            model,
            encoded,
            weights_S=None,
            epochs=1,
            batch_size=8,
            optimiser=Optimiser("adamw", learning_rate=3e-5),
            seed=1,
        )

    times = in_turn(
        {
            "decoding": decode(with_cache),
            "decoder again": decode(lambda m, b: again(m, b, everything=False)),
            "everything again": decode(lambda m, b: again(m, b, everything=True)),
            "slopes": lambda: made.row_gradients(model, encoded),
            "slopes, a loop": lambda: looped(made, model, encoded),
            "epoch": epoch,
        },
        options.repeats,
    )
    symbols = np.diff(encoded.written.from_S1)
    print(
        f"prompts in {where}: {len(encoded)} sentences of "
        f"{encoded.text.lengths_S.mean():.1f} pieces, "
        f"{symbols.mean():.1f} symbols each (at most {symbols.max()})"
    )
    found = {
        f"{name}, sentences/s": len(encoded) / statistics.median(taken)
        for name, taken in times.items()
    }
    return found | {
        "decoding faster than the decoder again": ratio(times["decoder again"], times["decoding"]),
        "decoding faster than everything again": ratio(
            times["everything again"], times["decoding"]
        ),
        "slopes faster than a loop": ratio(times["slopes, a loop"], times["slopes"]),
        "decoding as a part of an epoch": ratio(times["decoding"], times["epoch"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"wide products: {has_wide_products()}")
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        random_bart(Path(folder))
        for where in ("both", "decoder"):
            measured[where] = measure(where, Path(folder), options)
            for name, value in measured[where].items():
                print(f"  {name:45} {value:8.2f}")
    if options.json:
        about = {name: version(name) for name in ("torch", "numpy")}
        about |= {**vars(options), "json": None}
        text = json.dumps({"about": about, "measured": measured}, indent=1)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
