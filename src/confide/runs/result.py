"""The result of a run: result.json as a typed value, its history, and advice.

docs/result.md describes every key.

A newer version may add keys under the same schema; they are kept and written back in place. A
number that no run can have (not finite, absurdly large) is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self, TypeVar

import pydantic
from pydantic_core import CoreSchema, core_schema

from confide.errors import RunError, printable
from confide.files import MOST_JSON, Tree, decode_json, file_text, must_not_be_newer, write_of_run
from confide.scoring.calibration import AS_IS, COLDEST, HOTTEST, MOST_OFFSET, Calibrator
from confide.scoring.counts import Scored
from confide.settings import Settings
from confide.settings.reading import expected, own_words
from confide.tasks import TASKS, USUAL, Task, TaskName

T = TypeVar("T")
RESULT = "result.json"
SCHEMA = 1


def _as_it_stands(value: T, check: Callable[[T], object]) -> T:
    """Check a value and leave it as it is: 1 is not written back as 1.0."""
    check(value)
    return value


class _In:
    """Marks a value that is checked against a form and left as it is."""

    def __init__(self, form: type[pydantic.BaseModel]) -> None:
        self._form = form

    def __get_pydantic_core_schema__(
        self, _: object, known: pydantic.GetCoreSchemaHandler
    ) -> CoreSchema:
        form = known.generate_schema(self._form)
        return core_schema.no_info_wrap_validator_function(_as_it_stands, form)


Number = Annotated[float, pydantic.WrapValidator(_as_it_stands)]
Loss = Annotated[float, pydantic.Field(allow_inf_nan=True), pydantic.WrapValidator(_as_it_stands)]
Whole = Annotated[int, pydantic.Field(ge=0, lt=1 << 63)]


class ResultTable(pydantic.BaseModel):
    """A table of a result: frozen, and its keys keep their order."""

    model_config = pydantic.ConfigDict(
        extra="allow", frozen=True, strict=True, allow_inf_nan=False, defer_build=True
    )
    _keys: tuple[str, ...] = pydantic.PrivateAttr(())

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _in_order(cls, data: object, check: pydantic.ModelWrapValidatorHandler[Self]) -> Self:
        made = check(data)
        if isinstance(data, Mapping):
            made._keys = tuple(data)
        return made

    @pydantic.model_serializer(mode="plain")
    def _as_written(self) -> Tree:
        fields = type(self).model_fields
        values = {field.alias or name: getattr(self, name) for name, field in fields.items()
                  if name in self.model_fields_set}  # fmt: skip
        values |= self.__pydantic_extra__ or {}
        return {key: values[key] for key in dict.fromkeys((*self._keys, *values))}


class _Rates(ResultTable):
    f1: Number = 0.0
    precision: Number = 0.0
    recall: Number = 0.0
    support: Whole = 0
    true: Whole = 0
    predicted: Whole = 0
    types: dict[str, _Rates] = {}


class Private(ResultTable):
    """The privacy budget spent on one unit: ε at δ, in `rounds` rounds of noise σ (in clips).

    `simulated`: the keys of draws and noise came from the seed, so nothing is hidden.
    """

    unit: str
    epsilon: Number
    delta: Number
    noise: Number
    clip: Number
    rate: Number
    rounds: Whole
    units: Whole
    held_out: str = "closed"
    simulated: bool = False


class _Scores(ResultTable):
    """The scores of all tasks in one form; docs/result.md lists them by task."""

    strict: _Rates | None = None
    relaxed: _Rates | None = None
    micro: _Rates | None = None
    macro: _Rates | None = None
    sentences: Whole = 0
    malformed: Whole = 0
    examples: Whole = 0
    confusion: dict[str, dict[str, Whole]] = {}
    missed: dict[str, Whole] = {}
    auc: Number = 0.0
    auc_2000: Number = 0.0
    precision_at: dict[str, Number] = {}
    curve: list[Annotated[list[Number], pydantic.Field(min_length=2, max_length=2)]] = []
    bags: Whole = 0
    facts: Whole = 0
    candidates: Whole = 0


Scores = Annotated[Scored, _In(_Scores)]
"""Scores, whose form depends on the task: a mapping, as in `scores["strict"]["f1"]`."""


class AllScores(ResultTable):
    """Scores on test text: of all sites together, and of each on its own."""

    overall: Scores = {}
    sites: dict[str, Scores] = {}


class Fault(ResultTable):
    """A site's failure in a round: its code, and `why` in words."""

    site: str
    step: str
    code: str
    why: str


