"""What the contract has to know of each pair of a method and a kind.

A new pair needs no entry where its method can do with what its kind learns with; a new kind adds a
line to `LEARNS`, a new method an entry for each pair that it was published with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from confide.methods import METHODS


@dataclass(frozen=True)
class Entry:
    """How a pair's tiny run is set up.

    Attributes:
        learning: overrides with which it learns `contract.corpus` in a few rounds.
        reaches: the strict (of relations: micro) F1, or of bags the area, that it must reach
            with them, on test text.
        variants: overrides of other forms of the method that must resume and agree too.
        asked: overrides with which a step is asked that is not asked without them.
        crossed: nobody has published the pair: its method was published with other kinds.
    """

    learning: tuple[str, ...]
    reaches: float
    variants: tuple[tuple[str, ...], ...] = ()
    asked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    crossed: bool = False


OPEN = {name: pair for name, pair in METHODS.items() if not pair.private}
"""The pairs that train without noise. What those under noise promise has tests of its own
(tests/methods/test_dp_fedsgd.py): their sums are never plain, and no site's score is seen."""

SEES_EACH = {name for name in OPEN if OPEN[name].sees_each}
"""The pairs that refuse sums which the server cannot open."""

OPTIONAL = {
    "describe_encoder", "count_examples", "count_buckets", "count_bag_buckets", "measure", "attend",
    "teach",
}  # fmt: skip
"""Steps that are asked only where the settings name an encoder (tests/kinds/test_context.py), where
sums are not plain (tests/contract/test_sums.py), or where training starts from a model that teaches
(tests/runs/test_start_from.py)."""


LEARNS: dict[str, tuple[tuple[str, ...], float]] = {
    "tagger": (
        ("rounds=6", "training.local_epochs=2", "training.learning_rate=0.03", "model.dropout=0.1"),
        0.9,
    ),
    "encoder": (
        ("rounds=6", "training.local_epochs=3", "training.batch_size=4", "classifier.dropout=0"),
        0.9,
    ),
    "spans": (
        ("rounds=6", "training.local_epochs=3", "training.batch_size=4", "classifier.dropout=0"),
        0.9,
    ),
    "lightner": (("rounds=8", "training.local_epochs=3", "training.batch_size=4"), 0.8),
    "linear": (("rounds=6", "training.optimiser=adagrad", "training.learning_rate=0.3"), 0.9),
    "relations": (("rounds=9", "training.local_epochs=3", "training.batch_size=4"), 0.9),
    "bags": (
        (
            "rounds=6",
            "training.local_epochs=2",
            "training.optimiser=adam",
            "training.learning_rate=0.02",
        ),
        0.9,
    ),
}
"""Overrides with which a kind learns, and what it reaches, under methods that average weights."""


def entry(kind: str, **own: Any) -> Entry:
    """The entry of a pair that learns as its kind does, but for what is its own."""
    learning, reaches = LEARNS[kind]
    return Entry(**{"learning": learning, "reaches": reaches, **own})


