"""What the bids of lazy-mil tell a curious server of a site's sentences and of shared pairs.

    python benchmarks/security/attacks/bids.py --out runs/bids [--recipe NAME] \
        [--rounds N] [--seed N]

A bid is how likely the model finds a relation in a site's best sentence of a pair, and the server
has the model. If it can run the model on text (always with a public encoder; with public vectors
for the words that these have), it can ask of any sentence that it knows whether a site holds it: is
its value among the site's bids? Every sentence of every site is tried against every site's bids of
the first round that has any, exactly and with bids of so many values; and against those of all
rounds, of each of which it must be among (`by_round`; rounds cannot be linked otherwise where
digests are of one ask alone, as they are under `options.levels`).

`found`   the share of a site's sentences that are told to be there (`best`: of those that bid)
`false`   the share of other sites' sentences that are told to be there
`shared`  the share of a site's triples whose digest some other site sends too, mean of the sites

Lines go to OUT/bids.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from confide.methods import METHODS
from confide.methods.lazy_mil import BID, bid, levelled
from confide.runs.run import run

sys.path.append(str(Path(__file__).parents[2]))

from resumable import machine

PAIR = "lazy-mil-bags"
NEAR = 1e-6
"""Values that differ by less may be of one sentence, computed in batches of another size."""
LEVELS = (0, 256, 64, 32, 16)


@dataclass
class Held:
    """What a site bid in a round: all its sentences' values, by row, and which were sent."""

    values_S: np.ndarray
    best_S: np.ndarray
    triples: set[bytes]


rounds: list[dict[str, Held]] = []


def watched(site: Any, memory: Any, ask: Any, turn: Any) -> Any:
    """The step, and what it left in the site's memory."""
    reply, memory = bid(site, memory, ask, turn)
    best_S = np.zeros(len(memory.bid_values_S), np.bool_)
    best_S[np.cumsum(memory.bid_sizes_G) - memory.bid_sizes_G] = True
    order_S = np.argsort(memory.bid_rows_S, kind="stable")
    if not rounds or site.name in rounds[-1]:
        rounds.append({})
    rounds[-1][site.name] = Held(
        np.array(memory.bid_values_S)[order_S],
        best_S[order_S],
        {row.tobytes() for row in reply.digests_G16},
    )
    return reply, memory


class Watched(METHODS[PAIR].of):  # type: ignore[misc]
    steps = tuple(
        replace(step, answer=watched) if step.name == BID.name else step
        for step in METHODS[PAIR].of.steps
    )


def told(values: np.ndarray, bids: np.ndarray, near: float) -> np.ndarray:
    """For each value, whether a bid is as near as can be."""
    bids = np.sort(bids)
    place = np.searchsorted(bids, values).clip(1, max(1, len(bids) - 1))
    gap = np.minimum(np.abs(bids[place - 1] - values), np.abs(bids[place % len(bids)] - values))
    return gap <= near


def hits(held: dict[str, Held], levels: int) -> dict[tuple[str, str], np.ndarray]:
    """By site and by whose sentences are tried: which are told to be at the site."""
    found = {}
    for name, own in held.items():
        bids = levelled(own.values_S[own.best_S], levels)
        for other, one in held.items():
            near = 0.0 if levels else NEAR
            found[name, other] = told(levelled(one.values_S, levels), bids, near)
    return found


def attack(levels: int) -> dict[str, Any]:
    """How often a sentence is told to be at a site that has it, and at one that has not."""
    first = hits(rounds[0], levels)
    always = dict(first)
    for held in rounds[1:]:
        for place, hit_S in hits(held, levels).items():
            always[place] = always[place] & hit_S
    best = [first[name, name][own.best_S].mean() for name, own in rounds[0].items()]
    return {**shares(first), "best": round(float(np.mean(best)), 4), "by_round": shares(always)}


def shares(hit: dict[tuple[str, str], np.ndarray]) -> dict[str, float]:
    """The mean over sites of what is found and of what is falsely found."""
    sites = sorted({name for name, _ in hit})
    found = [hit[name, name].mean() for name in sites]
    false = [np.concatenate([hit[name, o] for o in sites if o != name]).mean() for name in sites]
    return {"found": round(float(np.mean(found)), 4), "false": round(float(np.mean(false)), 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/bids"))
    parser.add_argument("--recipe", default="lazymil-gids")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    METHODS[PAIR] = replace(METHODS[PAIR], of=Watched)
    folder = given.out / f"{given.recipe}-{given.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    overrides = [
        "options.levels=0",
        f"rounds={given.rounds}",
        f"seed={given.seed}",
        "select.every=1000",
        "workers=1",
    ]
    run(given.recipe, overrides=[*overrides, "federation.fraction=1"], out=folder)
    held = rounds[0]
    shared = [
        len(own.triples & set().union(*(o.triples for n, o in held.items() if n != name)))
        / len(own.triples)
        for name, own in held.items()
    ]
    line = {
        "attack": "bids", "recipe": given.recipe, "rounds": given.rounds, "seed": given.seed,
        "sites": len(held), "bids_in": len(rounds),
        "sentences": round(np.mean([len(o.values_S) for o in held.values()])),
        "triples": round(np.mean([len(o.triples) for o in held.values()])),
        "shared": round(float(np.mean(shared)), 4),
        **{f"levels_{levels or 'none'}": attack(levels) for levels in LEVELS},
        **machine(),
    }  # fmt: skip
    with open(given.out / "bids.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line))


if __name__ == "__main__":
    main()
