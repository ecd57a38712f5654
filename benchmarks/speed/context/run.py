"""Contextual features: how fast they are made, and what an epoch costs with and without a cache.

Three ways to run the same frozen encoder over the same sentences: ours (batches of like length, no
more pieces in one than fit the processor's cache), batches in the order of the text padded to their
longest sentence, and the same padded to 128 pieces. All three must give the same states. Then our
tagger trains for an epoch on features from the cache; an epoch that runs the encoder anew is that
epoch and the time of the encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread on every side

import numpy as np
import torch
from numpy.typing import NDArray

from confide.corpora.synthetic import HABITS, documents
from confide.seeds import seeded
from confide.text.formats import read
from confide.text.published.catalogue import locate
from confide.training import trainer
from confide.training.batches import (
    Encoded,
    Example,
    TagSet,
    encode_examples,
    examples_from,
    with_context,
)
from confide.training.context import contextual
from confide.training.encoder import FrozenEncoder, load_encoder
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerSizes
from confide.training.vocabulary import count_characters, count_words, numbered
from confide.training.weights import initial

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from training.corpora import tagging_loss, train_batches

CORPUS = "$CONFIDE_DATA/ncbi_disease_ner/train.tsv"
PADDED = 128  # pieces, as tutorials have it
AT_ONCE = 32  # sentences
States = list[NDArray[np.float32]]


def text(limit: int, seed: int) -> tuple[str, list[Example]]:
    if os.environ.get("CONFIDE_DATA"):
        source, found = "NCBI-disease", read(locate(CORPUS)).documents
    else:
        source = "generated"
        found = [d for h in HABITS for d in documents(h.site, "train", seed=seed, sentences=limit)]
    examples, _ = examples_from(found)
    order = np.random.default_rng(seed).permutation(len(examples))
    return source, [examples[place] for place in order[:limit]]


@contextmanager
def the_encoder(name: str, seed: int) -> Iterator[FrozenEncoder]:
    """The one of this name; "base" is of BERT-base's size, with random weights, for its speed."""
    if name != "base":
        yield load_encoder(name)
        return
    from transformers import BertConfig, BertModel

    with tempfile.TemporaryDirectory() as folder:
        for file in load_encoder("minilm").folder.glob("*token*.json"):
            shutil.copy(file, folder)
        with seeded(seed):
            BertModel(BertConfig(vocab_size=30522)).save_pretrained(folder)
        yield load_encoder(folder)


class Plain:
    """The encoder as transformers' documentation runs it, and a mean for each word."""

    def __init__(self, encoder: FrozenEncoder) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(encoder.folder)
        self.model = AutoModel.from_pretrained(encoder.folder, dtype=torch.float32).eval()

    def pieces(self, words: Sequence[str]) -> int:
        return len(self.tokenizer(list(words), is_split_into_words=True).input_ids)

    def states(self, sentences: list[list[str]], padding: bool | str) -> States:
        found: States = []
        for start in range(0, len(sentences), AT_ONCE):
            batch = sentences[start : start + AT_ONCE]
            encoded = self.tokenizer(
                batch,
                is_split_into_words=True,
                padding=padding,
                truncation=True,
                max_length=PADDED,
                return_tensors="pt",
            )
            with torch.inference_mode():
                states_BPX = self.model(**encoded).last_hidden_state
            for row, words in enumerate(batch):
                found.append(pooled(states_BPX[row], encoded.word_ids(row), len(words)))
        return found


def pooled(states_PX: torch.Tensor, word_of: list[int | None], words: int) -> NDArray[np.float32]:
    places = [place for place, word in enumerate(word_of) if word is not None]
    owner = torch.tensor([word_of[place] for place in places])
    sums = torch.zeros(words, states_PX.shape[1]).index_add_(0, owner, states_PX[places])
    counts = torch.bincount(owner, minlength=words).clamp(min=1)
    means: NDArray[np.float32] = (sums / counts[:, None]).numpy()
    return means


def check_equal(ours: States, plain: States, where: str) -> None:
    for mine, theirs in zip(ours, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4, err_msg=where)