ENTRIES: dict[str, Entry] = {
    "fedavg-tagger": entry(
        "tagger",
        variants=(
            ("options.weighting=sentences", "options.rows=seen"),
            ("model.character=bilstm",),
        ),
    ),
    **{
        f"scaffold-{kind}": entry(
            kind, learning=(*LEARNS[kind][0], "rounds=12", "options.rate=0.3")
        )
        for kind in ("tagger", "encoder", "spans")
    },
    # plain SGD, which SCAFFOLD needs, learns little of a tiny relation classifier: as under FedAvg
    "scaffold-relations": Entry(
        learning=(
            "rounds=15",
            "training.local_epochs=3",
            "training.batch_size=4",
            "classifier.dropout=0",
        ),
        reaches=0.3,
    ),
    "feddyn-relations": entry("relations", reaches=0.8),
    **{
        f"fedex-{kind}": entry(
            kind, learning=(*LEARNS[kind][0], "encoder.rank=4", "training.learning_rate=0.03")
        )
        for kind in ("encoder", "relations")
    },
    "fedavg-linear": entry(
        "linear",
        variants=(
            ("options.rows=seen", "options.weighting=equal", "model.tag_scheme=iob2"),
            ("linear.bits=10", "federation.fraction=0.7"),
        ),
    ),
    "fedner-tagger": Entry(
        learning=(
            "rounds=60",
            "select.every=20",
            "training.learning_rate=0.02",
            "training.batch_size=18",
            "model.dropout=0.1",
        ),
        reaches=0.9,
        variants=(
            ("select.every=2", "rounds=5"),
            ("options.local_steps=2", "federation.up=float16", "federation.down=float16"),
            ('options.private=["crf"]', "model.cnn_filters=6", "model.cnn_widths=[1,3]"),
            ('options.private=["word","character","cnn","bilstm","crf"]',),
            ("options.private=[]",),
        ),
    ),
    "feded-relations": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=3",
            "training.batch_size=4",
            "options.distil_epochs=4",
            "classifier.dropout=0",
        ),
        reaches=0.85,
        variants=(
            ("federation.down=int8", "options.wire_dtype=int8"),
            ("options.upload=probabilities", "options.wire_dtype=float32", "rounds=3"),
            (
                "options.average=known",
                "options.temper_student=true",
                "classifier.typed_markers=true",
            ),
            ("public.labelled=false", "classifier.pool=start", "select.every=2", "rounds=5"),
            ("options.past_weight=0.5", "options.holdout_share=0.2", "options.distil_epochs=2"),
            ("federation.down=cached", "federation.fraction=0.5", "select.every=2", "rounds=5"),
        ),
    ),
    "feded-tagger": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=4",
            "training.learning_rate=0.03",
            "options.distil_epochs=6",
            "model.dropout=0.1",
        ),
        reaches=0.85,
        variants=(
            ("federation.down=int8", "options.wire_dtype=int8"),
            (
                "options.upload=probabilities",
                "options.average=known",
                "options.temper_student=true",
                "model.tag_scheme=iob2",
            ),
            ("public.labelled=false", "model.character=bilstm", "federation.fraction=0.5"),
        ),
    ),
    "feded-encoder": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=3",
            "training.batch_size=4",
            "options.distil_epochs=4",
            "classifier.dropout=0",
        ),
        reaches=0.85,
        variants=(
            ("federation.down=int8", "options.wire_dtype=int8", "public.labelled=false"),
            ("options.average=known", "options.upload=probabilities"),
        ),
    ),
    "fedavg-relations": entry(
        "relations",
        variants=(
            ("options.weighting=equal", "classifier.typed_markers=true"),
            ("classifier.pool=start", "classifier.blind=false", "training.optimiser=sgd"),
        ),
    ),
    "fedatt-relations": entry(
        "relations", variants=(("options.epsilon=0.5", "federation.fraction=0.5"),)
    ),
    "pseudo-complete-lightner": entry(
        "lightner",
        variants=(
            ("lightner.tune=prompts", "lightner.prompts_in=decoder"),
            ("lightner.tune=lora", "lightner.constrained=false", "options.momentum=0.5"),
        ),
    ),
    "pseudo-complete-encoder": entry(
        "encoder", variants=(("options.weighting=sentences", "federation.fraction=0.7"),)
    ),
    "pseudo-complete-relations": entry(
        "relations",
        variants=(
            ("options.instance_weights=false", "options.warmup_rounds=1"),
            ("options.weighting=examples", "options.centred=true", "federation.fraction=0.7"),
        ),
    ),
    "pseudo-complete-tagger": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=3",
            "training.learning_rate=0.03",
            "model.dropout=0.1",
        ),
        reaches=0.85,
        variants=(
            ("options.instance_weights=false", "options.momentum=0.5"),
            ("options.weighting=sentences", "federation.fraction=0.7", "rounds=4"),
        ),
    ),
    "lazy-mil-bags": entry(
        "bags",
        variants=(
            ("options.weighting=equal", "federation.fraction=0.5", "select.every=2", "rounds=5"),
            ("bags.same_entity=letters", "pcnn.activation=relu", "vocabulary.min_sites=2"),
            ("bags.reader=encoder", "training.optimiser=adamw", "training.learning_rate=0.005"),
            ("options.warmup_rounds=1", "options.factor=adaptive"),
            ("options.factor=0.5", "options.temperature=1.0", "rounds=3"),
        ),
        asked={"train": ("options.warmup_rounds=1",)},
    ),
    "fedavg-bags": entry(
        "bags",
        variants=(
            ("bags.denoise=none", "options.weighting=equal"),
            ("bags.denoise=one", "federation.fraction=0.5", "select.every=2", "rounds=5"),
            ("bags.denoise=ave",),
            ("bags.denoise=att-ra",),
        ),
    ),
    "chain-bags": entry("bags", variants=(("bags.denoise=one", "federation.fraction=0.7"),)),
}
"""The pairs that were published, or that tests of other rooms stand on."""

_CALMER = (*LEARNS["lightner"][0], "training.decay=0.7")
"""For a LightNER that no mean holds back: a rate that fits one leaps after rounds enough."""

