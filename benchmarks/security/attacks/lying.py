"""A site that lies: what it sends in place of what it learnt, and what its text is turned into."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from confide.federation.engines import SequentialEngine
from confide.federation.failures import Failure
from confide.federation.federation import Delivery
from confide.federation.messages import Arrays, decode, encode, peek
from confide.federation.quantising import restore_reply
from confide.methods.fedavg import TRAIN

Sentence = list[tuple[str, str]]
Lie = Callable[[Arrays, Arrays, int], Arrays]
"""(what the arrays were, what the site made of them, which round it is) -> what it sends."""


def change_times(factor: float) -> Lie:
    def lie(before: Arrays, after: Arrays, turn: int) -> Arrays:
        return {
            name: before[name] + np.float32(factor) * (array - before[name])
            for name, array in after.items()
        }

    return lie


def weights_times(factor: float) -> Lie:
    return lambda before, after, turn: {n: a * np.float32(factor) for n, a in after.items()}


def constant(number: float) -> Lie:
    return lambda before, after, turn: {n: np.full_like(a, number) for n, a in after.items()}


def random_weights(before: Arrays, after: Arrays, turn: int) -> Arrays:
    """Normal draws with the mean and spread of what the site learnt honestly."""
    draws = np.random.default_rng(turn)
    return {
        name: draws.normal(array.mean(), array.std(), array.shape).astype(np.float32)
        for name, array in after.items()
    }


LIES: dict[str, Lie] = {
    "change-times-minus-10": change_times(-10),
    "change-times-minus-4": change_times(-4),
    "weights-times-minus-10": weights_times(-10),
    "random-weights": random_weights,
    "1e30": constant(1e30),
}


def swapped(sentences: list[Sentence]) -> list[Sentence]:
    """What was an entity is outside, and what was outside is one."""
    found = []
    for sentence in sentences:
        tags = ["O" if tag != "O" else "I-Disease" for _, tag in sentence]
        tags = [
            "B-Disease" if tag != "O" and (not place or tags[place - 1] == "O") else tag
            for place, tag in enumerate(tags)
        ]
        found.append([(word, tag) for (word, _), tag in zip(sentence, tags, strict=True)])
    return found


def all_outside(sentences: list[Sentence]) -> list[Sentence]:
    """No entity at all, but one of one word, so that the type is known at the site."""
    found = [[(word, "O") for word, _ in sentence] for sentence in sentences]
    word, _ = found[0][0]
    found[0][0] = (word, "B-Disease")
    return found


TEXTS: dict[str, Callable[[list[Sentence]], list[Sentence]]] = {
    "labels-swapped": swapped,
    "all-outside": all_outside,
}


def engine_with(lie: Lie | None, liar: str) -> type[SequentialEngine]:
    """The engine of one machine, one site of which sends something else than it learnt.

    The site lies after its own guards, as one that runs other code would.
    """

    class Lying(SequentialEngine):
        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            for found in super().deliver(step, round, asks=asks, timeout=timeout):
                honest = found.site != liar or step != TRAIN.name or lie is None
                if honest or peek(found.reply).message == Failure.__name__:
                    yield found
                    continue
                ask = decode(TRAIN.ask, asks[found.site])
                reply = restore_reply(TRAIN, ask, decode(TRAIN.reply, found.reply))
                before = {name: TRAIN.learnt.begun(ask, reply, name) for name in reply.weights}
                sent = lie(before, reply.weights, round)
                for name, seen_V in reply.seen.items():
                    sent[name] = sent[name] * (seen_V[:, None] > 0)  # else the lie shows
                told = encode(replace(reply, weights=sent))
                yield Delivery(found.site, told, found.seconds)

    return Lying


def read_conll(path: str) -> list[Sentence]:
    sentences: list[Sentence] = [[]]
    with open(path, encoding="utf-8") as file:
        for line in file:
            parts = line.split()
            if parts:
                sentences[-1].append((parts[0], parts[-1]))
            elif sentences[-1]:
                sentences.append([])
    return [sentence for sentence in sentences if sentence]


def written(sentences: list[Sentence]) -> str:
    return "\n".join("".join(f"{w}\t{t}\n" for w, t in sentence) for sentence in sentences)


def dealt(sentences: list[Sentence], sites: int, *, each: int, seed: int) -> list[list[Sentence]]:
    draw = random.Random(seed)
    order = list(sentences)
    draw.shuffle(order)
    return [order[place * each : (place + 1) * each] for place in range(sites)]
