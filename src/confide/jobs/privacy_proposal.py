"""What a run under noise needs besides ε: proposed, each setting with its reason. Reads no text.

What settings say stays as it is, but for what would break the promise. What nobody can propose (the
names of types, the number of units) is listed with an example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from confide.methods import METHODS
from confide.methods.noised import NEUTRAL
from confide.settings import put
from confide.settings.tables import Settings, kind_of
from confide.tasks import TASKS, USUAL
from confide.userfiles import Tree

ENOUGH = 10_000
"""ε times the number of units from which on a tagger under noise finds more than a last layer.

In benchmarks/privacy it does so at 16,200 (NCBI-disease, ε = 3) and no longer at 5,600 (CrossNER,
ε = 8)."""
UNDER_NOISE = {"fedner": "dp-fedner", "feded": "dp-feded"}
"""Methods that have a form of their own under noise; for all others there is dp-fedsgd."""


@dataclass(frozen=True)
class Proposed:
    """A setting by its dotted key, its proposed value, and why."""

    key: str
    value: object
    why: str


@dataclass(frozen=True)
class Unsaid:
    """A setting that only people can give: its dotted key, an example, and why.

    A run without a `needed` one is refused.
    """

    key: str
    example: object
    why: str
    needed: bool = True


@dataclass
class Proposal:
    """The settings with all that is proposed, what that is, and what is left to say."""

    tree: Tree
    proposed: list[Proposed] = field(default_factory=list)
    unsaid: list[Unsaid] = field(default_factory=list)

    def has(self, key: str) -> object:
        """The value that the settings have by now; None if they have none."""
        node: object = self.tree
        for part in key.split("."):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def set(self, key: str, value: object, why: str) -> None:
        """Propose a value, also in place of another one."""
        put(self.tree, key.split("."), value)
        self.proposed.append(Proposed(key, value, why))

    def fill(self, key: str, value: object, why: str) -> None:
        """Propose a value if the settings have none."""
        if self.has(key) is None:
            self.set(key, value, why)

    def ask(self, key: str, example: object, why: str) -> None:
        """List what only people can say, if the settings do not."""
        if not self.has(key):
            self.unsaid.append(Unsaid(key, example, why))

    def whole(self) -> Tree:
        """The tree with an example for everything that is unsaid."""
        tree = deepcopy(self.tree)
        for one in (one for one in self.unsaid if one.needed):
            put(tree, one.key.split("."), one.example)
        return tree


@dataclass(frozen=True)
class _Usual:
    """What was measured best of what was tried for a method (benchmarks/privacy)."""

    rate: float
    rounds: int
    steps: int
    why: str


_USUAL = {
    "dp-fedsgd": _Usual(0.5, 100, 1, "few rounds that draw much text did best at ε = 3 and 1"),
    "dp-fedner": _Usual(0.2, 100, 1, "as measured: 100 rounds that draw a fifth"),
    "dp-feded": _Usual(0.2, 8, 25, "as measured: 8 rounds of 25 steps that draw a fifth"),
}


def proposal(tree: Tree, *, epsilon: float | None, units: int | None) -> Proposal:
    """Fill in what `tree`, plain settings, leaves open for a run under noise.

    `epsilon` and `units` go before those of the settings, if given.
    """
    found = Proposal(deepcopy(tree))
    whole = int(epsilon) if epsilon is not None and epsilon == round(epsilon) else epsilon
    asked = {"privacy.epsilon": whole, "privacy.units": units}
    for key, value in asked.items():
        if value is not None and found.has(key) != value:
            found.set(key, value, "as you said")
    method = _method(found)
    _privacy(found, method)
    _model(found, method)
    for key, (neutral, why) in NEUTRAL.items():
        if found.has(key) not in (None, neutral):
            found.set(key, neutral, why)
    _names(found)
    return found


def _method(found: Proposal) -> str:
    """The method under noise that is nearest to the one of the settings."""
    method = str(found.has("method") or Settings.model_fields["method"].default)
    private = {one.method for one in METHODS.values() if one.private}
    if method not in private:
        other = UNDER_NOISE.get(method, "dp-fedsgd")
        why = f"{method} adds no noise; "
        why += {
            "dp-fedsgd": "the sites' noise adds up in one sum, which costs least for its ε",
            "dp-fedner": "this is its form under noise, and dp-fedsgd costs less",
            "dp-feded": "this is its form under noise, and dp-fedsgd costs less",
        }[other]
        found.set("method", other, why)
        method = other
    if found.has("federation.sums") != "masked":
        why = "nobody can open a sum, so the sites share the noise; else each needs all of it"
        found.set("federation.sums", "masked", why)
    return method


def _privacy(found: Proposal, method: str) -> None:
    """The table [privacy], as far as it is open, and the rounds that go with it."""
    usual = _USUAL.get(method, _USUAL["dp-fedsgd"])
    patients = bool(found.has("privacy.patients"))
    found.fill(
        "privacy.unit",
        "patient" if patients else "document",
        "privacy.patients says how to tell them" if patients
        else "each hides one; a column file without marks has a document for each sentence;"
        ' "patient" is stronger where names of documents tell patients',
    )  # fmt: skip
    units = found.has("privacy.units")
    many = units if isinstance(units, int) and units > 10_000 else 10_000
    delta = float(f"1e-{math.ceil(math.log10(10 * many)):02}")
    found.fill("privacy.delta", delta, "the odds that the bound fails: well below 1 / units")
    found.fill("privacy.clip", 0.3, "the norm a unit's gradient is cut to, as measured for heads")
    both = found.has("privacy.epsilon") is not None and found.has("privacy.noise") is not None
    if found.has("privacy.rate") is None and not (both and found.has("privacy.rounds")):
        found.set("privacy.rate", usual.rate, usual.why)
    if not both:
        found.fill("privacy.rounds", usual.rounds, "each one costs ε, most in the first")
    if usual.steps > 1:
        found.fill("privacy.steps", usual.steps, usual.why)
    rounds = found.has("privacy.rounds")
    if rounds is not None and found.has("rounds") != rounds:
        found.set("rounds", rounds, "those that [privacy] pays for")
    if method == "dp-fedsgd" and found.has("options.server") in (None, "adam", "yogi"):
        found.fill("options.server_rate", 0.1, "the server's step, as measured with this clip")
    found.ask(
        "privacy.units", 5000, "about how many units all sites have: the sum is divided by it"
    )


def _model(found: Proposal, method: str) -> None:
    """What reads text without counting its words, with few numbers: each of them gets noise."""
    task = str(found.has("task") or USUAL)
    kind = kind_of(task, str(found.has("model.kind") or ""))
    open_ = not kind and found.has("model.context") in (None, "none")
    if open_:
        epsilon, units = found.has("privacy.epsilon"), found.has("privacy.units")
        size = (
            epsilon * units if isinstance(epsilon, (int, float)) and isinstance(units, int) else 0
        )
        kind = "tagger" if size >= ENOUGH else "encoder"
        why = f"ε × units = {size:,.0f}; from {ENOUGH:,} on a tagger finds more than a last layer"
        if not size:
            why = f"the safe choice; with --units it may be a tagger (from ε × units = {ENOUGH:,})"
        found.set("model.kind", kind, why)
    if (kind or "tagger") == "tagger":
        words = "no site counts its words under noise; a public encoder reads them"
        if found.has("model.context") in (None, "none"):
            found.set("model.context", "minilm", words)
        if found.has("model.character") != "none":
            found.set("model.character", "none", "nor its characters")
        small = "few numbers: every one of them gets the noise"
        for key, value in {"word_dim": 4, "bilstm_hidden": 32, "dropout": 0.0}.items():
            found.fill(f"model.{key}", value, small)
    elif kind in ("encoder", "relations"):
        tune = "top" if method == "dp-fedner" else "frozen"
        why = "a last layer has few numbers, and every one of them gets the noise"
        why = why if tune == "frozen" else "frozen, nothing would be shared but the private layer"
        found.fill("encoder.tune", tune, why)


def _names(found: Proposal) -> None:
    """What settings must name, because no site may tell what its text holds."""
    sites = found.has("site")
    tables = (
        [one for one in sites if isinstance(one, Mapping)] if isinstance(sites, Sequence) else []
    )
    known = [one.get("knows") for one in tables]
    task = TASKS.get(str(found.has("task") or USUAL), TASKS[USUAL])
    silent = "no site may tell which occur in its text"
    if task.learns == "relations":
        found.ask("data.types", ["Drug", "Disease"], f"all entity types: {silent}")
        found.ask("data.relations", ["treats"], f"all relations: {silent}")
        found.ask("pairs.types", [["Drug", "Disease"]], f"the pairs to look at: {silent}")
    elif known and all(known) and not found.has("data.types"):
        types = sorted({str(name) for one in known for name in one or ()})
        found.set("data.types", types, f"all that the sites know: {silent}")
    else:
        found.ask("data.types", ["Drug", "Disease"], f"all entity types: {silent}")
    if str(found.has("method")) == "dp-feded" and not found.has("public"):
        found.ask("public.files", ["public.txt"], "text that everybody may read and predict")
    if found.has("data.language") in (None, "auto"):
        why = 'of text without sentences: "auto" would look at all of it'
        found.unsaid.append(Unsaid("data.language", "en", why, needed=False))