_CROSSED: dict[str, dict[str, Any]] = {
    "fedatt-lightner": {"learning": _CALMER},
    "chain-lightner": {"learning": _CALMER},
    "fedner-encoder": {"learning": ("rounds=60", "select.every=20", "training.batch_size=18")},
    "fedner-linear": {
        "learning": ("rounds=60", "select.every=20", "training.batch_size=18"),
        "variants": (("options.types=common", "options.private=[]"),),
    },
    "fedner-spans": {"learning": ("rounds=60", "select.every=20", "training.batch_size=18")},
    "fedner-lightner": {"learning": ("rounds=60", "select.every=20", "training.batch_size=18")},
    "feded-spans": {
        "learning": (*LEARNS["spans"][0], "options.distil_epochs=4"),
        "variants": (
            ("federation.down=int8", "options.wire_dtype=int8", "public.labelled=false"),
            ("options.average=known", "options.upload=probabilities", "options.holdout_share=0.2"),
        ),
    },
    "fedner-relations": {"learning": ("rounds=90", "select.every=30", "training.batch_size=18")},
}
"""What other pairs need besides."""

ENTRIES |= {
    name: entry(pair.kind.name, crossed=True, **_CROSSED.get(name, {}))
    for name, pair in OPEN.items()
    if name not in ENTRIES
}

STEPS = [
    (method, step.name)
    for method, kind in OPEN.items()
    for step in kind.steps
    if step.name not in OPTIONAL
]
"""Every step of every pair, but for those that are optional."""


METHOD = {pair.method: name for name, pair in reversed(OPEN.items()) if name in ENTRIES} | {
    "fedatt": "fedatt-relations",
    "chain": "chain-bags",
    "feddf": "feddf-tagger",
    "pseudo-complete": "pseudo-complete-tagger",
}
"""By method one pair, of which tests that are about the method are fast."""

FEDAVG = [name for name, pair in OPEN.items() if pair.method == "fedavg"]
"""Every kind with FedAvg: of these are tests that are about the kind."""

FAST = {*METHOD.values(), *FEDAVG}
"""Every method with one kind, and every kind with FedAvg: the tests of all other pairs are slow."""

CARRIED = ("fedavg-tagger", "fedner-tagger", "feded-relations", "lazy-mil-bags")
"""Pairs whose messages are unlike each other's, of which tests of what carries them are fast."""


def _dealt() -> list[str]:
    found = [*CARRIED]
    for method, usual in METHOD.items():
        if method not in {OPEN[name].method for name in found}:
            seen = {OPEN[name].kind.name for name in found}
            fresh = (n for n, p in OPEN.items() if p.method == method and p.kind.name not in seen)
            found.append(next(fresh, usual))
    return found


DEALT = _dealt()
"""Every method once, each with a kind that none before it has, as long as there is one. Of these
are tests that cost more than a moment and look at a run from outside: processes, several models."""


def _firsts(steps: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    found: dict[Any, tuple[str, str]] = {}
    for method, name in sorted(steps, key=lambda one: one[0] not in FAST):
        answer = next(one.answer for one in METHODS[method].steps if one.name == name)
        found.setdefault((answer, METHODS[method].task), (method, name))
    return set(found.values())


FIRST = _firsts(STEPS)
"""One pair for each step and task: the same step of other pairs is the same code."""

APART = FAST | {method for method, _ in FIRST}
"""Every method, every kind with FedAvg, and each step once a task. Any other pair joins a method
and a kind that are both among these, and has no code of its own: what a method or a kind does with
a run is tested of these. What a pair promises by itself (its messages, what leaves a site, its
guards, that it learns) is tested of every pair."""

ANSWERED = set(
    {
        next(one.answer for one in METHODS[method].steps if one.name == name): (method, name)
        for method, name in sorted(FIRST, reverse=True)
    }.values()
)
"""One pair and step for each function that answers one."""


def first_steps(fast: Collection[tuple[str, str]]) -> list[Any]:
    """Every step once a task as parameters of a test, slow but for those that are `fast`."""
    return [
        pytest.param(*one, marks=[] if one in fast else [pytest.mark.slow])
        for one in STEPS
        if one in FIRST
    ]


def pairs(*, fast: Collection[str] = FAST, of: Collection[str] = tuple(OPEN)) -> list[Any]:
    """Every pair as a parameter of a test, slow but for those that are `fast`."""
    return [
        pytest.param(name, marks=[] if name in fast else [pytest.mark.slow])
        for name in ENTRIES
        if name in of
    ]


def asking(method: str, step: str) -> tuple[str, ...]:
    """Overrides with which a run of the method asks this step."""
    return (f"method={method}", *ENTRIES[method].asked.get(step, ()))
