"""The result of a run: result.json as a typed value. docs/result.md describes every key.

A newer version may add keys under the same schema; they are kept and written back in place. A
number that no run can have (not finite, absurdly large) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidationError,
    WrapValidator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from confide.errors import RunError, printable
from confide.federation.files import write_of_run
from confide.scoring.calibration import AS_IS, COLDEST, HOTTEST, MOST_OFFSET, Calibrator
from confide.scoring.scores import Scored
from confide.settings.wording import expected, own_words
from confide.tasks import TASKS, USUAL, TaskName
from confide.userfiles import MOST_JSON, Tree, json_of, text_of

T = TypeVar("T")
RESULT = "result.json"
SCHEMA = 1
_WHAT = "this is not the result of a run"


def _as_it_stands(value: T, check: Callable[[T], object]) -> T:
    """Check a value and leave it as it is: 1 is not written back as 1.0."""
    check(value)
    return value


class _In:
    """Marks a value that is checked against a form and left as it is."""

    def __init__(self, form: type[BaseModel]) -> None:
        self._form = form

    def __get_pydantic_core_schema__(self, _: object, known: GetCoreSchemaHandler) -> CoreSchema:
        form = known.generate_schema(self._form)
        return core_schema.no_info_wrap_validator_function(_as_it_stands, form)


Number = Annotated[float, WrapValidator(_as_it_stands)]
Loss = Annotated[float, Field(allow_inf_nan=True), WrapValidator(_as_it_stands)]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]


class Part(BaseModel):
    """A table of a result: frozen, and its keys keep their order."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    _keys: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="wrap")
    @classmethod
    def _in_order(cls, data: object, check: ModelWrapValidatorHandler[Self]) -> Self:
        made = check(data)
        if isinstance(data, Mapping):
            made._keys = tuple(data)
        return made

    @model_serializer(mode="plain")
    def _as_written(self) -> Tree:
        fields = type(self).model_fields
        values = {field.alias or name: getattr(self, name) for name, field in fields.items()
                  if name in self.model_fields_set}  # fmt: skip
        values |= self.__pydantic_extra__ or {}
        return {key: values[key] for key in dict.fromkeys((*self._keys, *values))}


class _Rates(Part):
    f1: Number = 0.0
    precision: Number = 0.0
    recall: Number = 0.0
    support: Whole = 0
    true: Whole = 0
    predicted: Whole = 0
    types: dict[str, _Rates] = {}


class Private(Part):
    """What a run under noise spent of one unit: ε at δ, in so many rounds of noise σ (in clips).

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


class _Scores(Part):
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
    curve: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] = []
    bags: Whole = 0
    facts: Whole = 0
    candidates: Whole = 0


Scores = Annotated[Scored, _In(_Scores)]
"""Scores, whose form depends on the task: a mapping, as in `scores["strict"]["f1"]`."""


class AllScores(Part):
    """Scores on test text: of all sites together, and of each on its own."""

    overall: Scores = {}
    sites: dict[str, Scores] = {}


class Fault(Part):
    """A site's failure in a round: its code, and `why` in words."""

    site: str
    step: str
    code: str
    why: str


class Moved(Part):
    """Bytes of one round over all sites."""

    up: Whole = 0
    down: Whole = 0


class Traffic(Part):
    """Bytes of the whole run: what left each site, and what reached it."""

    up: dict[str, Whole] = {}
    down: dict[str, Whole] = {}


class Turn(Part):
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
    bytes: Moved | None = None


class SiteData(Part):
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


class PublicData(Part):
    """The public set in numbers."""

    documents: Whole = 0
    entities: dict[str, Whole] = {}
    relations: dict[str, Whole] = {}
    problems: dict[str, Whole] = {}


class Apart(Part):
    """Training documents that were left out for what they share with held-out ones."""

    by: str
    left_out: Whole = 0


class Data(Part):
    """All text in numbers: a digest of it, and the counts of each site."""

    fingerprint: str = ""
    sites: dict[str, SiteData] = {}
    public: PublicData | None = None
    apart: Apart | None = None


class SureBin(Part):
    """Finds with a confidence between two bounds: its mean, how many are right and how many."""

    lower: Number
    upper: Number
    mean: Number
    right: Whole
    found: Whole


