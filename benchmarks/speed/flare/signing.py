"""What seals cost: seconds of a round of FedAvg with signatures against without.

The server and its sites in one process, without a network, with the tagger of `ncbi-iid10`. Each
site trains on the first `share` of NCBI-disease (made-up notes without `$CONFIDE_DATA`). The two
runs are the same but for the seals, and take turns, a round each, so that other work on the machine
hits both alike. Beside it, the seconds of one seal by the size of the message, both sides together.

    python benchmarks/speed/flare/signing.py [--rounds 12] [--sites 3] [--share 0.2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confide import __version__
from confide.federation.events import Event
from confide.federation.keys import new_key
from confide.federation.seals import ReplySeal, fresh_nonce, inner_digest, message_digest
from confide.flare.peers import make_identity
from confide.flare.server import Conductor, ServerEvidence
from confide.settings import Settings, parse

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks" / "speed" / "federation")]
from common import text_files  # noqa: E402

from flare.homes import HomesEngine, SealedHomes, as_toml, ordered, place_in, write_site_files  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "round": rounds(Path(folder), arguments.rounds, arguments.sites, arguments.share),
            "seal": {f"{size / 1e6:g} MB": seal(Path(folder), size) for size in (1000, 5_000_000)},
        }
    print(json.dumps(found, indent=1))


class Turns:
    """Two threads that take turns, a round each, so that other work hits both alike."""

    def __init__(self) -> None:
        self.change = threading.Condition()
        self.turn = 0
        self.over = [False, False]

    def wait(self, who: int) -> None:
        with self.change:
            self.change.wait_for(lambda: self.turn == who or self.over[1 - who])

    def give(self, who: int, *, over: bool = False) -> None:
        with self.change:
            self.over[who] = self.over[who] or over
            self.turn = 1 - who
            self.change.notify_all()


def rounds(folder: Path, count: int, sites: int, share: float) -> dict[str, Any]:
    """Median seconds of a round without and with seals, and the ratio of the two."""
    settings = _settings(folder, count, sites, share)
    turns, seconds = Turns(), {False: [], True: []}
    threads = [
        threading.Thread(target=_run, args=(folder / str(sealed), settings, turns, seconds[sealed]),
                         kwargs={"sealed": sealed})
        for sealed in (False, True)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    plain, sealed = (seconds[which][1:] for which in (False, True))
    ratios = [one / other for one, other in zip(sealed, plain, strict=True)]
    return {
        "rounds": len(plain),
        "plain_seconds": round(statistics.median(plain), 4),
        "sealed_seconds": round(statistics.median(sealed), 4),
        "ratio_of_medians": round(statistics.median(sealed) / statistics.median(plain), 4),
        "median_of_ratios": round(statistics.median(ratios), 4),
    }


def _run(
    folder: Path, settings: Settings, turns: Turns, seconds: list[float], *, sealed: bool
) -> None:
    who = int(sealed)
    files = write_site_files(folder / "homes", settings)
    engine = (SealedHomes if sealed else HomesEngine)(files)
    evidence = None
    if sealed:
        order = ordered(as_toml(settings), engine.sites, place_in(folder / "lead", "lead", "lead"))
        evidence = ServerEvidence(place_in(folder / "kit", "server", "server"), order)

    def watch(event: Event) -> None:
        if event.kind == "round":
            seconds.append(event.seconds or 0.0)
            turns.give(who)
            turns.wait(who)

    turns.wait(who)
    Conductor(
        "trial", as_toml(settings), version=__version__, engine=engine,
        folder=folder / "server", evidence=evidence,
    ).conduct(watch)  # fmt: skip
    turns.give(who, over=True)


def _settings(folder: Path, count: int, sites: int, share: float) -> Settings:
    text = text_files(folder / "text", share=share, synthetic=False)
    site = {"train": [text["train"]], "test": [text["test"]]}
    return parse(
        {
            "rounds": count,
            "key": str(new_key(folder / "shared.key")),
            "data": {"format": "conll"},
            "select": {"every": 1000},
            "training": {"optimiser": "adam", "learning_rate": 0.004, "local_epochs": 1},
            "site": [{"name": f"site-{number + 1}", **site} for number in range(sites)],
        }
    )


def seal(folder: Path, size: int) -> float:
    """Seconds to seal a message and to look at the seal."""
    identity, message = make_identity(folder / f"{size}.key"), bytes(size)
    start, times = time.perf_counter(), 50
    for _ in range(times):
        nonce = fresh_nonce()
        named = message_digest(nonce, inner_digest(message))
        one = ReplySeal("run", "site", 1, "train", 1, named, named, nonce.hex(), named)
        done = one.sign(identity.key)
        assert message_digest(nonce, inner_digest(message)) == done.digest
        assert done.verifies(identity.public)
    return round((time.perf_counter() - start) / times, 6)


if __name__ == "__main__":
    main()
