"""Our tagger against flair's, both with words and characters from scratch and the same sizes.

Runs in an environment of its own, where flair is installed (see README.md). Flair's side is its
`SequenceTagger` over `OneHotEmbeddings` (a trained vector per word) and `CharacterEmbeddings` (a
character BiLSTM), one BiLSTM layer and a CRF; training is the inner loop of its `ModelTrainer`
without dev scores, checkpoints and logs, so the comparison leans towards flair. Ours is measured
with the same character BiLSTM and with the character CNN, its default. All see the same sentences,
batch size and optimiser, in turn.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import flair
import torch
from corpus import sentences
from flair.data import Dictionary, Sentence
from flair.embeddings import CharacterEmbeddings, OneHotEmbeddings, StackedEmbeddings
from flair.models import SequenceTagger
from flair.training_utils import store_embeddings
from torch import nn

from confide.text.tagging import spans_from_tags
from confide.training import trainer
from confide.training.batches import Example, TagSet, encode_examples
from confide.training.optimisers import Optimiser
from confide.training.tagger import TaggerSizes
from confide.training.vocabulary import count_characters, count_words, numbered
from confide.training.weights import initial

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))

from training.corpora import predict_spans, tagging_loss, train_batches

Labelled = list[tuple[list[str], list[str]]]
Calls = tuple[Callable[[], object], Callable[[], object]]  # to train an epoch, to label
WORD_DIM, CHARACTER_DIM, CHARACTER_HIDDEN, HIDDEN = 100, 25, 25, 200


def ours(train: Labelled, test: Labelled, options: argparse.Namespace, character: str) -> Calls:
    examples = [
        [
            Example(0, number, tuple(tokens), tuple(spans_from_tags(tags, "iob2")[0]))
            for number, (tokens, tags) in enumerate(part)
        ]
        for part in (train, test)
    ]
    tokens = [token for example in examples[0] for token in example.tokens]
    words, characters = numbered(count_words(tokens, "none")), numbered(count_characters(tokens))
    tags = TagSet(("Disease",))
    learn, label = (
        encode_examples(part, words=words, characters=characters, tags=tags, how="none")
        for part in examples
    )
    sizes = TaggerSizes(
        words=len(words),
        characters=len(characters),
        tags=len(tags),
        word_dim=WORD_DIM,
        character=character,
        character_dim=CHARACTER_DIM,
        character_hidden=CHARACTER_HIDDEN,
        bilstm_hidden=HIDDEN,
    )
    model = initial(sizes, options.seed, rules=tags.rules)
    settings = Optimiser("sgd", options.learning_rate, momentum=0.0)

    def train_ours() -> None:
        size = options.batch_size
        trainer.train_epochs(
            model,
            lambda seed: train_batches(learn, batch_size=size, seed=seed, word_dropout=0.05),
            lambda batch: tagging_loss(model, batch),
            epochs=1,
            optimiser=settings,
            seed=options.seed,
        )

    return train_ours, lambda: predict_spans(model, label)


def theirs(train: Labelled, test: Labelled, options: argparse.Namespace) -> Calls:
    logging.getLogger("flair").setLevel(logging.ERROR)
    flair.set_seed(options.seed)
    flair.device = torch.device("cpu")
    learn, label = ([_sentence(*pair) for pair in part] for part in (train, test))
    words, characters = Dictionary(), Dictionary()
    for sentence in learn:
        for token in sentence:
            words.add_item(token.text)
            for character in token.text:
                characters.add_item(character)
    file = Path("characters.dict")
    characters.save(file)
    tags = Dictionary(add_unk=False)
    tags.add_item("Disease")
    tags.span_labels = True
    model = SequenceTagger(
        embeddings=StackedEmbeddings(
            [
                OneHotEmbeddings(words, embedding_length=WORD_DIM),
                CharacterEmbeddings(str(file), CHARACTER_DIM, CHARACTER_HIDDEN),
            ]
        ),
        tag_dictionary=tags,
        tag_type="ner",
        hidden_size=HIDDEN,
        rnn_layers=1,
        use_crf=True,
        reproject_embeddings=False,
    )
    file.unlink()
    optimiser = torch.optim.SGD(model.parameters(), options.learning_rate)

    def train_theirs() -> None:
        model.train()
        order = random.sample(learn, len(learn))
        for start in range(0, len(order), options.batch_size):
            batch = order[start : start + options.batch_size]
            optimiser.zero_grad()
            loss, count = model.forward_loss(batch)
            (loss / count).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimiser.step()
            store_embeddings(batch, "none")

    def label_theirs() -> None:
        model.eval()
        model.predict(label, mini_batch_size=options.batch_size, embedding_storage_mode="none")

    return train_theirs, label_theirs


def _sentence(tokens: list[str], tags: list[str]) -> Sentence:
    sentence = Sentence(tokens)
    for start, end, name in spans_from_tags(tags, "iob2")[0]:
        sentence[start:end].add_label("ner", name)
    return sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source, train = sentences("train", limit=options.sentences, seed=options.seed)
    _, test = sentences("test", limit=options.sentences, seed=options.seed)
    calls = {
        "flair": theirs(train, test, options),
        "ours, character BiLSTM": ours(train, test, options, "bilstm"),
        "ours, character CNN": ours(train, test, options, "cnn"),
    }
    print(f"{source}: {len(train)} sentences to learn, {len(test)} to label")
    measured: dict[str, dict[str, float]] = {}
    for number, (task, part) in enumerate((("train", train), ("label", test))):
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(options.repeats + 1):
            for name, side in calls.items():
                started = time.process_time()
                side[number]()
                if turn:
                    times[name].append(time.process_time() - started)
        tokens = sum(len(words) for words, _ in part)
        speeds = {name: tokens / statistics.median(kept) for name, kept in times.items()}
        measured[task] = speeds
        for name, speed in speeds.items():
            print(f"{task} {name:24} {speed:8.0f} tokens/s  {speed / speeds['flair']:5.1f} x flair")
    if options.json:
        versions = {"torch": torch.__version__, "flair": version("flair")}
        about = {**versions, "source": source, **vars(options), "json": None}
        options.json.write_text(json.dumps({"about": about, "measured": measured}, indent=1) + "\n")


if __name__ == "__main__":
    main()