class BytesOfRound(ResultTable):
    """Bytes of one round over all sites."""

    up: Whole = 0
    down: Whole = 0


class Traffic(ResultTable):
    """Bytes of the whole run: what left each site, and what reached it."""

    up: dict[str, Whole] = {}
    down: dict[str, Whole] = {}


class RoundRecord(ResultTable):
    """A round of the history. `dev` is None if development text was not scored."""

    round: Whole
    loss: Loss | None = None
    learning_rate: Number | None = None
    sites: list[str] = []
    failed: dict[str, str] = {}
    faults: list[Fault] = []
    dev: dict[str, Number | None] | None = None
    dev_sites: dict[str, Number | None] = {}
    seconds: Number | None = None
    train_seconds: Number | None = None
    compute_seconds: Number | None = None
    slowest_seconds: Number | None = None
    sentences: Whole = 0
    sentences_per_second: Number | None = None
    bytes: BytesOfRound | None = None


class SiteData(ResultTable):
    """A site's text in numbers; `entities` are those of its training text.

    `words_cut`: the words in these entities, and how many of them raw text has otherwise.
    """

    train: Whole = 0
    dev: Whole = 0
    test: Whole = 0
    entities: dict[str, Whole] = {}
    words_cut: dict[str, Whole] = {}
    pairs: dict[str, Whole] = {}
    relations: dict[str, Whole] = {}
    problems: dict[str, Whole] = {}


class PublicData(ResultTable):
    """The public set in numbers."""

    documents: Whole = 0
    entities: dict[str, Whole] = {}
    relations: dict[str, Whole] = {}
    problems: dict[str, Whole] = {}


class Apart(ResultTable):
    """Training documents that were left out for what they share with held-out ones."""

    by: str
    left_out: Whole = 0


class Data(ResultTable):
    """All text in numbers: a digest of it, and the counts of each site."""

    fingerprint: str = ""
    sites: dict[str, SiteData] = {}
    public: PublicData | None = None
    apart: Apart | None = None


class SureBin(ResultTable):
    """Finds with a confidence between two bounds: its mean, how many are right and how many."""

    lower: Number
    upper: Number
    mean: Number
    right: Whole
    found: Whole


class ReliabilityScores(ResultTable):
    """The reliability of confidences on test text: calibration errors and bins.

    `error` and `types` are expected calibration errors from 0 to 1, of all finds and by type;
    `bins` and `type_bins` are the bins that they are the means of.
    """

    error: Number | None = None
    types: dict[str, Number | None] = {}
    bins: list[SureBin] = []
    type_bins: dict[str, list[SureBin]] = {}


class Scale(ResultTable):
    """A `Calibrator`: confidences' log odds / temperature + offset, and how many finds made it."""

    temperature: Annotated[Number, pydantic.Field(ge=COLDEST, le=HOTTEST)] = 1.0
    offset: Annotated[Number, pydantic.Field(ge=-MOST_OFFSET, le=MOST_OFFSET)] = 0.0
    finds: Annotated[int, pydantic.Field(ge=-1)] = -1


class Calibration(ResultTable):
    """Confidences: as the model gives them (`before`), and calibrated (`after`).

    `calibrators` has one for each model, by site, or one under "" if there is a common model.
    """

    calibrators: dict[str, Scale] = {}
    before: ReliabilityScores = ReliabilityScores()
    after: ReliabilityScores = ReliabilityScores()

    def of(self, site: str | None) -> Calibrator:
        """Return the calibrator of a site's model."""
        found = self.calibrators.get(site or "") or self.calibrators.get("")
        return AS_IS if found is None else Calibrator(found.temperature, found.offset, found.finds)


