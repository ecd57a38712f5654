"""One short TOML file -> typed settings. Unknown keys are refused, with the nearest known one.

>>> parse({"method": "fedavg", "rouns": 3, "site": [{"name": "north", "train": "n.conll"}]})
Traceback (most recent call last):
confide.errors.SettingsError: unknown key 'rouns'; to fix it, did you mean 'rounds'?
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from confide.errors import MissingDataError, SettingsError

SCHEMA = 1
SIMULATED = "simulated"
REFERENCES = ("pooled", "alone")
"""Baselines that are federations of one site: all text in one place, and each site by itself."""

Paths = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """A table of settings: frozen, and strict about its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=Table)


class DataTable(Table):
    """How files are read where a site does not say otherwise.

    `types` declares the entity types; empty means the union of what the sites have. A site without
    `dev` or `test` files holds out that share of its training documents.
    """

    format: str | None = None
    scheme: str | None = None
    encoding: str | None = None
    types: tuple[str, ...] = ()
    dev_share: Share = 0.1
    test_share: Share = 0.2


class SiteTable(Table):
    """One site: its files, their format, and how its tags are called here (`tags`, "" drops)."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
    train: Paths
    dev: Paths = ()
    test: Paths = ()
    format: str | None = None
    scheme: str | None = None
    encoding: str | None = None
    tags: dict[str, str] = {}
    vectors: str | None = None
    key: str | None = None


class SplitTable(Table):
    """One corpus dealt to `sites` simulated sites."""

    sites: Positive
    train: Paths
    dev: Paths = ()
    test: Paths = ()
    by: Literal["iid", "file", "domain", "dirichlet", "quantity"] = "iid"
    alpha: Annotated[float, Field(gt=0)] | None = None
    tags: dict[str, str] = {}
    seed: int = 1


class ModelTable(Table):
    """The BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016); METHODS §1 gives the defaults."""

    word_dim: Positive = 100
    character: Literal["cnn", "bilstm", "none"] = "cnn"
    character_dim: Positive = 30
    character_filters: Positive = 30
    character_width: Positive = 3
    character_hidden: Positive = 25
    bilstm_hidden: Positive = 200
    bilstm_layers: Positive = 1
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    vectors: str | None = None


class TrainingTable(Table):
    """One site's training within a round. The learning rate is multiplied by `decay` per round."""

    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 0.015
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    decay: Annotated[float, Field(gt=0, le=1)] = 0.95
    clip: Annotated[float, Field(gt=0)] = 5.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    word_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    batch_size: Positive = 10
    local_epochs: Positive = 10


class VocabularyTable(Table):
    """What counts as a word or character of the shared vocabulary."""

    how: Literal["none", "lower", "lower-digits"] = "lower-digits"
    min_count: Positive = 1
    min_sites: Positive = 1


class FederationTable(Table):
    """Who takes part: `fraction` of the sites is drawn each round; `at_least` must answer.

    `at_least = 0` means every site that was asked.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    at_least: Annotated[int, Field(ge=0)] = 0
    timeout: Annotated[float, Field(gt=0)] | None = None


class SelectTable(Table):
    """Which round's state is kept, by development counts only. `patience = 0`: never stop early.

    Development text is scored every `every` rounds, and after the last one.
    """

    by: Literal["strict", "relaxed", "last"] = "strict"
    patience: Annotated[int, Field(ge=0)] = 0
    every: Positive = 1


class GuardsTable(Table):
    """A site's own limits: it refuses to train on fewer sentences, or for more rounds."""

    min_sentences: Positive = 1
    min_token_count: Positive = 1
    max_rounds: Positive = 100_000


class Settings(Table):
    """The settings of one run.

    `key` names the key file of sites that share one machine; "simulated" makes it from the seed,
    which gives the same numbers again and protects nothing.
    """

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    name: str = ""
    task: Literal["ner"] = "ner"
    method: str = "fedavg"
    base: str = "fedavg"
    seed: int = 1
    rounds: Positive = 20
    workers: Positive = 1
    threads: Positive = 1
    key: str | None = None
    data: DataTable = DataTable()
    site: tuple[SiteTable, ...] = ()
    split: SplitTable | None = None
    model: ModelTable = ModelTable()
    training: TrainingTable = TrainingTable()
    vocabulary: VocabularyTable = VocabularyTable()
    federation: FederationTable = FederationTable()
    select: SelectTable = SelectTable()
    guards: GuardsTable = GuardsTable()
    options: dict[str, Any] = {}
    when: dict[str, dict[str, Any]] = {}

    @model_validator(mode="after")
    def _has_sites(self) -> Settings:
        if self.schema_ > SCHEMA:
            raise ValueError(
                f"schema {self.schema_} is newer than this confide, which reads schema {SCHEMA}"
            )
        if bool(self.site) == (self.split is not None):
            raise ValueError("give either [[site]] tables, or one [split] table, and not both")
        names = [site.name for site in self.site]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two sites are called {sorted(twice)[0]!r}")
        return self

    @property
    def trained_by(self) -> str:
        """The method that runs: `method`, or `base` where `method` is a reference."""
        return self.base if self.method in REFERENCES else self.method


