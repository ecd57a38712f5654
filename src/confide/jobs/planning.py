"""Planning a run for a budget: how often its sites talk, and how much noise they add.

Nothing is read but settings, and for uploads the folder of a run that was done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path

from confide.errors import RunError, SettingsError, together
from confide.federation.secure.messages import colluders, threshold
from confide.files import Tree
from confide.methods import METHODS, method_of
from confide.methods.noise import NEUTRAL, budget_of
from confide.privacy.account import NoisePlan
from confide.recipes import settings_file
from confide.runs.folder import RunFolder
from confide.settings import overlaid, parse, put, read_tree
from confide.settings.tables import Settings, kind_of
from confide.settings.toml import read_toml
from confide.tasks import TASKS, USUAL

# --- Uploads: sites talk as often as the upload budget of a site allows
#
# The fewer batches between two means, the closer federated training comes to pooled training; every
# mean costs an upload of the model. A run that was done, however short, says what one upload weighs
# and how much text the sites have. From that and a budget follow the batches between two means for
# the same passes over the text, and a learning rate that falls by as much over the whole run.


SCORINGS = 20
"""The number of times that a proposed run scores development text."""


@dataclass(frozen=True)
class UploadPlan:
    """Settings that keep every site's uploads within a budget.

    Attributes:
        rounds, local_steps, optimiser_state, decay, every, average: the settings of these names.
        passes: over the text, the same as `asked`, or as near as whole batches allow.
        megabytes: what the site that uploads most will upload, about.
        each: the megabytes of its upload in one round, as measured.
    """

    rounds: int
    local_steps: int
    optimiser_state: str
    decay: float
    every: int
    average: int
    passes: float
    megabytes: float
    each: float

    def overrides(self) -> list[str]:
        """The settings as `key=value`."""
        return [
            f"rounds={self.rounds}",
            f"training.local_steps={self.local_steps}",
            f"training.optimiser_state={self.optimiser_state}",
            f"training.decay={self.decay:.6g}",
            f"select.every={self.every}",
            f"select.average={self.average}",
        ]


def budget(run: Path | str, *, megabytes: float, passes: float | None = None) -> UploadPlan:
    """Propose how often to talk, from a run and the megabytes that a site may upload.

    `passes` over the text are those of the run unless given. Raises RunError (not finished, no
    bytes, nothing trained) and SettingsError (a method without means to space out, a budget below
    one upload, a number that is not above 0).
    """
    folder = RunFolder(run)
    result, settings = folder.result(), folder.settings()
    for name, value in (("megabytes", megabytes), ("passes", passes)):
        if value is not None and not (0 < value < math.inf):
            raise SettingsError(f"{name} must be a number above 0", got=str(value))
    if method_of(settings).personal or len(result.best_rounds) != 1:
        raise SettingsError(
            f"a run of {result.method!r} has no means that could be taken less often",
            expected="a run of a method that averages models, such as fedavg",
            where=str(run),
        )
    sizes = [site.train for site in result.data.sites.values()]
    done = sum(turn.sentences for turn in result.history)
    sent = result.bytes.up if result.bytes else {}
    if not (any(sizes) and done and sent and result.history):
        raise RunError(
            "the run does not say what its sites uploaded, and on how much text they trained",
            expected="the folder of the whole run, as the lead has it",
            where=str(run),
        )
    own = settings.training
    each = max(sent.values()) / len(result.history) / 1e6
    most = int(megabytes / each)
    if most < 1:
        raise SettingsError(
            "a site cannot even upload the model once",
            expected=f"at least {each:.3g} MB",
            got=f"{megabytes:g} MB",
            fix='train less of the model, or use a method that sends less, such as "feded"',
        )
    wanted = passes or done / sum(sizes)
    a_pass = math.ceil(max(sizes) / own.batch_size)
    batches = max(1, round(wanted * a_pass))
    steps = math.ceil(batches / min(most, batches))
    rounds = math.ceil(batches / steps)
    fallen = own.decay ** len(result.history)
    return UploadPlan(
        rounds=rounds,
        local_steps=steps,
        optimiser_state="keep",
        decay=fallen ** (1 / rounds),
        every=max(1, rounds // SCORINGS),
        average=max(1, rounds // SCORINGS),
        passes=rounds * steps / a_pass,
        megabytes=rounds * each,
        each=each,
    )


# --- Noise: σ, ε by round, and what colluders and lost sites do to both
#
# The noise is made by the sites together: each adds Skellam noise of variance (σ C)² / (t - c), so
# that t - c sites, the fewest honest ones in a secure sum, have all of it that the account counts.
# Under a method whose sites step by themselves, each adds all of it.
#
# Settings besides ε are proposed, each with its reason.
#
# What settings say stays as it is, but for what would break the promise. What nobody can propose
# (the names of types, the number of units) is listed with an example.


ENOUGH = 10_000
"""ε times the number of units from which on a tagger under noise finds more than a last layer.