class Result(ResultTable):
    """result.json. Whatever an older version or a single site leaves out has a default.

    `bytes` is None there; the ledger has them.
    """

    schema_: Annotated[int, pydantic.Field(ge=1)] = pydantic.Field(default=SCHEMA, alias="schema")
    confide: str = ""
    name: str = ""
    task: TaskName = USUAL
    method: str = "?"
    seed: int | None = None
    rounds: Whole | None = None
    personal: bool = False
    best_round: Whole | None = None
    best_rounds: dict[str, Whole] = {}
    scores: AllScores = AllScores()
    dev: Scores | None = None
    history: list[RoundRecord] = []
    left_out: dict[str, str] = {}
    calibration: Calibration | None = None
    bytes: Traffic | None = None
    seconds: Number | None = None
    compute_seconds: Number | None = None
    sentences_per_second: Number | None = None
    data: Data = Data()
    privacy: Private | None = None
    parameters: Whole | None = None
    peak_rss_mb: Number | None = None
    peak_rss_mb_worker: Number | None = None

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The result of the run in a folder.

        Raises RunError if the run is not finished, or its result is damaged (the error names the
        first wrong value), of a newer schema or of an unknown task.
        """
        if not (folder / RESULT).exists():
            raise RunError(
                "the run is not finished",
                expected=f"{RESULT}, which a run writes at its end",
                where=str(folder),
                fix="continue it with `confide run … --resume`",
            )
        what = "this is not the result of a run"
        return read_record(folder / RESULT, cls.of, what, schema=SCHEMA)

    @classmethod
    def of(cls, tree: Tree) -> Self:
        """The result of these plain values. Raises RunError if this confide lacks its task."""
        task = tree.get("task", USUAL)
        if not isinstance(task, str) or task not in TASKS:
            raise RunError(
                "this confide does not know the task of this run",
                expected=" or ".join(TASKS),
                got=printable(repr(task), 40),
                fix="upgrade confide",
            )
        return cls.model_validate(tree)

    def to_json(self) -> str:
        """The text of result.json."""
        return json.dumps(self.model_dump(), indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write result.json, completely or not at all. Raises RunError."""
        write_of_run(folder / RESULT, self.to_json().encode())


def read_record(
    file: Path,
    made: Callable[[Tree], T],
    what: str,
    *,
    schema: int | None = None,
    fix: str | None = None,
) -> T:
    """A JSON file that confide wrote, as `made` of its values.

    With a `schema`, the file must say its own. Raises RunError if it is missing, damaged, newer or
    wrong: the error says `what` is the matter, and names the first wrong value.
    """
    try:
        tree = decode_json(file_text(file, MOST_JSON))
    except (OSError, ValueError) as error:
        said = f"{what}: the file cannot be read as JSON"
        raise RunError(said, where=str(file), got=printable(error), fix=fix) from error
    if not isinstance(tree, dict):
        raise RunError(f"{what}: the file does not hold a JSON object", where=str(file), fix=fix)
    own = tree.get("schema")
    if schema is not None:
        if type(own) is not int:
            raise RunError(what, expected='a "schema" number', where=str(file), fix=fix)
        must_not_be_newer(own, schema, kind=RunError, what=file.name, where=file)
    try:
        return made(tree)
    except pydantic.ValidationError as error:
        raise first_wrong(error, what, file, fix=fix) from error
    except RunError as error:
        raise error.at(str(file)) from error


def first_wrong(
    error: pydantic.ValidationError, what: str, file: Path, *, fix: str | None = None
) -> RunError:
    """An error that names the first wrong value: what was expected, where it is, what came."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in first["loc"])
    came, missing = first["input"], first["type"] == "missing"
    kinds: dict[object, str] = {dict: "an object", list: "a list"}
    wanted = own_words(first) or expected(first, table="an object")
    return RunError(
        what,
        expected=wanted + (f" at {printable(place.removeprefix('.'))}" if place else ""),
        got="none" if missing else kinds.get(type(came)) or printable(repr(came), 40),
        where=str(file),
        fix=fix,
    )


# --- Advice
#
# For a run that has not learnt, or was still learning when it ended: what to set.
#
# Everything is judged by the one number that stands for the task (`Task.kinds[0]`):
#
#     nothing    fewer than `NOTHING` on test text (else on development text), of at least `FEWEST`
#                marked answers
#     learning   in the last fifth of the scored rounds development text reached `GAIN` more than
#                ever before; or, where there is none, the loss fell by more than `FALL` of it all
#
# docs/result.md gives the reasons for these numbers.


NOTHING = 0.05
"""A score below this is next to nothing."""
FEWEST = 10
"""Of fewer marked answers a model that finds a quarter may well find none (0.75^10 = 6 %)."""
GAIN = 0.01
"""The least gain on development text in the last fifth of the rounds of a model still learning."""
FALL = 0.05
"""The share of the loss's whole fall that the last fifth of the rounds has to bring."""
FASTER: Mapping[str, object] = {
    "training.optimiser": "adam",
    "training.learning_rate": 0.005,
    "training.decay": 1.0,
}
"""For a tagger that learnt too little by SGD: on small texts Adam learns within a few rounds."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on a run that has not learnt, or not all that it could, and what to set.

    `changes` are settings by their dotted keys: to continue the run with if `resumes`, or else for
    another run.
    """

    said: str
    changes: Mapping[str, object] = field(default_factory=dict)
    resumes: bool = False


