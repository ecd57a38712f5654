"""What the contract has to know of each method. A new method adds one entry."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from confide.methods import METHODS


@dataclass(frozen=True)
class Entry:
    """How a method's tiny run is set up.

    Attributes:
        learning: overrides with which it learns `contract.corpus` in a few rounds.
        reaches: the strict (of relations: micro) F1, or of bags the area, of text the likelihood
            (before training: 0.01), that it must reach with them, on test text.
        variants: overrides of other forms of the method that must resume and agree too.
        asked: overrides with which a step is asked that is not asked without them.
        slow: tests of every form are slow for the plain one too, since another entry is much alike.
    """

    learning: tuple[str, ...]
    reaches: float
    variants: tuple[tuple[str, ...], ...] = ()
    asked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    slow: bool = False


OPTIONAL = {"describe_encoder"}
"""Steps that are asked only where the settings name an encoder (tests/methods/test_context.py)."""


LEARNING_BAGS = (
    "rounds=6",
    "training.local_epochs=2",
    "training.optimiser=adam",
    "training.learning_rate=0.02",
)

ENTRIES: dict[str, Entry] = {
    "fedavg": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=2",
            "training.learning_rate=0.03",
            "model.dropout=0.1",
        ),
        reaches=0.9,
        variants=(
            ("options.weighting=sentences", "options.rows=seen"),
            ("model.character=bilstm",),
        ),
    ),
    "fedner": Entry(
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
            ("options.local_steps=2", "options.wire_dtype=float16", "options.sparse=true"),
            ('options.private=["crf"]', "model.cnn_filters=6", "model.cnn_widths=[1,3]"),
            ('options.private=["word","character","cnn","bilstm","crf"]',),
            ("options.private=[]",),
        ),
    ),
    "feded": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=3",
            "training.batch_size=4",
            "options.distil_epochs=4",
            "classifier.dropout=0",
        ),
        reaches=0.85,
        variants=(
            ("options.download=difference", "options.wire_dtype=int8"),
            ("options.upload=probabilities", "options.wire_dtype=float32", "rounds=3"),
            ("options.average=known", "options.temper_student=true", "classifier.typed=true"),
            ("public.labelled=false", "classifier.pool=start", "select.every=2", "rounds=5"),
            (
                "options.download=difference",
                "federation.fraction=0.5",
                "select.every=2",
                "rounds=5",
            ),
        ),
        asked={"take_model": ("options.download=difference",)},
    ),
    "fedavg-re": Entry(
        learning=("rounds=9", "training.local_epochs=3", "training.batch_size=4"),
        reaches=0.9,
        variants=(
            ("options.weighting=equal", "classifier.typed=true"),
            ("classifier.pool=start", "classifier.blind=false", "training.optimiser=sgd"),
        ),
        slow=True,
    ),
    "fedatt-re": Entry(
        learning=("rounds=9", "training.local_epochs=3", "training.batch_size=4"),
        reaches=0.9,
        variants=(("options.epsilon=0.5", "federation.fraction=0.5"),),
        slow=True,
    ),
    "pseudo-complete": Entry(
        learning=("rounds=8", "training.local_epochs=3", "training.batch_size=4"),
        reaches=0.8,
        variants=(
            ("lightner.tune=prompts", "lightner.where=decoder"),
            ("lightner.tune=lora", "lightner.constrained=false", "options.momentum=0.5"),
        ),
    ),
    "pseudo-complete-encoder": Entry(
        learning=(
            "rounds=6",
            "training.local_epochs=3",
            "training.batch_size=4",
            "classifier.dropout=0",
        ),
        reaches=0.9,
        variants=(("options.weighting=sentences", "federation.fraction=0.7"),),
        slow=True,
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
    "lazy-mil": Entry(
        learning=LEARNING_BAGS,
        reaches=0.9,
        variants=(
            ("options.weighting=equal", "federation.fraction=0.5", "select.every=2", "rounds=5"),
            ("bags.same=letters", "pcnn.activation=relu", "vocabulary.min_sites=2"),
            ("bags.reader=encoder", "training.optimiser=adamw", "training.learning_rate=0.005"),
            ("options.warm_rounds=1",),
        ),
        asked={"train_bags": ("options.warm_rounds=1",)},
    ),
    "fedavg-bags": Entry(
        learning=LEARNING_BAGS,
        reaches=0.9,
        variants=(
            ("bags.denoise=none", "options.weighting=equal"),
            ("bags.denoise=one", "federation.fraction=0.5", "select.every=2", "rounds=5"),
            ("bags.denoise=ave",),
            ("bags.denoise=att-ra",),
        ),
        slow=True,
    ),
    "chain": Entry(
        learning=LEARNING_BAGS,
        reaches=0.9,
        variants=(("bags.denoise=one", "federation.fraction=0.7"),),
        slow=True,
    ),
}

ENTRIES["fedavg-text"] = Entry(
    learning=(
        "rounds=6",
        "training.local_epochs=10",
        "denoising.masked=0.15",
    ),
    reaches=0.1,
    variants=(
        ("options.weighting=equal", "denoising.train=all", "denoising.dropout=0.1"),
        ("denoising.sampled=4", "denoising.permuted=0.5", "federation.fraction=0.7"),
    ),
)

STEPS = [
    (method, step.name)
    for method, kind in METHODS.items()
    for step in kind.steps
    if step.name not in OPTIONAL
]
"""Every step of every method, but for those that are optional."""


def slow_if_repeated(method: str, step: str) -> list[pytest.MarkDecorator]:
    """The mark of a step that an earlier method has too: it is the same code."""
    answers = {
        name: next(one.answer for one in METHODS[name].steps if one.name == step)
        for name, other in STEPS
        if other == step
    }
    first = next(name for name, answer in answers.items() if answer is answers[method])
    return [] if first == method else [pytest.mark.slow]


EVERY_STEP = [pytest.param(*pair, marks=slow_if_repeated(*pair)) for pair in STEPS]
"""The same as parameters of tests, each step once among those that are not slow."""


def asking(method: str, step: str) -> tuple[str, ...]:
    """Overrides with which a run of the method asks this step."""
    return (f"method={method}", *ENTRIES[method].asked.get(step, ()))
