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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from corpus import sentences
from plain import CarefulTagger, PlainTagger
from torch import nn

from confide.kinds.tagger.model import EncodedSplit, TaggerTrainer
from confide.text.tagging import spans_from_tags
from confide.training.batches import Encoded, Example, TagSet
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerBatch, TaggerSizes, batch_of, predict_batches
from confide.training.vocabulary import count_characters, count_words, numbered

sys.path.append(str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from turns import in_turn, ratio

from training.corpora import tagging_loss, train_batches


def prepared(
    limit: int, seed: int, vocabulary: int
) -> tuple[str, TaggerTrainer, EncodedSplit, Encoded]:
    """Where the text is from, what trains a tagger, its sentences, and those to label."""
    source, train = sentences("train", limit=limit, seed=seed)
    _, test = sentences("test", limit=limit, seed=seed)
    examples, others = (
        [
            Example(0, number, tuple(tokens), tuple(spans_from_tags(tags, "iob2")[0]))
            for number, (tokens, tags) in enumerate(part)
        ]
        for part in (train, test)
    )
    tokens = [token for example in examples for token in example.tokens]
    words, characters = numbered(count_words(tokens, "lower")), numbered(count_characters(tokens))
    tags = TagSet(("Disease",))
    sizes = TaggerSizes(max(vocabulary, len(words)), len(characters), len(tags))
    ours = TaggerTrainer(sizes, tags, words, characters, "lower")
    spans = [example.spans for example in examples]
    own = ours.annotated(ours.prepared(examples), spans, source={"Disease"})
    return source, ours, own, ours.prepared(others)


def shuffled(encoded: Encoded, batch_size: int, seed: int) -> Iterator[TaggerBatch]:
    order = np.random.default_rng(seed).permutation(len(encoded))
    for start in range(0, len(order), batch_size):
        yield batch_of(encoded, order[start : start + batch_size])


def train_plain(
    model: PlainTagger,
    batches: Iterable[TaggerBatch],
    settings: Optimiser,
    *,
    fused: bool | None = None,
) -> None:
    optimiser = {
        "sgd": lambda p: torch.optim.SGD(p, settings.learning_rate, settings.momentum, fused=fused),
        "adam": lambda p: torch.optim.Adam(p, settings.learning_rate, fused=fused),
    }[settings.name](model.parameters())
    model.train()
    for batch in batches:
        optimiser.zero_grad()
        model.loss(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()


def label_plain(model: PlainTagger, batches: Iterable[TaggerBatch], tags: TagSet) -> int:
    model.eval()
    with torch.inference_mode():
        paths = [path for batch in batches for path in model.decode(batch)]
    return sum(len(spans_from_tags([tags.tags[i] for i in path], "iobes")[0]) for path in paths)


def check_equal(ours: TaggerTrainer, own: EncodedSplit, plain: list[PlainTagger]) -> None:
    """Give all the same weights, and compare the losses of sentences without padding."""
    model = ours.initial(1).eval()
    for other in plain:
        other.copy_from(model)
        other.eval()
    with torch.no_grad():
        for row in range(10):
            batch = batch_of(own.text, np.array([row]))
            expected = tagging_loss(model, batch).mean()
            for other in plain:
                torch.testing.assert_close(expected, other.loss(batch), rtol=1e-4, atol=1e-4)
        batch = next(predict_batches(own.text))
        emissions_BLY = torch.randn(*batch.mask_BL.shape, len(ours.tags))
        found = plain[1].crf_loss(emissions_BLY, batch).sum()
        theirs = -plain[1].crf(emissions_BLY, batch.tags_BL, mask=batch.mask_BL)
        torch.testing.assert_close(found, theirs, rtol=1e-4, atol=1e-3)


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
    source, ours, own, test = prepared(options.sentences, options.seed, options.vocabulary)
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
