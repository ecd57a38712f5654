"""What the server hears of one site in a round: its bytes, what was asked, and the opened sums."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import confide.runs.run
from confide.federation.engines import SequentialEngine
from confide.federation.federation import Delivery, Federation
from confide.federation.messages import decode
from confide.federation.quantising import restore_reply
from confide.federation.secure.lanes import LaneLayout
from confide.federation.secure.messages import Masked, Opening
from confide.federation.secure.steps import as_summed, layout_for
from confide.methods import METHODS
from confide.runs.folder import RunFolder
from confide.settings import parse

WATCHED = "site-1"


@dataclass
class Heard:
    """What the server saw of one site, what it asked, and the sums that it opened.

    Several sums of a round come in as many replies to `mask`.
    """

    asks: dict[tuple[str, int], bytes] = field(default_factory=dict)
    replies: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    sums: dict[tuple[str, int], Any] = field(default_factory=dict)

    def lanes(self, layout: LaneLayout, round: int) -> np.ndarray:
        """The masked lanes of this layout that the site sent in a round."""
        every = (decode(Masked, one).lanes_B for one in self.replies["mask", round])
        return np.array(next(one for one in every if len(one) == layout.length))


def listening(heard: Heard) -> type[SequentialEngine]:
    """The engine of one machine, that keeps what it carries to and from the site."""

    class Listening(SequentialEngine):
        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            for found in super().deliver(step, round, asks=asks, timeout=timeout):
                if found.site == WATCHED:
                    heard.asks.setdefault((step, round), asks[found.site])
                    heard.replies.setdefault((step, round), []).append(bytes(found.reply))
                yield found

    return Listening


def step_of(name: str, method: str) -> Any:
    return next(step for step in METHODS[method].steps if step.name == name)


def masked(heard: Heard, step: Any, round: int) -> tuple[Any, LaneLayout, np.ndarray]:
    """The ask of a summed step, the layout of its reply, and the lanes that the site sent."""
    opening = decode(Opening, heard.asks[step.name, round])
    ask = decode(step.ask, opening.ask_B.tobytes())
    layout = layout_for(as_summed(step, opening.labels), ask, opening)
    return ask, layout, heard.lanes(layout, round)


def changes_in(heard: Heard, method: str, table: str, sums: str) -> tuple[np.ndarray, ...]:
    """The table as asked, the site's change of it as its bytes say, and that of the sum.

    Under noise the sum is that of clipped gradients, as the server opens it.
    """
    step = step_of("add_noisily" if sums == "noise" else "train", method)
    if sums == "plain":
        ask = decode(step.ask, heard.asks["train", 1])
        reply = restore_reply(step, ask, decode(step.reply, heard.replies["train", 1][0]))
        own = reply.weights[table] / np.float32(reply.weight) - ask.weights[table]
    else:
        ask, layout, lanes = masked(heard, step, 1)
        named = "noisy" if sums == "noise" else "weights"
        part = next(p for p in layout.parts if (p.field, p.name) == (named, table))
        own = layout.views(lanes)[named, table].view("<i4") / part.scale
        own = own.reshape(part.shape)
    total = heard.sums[step.name, 1]
    if sums == "noise":
        return ask.weights[table], own, total.noisy[table]
    return ask.weights[table], own, total.weights[table] / total.weight - ask.weights[table]


def settings_of(given: argparse.Namespace, sums: str) -> dict[str, Any]:
    """Of a run of one round. Under noise, it spends all of ε = 8 in it, and draws every unit."""
    if sums == "noise":
        return {
            "name": "bytes", "method": "dp-fedsgd", "key": "simulated", "seed": given.seed,
            "rounds": 1, "select": {"by": "last"}, "federation": {"sums": "masked"},
            "privacy": {"unit": "document", "epsilon": 8, "rate": 1.0, "rounds": 1, "clip": 1.0,
                        "units": 100},
        }  # fmt: skip
    most = {"max_norm_ratio": float("inf")} if sums == "plain" else {}
    return {
        "name": "bytes", "method": "fedavg", "key": "simulated", "seed": given.seed, "rounds": 1,
        "select": {"by": "last"}, "federation": {"sums": sums, **most},
        "options": {"weighting": "equal"},
    }  # fmt: skip


def site_tables(given: argparse.Namespace, texts: list[dict[str, str]], end: str) -> list[Any]:
    """A table of the settings for each site, whose parts are written as files."""
    tables = []
    for number, parts in enumerate(texts, 1):
        folder = given.out / "run" / f"data-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        for part, text in parts.items():
            (folder / f"{part}.{end}").write_text(text, encoding="utf-8")
        tables.append({"name": f"site-{number}"} | {p: str(folder / f"{p}.{end}") for p in parts})
    return tables


def ran(given: argparse.Namespace, tree: dict[str, Any]) -> tuple[Heard, RunFolder]:
    """Run, and listen to it."""
    heard, real = Heard(), Federation.sum

    def sum_(self: Federation, step: Any, ask: object, *, round: int, **more: Any) -> Any:
        found = real(self, step, ask, round=round, **more)
        return heard.sums.setdefault((step.name, round), found)

    confide.runs.run.SequentialEngine = listening(heard)  # type: ignore[misc]
    Federation.sum = sum_  # type: ignore[method-assign]
    folder = given.out / "run" / "run"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        confide.runs.run.run(parse(tree), out=folder)
    finally:
        Federation.sum = real  # type: ignore[method-assign]
    return heard, RunFolder(folder)
