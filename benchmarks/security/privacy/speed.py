"""What noise costs in time: a plain step of training against a step under noise, in one run.

    python benchmarks/security/privacy/speed.py [--rounds 5] [--round]        # needs $CONFIDE_DATA

A plain step goes through a batch of 32, back, and moves the weights (Adam). A step under noise
works out the gradient of each of 32 units, clips each in whole numbers, adds them up, and draws
noise for every number. Both go over the same rows of NCBI-disease (entities) or of made-up pairs
(relations); times are of the processor, on one thread, the median of several turns that take
turns. The states of the encoder are drawn at random: nothing depends on them here. `--round` runs
two whole federations of three sites, plain and under noise. Appends lines to speed.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from confide.kinds.encoder import EncoderSpec, TokenTrainer
from confide.kinds.entities import clipped_sum
from confide.kinds.relations.batches import NO_RELATION, RelationExample
from confide.kinds.relations.model import RelationTrainer
from confide.kinds.relations.site import RelationSpec
from confide.kinds.tagger.model import TaggerTrainer
from confide.methods.noise import with_noise
from confide.runs.run import run
from confide.runs.sites import gather
from confide.settings import load_settings
from confide.training.batches import TagSet, examples_from
from confide.training.encoder import load_encoder
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerSizes
from confide.training.vocabulary import ClearVocabulary
from confide.training.weights import trained

HERE = Path(__file__).parent
BATCH, ROWS = 32, 320
ADAM = Optimiser("adam", learning_rate=1e-3)
VARIANCE = 2**32 // 7
Pair = tuple[dict[str, np.ndarray], Callable[[], Any], Callable[[list[np.ndarray]], Any]]
"""The weights, an epoch of plain steps, and what gives the gradients of units."""


def tagger(texts: list[Any]) -> Pair:
    """A BiLSTM-CRF of 0.7 million numbers, on states of an encoder."""
    tags = TagSet(("Disease",))
    sizes = TaggerSizes(
        words=2, characters=0, tags=len(tags), word_dim=4, character="none", context_dim=384,
        bilstm_hidden=160, dropout=0.0,
    )  # fmt: skip
    made = TaggerTrainer(sizes, tags, ClearVocabulary(()), None, "lower", word_dropout=0.0)
    lengths = [len(one.tokens) for one in texts]
    states_TX = np.random.default_rng(1).normal(0, 0.5, (sum(lengths), 384)).astype(np.float32)
    text = replace(
        made.prepared(texts), context_TX=states_TX, context_from_S=np.cumsum([0, *lengths])[:-1]
    )
    return _entities(made, text, texts)


def head(texts: list[Any], how: str = "frozen") -> Pair:
    """A linear layer on frozen states, or with updates of low rank below it."""
    encoder = load_encoder("minilm")
    form = EncoderSpec(types=("Disease",), tuning=how)  # type: ignore[arg-type]
    made = TokenTrainer(encoder, form)
    text = made.prepared(texts)
    if how == "frozen":
        states_WD = np.random.default_rng(1).normal(0, 0.5, (len(text.firsts_W), 384))
        text = replace(text, features_WD=states_WD.astype(np.float32))
    return _entities(made, text, texts)


def _entities(made: Any, text: Any, texts: list[Any]) -> Pair:
    encoded = made.annotated(text, [list(one.spans) for one in texts], source={"Disease"})
    model = made.initial(1)
    return (
        trained(model),
        lambda: made.fit(model, encoded, epochs=1, batch_size=BATCH, optimiser=ADAM, seed=1),
        lambda units: made.unit_gradients(model, encoded, units),
    )


def relations(texts: list[Any]) -> Pair:
    """A classifier of pairs: a linear layer on frozen states of both entities and the start."""
    made = RelationTrainer(
        load_encoder("minilm"), RelationSpec((NO_RELATION, "causes"), tuning="frozen")
    )
    examples = [
        RelationExample(str(n), "ab took cd .", ((0, 2),), ((8, 10),), "A", "B", NO_RELATION)
        for n in range(ROWS)
    ]
    encoded = made.prepared(examples)
    states_SF = np.random.default_rng(1).normal(0, 0.5, (ROWS, 3 * 384)).astype(np.float32)
    pairs = made.annotated(replace(encoded, features_SF=states_SF))
    model = made.initial(1)
    return (
        trained(model),
        lambda: made.fit(model, pairs, epochs=1, batch_size=BATCH, optimiser=ADAM, seed=1),
        lambda units: made.unit_gradients(model, pairs, units),
    )


CELLS: dict[str, Callable[[list[Any]], Pair]] = {
    "tagger": tagger,
    "head": head,
    "relations": relations,
    "low rank": lambda texts: head(texts[:64], "lora"),
}


def seconds(do: Callable[[], Any]) -> float:
    """Of the processor."""
    start = time.process_time()
    do()
    return time.process_time() - start


def measured(pair: Pair, turns: int, *, rows: int) -> dict[str, float]:
    """Milliseconds of a step, plain and under noise, and how many times as much the latter is."""
    weights, plain, gradients = pair
    order = np.random.default_rng(2).permutation(rows)
    steps = [order[start : start + BATCH] for start in range(0, rows, BATCH)]

    def clipped(step: np.ndarray) -> dict[str, np.ndarray]:
        slopes = gradients([np.array([row]) for row in step])
        return clipped_sum(slopes, like=weights, clip=0.3, grid=2**16)

    def noisy() -> Iterator[float]:
        for step in steps:
            yield seconds(partial(clipped, step))

    total = clipped(steps[0])
    hide = partial(with_noise, total, b"k" * 32, variance=VARIANCE)
    plain(), hide(), list(noisy())
    both = [
        (seconds(plain) / len(steps), statistics.mean(noisy()), seconds(hide)) for _ in range(turns)
    ]
    one, clip, drawn = (1000 * statistics.median(each) for each in zip(*both, strict=True))
    return {
        "numbers": sum(one.size for one in weights.values()),
        "plain_ms": round(one, 2),
        "gradients_and_clipping_ms": round(clip, 2),
        "noise_ms": round(drawn, 2),
        "times": round(statistics.median((b + c) / a for a, b, c in both), 2),
    }


def whole_rounds() -> dict[str, float]:
    """Seconds of the processor a round, of three sites in one process, plain and under noise."""
    found = {}
    usual = [
        "model.kind=encoder", 'encoder.tune="frozen"', "split.sites=3", "select.by=last",
        "key=simulated", "seed=1",
    ]  # fmt: skip
    ways = {
        "plain": ["method=fedavg", "training.batch_size=32"],
        "noisy": [
            "method=dp-fedsgd", "federation.sums=masked", "privacy.unit=sentence",
            "privacy.units=5400", "privacy.rate=0.1", "privacy.noise=2", "privacy.rounds=50",
            "guards.max_epsilon=1000",
        ],
    }  # fmt: skip
    for name, own in ways.items():
        spent = []
        for rounds in (1, 2, 42):  # the first one reads the text
            with tempfile.TemporaryDirectory() as folder:
                chosen = [*usual, *own, f"rounds={rounds}", f"select.every={rounds}"]
                out = Path(folder) / "run"
                file = HERE / "ncbi.toml"
                spent.append(
                    seconds(lambda f=file, c=chosen, o=out: run(f, overrides=c, out=o))  # type: ignore[misc]
                )
        found[f"{name}_seconds"] = round((spent[2] - spent[1]) / 40, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each cell")
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=CELLS)
    parser.add_argument("--round", action="store_true", help="whole rounds instead")
    parser.add_argument("--keep", type=Path, default=HERE / "speed.jsonl")
    given = parser.parse_args()
    torch.set_num_threads(1)
    about = {
        "batch": BATCH, "machine": f"{os.cpu_count()} x {platform.machine()}, one thread",
        "date": str(date.today()),
    }  # fmt: skip
    lines: list[dict[str, object]] = []
    if given.round:
        lines.append({"cell": "whole round, head", **whole_rounds(), **about})
    else:
        with tempfile.TemporaryDirectory() as folder:
            settings = load_settings(HERE / "ncbi.toml", ["method=fedavg", "split.sites=1"])
            own = gather(settings, Path(folder), key_file=None).specs[0].train
        texts = examples_from(own)[0][:ROWS]
        for cell in given.cells:
            rows = 64 if cell == "low rank" else ROWS
            found = measured(CELLS[cell](texts), given.rounds, rows=rows)
            lines.append({"cell": cell, **found, **about})
            print(json.dumps(lines[-1]), flush=True)
    with open(given.keep, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    if given.round:
        print(json.dumps(lines[-1]))


if __name__ == "__main__":
    main()
