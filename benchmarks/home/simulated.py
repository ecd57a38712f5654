"""How often a site keeps a worse model, and a better one, by the number of development entities.

    python benchmarks/home/simulated.py [--sites N]

Documents have about six entities, of which the run's model finds a share, so that its F1 is about
60. Each document is easier or harder for both models alike, and suits one of them by chance. The
other model is truly so many points better (or worse), and is the best of ten passes that differ by
chance, chosen on the same development text. Two rules: any greater score, and the randomisation
test of `confide home`.
"""

from __future__ import annotations

import argparse

import numpy as np

from confide.jobs.home import LEAST, LEVEL, MOST_UNITS
from confide.scoring.bootstrap import exchange_test

F1, PASSES = 0.6, 10
HARD, SUITS = 0.8, 0.4
"""Standard deviations, in log odds, of how hard a document is, and of how it suits a pass."""


def documents(draw: np.random.Generator, entities: int) -> np.ndarray:
    """How many entities each document has, together `entities`."""
    sizes = []
    while sum(sizes) < entities:
        sizes.append(min(1 + draw.poisson(5), entities - sum(sizes)))
    return np.array(sizes)


def results(draw: np.random.Generator, gold_D: np.ndarray, hard_D: np.ndarray, share: float):
    """(true, predicted, gold) of each document of a model with about this F1."""
    odds = np.log(share / (1 - share)) + 0.1 + hard_D + draw.normal(0, SUITS, len(gold_D))
    true_D = draw.binomial(gold_D, 1 / (1 + np.exp(-odds)))
    predicted_D = true_D + draw.binomial(gold_D, (1 - share))
    return np.stack([true_D, predicted_D, gold_D], 1)


def f1(rows) -> float:
    true, predicted, gold = np.sum(rows, 0)
    return 2 * true / (predicted + gold)


def f1s(rows_PD3: np.ndarray) -> np.ndarray:
    """Of each pass."""
    true_P, predicted_P, gold_P = rows_PD3.sum(1).T
    return 2 * true_P / (predicted_P + gold_P)


def together(rows_D3: np.ndarray) -> list[tuple[int, int, int]]:
    """Neighbours in at most `MOST_UNITS` parts."""
    step = -(-len(rows_D3) // MOST_UNITS)
    return [tuple(rows_D3[a : a + step].sum(0)) for a in range(0, len(rows_D3), step)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=400)
    given = parser.parse_args()
    print("| entities | gap | any greater score | the test |")
    print("|---" * 4 + "|")
    for entities in (20, 50, 100, 200, 400, 1000):
        for gap in (-0.2, -0.1, -0.05, -0.02, 0.0, 0.05, 0.1, 0.2):
            draw = np.random.default_rng([entities, round(1000 * gap) + 1000])
            greater = told = 0
            for _ in range(given.sites):
                gold_D = documents(draw, entities)
                hard_D = draw.normal(0, HARD, len(gold_D))
                first_D3 = results(draw, gold_D, hard_D, F1)
                passes = np.stack([results(draw, gold_D, hard_D, F1 + gap) for _ in range(PASSES)])
                best_D3 = passes[f1s(passes).argmax()]
                better = f1(best_D3) > f1(first_D3)
                greater += better
                if better and entities >= LEAST:
                    pair = together(first_D3), together(best_D3)
                    told += exchange_test(*pair, fast, samples=400) <= LEVEL
            shares = [f"{100 * count / given.sites:.1f} %" for count in (greater, told)]
            print("| " + " | ".join([str(entities), f"{100 * gap:+.0f}", *shares]) + " |")


def fast(rows) -> float:
    true, predicted, gold = map(sum, zip(*rows, strict=True))
    return 2 * true / max(1, predicted + gold)


if __name__ == "__main__":
    main()
