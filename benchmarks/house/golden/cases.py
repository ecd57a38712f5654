"""The runs of the golden record: every recipe, method, kind and reference, small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from confide.methods import METHODS
from confide.recipes import recipe_path, recipes
from confide.settings import load_settings


@dataclass(frozen=True)
class Case:
    """One small run. `recipe` runs on cut corpora, a `task` on the made-up corpora of the tests.

    `kind` is the value of `model.kind` (entities) or `bags.reader` (bags); empty: the default. A
    `pair` of a method and a kind runs with the settings of its contract test.
    """

    name: str
    overrides: tuple[str, ...]
    recipe: str = ""
    task: str = ""
    kind: str = ""
    knows: bool = False
    pair: str = ""


def cases() -> Iterator[Case]:
    """All of them: made-up corpora first, since these take a second each."""
    yield from _made_up()
    yield from _pairs()
    yield from _recipes()


# --- made-up corpora ------------------------------------------------------------------------------

_FEDAVG = (
    "",
    "options.weighting=sentences options.rows=seen",
    "federation.fraction=0.5",
    "federation.combine=median",
    "model.character=bilstm",
)
_FEDNER = (
    "",
    "select.every=2 rounds=5",
    "options.local_steps=2",
    'options.private=["crf"] model.cnn_filters=6 model.cnn_widths=[1,3]',
    'options.private=["word","character","cnn","bilstm","crf"]',
    "options.private=[]",
)
_FEDED = (
    "",
    "options.wire_dtype=int8",
    "options.upload=probabilities options.wire_dtype=float32",
    "options.average=known options.temper_student=true classifier.typed_markers=true",
    "public.labelled=false classifier.pool=start",
    "federation.fraction=0.5",
)
_COMPLETE = (
    "",
    "options.instance_weights=false options.momentum=0.5",
    "options.distil=false",
    "options.weighting=sentences federation.fraction=0.7",
)
_BAGS = ("", "bags.denoise=none options.weighting=equal", "bags.denoise=one", "bags.denoise=ave",
         "bags.denoise=att-ra", "federation.fraction=0.5")  # fmt: skip
_LAZY = ("", "options.weighting=equal federation.fraction=0.5", "bags.same_entity=letters",
         "options.warmup_rounds=1")  # fmt: skip
_RELATIONS = ("", "options.weighting=equal classifier.typed_markers=true",
              "classifier.pool=start classifier.blind=false training.optimiser=sgd")  # fmt: skip


PAPER = {
    "feded": ("options.temper_student=false",),
    "lazy-mil": ("options.factor=1.0", "options.warmup_rounds=0"),
}
"""What was a method's default when it was recorded."""


def _made_up() -> Iterator[Case]:
    yield from _several("ner", "tagger", "fedavg", _FEDAVG)
    yield from _several("ner", "tagger", "fedner", _FEDNER)
    for kind in ("tagger", "encoder", "lightner"):
        yield from _several("ner", kind, "pseudo-complete", _COMPLETE, knows=True)
    lightner = ("lightner.tune=prompts lightner.prompts_in=decoder", "lightner.tune=lora")
    yield from _several("ner", "lightner", "pseudo-complete", lightner, knows=True)
    yield from _several("re", "", "feded", _FEDED)
    yield from _several("re", "", "fedavg", _RELATIONS)
    yield from _several("re", "", "pseudo-complete", _COMPLETE, knows=True)
    yield from _several("re", "", "fedatt", ("", "options.epsilon=0.5 federation.fraction=0.5"))
    for reader in ("pcnn", "encoder"):
        yield from _several("bags", reader, "lazy-mil", _LAZY)
        yield from _several("bags", reader, "fedavg", _BAGS)
        yield from _several("bags", reader, "chain", ("", "bags.denoise=one"))
    for method in ("pooled", "alone"):
        yield from _several("ner", "tagger", method, ("", "base=fedner"))
        yield from _several("re", "", method, ("", "base=feded"))
        yield from _several("bags", "pcnn", method, ("", "base=lazy-mil"))
        for kind in ("tagger", "encoder", "lightner"):
            yield from _several("ner", kind, method, ("base=pseudo-complete",), knows=True)
    yield from _several("re", "", "public-only", ("", "base=feded"))


def _several(
    task: str, kind: str, method: str, forms: tuple[str, ...], *, knows: bool = False
) -> Iterator[Case]:
    for form in forms:
        name = "-".join(part for part in (task, kind, method) if part)
        paper = next((own for one, own in PAPER.items() if one in f"{method} {form}"), ())
        overrides = (f"method={method}", "rounds=3", *paper, *form.split())
        yield Case(f"{name} {form}".strip(), overrides, task=task, kind=kind, knows=knows)


# --- every method with every kind -----------------------------------------------------------------

FORMS = {
    "": (),
    "masked": ("federation.sums=masked",),
    "int8": ("federation.up=int8", "federation.down=int8"),
}
"""Of FedAvg with each kind: as it is, under masks, and quantised both ways."""


def _pairs() -> Iterator[Case]:
    for name, pair in METHODS.items():
        if pair.private:  # each run draws a key of noise of its own: no two are equal
            continue
        for form, overrides in FORMS.items() if pair.method == "fedavg" else [("", ())]:
            yield Case(f"pair {name} {form}".strip(), overrides, pair=name)


# --- recipes --------------------------------------------------------------------------------------

SMALL = {"fedner-medical-full": "model.context=minilm"}
"""What a recipe needs besides to be small."""


def _recipes() -> Iterator[Case]:
    for recipe in recipes():
        own = ["rounds=2", "select.every=1", "select.patience=0"]
        if recipe.name.endswith("-paper") and recipe.name.startswith("feded"):
            own.append("classifier.encoder=minilm")
        if load_settings(recipe_path(recipe.name)).split is not None:
            own.append("split.sites=4")
        own += SMALL.get(recipe.name, "").split()
        paper = PAPER.get(recipe.method, ())
        yield Case(recipe.name, (*paper, *own), recipe=recipe.name)
        if not recipe.name.endswith(("-paper", "-full")) and recipe.method != "fedavg":
            yield Case(f"{recipe.name} pooled", ("method=pooled", *own), recipe=recipe.name)