In benchmarks/security/privacy it does so at 16,200 (NCBI-disease, ε = 3) and no longer at 5,600
(CrossNER, ε = 8)."""
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
class SettingsDraft:
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


_USUAL = {
    "dp-fedsgd": (0.5, 100, 1, "few rounds that draw much text did best at ε = 3 and 1"),
    "dp-fedner": (0.2, 100, 1, "as measured: 100 rounds that draw a fifth"),
    "dp-feded": (0.2, 8, 25, "as measured: 8 rounds of 25 steps that draw a fifth"),
}
"""Rate, rounds and steps that measured best for a method in benchmarks/security/privacy."""


def propose_noise(tree: Tree, *, epsilon: float | None, units: int | None) -> SettingsDraft:
    """Fill in what `tree`, plain settings, leaves open for a run under noise.

    `epsilon` and `units` go before those of the settings, if given.
    """
    found = SettingsDraft(deepcopy(tree))
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


def _method(found: SettingsDraft) -> str:
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


def _privacy(found: SettingsDraft, method: str) -> None:
    """The table [privacy], as far as it is open, and the rounds that go with it."""
    rate, many_rounds, steps, why = _USUAL.get(method, _USUAL["dp-fedsgd"])
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
        found.set("privacy.rate", rate, why)
    if not both:
        found.fill("privacy.rounds", many_rounds, "each one costs ε, most in the first")
    if steps > 1:
        found.fill("privacy.steps", steps, why)
    rounds = found.has("privacy.rounds")
    if rounds is not None and found.has("rounds") != rounds:
        found.set("rounds", rounds, "those that [privacy] pays for")
    if method == "dp-fedsgd" and found.has("options.server") in (None, "adam", "yogi"):
        found.fill("options.server_rate", 0.1, "the server's step, as measured with this clip")
    found.ask(
        "privacy.units", 5000, "about how many units all sites have: the sum is divided by it"
    )


def _model(found: SettingsDraft, method: str) -> None:
    """Propose a model that counts no words and has few numbers: each of them gets noise."""
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


def _names(found: SettingsDraft) -> None:
    """Propose the names that settings must list, because no site may tell what its text holds."""
    sites = found.has("site")
    tables = (
        [one for one in sites if isinstance(one, Mapping)] if isinstance(sites, Sequence) else []
    )
    known = [one.get("annotates") for one in tables]
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


_ROWS = 8


@dataclass(frozen=True)
class After:
    """ε after N rounds."""

    rounds: int
    epsilon: float


@dataclass(frozen=True)
class Against:
    """ε against N sites in league with the server, in sums over M sites."""

    colluding: int
    sites: int
    epsilon: float


@dataclass(frozen=True)
class Elsewhere:
    """The cost of noise on a published corpus (benchmarks/security/privacy): mean test F1, in %.

    Attributes:
        units: how many there were at all sites.
        without: the same model without noise.
        at_1, at_3, at_8: under ε = 1, 3 and 8, at δ = 1e-5.
    """

    corpus: str
    model: str
    units: int
    without: float
    at_1: float
    at_3: float
    at_8: float


MEASURED: dict[str, tuple[Elsewhere, ...]] = {
    learns: tuple(Elsewhere(**row) for row in rows)
    for learns, rows in read_toml(Path(__file__).with_name("measured.toml")).items()
}
"""By what is learnt."""


@dataclass(frozen=True)
class PrivacyPlan:
    """A plan: what a run would spend, and what to add to its settings.

    Attributes:
        unit: what one ε is about: a document, a sentence or a patient.
        epsilon, delta: what is spent in all rounds.
        noise: σ in clips, as the account counts it: that of `honest` sites.
        rate, rounds, clip: as in the settings, or worked out.
        grid: whole numbers up to the clip.
        sites, least, colluding: n, t and c.
        honest: t - c.
        site_noise: the standard deviation that one site adds, in clips.
        whole_noise: that of the sum if nobody is lost, in clips.
        drawn: units that a round draws, on average; 0 if it is not known how many there are.
        per_number: the standard deviation of the noise on each number of the mean gradient; 0 if it
            is not known.
        rounds_spent: ε after some of the rounds.
        against: ε if fewer or more sites collude than was supposed.
        elsewhere: what noise cost on published corpora, the most like this one in size first.
        steps: sums that a site noises by itself in a round; 0: the noise is made together.
        method: what trains under it.
        proposed: what to add to the settings, or to change in them, and why.
        unsaid: what only people can say, for a run.
        blocked: why a run would still be refused.
    """

    unit: str
    epsilon: float
    delta: float
    noise: float
    rate: float
    rounds: int
    clip: float
    grid: int
    sites: int
    least: int
    colluding: int
    honest: int
    site_noise: float
    whole_noise: float
    drawn: float
    per_number: float
    rounds_spent: tuple[After, ...]
    against: tuple[Against, ...]
    elsewhere: tuple[Elsewhere, ...]
    steps: int = 0
    method: str = ""
    proposed: tuple[Proposed, ...] = ()
    unsaid: tuple[Unsaid, ...] = ()
    blocked: tuple[str, ...] = ()


def privacy_plan(
    settings: str | Path | Settings,
    *,
    overrides: Sequence[str] = (),
    units: int | None = None,
    epsilon: float | None = None,
) -> PrivacyPlan:
    """Work out what `[privacy]` leaves open, before anything runs; no text is read.

    Args:
        settings: a TOML file, the name of a recipe, or settings.
        overrides: `key=value` texts that replace the file's values.
        units: how many units all sites have together, about.
        epsilon: what may be spent. Whatever else a run under noise needs is then proposed, as it is
            where the settings leave open more than can be worked out.

    Raises SettingsError, which says everything that stands in the way: ε is nowhere said or cannot
    be kept, the sites are too few.
    """
    if isinstance(settings, Settings):
        return _planned(settings.model_dump(mode="json", by_alias=True, exclude_unset=True),
                        epsilon=epsilon, units=units)  # fmt: skip
    file = settings_file(settings)
    tree = read_tree(Path(file))
    try:
        return _planned(overlaid(tree, overrides), epsilon=epsilon, units=units)
    except SettingsError as error:
        raise error.at(str(file)) from error.__cause__


def _planned(tree: Tree, *, epsilon: float | None, units: int | None) -> PrivacyPlan:
    """The plan of plain settings; what they leave open is proposed."""
    faults = []
    if units is not None and units < 1:
        faults.append(SettingsError("units must be at least 1", got=str(units)))
    given = SettingsDraft(tree)
    free = [one for one in ("epsilon", "noise", "rate", "rounds")
            if given.has(f"privacy.{one}") is None]  # fmt: skip
    if epsilon is None and {"epsilon", "noise"} <= set(free):
        said = "neither ε nor the noise is said"
        raise together([*faults, SettingsError(
            said if given.has("privacy") else "the settings have no [privacy]",
            expected="ε: 1 is a strong promise, 3 one against casual attacks, 8 a bound on paper"
            " (docs/differential-privacy.md)",
            fix="add --epsilon 8: it proposes all the rest, each with its reason",
        )])  # fmt: skip
    found = given
    if epsilon is not None or len(free) > 1 or given.has("privacy.unit") is None:
        found = propose_noise(tree, epsilon=epsilon, units=units)
    chosen = None
    try:
        chosen = parse(found.tree)
    except SettingsError as error:
        faults.append(error)
    budget = None
    if chosen is not None:
        sites = _sites_of(chosen)
        if not sites:
            fix = "add [[site]] tables, or a [split] with sites"
            faults.append(SettingsError("the settings name no sites", fix=fix))
        try:
            if sites:
                threshold(sites, chosen.federation.colluding or colluders(sites))
        except SettingsError as error:
            faults.append(error)
        try:
            budget = budget_of(chosen)
        except SettingsError as error:
            faults.append(error)
    if faults or chosen is None or budget is None:
        raise together(faults)
    if found is not given and found.has("privacy.rounds") is None:  # these were worked out
        found.set("rounds", budget.rounds, "those that [privacy] pays for")
        chosen = parse(found.tree)
    plan = _plan(
        chosen, budget, chosen.privacy.units if units is None and chosen.privacy else units
    )
    if found is given:
        return plan
    blocked: tuple[str, ...] = ()
    tree = deepcopy(found.tree)  # with an example for everything that is unsaid
    for one in found.unsaid:
        if one.needed:
            put(tree, one.key.split("."), one.example)
    try:
        whole = parse(tree)
        method_of(whole)(whole)
    except SettingsError as error:
        blocked = (str(error),)
    most = chosen.guards.max_epsilon
    if plan.epsilon > most:
        blocked += (
            f"sites let ε = {most:g} be spent, unless their own guard max_epsilon is raised",
        )
    return replace(
        plan, proposed=tuple(found.proposed), unsaid=tuple(found.unsaid), blocked=blocked
    )


def _sites_of(settings: Settings) -> int:
    return len(settings.site) or (settings.split.sites if settings.split else 0)


def _plan(chosen: Settings, budget: NoisePlan, units: int | None) -> PrivacyPlan:
    """The plan of settings that leave nothing open."""
    own, sites = chosen.privacy, _sites_of(chosen)
    assert own is not None, "budget_of has checked it"
    colluding = chosen.federation.colluding or colluders(sites)
    least = threshold(sites, colluding)
    honest = least - colluding
    pair = METHODS.get(chosen.trained_by)
    alone = pair is not None and pair.steps_alone
    whole = budget.noise * (1.0 if alone else math.sqrt(sites / honest))
    drawn = budget.rate * (units or 0) / (sites if alone else 1)
    # ε after some rounds, on a scale of logarithms, and after the last
    marks = {max(1, round(budget.rounds ** (part / (_ROWS - 1)))) for part in range(_ROWS)}
    marks.add(budget.rounds)
    elsewhere = list(MEASURED.get(TASKS[chosen.task].learns, ()))
    if units is not None:
        elsewhere.sort(key=lambda one: abs(math.log(one.units / units)))
    return PrivacyPlan(
        unit=own.unit,
        epsilon=budget.epsilon,
        delta=own.delta,
        noise=budget.noise,
        rate=budget.rate,
        rounds=budget.rounds,
        clip=own.clip,
        grid=budget.mechanism.clip,
        sites=sites,
        least=least,
        colluding=colluding,
        honest=honest,
        site_noise=budget.noise / (1.0 if alone else math.sqrt(honest)),
        whole_noise=whole,
        drawn=drawn,
        per_number=own.clip * whole / drawn if drawn else 0.0,
        rounds_spent=tuple(After(rounds, budget.epsilon_after(rounds)) for rounds in sorted(marks)),
        against=() if alone else tuple(_against(budget, sites, least=least, colluding=colluding)),
        elsewhere=() if alone else tuple(elsewhere),
        steps=own.steps if alone else 0,
        method=chosen.method,
    )


def _against(budget: NoisePlan, sites: int, *, least: int, colluding: int) -> list[Against]:
    """ε against 0, c and all that would still leave one honest site, in the least and whole sums.

    The noise of a colluding site is known to it, and hides nothing.
    """
    honest, found, grid = least - colluding, [], budget.mechanism
    for bad in sorted({0, colluding, least - 1}):
        for summed in sorted({least, sites}):
            noise = budget.noise * math.sqrt((summed - bad) / honest)
            variance = max(1, math.floor((noise * grid.clip) ** 2))
            found.append(Against(bad, summed, budget.spent_by(replace(grid, variance=variance))))
    return found
