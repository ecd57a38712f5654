"""spaCy's default entity recogniser: what `spacy init config --pipeline ner` writes."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spacy
from spacy.cli.init_config import init_config
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.training.batchers import minibatch_by_words
from spacy.training.loop import create_train_batches

sys.path.append(str(Path(__file__).parents[2] / "defaults" / "init"))

from spans import f1, spans

Calls = dict[str, Callable[[], Any]]
Sentence = tuple[list[str], list[str]]
WORDS = 1000
"""The largest batch of that configuration, which it grows to."""


def tagger(work: dict[str, Any]) -> Calls:
    """An epoch of updates without scores in between, and sentences of words to entities."""
    config = init_config(lang="en", pipeline=["ner"], optimize="efficiency", silent=True)
    spacy.util.fix_random_seed(work["seed"])
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    learn = [example(one, nlp) for one in work["train"]]
    optimiser = nlp.initialize(lambda: learn)
    drop = nlp.config["training"]["dropout"]

    def train() -> None:
        order = random.sample(learn, len(learn))
        for batch in minibatch_by_words(order, WORDS):
            nlp.update(batch, sgd=optimiser, drop=drop)

    def label() -> int:
        docs = (Doc(nlp.vocab, words=tokens) for tokens, _ in work["test"])
        return sum(len(doc.ents) for doc in nlp.pipe(docs))

    return {"train": train, "label": label}


def example(sentence: Sentence, nlp: spacy.Language) -> Example:
    tokens, tags = sentence
    gold = Doc(nlp.vocab, words=tokens)
    gold.ents = [Span(gold, start, end + 1, label=kind) for start, end, kind in spans(tags)]
    return Example(Doc(nlp.vocab, words=tokens), gold)


def budget(work: dict[str, Any]) -> Calls:
    """F1 on test text after these seconds of the process, its imports included; scores are free."""

    def curve() -> list[tuple[float, float]]:
        config = init_config(lang="en", pipeline=["ner"], optimize="efficiency", silent=True)
        spacy.util.fix_random_seed(work["seed"])
        nlp = spacy.util.load_model_from_config(config, auto_fill=True)
        settings = nlp.config.interpolate()["training"]
        settings = spacy.registry.resolve(settings, schema=ConfigSchemaTraining)
        learn = [example(one, nlp) for one in work["train"]]
        nlp.initialize(lambda: learn)
        points: list[tuple[float, float]] = []
        free = 0.0
        for _, batch in create_train_batches(nlp, lambda _: learn, settings["batcher"], 0):
            nlp.update(batch, sgd=settings["optimizer"], drop=settings["dropout"])
            settings["optimizer"].step_schedules()
            now = time.process_time()
            if now - free >= work["budgets"][len(points)]:
                points.append((round(now - free, 1), scored(nlp, work["test"])))
                free += time.process_time() - now
            if len(points) == len(work["budgets"]):
                break
        return points

    return {"curve": curve}


def scored(nlp: spacy.Language, test: list[Sentence]) -> float:
    docs = nlp.pipe(Doc(nlp.vocab, words=tokens) for tokens, _ in test)
    found = [[f"{t.ent_iob_}-{t.ent_type_}" if t.ent_type_ else "O" for t in doc] for doc in docs]
    return round(100 * f1([tags for _, tags in test], found), 1)
