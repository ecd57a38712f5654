"""The training loss after each local epoch: does it rise when the server averages?

    python benchmarks/papers/fedavg/loss.py --out runs/loss [KEY=VALUE]...    # writes loss.json
    python benchmarks/papers/fedavg/loss.py --plot                            # and loss.svg from it

Luboshnikov & Makarov 2020, Fig. 4, with the paper's settings (recipe ncbi-iid10-paper: ten local
epochs of SGD) on a share of the text.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from confide.runs.run import run
from confide.training import trainer

HERE = Path(__file__).parent
TRAINED: list[list[Tensor]] = []
"""The loss of each batch, a list for each training: sites in their order, round after round."""


class Recorded(trainer.Descent):
    """Keeps the loss of each step."""

    def __init__(self, *given: Any, **more: Any) -> None:
        TRAINED.append([])
        super().__init__(*given, **more)

    def step_down(self, losses: Iterable[Tensor]) -> Tensor:
        TRAINED[-1].append(super().step_down(losses))
        return TRAINED[-1][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/loss"))
    parser.add_argument("--keep", type=Path, default=HERE / "loss.json")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=10, help="of a site in a round")
    parser.add_argument("--share", type=float, default=0.25, help="of the training text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", action="store_true", help="draw what was measured")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    if not given.plot:
        given.keep.write_text(json.dumps(measured(given)) + "\n", encoding="utf-8")
    plot(json.loads(given.keep.read_text(encoding="utf-8")), given.keep.with_suffix(".svg"))


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """The mean loss over the sites by round and local epoch, and development F1 by round."""
    setattr(trainer, "Descent", Recorded)  # noqa: B010
    began = time.process_time()
    overrides = [
        f"rounds={given.rounds}", f"training.local_epochs={given.epochs}",
        f"data.train_share={given.share}", f"seed={given.seed}", *given.overrides,
    ]  # fmt: skip
    history = run("ncbi-iid10-paper", overrides=overrides, out=given.out).result.history
    sites = len(TRAINED) // given.rounds
    means = [
        [statistics.mean(map(float, own)) for own in _by_epoch(one, given.epochs)]
        for one in TRAINED
    ]
    by_round = [means[sites * n : sites * (n + 1)] for n in range(given.rounds)]
    return {
        "loss": [
            [round(statistics.mean(e), 3) for e in zip(*own, strict=True)] for own in by_round
        ],
        "dev": [one.dev and one.dev["strict"] for one in history],
        "processor_seconds": round(time.process_time() - began),
        "settings": overrides,
    }


def _by_epoch(losses: list[Tensor], epochs: int) -> list[list[Tensor]]:
    """A training's batches in equal parts."""
    steps = len(losses) // epochs
    return [losses[steps * e : steps * (e + 1)] for e in range(epochs)]


def plot(found: dict[str, Any], path: Path) -> None:
    """Loss against local epochs, a line for each round."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "confide", "font.size": 9}
    axes = pyplot.subplots(figsize=(6.4, 2.6), layout="constrained")[1]
    at = 0
    for losses in found["loss"]:
        axes.plot(range(at + 1, at + len(losses) + 1), losses, "o-", color="#2b6cb0", markersize=3)
        at += len(losses)
        axes.axvline(at + 0.5, color="#a0aec0", linestyle=":", linewidth=0.8)
    axes.set_xlabel("local epochs; the server averages at each dotted line")
    axes.set_ylabel("training loss of a sentence")
    axes.spines[["top", "right"]].set_visible(False)
    pyplot.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
