"""The rounds of several federations as the history of one run."""

from __future__ import annotations

from collections.abc import Sequence

from confide.userfiles import Tree


def joined(histories: Sequence[Sequence[Tree]]) -> list[Tree]:
    """The rounds of the run; those of `alone` are joined, with scores and losses averaged."""
    if len(histories) == 1:
        return list(histories[0])
    rounds = []
    for place in range(max(map(len, histories), default=0)):
        at = [history[place] for history in histories if place < len(history)]
        scored = [one["dev"] for one in at if "dev" in one]
        record: Tree = {
            "round": place + 1,
            "loss": _mean([one["loss"] for one in at]),
            "learning_rate": at[0]["learning_rate"],
            "sites": sorted(site for one in at for site in one["sites"]),
            "failed": {site: code for one in at for site, code in one["failed"].items()},
            "faults": [fault for one in at for fault in one.get("faults", [])],
            "seconds": sum(one["seconds"] for one in at),
            "train_seconds": sum(one["train_seconds"] for one in at),
            "compute_seconds": sum(one["compute_seconds"] for one in at),
            "slowest_seconds": max(one["slowest_seconds"] for one in at),
            "sentences": sum(one.get("sentences", 0) for one in at),
            "bytes": {way: sum(one["bytes"][way] for one in at) for way in ("up", "down")},
        }
        if scored:
            record["dev"] = {kind: _mean([one[kind] for one in scored]) for kind in scored[0]}
            record["dev_sites"] = {s: f for one in at for s, f in one.get("dev_sites", {}).items()}
        rounds.append(record)
    return rounds


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)
