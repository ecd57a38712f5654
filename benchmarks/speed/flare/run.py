"""What the distributed engine costs: an ask, a round of training, and the server's memory.

A server and three sites as real processes on loopback, with TLS:

- `ask`: a FedNER iteration of a very small tagger, which is one ask to three sites and next to no
  work. Seconds of the round less those of the site that worked longest.
- `round`: FedAvg as in `ncbi-iid10` over three sites, NCBI-disease dealt to them (made-up notes
  without `$CONFIDE_DATA`). Seconds of a round against those of the site that worked longest.
- `memory`: the peak of the server's process in that run above the one in the first, over the
  largest message, for each site.

    python benchmarks/speed/flare/run.py --json measured.json [--rounds 60] [--epochs 4]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from kits import founded, started

from confide.flare.nvidia import processes
from confide.flare.nvidia.lead import coordinate_run
from confide.runs.result import Result
from confide.text.formats import read

sys.path.insert(0, str(Path(__file__).parents[1] / "federation"))
from common import keep, text_files

SITES = ("north", "south", "west")
SMALL = """
[model]
word_dim = 4
character = "none"
cnn_filters = 4
bilstm_hidden = 4

[select]
every = 1000
"""
TRAINING = """
[training]
optimiser = "adam"
learning_rate = 0.004
decay = 0.94
local_epochs = {epochs}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="of the first measurement")
    parser.add_argument("--epochs", type=int, default=4, help="local ones, of the second")
    parser.add_argument("--share", type=float, default=1.0, help="of the corpus")
    parser.add_argument("--synthetic", action="store_true", help="made-up notes, no $CONFIDE_DATA")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kits = found(
            folder, text_files(folder / "text", share=args.share, synthetic=args.synthetic)
        )
        started = [(kit.name, started_in(kit)) for kit in kits if kit.kind != "lead"]
        try:
            idle = {kit.name: processes.status(kit).memory / 1e6 for kit in kits[:-1]}
            lead = kits[-1].path
            small = f'method = "fedner"\nrounds = {args.rounds}\n{SMALL}'
            asks = conduct(folder / "ask", small, lead)
            train = f'method = "fedavg"\nrounds = 4\n{TRAINING.format(epochs=args.epochs)}'
            rounds = conduct(folder / "round", train, lead)
        finally:
            for kit in kits[-2::-1]:
                processes.stop(kit)
        most = largest(folder / "round" / "ledger.jsonl") / 1e6
    figures = {
        "start_seconds": dict(started),
        "idle_mb": idle,
        **asked(asks),
        **trained(rounds),
        "server_mb": {"ask": asks["peak_rss_mb"], "round": rounds["peak_rss_mb"]},
    }
    above = rounds["peak_rss_mb"] - asks["peak_rss_mb"]
    figures |= {"largest_mb": most, "memory_over_payloads": above / (most * len(SITES))}
    print(json.dumps(figures, indent=1))
    options = {key: value for key, value in vars(args).items() if key != "json"}
    keep(args.json, {"benchmark": "flare", **options, "figures": figures})


def found(folder: Path, files: dict[str, str]) -> list[Any]:
    """A consortium on loopback whose sites have their text and have agreed to both methods."""
    parts = {}
    for part, path in files.items():
        documents = read(Path(path).expanduser()).documents if not path.startswith("$") else None
        parts[part] = documents or read(located(path), "conll", scheme="iob2").documents
    return founded(folder, parts, sites=SITES, agreed=("fedavg", "fedner"))


def located(path: str) -> Path:
    from confide.text.published.catalogue import locate

    return locate(path)


def started_in(kit: Any) -> float:
    """Seconds until a kit's process is ready, or connected."""
    start = time.perf_counter()
    started(kit)
    return time.perf_counter() - start


def conduct(out: Path, settings: str, lead: Path) -> Result:
    """A run over the three sites."""
    file = out.with_suffix(".toml")
    file.write_text(settings)
    start = time.perf_counter()
    result = coordinate_run(file, kit=lead, out=out).result
    print(f"{out.name}: {time.perf_counter() - start:.1f} s with everything", flush=True)
    return result


def asked(result: Result) -> dict[str, Any]:
    """Seconds of an ask: a round's, less those of the site that worked longest."""
    waits = [one.train_seconds - one.slowest_seconds for one in result.history[1:-1]]
    return {
        "ask_median_s": statistics.median(waits),
        "ask_90_s": sorted(waits)[len(waits) * 9 // 10],
    }


def trained(result: Result) -> dict[str, Any]:
    """A round against the site that worked longest in it; two asks a round: train and score."""
    rounds = result.history[1:]
    up = max(one.bytes.up for one in rounds) / len(SITES) / 1e6
    return {
        "round_s": statistics.median(one.seconds for one in rounds),
        "slowest_site_s": statistics.median(one.slowest_seconds for one in rounds),
        "round_over_goal": statistics.median(
            one.seconds / (1.15 * one.slowest_seconds + 2 * 0.5) for one in rounds
        ),
        "up_mb_per_site": up,
    }


def largest(ledger: Path) -> int:
    """Bytes of the largest message of training, up or down."""
    messages: Counter[tuple[int, str, str]] = Counter()
    for line in map(json.loads, ledger.read_text().splitlines()):
        if line["step"] == "train":
            messages[line["round"], line["direction"], line["site"]] += line["bytes"]
    return max(messages.values())


if __name__ == "__main__":
    main()
