"""Our tagger against two plain ones of the same sizes, batch size and optimiser.

First the plain taggers get our weights, and all must give the same loss. Then all train on the same
sentences and label the same sentences, in turn: as tutorials write it, with batches in random order
and with our batches of similar length, and as somebody writes it who times it. `--vocabulary` is
the number of words of the table that a federation's sites have in common.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import sentences
from plain import CarefulTagger, PlainTagger
from sides import check_equal, examples_of, label_plain, prepared, shuffled, train_plain

from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerBatch, batch_of, predict_batches

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from turns import in_turn, ratio

from training.corpora import train_batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--vocabulary", type=int, default=0, help="0: the words of the text")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--optimiser", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.015)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source, train_text = sentences("train", limit=options.sentences, seed=options.seed)
    _, test_text = sentences("test", limit=options.sentences, seed=options.seed)
    ours, own = prepared(train_text, options.vocabulary)
    test = ours.prepared(examples_of(test_text))
    plain, careful = PlainTagger(ours.sizes), CarefulTagger(ours.sizes)
    check_equal(ours, own, [plain, careful])
    model = ours.initial(options.seed)
    settings = Optimiser(options.optimiser, options.learning_rate)
    size, seed, train = options.batch_size, options.seed, own.text

    def similar() -> Iterator[TaggerBatch]:
        return train_batches(train, batch_size=size, seed=seed)

    rows = np.arange(len(test))
    sides: dict[str, Callable[[], object]] = {
        "train: ours": lambda: ours.fit(
            model, own, epochs=1, batch_size=size, optimiser=settings, seed=seed
        ),
        "train: careful": lambda: train_plain(careful, similar(), settings, fused=True),
        "train: plain, our batches": lambda: train_plain(plain, similar(), settings),
        "train: plain": lambda: train_plain(plain, shuffled(train, size, seed), settings),
        "label: ours": lambda: ours.find(model, test),
        "label: careful": lambda: label_plain(careful, predict_batches(test), test.tags),
        "label: plain": lambda: label_plain(
            plain, (batch_of(test, rows[n : n + 32]) for n in range(0, len(rows), 32)), test.tags
        ),
    }
    times = in_turn(sides, options.repeats)
    tokens = {"train": len(train.forms_N), "label": len(test.forms_N)}
    measured = {}
    print(
        f"{source}: {len(train)} sentences to learn, {len(test)} to label; {ours.sizes.words}"
        f" words; {options.threads} thread"
    )
    for name, taken in times.items():
        kind = name.split(":")[0]
        times_as_fast = ratio(taken, times[f"{kind}: ours"])
        speed = tokens[kind] / statistics.median(taken)
        measured[name] = {"tokens_per_second": speed, "ours_is_faster_by": times_as_fast}
        print(f"{name:28} {speed:9.0f} tokens/s   ours is {times_as_fast:4.2f} x as fast")
    if options.json:
        about = {"torch": torch.__version__, "source": source, **vars(options), "json": None}
        options.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