def in_order(encoder: FrozenEncoder, sentences: list[list[str]]) -> States:
    found = dict(encoder.states(sentences))
    return [found[place] for place in range(len(sentences))]


def numbers(examples: list[Example]) -> tuple[Encoded, dict[str, int]]:
    tokens = [token for example in examples for token in example.tokens]
    words, characters = numbered(count_words(tokens, "lower")), numbered(count_characters(tokens))
    tags = TagSet(tuple(sorted({name for e in examples for _, _, name in e.spans})))
    encoded = encode_examples(examples, words=words, characters=characters, tags=tags, how="lower")
    return encoded, {"words": len(words), "characters": len(characters), "tags": len(tags)}


def seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def measure(options: argparse.Namespace, encoder: FrozenEncoder, cache: Path) -> dict[str, Any]:
    source, examples = text(options.sentences, options.seed)
    plain = Plain(encoder)
    examples = [example for example in examples if plain.pieces(example.tokens) <= PADDED]
    sentences = [list(example.tokens) for example in examples]
    tokens = sum(map(len, sentences))
    print(f"{source}, {encoder.name}: {len(sentences)} sentences, {tokens} tokens", flush=True)

    few = sentences[: 4 * AT_ONCE]
    for padding in ("max_length", True):
        check_equal(in_order(encoder, few), plain.states(few, padding), f"padding={padding}")
    encoded, sizes = numbers(examples)

    def from_cache() -> Encoded:
        return with_context(encoded, *contextual(sentences, encoder, folder=cache))

    from_cache()
    ready = from_cache()
    model = initial(TaggerSizes(**sizes, context_dim=encoder.dim), 1, rules=encoded.tags.rules)
    settings = Optimiser("adam", learning_rate=0.001)
    size = options.batch_size
    sides: dict[str, Callable[[], object]] = {
        "encoder, ours": lambda: in_order(encoder, sentences),
        "encoder, padded to the batch's longest": lambda: plain.states(sentences, True),
        f"encoder, padded to {PADDED}": lambda: plain.states(sentences, "max_length"),
        "opening the cache": from_cache,
        "batches of an epoch, cached features": lambda: [
            len(batch) for batch in train_batches(ready, batch_size=size, seed=1)
        ],
        "an epoch of training, cached features": lambda: trainer.train_epochs(
            model,
            lambda seed: train_batches(ready, batch_size=size, seed=seed, word_dropout=0.05),
            lambda batch: tagging_loss(model, batch),
            epochs=1,
            optimiser=settings,
            seed=1,
        ),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, call in sides.items():
            times[name].append(seconds(call))
    return {
        "source": source,
        "sentences": len(sentences),
        "tokens": tokens,
        "seconds": {name: statistics.median(taken) for name, taken in times.items()},
    }


def show(measured: dict[str, Any]) -> dict[str, float]:
    """Prints the table; gives how many times longer an epoch takes that runs the encoder."""
    taken, tokens = measured["seconds"], measured["tokens"]
    for name, value in taken.items():
        print(f"{name:42} {value:9.2f} s {tokens / max(value, 1e-9):12,.0f} tokens/s")
    ours = taken["encoder, ours"]
    epoch = taken["an epoch of training, cached features"]
    features = taken["opening the cache"] + taken["batches of an epoch, cached features"]
    ratios = {}
    for name in [name for name in taken if name.startswith("encoder")]:
        ratios[name] = (taken[name] + epoch) / epoch
        print(
            f"{name:42} ours is {taken[name] / ours:5.2f} x as fast; with the encoder in every "
            f"epoch, its features take {taken[name] / features:7.0f} x as long and the whole of it "
            f"{ratios[name]:5.1f} x"
        )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", default="minilm", help='"minilm", "base", a folder, or a name')
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as cache, the_encoder(options.encoder, 1) as encoder:
        measured = measure(options, encoder, Path(cache))
    ratios = show(measured)
    if options.json:
        versions = {name: version(name) for name in ("torch", "transformers", "numpy")}
        about = {**versions, **vars(options), "json": None}
        kept = {"about": about, **measured, "with the encoder in every epoch": ratios}
        everything = json.loads(options.json.read_text()) if options.json.exists() else {}
        everything[options.encoder] = kept
        options.json.write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
