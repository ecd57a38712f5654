"""What a sum that nobody can open costs.

    python benchmarks/security/secure/run.py bare [--numbers 1.3e6] [--sites 10] [--lost 0.2] \
        [--repeat 3]
    python benchmarks/security/secure/run.py round [--sites 10] [--repeat 3] [--rounds 1]
    python benchmarks/security/secure/run.py streams [--sites 50] [--repeat 5]

`bare` is the protocol alone: members and server in one process, messages handed over as they are,
numbers that are already whole. Seconds are those of the processor, of one site on average and of
the server; bytes are those of the encoded messages that one site sends. The sum is compared with
the exact one. `round` runs the same rounds of FedAvg plainly and under masks, in turns, and
compares seconds of the processor, wall time and bytes up. `streams` adds the masks of one site to
its lanes, in turns with the bare cipher: nanoseconds of the processor for a number and a mask.
Every measurement is a line in `measured.jsonl`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from confide.federation.broadcast import Later
from confide.federation.messages import encode
from confide.federation.seals import digest
from confide.federation.secure.crypto import add_streams
from confide.federation.secure.lanes import EMPTY, LaneLayout, LanePart, Lanes
from confide.federation.secure.messages import Opening, Roster
from confide.federation.secure.server import EncodedAsk, Exchange, SumAttempt, Summing
from confide.federation.secure.site import Member, Sets, SumAsk, SumTurn
from confide.federation.secure.steps import GREET, MEET
from confide.federation.steps import Step

sys.path.append(str(Path(__file__).resolve().parents[2] / "speed"))

from turns import in_turn

MEASURED = Path(__file__).parent / "measured.jsonl"
OWN = "benchmarks/security/secure"
ASK = b"ask"
STEP = Step("bare", None, None, lambda: (None, None))


class Forgetful(Sets):
    """A record that writes nothing: a file for each sum is not what is measured here."""

    def claim(self, turn: SumTurn, names: list[str]) -> None:
        """Allow every set."""


class Bare:
    """Members that sum vectors, all alike but for one number each, and the time that it takes."""

    def __init__(self, sites: int, numbers: int, lost: int) -> None:
        names = [f"site-{number:03d}" for number in range(1, sites + 1)]
        self.lost = set(names[1 :: max(1, sites // lost)][:lost]) if lost else set()
        self.layout = LaneLayout(
            (LanePart(EMPTY, "", (), 8, 1.0), LanePart("weights", "", (numbers,), 4, 2.0**27)),
            float(sites),
        )
        self.members = {
            name: Member(
                name, Ed25519PrivateKey.generate(), binding=bytes(32), record=Forgetful(Path())
            )
            for name in names
        }
        self.base = np.random.default_rng(1).integers(0, 256, self.layout.length, np.uint8)
        self.base[:8] = 0
        self.seconds = 0.0
        self.counts = True
        self.up: dict[str, int] = {}
        self.down: dict[str, int] = {}

    def numbers_of(self, name: str) -> Lanes:
        """The lanes of a site: the same for all, and the site's number in the second one."""
        lanes = self.base.copy()
        lanes[8:12].view("<u4")[:] = list(self.members).index(name)
        return lanes

    def wanted(self, names: list[str]) -> Lanes:
        """The exact sum."""
        total = self.base.copy()
        lanes = total[8:].view("<u4")
        lanes *= np.uint32(len(names))
        lanes[0] = sum(list(self.members).index(name) for name in names)
        return total

    def exchange(
        self, step: Step, asks: Mapping[str, Any], *, round: int, failed: Any
    ) -> Iterator[tuple[str, Any]]:
        """Replies as `Federation` gives them, without a codec, and timed at the sites."""
        for name, asked in asks.items():
            ask = asked.make() if isinstance(asked, Later) else asked
            if name in self.lost and step.name not in (GREET.name, MEET.name, STEP.name):
                continue
            member = self.members[name]
            if step.name == "mask":
                own = member._sum
                assert own is not None
                own.lanes = self.numbers_of(name)  # not before, or all sites' would fill memory
            start = time.process_time()
            if step.name == STEP.name:
                opening = replace(ask, ask_B=ask.ask_B[:0])
                sum_ask = SumAsk(
                    opening, digest(ASK), digest(), round=round, step=STEP.name, layout=self.layout
                )
                none = np.empty(0, np.uint8)
                reply: Any = member.offer(sum_ask, lanes=none, settle=lambda: None)
            else:
                reply = getattr(member, step.name)(ask)
            self.seconds += time.process_time() - start
            if self.counts and step.name not in self.up:
                self.up[step.name], self.down[step.name] = len(encode(reply)), len(encode(ask))
            if step.name == "mask":
                assert member._sum is not None
                member._sum.said["mask"] = (b"", None)  # or one process keeps all sites' numbers
            yield name, reply


SENT = EncodedAsk(digest(ASK), lambda: ASK)
"""The same as it is sent."""


def opening_of(roster: Roster, sites: int) -> Opening:
    """What opens a sum, without its ask."""
    return Opening(
        ask_B=np.empty(0, np.uint8),
        roster=roster.id.hex(),
        group=False,
        attempt=1,
        sites=sites,
        examples=0.0,
        labels=[],
    )