class Reliability(Part):
    """How far confidences on test text can be trusted: calibration errors and bins.

    `error` and `types` are expected calibration errors from 0 to 1, of all finds and by type;
    `bins` and `type_bins` are the bins that they are the means of.
    """

    error: Number | None = None
    types: dict[str, Number | None] = {}
    bins: list[SureBin] = []
    type_bins: dict[str, list[SureBin]] = {}


class Scale(Part):
    """A `Calibrator`: confidences' log odds / temperature + offset, and how many finds made it."""

    temperature: Annotated[Number, Field(ge=COLDEST, le=HOTTEST)] = 1.0
    offset: Annotated[Number, Field(ge=-MOST_OFFSET, le=MOST_OFFSET)] = 0.0
    finds: Annotated[int, Field(ge=-1)] = -1


class Calibration(Part):
    """Confidences: as the model gives them (`before`), and calibrated (`after`).

    `calibrators` has one for each model, by site, or one under "" if there is a common model.
    """

    calibrators: dict[str, Scale] = {}
    before: Reliability = Reliability()
    after: Reliability = Reliability()

    def of(self, site: str | None) -> Calibrator:
        """What calibrates a site's model."""
        found = self.calibrators.get(site or "") or self.calibrators.get("")
        return AS_IS if found is None else Calibrator(found.temperature, found.offset, found.finds)


class Result(Part):
    """result.json. Whatever an older version or a single site leaves out has a default.

    `bytes` is None there; the ledger has them.
    """

    schema_: Annotated[int, Field(ge=1)] = Field(default=SCHEMA, alias="schema")
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
    history: list[Turn] = []
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
        file = folder / RESULT
        try:
            tree = json_of(text_of(file, MOST_JSON))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise RunError(
                "the run is not finished",
                expected=f"{RESULT}, which a run writes at its end",
                where=str(folder),
                fix="continue it with `confide run … --resume`",
            ) from error
        except (OSError, ValueError) as error:
            what = f"{_WHAT}: the file cannot be read as JSON"
            raise RunError(what, where=str(file), got=printable(error)) from error
        _check(tree, file)
        try:
            return cls.model_validate(tree)
        except ValidationError as error:
            raise first_wrong(error, _WHAT, file) from error

    def to_json(self) -> str:
        """The text of result.json."""
        return json.dumps(self.model_dump(), indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write result.json, completely or not at all. Raises RunError."""
        write_of_run(folder / RESULT, self.to_json().encode())


def _check(tree: object, file: Path) -> None:
    """Raise RunError if this is not a result, or one that only a newer version understands."""
    if not isinstance(tree, dict):
        raise RunError(f"{_WHAT}: the file does not hold a JSON object", where=str(file))
    schema, task = tree.get("schema"), tree.get("task", USUAL)
    if type(schema) is not int:
        raise RunError(_WHAT, expected='a "schema" number', where=str(file))
    must_not_be_newer(schema, SCHEMA, what="this run", file=file)
    if not isinstance(task, str) or task not in TASKS:
        raise RunError(
            "this confide does not know the task of this run",
            expected=" or ".join(TASKS),
            got=printable(repr(task), 40),
            where=str(file),
            fix="upgrade confide",
        )


def read_record(file: Path, parsed: Callable[[str], T], what: str, *, fix: str | None = None) -> T:
    """A JSON file that confide wrote, as `parsed` makes it of its text.

    Raises RunError if it is missing, damaged or wrong; the error names the first wrong value.
    """
    try:
        return parsed(text_of(file, MOST_JSON))
    except ValidationError as error:
        raise first_wrong(error, what, file, fix=fix) from error
    except (OSError, ValueError) as error:
        raise RunError(what, where=str(file), got=printable(error), fix=fix) from error


def must_not_be_newer(schema: int, known: int, *, what: str, file: Path) -> None:
    """Raise RunError if a file has a schema that only a newer version understands."""
    if schema > known:
        raise RunError(
            f"a newer confide wrote {what}",
            expected=f"schema {known} or older",
            got=printable(f"schema {schema}", 40),
            where=str(file),
            fix="upgrade confide, or read it with the version that wrote it",
        )


def first_wrong(
    error: ValidationError, what: str, file: Path, *, fix: str | None = None
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
