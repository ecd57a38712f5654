"""Our tagger against a plain one of the same sizes, batch size and optimiser.

First the plain tagger gets our weights, and both must give the same loss. Then both train on the
same sentences and label the same sentences, in turn. The plain one is timed twice: with batches in
random order, as it would be written, and with our batches of similar length.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import sentences
from plain import PlainTagger
from torch import nn

from confide.text.tagging import spans_from_tags
from confide.training import trainer
from confide.training.batches import Encoded, Example, TagSet, encode_examples
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerBatch, TaggerSizes, batch_of, predict_batches
from confide.training.vocabulary import count_characters, count_words, numbered
from confide.training.weights import initial

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from training.corpora import predict_spans, tagging_loss, train_batches


def encoded_text(limit: int, seed: int) -> tuple[str, Encoded, Encoded, TaggerSizes]:
    source, train = sentences("train", limit=limit, seed=seed)
    _, test = sentences("test", limit=limit, seed=seed)
    examples = [
        [
            Example(0, number, tuple(tokens), tuple(spans_from_tags(tags, "iob2")[0]))
            for number, (tokens, tags) in enumerate(part)
        ]
        for part in (train, test)
    ]
    tokens = [token for example in examples[0] for token in example.tokens]
    words, characters = numbered(count_words(tokens, "lower")), numbered(count_characters(tokens))
    tags = TagSet(("Disease",))
    parts = [
        encode_examples(part, words=words, characters=characters, tags=tags, how="lower")
        for part in examples
    ]
    return source, parts[0], parts[1], TaggerSizes(len(words), len(characters), len(tags))


def shuffled(encoded: Encoded, batch_size: int, seed: int) -> Iterator[TaggerBatch]:
    order = np.random.default_rng(seed).permutation(len(encoded))
    for start in range(0, len(order), batch_size):
        yield batch_of(encoded, order[start : start + batch_size])


def train_plain(model: PlainTagger, batches: Iterable[TaggerBatch], settings: Optimiser) -> None:
    optimiser = {
        "sgd": lambda p: torch.optim.SGD(p, settings.learning_rate, settings.momentum),
        "adam": lambda p: torch.optim.Adam(p, settings.learning_rate),
    }[settings.name](model.parameters())
    model.train()
    for batch in batches:
        optimiser.zero_grad()
        model.loss(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()


def label_plain(model: PlainTagger, encoded: Encoded, tags: TagSet, batch_size: int) -> int:
    model.eval()
    with torch.inference_mode():
        rows = np.arange(len(encoded))
        parts = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
        paths = [path for part in parts for path in model.decode(batch_of(encoded, part))]
    return sum(len(spans_from_tags([tags.tags[i] for i in path], "iobes")[0]) for path in paths)


def seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def check_equal(encoded: Encoded, sizes: TaggerSizes, seed: int) -> None:
    ours, plain = initial(sizes, seed, rules=encoded.tags.rules).eval(), PlainTagger(sizes).eval()
    plain.copy_from(ours)
    with torch.no_grad():
        for batch in list(predict_batches(encoded))[:3]:
            torch.testing.assert_close(
                tagging_loss(ours, batch).mean(), plain.loss(batch), rtol=1e-4, atol=1e-4
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--optimiser", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--learning-rate", type=float, default=0.015)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source, train, test, sizes = encoded_text(options.sentences, options.seed)
    check_equal(train, sizes, options.seed)
    settings = Optimiser(options.optimiser, options.learning_rate)
    size, seed = options.batch_size, options.seed
    ours = initial(sizes, seed, rules=train.tags.rules)
    plain = PlainTagger(sizes)
    plain.copy_from(ours)

    def fit_ours() -> None:
        trainer.train_epochs(
            ours,
            lambda seed: train_batches(train, batch_size=size, seed=seed, word_dropout=0.05),
            lambda batch: tagging_loss(ours, batch),
            epochs=1,
            optimiser=settings,
            seed=seed,
        )

    sides: dict[str, Callable[[], object]] = {
        "train: ours": fit_ours,
        "train: plain": lambda: train_plain(plain, shuffled(train, size, seed), settings),
        "train: plain, our batches": lambda: train_plain(
            plain, train_batches(train, batch_size=size, seed=seed), settings
        ),
        "label: ours": lambda: predict_spans(ours, test),
        "label: plain": lambda: label_plain(plain, test, test.tags, 32),
    }
    for call in sides.values():
        call()
    times = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, call in sides.items():
            times[name].append(seconds(call))
    tokens = {"train": len(train.forms_N), "label": len(test.forms_N)}
    measured = {}
    print(
        f"{source}: {len(train)} sentences to learn, {len(test)} to label; {options.threads} thread"
    )
    for name, taken in times.items():
        kind = name.split(":")[0]
        ratio = statistics.median(b / a for a, b in zip(times[f"{kind}: ours"], taken, strict=True))
        speed = tokens[kind] / statistics.median(taken)
        measured[name] = {"tokens_per_second": speed, "ours_is_faster_by": ratio}
        print(f"{name:28} {speed:9.0f} tokens/s   ours is {ratio:4.2f} x as fast")
    if options.json:
        about = {"torch": torch.__version__, "source": source, **vars(options), "json": None}
        options.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