def bare(sites: int, numbers: int, lost: int) -> dict[str, Any]:
    """One sum: seconds at a site and at the server, bytes up, and whether it is exact."""
    ring = Bare(sites, numbers, lost)
    exchange = Exchange(1, ring.exchange, lambda fault: print(fault, file=sys.stderr))
    roster = Summing(run="bare", sites=list(ring.members))._greeted(exchange)
    ring.seconds = 0.0
    opening = opening_of(roster, sites)
    start = time.process_time()
    found = SumAttempt(exchange, STEP, opening, SENT, roster=roster, layout=ring.layout).sum(
        list(ring.members)
    )
    spent = time.process_time() - start
    assert found is not None, "too many were lost"
    lanes, summed = found
    return {
        "site_s": ring.seconds / sites,
        "server_s": spent - ring.seconds,
        "up_bytes": sum(ring.up[name] for name in (STEP.name, "mask", "agree", "unmask")),
        "plain_bytes": 4 * numbers,
        "down_bytes": sum(ring.down[name] for name in ("mask", "agree", "unmask")),
        "summed": len(summed),
        "exact": bool(np.array_equal(lanes, ring.wanted(summed))),
    }


def memory(sites: int, numbers: int, lost: int) -> float:
    """The most that is held at once, one site's message among it, in models of float32."""
    ring = Bare(sites, numbers, lost)
    exchange = Exchange(1, ring.exchange, lambda fault: None)
    roster = Summing(run="bare", sites=list(ring.members))._greeted(exchange)
    opening = opening_of(roster, sites)
    ring.counts = False
    tracemalloc.start()
    found = SumAttempt(exchange, STEP, opening, SENT, roster=roster, layout=ring.layout).sum(
        list(ring.members)
    )
    assert found is not None
    views = ring.layout.views(found[0])
    total = views["weights", ""].view("<i4").astype(np.float64)
    assert len(total) == numbers
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / (4 * numbers)


def note(**what: Any) -> None:
    """Append a measurement, with what it was measured on."""
    line = {
        **what,
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy"
        f" {np.__version__}",
        "command": " ".join(["python", f"{OWN}/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }
    with open(MEASURED, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps({key: line[key] for key in what}))


def bare_table(options: argparse.Namespace) -> None:
    """Measure every size that was asked for."""
    for numbers in options.numbers:
        for sites in options.sites:
            for share in options.lost:
                lost = round(share * sites) if share < 1 else int(share)
                runs = [bare(sites, int(numbers), lost) for _ in range(options.repeat)]
                assert all(one["exact"] for one in runs)
                middle = {
                    key: round(statistics.median(one[key] for one in runs), 4)
                    for key in ("site_s", "server_s")
                }
                note(
                    what="bare", sites=sites, numbers=int(numbers), lost=lost,
                    repeat=options.repeat, **{**runs[0], **middle},
                )  # fmt: skip
    if options.memory:
        models = round(memory(4, 22_000_000, 1), 2)
        note(what="memory", sites=4, numbers=22_000_000, lost=1, models=models)


def run_once(sums: str, options: argparse.Namespace, sites: int) -> dict[str, Any]:
    """One run in a process of its own: seconds of its rounds, and what went up."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).parent / "rounds.py"), options.recipe]
        command += [f"{folder}/run", sums, str(sites), str(options.rounds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def round_table(options: argparse.Namespace) -> None:
    """Run plainly and under masks, in turns."""
    found: dict[str, list[dict[str, Any]]] = {"plain": [], "masked": []}
    for sites in options.sites:
        for turn in range(options.repeat):
            for sums, runs in list(found.items())[:: 1 if turn % 2 == 0 else -1]:
                runs.append(run_once(sums, options, sites))
        pairs = list(zip(found["masked"], found["plain"], strict=True))
        note(
            what="round",
            recipe=options.recipe,
            sites=sites,
            rounds=options.rounds,
            repeat=options.repeat,
            **{
                f"{key}_{sums}": [round(one[key], 2) for one in runs]
                for key in ("cpu_s", "wall_s")
                for sums, runs in found.items()
            },
            **{
                f"{key}_ratio": round(statistics.median(a[key] / b[key] for a, b in pairs), 4)
                for key in ("cpu_s", "wall_s", "up")
            },
        )
        for runs in found.values():
            runs.clear()


def streams(sites: int, numbers: int, repeat: int) -> dict[str, float]:
    """Nanoseconds for a number and a mask: a site's masks, and the bare cipher, in turns."""
    lanes, zeros = np.zeros(4 * numbers, np.uint8), memoryview(bytes(2**17))
    keys = [(os.urandom(32), 1 - 2 * (place % 2)) for place in range(sites)]

    def bare(mode: CTR | GCM) -> None:
        buffer = bytearray(2**17 + 16)
        for key, _ in keys:
            stream = Cipher(AES(key), mode).encryptor()
            for start in range(0, len(lanes), 2**17):
                stream.update_into(zeros[: min(2**17, len(lanes) - start)], buffer)

    sides = {
        "masks": lambda: add_streams([(lanes, 4)], keys),
        "ctr": lambda: bare(CTR(bytes(16))),
        "gcm": lambda: bare(GCM(bytes(12))),
    }
    each = sites * numbers / 1e9
    times = in_turn(sides, repeat)
    return {name: round(statistics.median(own) / each, 3) for name, own in times.items()}


def streams_table(options: argparse.Namespace) -> None:
    """Measure every size that was asked for."""
    for sites in options.sites:
        for numbers in map(int, options.numbers):
            ns = streams(sites, numbers, options.repeat)
            load = round(os.getloadavg()[0], 1)
            note(what="streams", sites=sites, numbers=numbers, ns=ns, load=load)


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=["bare", "round", "streams"])
    parser.add_argument("--numbers", type=float, nargs="+", default=[1.3e6])
    parser.add_argument("--sites", type=int, nargs="+", default=[10])
    parser.add_argument("--lost", type=float, nargs="+", default=[0, 1, 0.2])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--recipe", default="ncbi-iid10")
    options = parser.parse_args()
    {"bare": bare_table, "round": round_table, "streams": streams_table}[options.what](options)


if __name__ == "__main__":
    main()
