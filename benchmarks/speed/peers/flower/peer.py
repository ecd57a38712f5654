"""A recipe's training in Flower's simulation: python peer.py RECIPE ROUNDS, in an environment of
its own with flwr. Prints the scores as JSON on its last line. See `whole.py`.

Dealing and reading text are confide's own functions, as is the form in which a batch is padded:
what is timed is the model, its training and the federation.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path

import torch
from flwr.app import ConfigRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from confide.recipes import settings_file
from confide.runs.sites import gather
from confide.settings import load_settings

HERE = Path(__file__).parent
APPS = {"ncbi-iid10": "tagging", "feded-gad": "relating"}


def main() -> None:
    recipe, rounds, seed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(int(seed))
    app = importlib.import_module(APPS[recipe])
    settings = load_settings(settings_file(recipe), [f"seed={seed}", "key=simulated"])
    with tempfile.TemporaryDirectory() as folder:
        text = app.prepared(settings, gather(settings, Path(folder), key_file=None))
        file = Path(folder) / "text.pickle"
        file.write_bytes(pickle.dumps(text))
        os.environ["PEER_TEXT"] = str(file)
        os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[1:], str(HERE)])
        found: list[dict[str, float]] = []
        server = ServerApp()

        @server.main()
        def play(grid: object, context: object) -> None:
            strategy, arrays = app.strategy(text)
            result = strategy.start(
                grid=grid, initial_arrays=arrays, num_rounds=rounds, timeout=36000,
                train_config=ConfigRecord({}), evaluate_config=ConfigRecord({"part": "dev"}),
            )  # fmt: skip
            last = app.strategy(text, test=True)[0].start(
                grid=grid, initial_arrays=result.arrays, num_rounds=1, timeout=36000,
                evaluate_config=ConfigRecord({"part": "test"}),
            )  # fmt: skip
            found.extend(dict(one) for one in result.evaluate_metrics_clientapp.values())
            found.extend(dict(one) for one in last.evaluate_metrics_clientapp.values())

        run_simulation(
            server, app.client, len(text.train),
            backend_config={"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}},
        )  # fmt: skip
    print(json.dumps([scored(one) for one in found]))


def scored(counts: dict[str, float]) -> float:
    """F1 in percent of counts that are means of as many sites."""
    both = counts["gold"] + counts["predicted"]
    return round(200 * counts["right"] / both, 2) if both else 0.0


if __name__ == "__main__":
    main()
