"""How often a site keeps a worse model, and a better one, by the number of development entities.

    python benchmarks/papers/home/simulated.py [--sites N]

Documents have about six entities, of which the run's model finds a share, so that its F1 is about
60. Each document is easier or harder for both models alike, and suits one of them by chance. The
other model is truly so many points better (or worse), and is the best of ten passes that differ by
chance, chosen on the same development text. Two rules: any greater score, and the randomisation
test of `confide personalise`.
"""

from __future__ import annotations

import argparse

import numpy as np

from confide.jobs.personalise import LEAST, LEVEL, MOST_UNITS

F1, PASSES, SAMPLES = 0.6, 10, 1000
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
    predicted_D = true_D + draw.binomial(gold_D, 1 - share)
    return np.stack([true_D, predicted_D, gold_D], 1)


def f1(sums_N3: np.ndarray) -> np.ndarray:
    """Of each row."""
    true_N, predicted_N, gold_N = sums_N3.T
    return 2 * true_N / np.maximum(1, predicted_N + gold_N)


def together(rows_D3: np.ndarray) -> np.ndarray:
    """Neighbours in at most `MOST_UNITS` parts: shape (parts, 3)."""
    step = -(-len(rows_D3) // MOST_UNITS)
    return np.stack([rows_D3[a : a + step].sum(0) for a in range(0, len(rows_D3), step)])


def luck(first_U3: np.ndarray, second_U3: np.ndarray, draw: np.random.Generator) -> float:
    """`exchange_test` of F1, by one product of matrices."""
    size = len(first_U3)
    if 2**size <= SAMPLES:
        swaps_DU = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    else:
        swaps_DU = np.vstack([np.zeros(size, int), draw.integers(0, 2, (SAMPLES, size))])
    moved_D3 = swaps_DU @ (second_U3 - first_U3)
    gains_D = f1(second_U3.sum(0) - moved_D3) - f1(first_U3.sum(0) + moved_D3)
    return float((gains_D >= gains_D[0] - 1e-12).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, default=1000)
    given = parser.parse_args()
    gaps = (-20, -10, -5, -2, 0, 2, 5, 10, 20)
    print("| entities | rule | " + " | ".join(f"{gap:+d}" for gap in gaps) + " |")
    print("|---" * (len(gaps) + 2) + "|")
    for entities in (20, 50, 100, 200, 400, 1000):
        kept = np.zeros((2, len(gaps)))
        for place, gap in enumerate(gaps):
            draw = np.random.default_rng([entities, gap + 100])
            for _ in range(given.sites):
                gold_D = documents(draw, entities)
                hard_D = draw.normal(0, HARD, len(gold_D))
                first_D3 = results(draw, gold_D, hard_D, F1)
                share = F1 + gap / 100
                passes = [results(draw, gold_D, hard_D, share) for _ in range(PASSES)]
                best_D3 = max(passes, key=lambda rows_D3: f1(rows_D3.sum(0)))
                better = f1(best_D3.sum(0)) > f1(first_D3.sum(0))
                kept[0, place] += better
                if better and entities >= LEAST:
                    kept[1, place] += luck(together(first_D3), together(best_D3), draw) <= LEVEL
        for rule, row in zip(("any greater score", "the test"), kept, strict=True):
            cells = " | ".join(f"{100 * one / given.sites:.1f}" for one in row)
            print(f"| {entities} | {rule} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