def advice_on_run(result: Result, settings: Settings | None = None) -> Advice | None:
    """Advise on a finished run; None if there is nothing to say.

    Without the run's `settings` it proposes no changes.
    """
    task, scored = TASKS[result.task], result.scores.overall
    text = "test"
    if task.empty(scored):
        scored, text = result.dev or {}, "development"
    value = task.value(scored, task.kinds[0])
    losses = [turn.loss for turn in result.history if turn.loss is not None]
    if value is not None and value < _least(task, scored) and task.marked(scored) >= FEWEST:
        name = task.words.full(task.kinds[0])
        said = f"this model has learnt next to nothing: {name} {100 * value:.1f} on {text} text"
        return _nothing(said, losses, result, settings)
    why = _still(result, task, losses)
    if why is None or result.privacy is not None:
        return None  # under noise more rounds cost more ε
    said = f"this model was still learning when the run ended: {why}"
    return Advice(said, _more(result, settings), resumes=settings is not None)


def _least(task: Task, scored: Scored) -> float:
    """The score below which nothing was learnt.

    A random ranking has an area of the share of facts.
    """
    facts, candidates = int(scored.get("facts", 0)), int(scored.get("candidates", 0))
    return max(NOTHING, 1.5 * facts / max(1, candidates))


def _nothing(
    said: str, losses: Sequence[float], result: Result, settings: Settings | None
) -> Advice:
    """Why nothing was learnt, by what the loss did."""
    if result.privacy is not None:
        said += "; noise of this size hides everything: `confide privacy plan` shows what ε and how"
        return Advice(f"{said} many units it takes")
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < len(losses) or (len(finite) > 1 and finite[-1] > finite[0]):
        last = f"{losses[-1]:.3g}"
        said += f", and the loss rose from {losses[0]:.3g} to {last}: the steps are too large"
        return Advice(said, {} if settings is None else _rate(settings, 1 / 3))
    if len(finite) > 1:
        said += f", with a loss of {finite[0]:.3g} in the first round and {finite[-1]:.3g} in the"
        said += " last: the steps are too small or too few"
    if settings is None:
        return Advice(said)
    own = settings.training
    if own.optimiser == "sgd" and settings.kind == "tagger":
        return Advice(said, FASTER)
    changes = _rate(settings, 3.0) | _more(result, settings)
    if own.decay ** len(result.history) < 0.1:
        changes["training.decay"] = 1.0
    return Advice(said, changes)


def _rate(settings: Settings, factor: float) -> dict[str, object]:
    return {"training.learning_rate": float(f"{factor * settings.training.learning_rate:.2g}")}


def _more(result: Result, settings: Settings | None) -> dict[str, object]:
    """Twice the rounds; twice the bytes, if these ended the run."""
    done = len(result.history)
    if settings is None:
        return {}
    changes: dict[str, object] = {"rounds": 2 * done}
    if bound := settings.sharing.max_upload_mb:
        changes["federation.max_upload_mb"] = 2 * bound
    return changes


def _still(result: Result, task: Task, losses: Sequence[float]) -> str | None:
    """Why the model was still learning in the last rounds; None if it was not."""
    kind = task.kinds[0]
    scored = [
        (turn.round, value)
        for turn in result.history
        if turn.dev is not None and (value := turn.dev.get(kind)) is not None
    ]
    if any(value > 0 for _, value in scored):
        late = max(1, len(scored) // 5)
        before, after = scored[:-late], scored[-late:]
        if not before:
            return None
        best = max(value for _, value in before)
        round, reached = max(after, key=lambda one: one[1])
        if reached - best < GAIN:
            return None
        return (
            f"{task.words.full(kind)} on development text rose from {100 * best:.1f} to"
            f" {100 * reached:.1f} in the last {_rounds(after[-1][0] - before[-1][0])}"
            f" (best round: {round} of {len(result.history)})"
        )
    late = max(1, len(losses) // 5)
    if len(losses) <= late + 1 or not all(map(math.isfinite, losses)):
        return None
    whole, last = losses[0] - losses[-1], losses[-late - 1] - losses[-1]
    if whole <= 0 or last <= FALL * whole:
        return None
    return (
        f"the loss fell from {losses[-late - 1]:.3g} to {losses[-1]:.3g} in the last"
        f" {_rounds(late)}, {100 * last / whole:.0f} % of its whole fall"
    )


def _rounds(count: int) -> str:
    return "round" if count == 1 else f"{count} rounds"


# --- The history
#
# The rounds of several federations become that of one run.


def merge_histories(histories: Sequence[Sequence[Tree]]) -> list[Tree]:
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