def load(path: Path | str, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file, then apply `[when.METHOD]` and `key=value` overrides, in this order.

    Relative paths in the file are taken from the file's folder. Raises SettingsError.
    """
    path = Path(path)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MissingDataError(
            "there is no such settings file",
            where=str(path),
            fix="check the path, or list the built-in ones with `confide recipes`",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"this is not TOML: {error}", where=str(path)) from error
    try:
        return parse(tree, overrides, folder=path.parent.resolve())
    except SettingsError as error:
        raise SettingsError(
            error.what, expected=error.expected, got=error.got, where=str(path), fix=error.fix
        ) from error.__cause__


def parse(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), *, folder: Path | None = None
) -> Settings:
    """Typed settings from a tree of plain values. Raises SettingsError."""
    plain: dict[str, Any] = _copy(tree)
    given = [_assignment(text) for text in overrides]
    method = next((v for k, v in reversed(given) if k == ["method"]), plain.get("method"))
    when = plain.get("when")
    special = when.get(method) if isinstance(when, dict) and isinstance(method, str) else None
    for key, value in leaves(special if isinstance(special, dict) else {}):
        _put(plain, key, value)
    for key, value in given:
        _put(plain, key, value)
    try:
        settings = Settings.model_validate(plain)
    except ValidationError as error:
        raise _explain(error) from error
    return settings if folder is None else anchored(settings, folder)


def own_settings(kind: type[T], options: Mapping[str, Any]) -> T:
    """A method's own settings from the table `[options]`. Raises SettingsError."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        raise _explain(error, kind) from error


def dump(settings: Settings) -> str:
    """The settings as TOML, everything resolved, `[when]` applied and left out."""
    import tomli_w

    tree = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    tree.pop("when")
    return tomli_w.dumps({key: value for key, value in tree.items() if value not in ({}, [])})


def nearest(name: str, known: Sequence[str]) -> str:
    """What to do about an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"


def _copy(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copy(value) for key, value in tree.items()}
    return [_copy(value) for value in tree] if isinstance(tree, list) else tree


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[list[str], Any]]:
    """Every value of a tree that is no table, with the keys that lead to it."""
    found = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found += leaves(value, (*path, key))
        else:
            found.append(([*path, key], value))
    return found


def _assignment(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError("an override has no value", expected="key=value", got=repr(text))
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    return key.strip().split("."), parsed


def _put(tree: dict[str, Any], key: Sequence[str], value: Any) -> None:
    node: Any = tree
    for part in key[:-1]:
        if isinstance(node, list) and part.isdigit() and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise SettingsError(f"there is no {'.'.join(key)!r} to set")
    if not isinstance(node, dict):
        raise SettingsError(f"there is no {'.'.join(key)!r} to set")
    node[key[-1]] = value


def _explain(error: ValidationError, kind: type[Table] | None = None) -> SettingsError:
    """The first complaint of pydantic, in our words."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = list(kind.model_fields) if kind else _known_keys(first["loc"][:-1])
        return SettingsError(f"unknown key {place!r}", fix=nearest(str(first["loc"][-1]), known))
    message = first["msg"].removeprefix("Value error, ")
    if not place:
        return SettingsError(message)
    return SettingsError(f"{place} is wrong: {message}", got=repr(first.get("input")))


def _known_keys(location: Sequence[int | str]) -> list[str]:
    tables: dict[str, type[Table]] = {
        "data": DataTable, "site": SiteTable, "split": SplitTable, "model": ModelTable,
        "training": TrainingTable, "vocabulary": VocabularyTable, "federation": FederationTable,
        "select": SelectTable, "guards": GuardsTable,
    }  # fmt: skip
    table = tables[str(location[0])] if location else Settings
    return [field.alias or name for name, field in table.model_fields.items()]


def anchored(settings: Settings, folder: Path) -> Settings:
    """Relative paths become absolute; `$CONFIDE_DATA/...` stays until the data is read."""

    def anchor(text: str) -> str:
        if text.startswith("$"):
            return text
        home = text == "~" or text.startswith("~/")
        return str(folder / (Path(text).expanduser() if home else text))

    def table(old: Any) -> Any:
        if old is None:
            return None
        many = {name: tuple(map(anchor, getattr(old, name))) for name in ("train", "dev", "test")}
        one = {
            name: anchor(getattr(old, name))
            for name in ("vectors", "key")
            if getattr(old, name, None)
        }
        return old.model_copy(update={**many, **one})

    update: dict[str, Any] = {
        "site": tuple(table(site) for site in settings.site),
        "split": table(settings.split),
    }
    if settings.key and settings.key != SIMULATED:
        update["key"] = anchor(settings.key)
    if settings.model.vectors:
        vectors = anchor(settings.model.vectors)
        update["model"] = settings.model.model_copy(update={"vectors": vectors})
    return settings.model_copy(update=update)
