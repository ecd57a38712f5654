"""A feature CRF, sklearn-crfsuite with its tutorial's features (benchmarks/defaults/init)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sklearn_crfsuite

sys.path.append(str(Path(__file__).parents[2] / "defaults" / "init"))

from peer_crf import features
from spans import f1

Calls = dict[str, Callable[[], Any]]


def budget(work: dict[str, Any]) -> Calls:
    """Its 100 iterations, and F1 on test text; seconds are those of the process, imports too."""

    def curve() -> list[tuple[float, float]]:
        reads = [featured(tokens) for tokens, _ in work["train"]]
        model = sklearn_crfsuite.CRF(
            algorithm="lbfgs", c1=0.1, c2=0.1, max_iterations=100, all_possible_transitions=True
        )
        model.fit(reads, [tags for _, tags in work["train"]])
        seconds = round(time.process_time(), 1)
        found = model.predict([featured(tokens) for tokens, _ in work["test"]])
        return [(seconds, round(100 * f1([tags for _, tags in work["test"]], found), 1))]

    return {"curve": curve}


def featured(tokens: list[str]) -> list[dict[str, object]]:
    return [features(tokens, at) for at in range(len(tokens))]
