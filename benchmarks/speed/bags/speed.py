"""Training and bidding of a PCNN with selective attention: ours, and a plain padded one.

Both begin with the same weights and must have the same loss. Then each trains an epoch in turn, and
ours is asked for the probabilities of the same sentences (a site's bid). Times are processor time
of one thread, medians of the turns; ratios are of the same turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import LONGEST, RELATIONS, generated
from plain import PlainBags, PlainBatch

from confide.kinds.bags.model import LOGITS, BagBatch, BagTrainer, sentence_probabilities
from confide.kinds.bags.site import BagSpec
from confide.training.optimisers import Optimiser
from confide.training.vocabulary import ClearVocabulary

sys.path.append(str(Path(__file__).parents[1]))

from turns import in_turn, ratio

RATE, DECAY, CLIP = 0.1, 1e-5, 5.0
OPTIMISER = Optimiser("sgd", RATE, momentum=0.0, weight_decay=DECAY, clip=CLIP)


def measured(words: int, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of an epoch, and ratios, with a vocabulary of so many words."""
    encoded, groups = generated(options.sentences, words=words, seed=options.seed)
    form = BagSpec([str(number) for number in range(RELATIONS)], dropout=0.5)
    trainer = BagTrainer(form, ClearVocabulary(tuple(map(str, range(words - 2)))))
    ours, copied = trainer.initial(options.seed), trainer.initial(options.seed)
    plain = PlainBags(copied)
    check_equal(ours, plain, encoded, groups[:32])
    steps_of = torch.optim.SGD(plain.parameters(), RATE, weight_decay=DECAY, fused=True)
    size = options.batch_size
    batches = [
        PlainBatch(encoded, groups[start : start + size], LONGEST)
        for start in range(0, len(groups), size)
    ]

    def train_plain() -> None:
        plain.train()
        for batch in batches:  # made before: only arithmetic is timed
            steps_of.zero_grad()
            plain.loss(batch).backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), CLIP)
            steps_of.step()

    def train_ours() -> None:
        made = replace(trainer, denoise="att")
        made.fit(
            ours,
            made.annotated(encoded, groups),
            epochs=1,
            batch_size=size,
            optimiser=OPTIMISER,
            seed=options.seed,
        )

    def train_sentences() -> None:
        made = replace(trainer, denoise="none")
        made.fit(
            ours,
            made.annotated(encoded, groups),
            epochs=1,
            batch_size=size,
            optimiser=OPTIMISER,
            seed=options.seed,
        )

    calls = {
        "plain": train_plain,
        "ours": train_ours,
        "sentences": train_sentences,
        "bid": lambda: sentence_probabilities(ours, encoded),
    }
    times = in_turn(calls, options.repeats)
    found = {f"{name} s": statistics.median(own) for name, own in times.items()}
    found["ours faster by"] = ratio(times["plain"], times["ours"])
    found["bid of a bag epoch"] = ratio(times["bid"], times["ours"])
    found["bid of a sentence epoch"] = ratio(times["bid"], times["sentences"])
    found["mean length"] = float(encoded.lengths_S.mean())
    return found


def check_equal(ours: Any, plain: PlainBags, encoded: Any, groups: list[Any]) -> None:
    """Raises AssertionError where the two do not have the same loss."""
    from confide.kinds.bags.batches import sentence_batch

    bags = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    batch = PlainBatch(encoded, groups, LONGEST)
    own = BagBatch(
        sentence_batch(encoded, np.concatenate(groups)), torch.from_numpy(bags), batch.relations_G
    )
    plain.eval()
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(LOGITS["att"](ours, own), own.relations_G)
        torch.testing.assert_close(loss, plain.loss(batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, nargs="+", default=[20_000, 400_000])
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write what was measured")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for words in options.words:
        found[str(words)] = own = measured(words, options)
        print(f"{words} words: " + ", ".join(f"{name} {value:.3f}" for name, value in own.items()))
    if options.json:
        about = {**vars(options), "json": None, "torch": torch.__version__}
        options.json.write_text(json.dumps({"about": about, "measured": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
