"""FedAvg and the chain of bags over real engines, and what a model by itself would learn."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from confide.federation.quantising import restore_reply
from confide.kinds.bags.batches import training_bags
from confide.kinds.bags.site import bag_trainer, words_of
from confide.kinds.relations.batches import candidates
from confide.kinds.relations.site import rules_of
from confide.text.document import Document
from confide.training.weights import arrays, load_weights
from contract.bags import bag_documents, sentence, write_bags
from contract.corpus import KEY, tiny
from contract.relations import SAID
from methods.relation_runs import Seen, started

UNEQUAL = {
    "site-1": bag_documents("site-1", "train", 30),
    "site-2": bag_documents("site-2", "train", 12),
}
WORDS = "reader.word.weight"


def wide(site: str) -> list[Document]:
    """Forty sentences with words that nobody else has."""
    draw = random.Random(site)
    return [
        sentence(
            draw,
            f"{site}-{number}",
            names=(f"{site}drug{mark}", f"{site}pain{mark}"),
            concepts=(f"D{number}", f"E{number}"),
            said=SAID["eases"],
            relation="eases" if number % 2 else "",
        )
        for number, mark in enumerate(map("".join, itertools.product("abcd", "abcdefghij")))
    ]


WIDE = {"site-1": wide("north"), "site-2": wide("south")}


def begun(
    folder: Path, method: str, *overrides: str, at_least: int = 0, sites: Any = None
) -> tuple[Any, Any, Seen]:
    tables = write_bags(folder / "data", sites or UNEQUAL)
    settings = tiny(folder, f"method={method}", *overrides, site=tables)
    return started(folder, settings, at_least=at_least)


def whole(engine: Seen, site: str, step: str = "train") -> Any:
    """A site's whole reply."""
    kind = engine._hosting.steps[step]
    return restore_reply(kind, engine.asks[step, site], engine.replies[step, site])


def learnt(state: Any, documents: list[Document], **how: Any) -> tuple[dict[str, Any], Any]:
    """The oracle: a model of its own, trained from these weights on these documents."""
    form = state.form
    trainer = bag_trainer(form, words_of(form, KEY))
    found = candidates(documents, rules_of(form)).examples
    bags = training_bags(found, documents, same="concept")
    model = trainer.initial(0)
    load_weights(model, how.pop("weights", state.weights))
    own = trainer.annotated(trainer.prepared(bags.examples), bags.groups)
    report = trainer.fit(model, own, **how)
    return arrays(model), report


def trains(method: str) -> str:
    """The step in which sites train."""
    return {"chain-bags": "train_in_turn", "lazy-mil-bags": "train_on_winners"}.get(method, "train")
