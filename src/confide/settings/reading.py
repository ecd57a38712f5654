"""One short TOML file -> typed settings. Unknown keys are refused, with the nearest known one.

>>> parse({"method": "fedavg", "rouns": 3, "site": [{"name": "north", "train": "n.conll"}]})
Traceback (most recent call last):
confide.errors.SettingsError: unknown key 'rouns'; to fix it, did you mean 'rounds'?
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from confide import models
from confide.errors import MissingDataError, SettingsError, printable, together
from confide.files import Tree
from confide.settings.tables import (
    ENCODER,
    PATH,
    REFERENCES,
    SIMULATED,
    VECTORS,
    Settings,
    Table,
    kind_of,
)
from confide.settings.toml import DEEPEST, LONGEST_KEY, parse_toml, read_toml
from confide.settings.upgrade import advice_on, must_be_of_today
from confide.tasks import TASKS

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


# --- Defaults that depend on the method, the kind of model or the task


_DEFAULTS = tomllib.loads(Path(__file__).with_name("defaults.toml").read_text(encoding="utf-8"))
OF_PAIRS, OF_METHODS, OF_KINDS = (_DEFAULTS[by] for by in ("pair", "method", "kind"))
"""These replace the tables' own defaults: a pair's come before a method's, and those before a
kind's."""
OF_TASKS: dict[str, Tree] = {
    name: {"select": {"by": task.kinds[0]}} for name, task in TASKS.items()
}
"""Defaults of a task, whatever the method."""


def defaults(task: str, method: str, kind: str) -> list[Tree]:
    """Trees of defaults; the first one that has a key wins."""
    named = (OF_PAIRS.get(f"{method}-{kind}"), OF_METHODS.get(method), OF_KINDS.get(kind))
    return [one for one in (*named, OF_TASKS.get(task)) if one]


# --- Messages for wrong values
#
# In our words: pydantic checks the value, and speaks of Python's types.


_DATE = "a date, such as 2026-01-31"
_TIME = "a time with its zone, such as 2026-01-31T12:00:00+00:00"
_NAME = "up to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
_FORMS = {
    r"^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$": "auto, cpu, mps, cuda, or one of several as cuda:1",
    r"^[0-9a-f]{16}$": "16 hexadecimal digits in small letters",
    r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$": _NAME,
    r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63}|\*)$": f"*, or {_NAME}",
    r"^[A-Za-z][A-Za-z0-9_-]{0,63}$": "up to 64 letters, digits, dashes and underscores, the first"
    " a letter",
    r"^[^\s\x00-\x1f\x7f]+$": "a name without spaces",
    r"^[a-z]{2}$": "two small letters, such as en",
    r"^(/[^\s:,'\"\\]+)?$": "an absolute path without spaces, quotes, colons or commas",
    r"^[A-Za-z0-9.-]{0,253}$": "the name or address of a host",
    r"^([1-9][0-9]{0,5}(Mi|Gi|Ti))?$": "an amount of memory, such as 16Gi",
}
"""Patterns of text, in words."""

_WORDS: dict[str, str | Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "a whole number"
    ),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("string_type", "string_sub_type", "string_unicode"), "text"),
    "string_too_short": lambda limit: (
        f"text of at least {_counted(limit['min_length'], 'character')}"
    ),
    "string_too_long": lambda limit: (
        f"text of at most {_counted(limit['max_length'], 'character')}"
    ),
    "string_pattern_mismatch": lambda limit: _FORMS.get(
        limit["pattern"], f"text of the form {limit['pattern']}"
    ),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "literal_error": lambda limit: str(limit["expected"]),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "too_short": lambda limit: f"at least {_counted(limit['min_length'], 'item')}",
    "too_long": lambda limit: f"at most {_counted(limit['max_length'], 'item')}",
    "greater_than": lambda limit: f"more than {_number(limit['gt'])}",
    "greater_than_equal": lambda limit: f"at least {_number(limit['ge'])}",
    "less_than": lambda limit: f"less than {_number(limit['lt'])}",
    "less_than_equal": lambda limit: f"at most {_number(limit['le'])}",
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        _DATE,
    ),
    **dict.fromkeys(
        ("datetime_type", "datetime_parsing", "datetime_from_date_parsing", "timezone_aware"), _TIME
    ),
    "missing": "a value",
    "extra_forbidden": "no such key",
    **dict.fromkeys(
        ("union_tag_invalid", "union_tag_not_found"),
        lambda limit: str(limit.get("expected_tags", "one of the tasks")),
    ),
}
"""Text for the expected value, by pydantic's type of error; from the limit of the field where it
has one."""

_TABLES = ("dict_type", "model_type", "model_attributes_type")


def expected(first: ErrorDetails, *, table: str = "a table") -> str:
    """Say what would have been right. `table` is what names and values are called in this file."""
    if first["type"] in _TABLES:
        return table
    words = _WORDS.get(first["type"], "another kind of value")
    return words if isinstance(words, str) else words(first.get("ctx", {}))


def error_path(first: ErrorDetails) -> str:
    """Where the value is, such as site.0.name; keys come from the file and are made printable."""
    return printable(".".join(str(part) for part in first["loc"] if part != "[key]"))


def own_words(first: ErrorDetails) -> str | None:
    """Return the message of our own check of the value, if it was one of ours that failed."""
    return first["msg"].removeprefix("Value error, ") if first["type"] == "value_error" else None


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


T = TypeVar("T", bound=Table)
_MOST_EXTENDED = 4
"""The most files that may extend one another."""


def load_settings(path: Path | str, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file, then apply `[when.METHOD]` and `key=value` overrides, in this order.

    Relative paths in the file start at its folder. Raises MissingDataError, SettingsError.
    """
    path = Path(path)
    tree = read_tree(path)
    try:
        return parse(tree, overrides, folder=path.parent.resolve())
    except SettingsError as error:
        raise error.at(str(path)) from error.__cause__


def read_tree(path: Path, *, above: Sequence[str] = (), old: bool = False) -> Tree:
    """The plain values of a settings file, laid over those of the file that it `extends`.

    `above` are the files that led to this one. With `old`, its schema is not looked at. Raises
    MissingDataError, SettingsError.
    """
    try:
        tree = read_toml(path)
    except MissingDataError as error:
        raise MissingDataError(
            "there is no such settings file",
            where=error.where,
            fix="check the path, or list the built-in ones with `confide recipes`",
        ) from error
    if not old:
        must_be_of_today(tree, file=path)
    below = tree.pop("extends", None)
    if below is None:
        return tree
    above = (*above, os.path.realpath(path))
    if not isinstance(below, str) or not below:
        raise _extends("extends is not the name of a file", path, below)
    if os.path.realpath(path.parent / below) in above:
        raise _extends("extends goes round in a circle", path, below)
    if len(above) > _MOST_EXTENDED:
        raise _extends(f"more than {_MOST_EXTENDED} files extend each other", path, below)
    try:
        merged = read_tree(path.parent / below, above=above, old=old)
    except (SettingsError, MissingDataError) as error:
        raise error.at(f"{error.where}, which {path} extends") from error
    try:
        for key, value in leaves(tree):
            put(merged, key, value)
    except SettingsError as error:
        raise SettingsError(
            f"the file does not fit the one that it extends: {error.what}",
            where=str(path),
            fix="use the same tables and lists in both",
        ) from error
    return merged


def _extends(what: str, path: Path, below: object) -> SettingsError:
    return SettingsError(
        what,
        expected="the name of one settings file beside this one",
        got=printable(repr(below)),
        where=str(path),
        fix="name another file, or remove the line",
    )


def parse(
    tree: Mapping[str, object], overrides: Sequence[str] = (), *, folder: Path | None = None
) -> Settings:
    """Typed settings from a tree of plain values; with a `folder`, relative paths start there.

    Raises SettingsError.
    """
    must_be_of_today(tree)
    plain = overlaid(tree, overrides)
    for tree in defaults(*_chosen(plain)):
        for key, value in leaves(tree):
            if isinstance(plain.get(key[0], {}), dict) or len(key) == 1:  # else it is refused below
                put(plain, key, value, unless_there=True)
    try:
        settings = Settings.model_validate(plain)
    except ValidationError as error:
        raise explained(error, more=_crossed(plain, error)) from error
    return settings if folder is None else anchored(settings, folder)


def overlaid(tree: Mapping[str, object], overrides: Sequence[str] = ()) -> Tree:
    """The values of a tree with `[when.METHOD]` and overrides applied, and no default.

    Raises SettingsError.
    """
    plain = dict(deepcopy(tree))
    given = [parse_assignment(text) for text in overrides]
    method = next((v for k, v in reversed(given) if k == ["method"]), plain.get("method"))
    when = plain.get("when")
    special = when.get(method) if isinstance(when, dict) and isinstance(method, str) else None
    for key, value in leaves(special if isinstance(special, dict) else {}):
        put(plain, key, value)
    for key, value in given:
        put(plain, key, value)
    return plain


def _crossed(plain: Tree, error: ValidationError) -> list[str]:
    """Find conflicts between settings that would remain if each single one were right.

    Pydantic looks at that only once each is: so wrong values are left out, and missing ones are
    filled in: one of the known values, or a word.
    """
    repaired = deepcopy(plain)
    for one in error.errors():
        if not one["loc"]:
            return []  # each was right
        *place, key = one["loc"]
        node: object = repaired
        for part in place:
            if isinstance(node, list) and isinstance(part, int):
                node = node[part]
            else:
                node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict) and one["type"] != "missing":
            node.pop(key, None)
        elif isinstance(node, dict):
            node[key] = next(iter(_choices(_field(one["loc"], Settings))), "a word")
    try:
        Settings.model_validate(repaired)
    except ValidationError as other:
        return [fault for one in other.errors() if not one["loc"] for fault in _faults(one)]
    return []


def _chosen(plain: Mapping[str, object]) -> tuple[str, str, str]:
    """The task, the method that trains and the kind of model, from settings not yet typed."""
    values = {name: field.default for name, field in Settings.model_fields.items()}
    task, method, base = (str(plain.get(k, values[k])) for k in ("task", "method", "base"))
    model = plain.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    named = base if method in REFERENCES else method
    return task, named, kind_of(task, str(kind or values["model"].kind))


def own_settings(kind: type[T], options: Mapping[str, object]) -> T:
    """A method's own settings from the table `[options]`. Raises SettingsError."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        raise explained(error, kind, under="options.") from error


def dump(settings: Settings) -> str:
    """The settings as TOML, with everything resolved and `[when]` applied."""
    import tomli_w

    tree = settings.model_dump(mode="json", by_alias=True, exclude_none=True)
    tree.pop("when")
    return tomli_w.dumps({key: value for key, value in tree.items() if value not in ({}, [])})


def nearest(name: str, known: Sequence[str]) -> str:
    """Advise on an unknown name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"


def leaves(
    tree: Mapping[str, object], path: tuple[str, ...] = ()
) -> list[tuple[list[str], object]]:
    """Every value of a tree that is not a table, with the keys that lead to it."""
    found: list[tuple[list[str], object]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found += leaves(value, (*path, key))
        else:
            found.append(([*path, key], value))
    return found


def parse_assignment(text: str) -> tuple[list[str], object]:
    """The keys and the value of `key=value`; the value is TOML or plain text.

    Raises SettingsError.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(
            "an override has no value", expected="key=value", got=printable(repr(text))
        )
    try:
        parsed = parse_toml(f"value = {value}")["value"]
    except SettingsError:
        parsed = value.strip()
    keys = key.strip().split(".")
    if len(keys) > DEEPEST or max(map(len, keys)) > LONGEST_KEY:
        raise SettingsError(
            "an override has too many keys or too long a key",
            expected=f"at most {DEEPEST} keys of {LONGEST_KEY} characters",
            got=printable(repr(key)),
        )
    return keys, parsed


def put(tree: Tree, key: Sequence[str], value: object, *, unless_there: bool = False) -> None:
    """Set the value that these keys lead to. Raises SettingsError if they lead nowhere."""
    node: object = tree
    for part in key[:-1]:
        if isinstance(node, list) and part.isdecimal() and len(part) < 9 and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise _nothing_there(key)
    if not isinstance(node, dict):
        raise _nothing_there(key)
    if not (unless_there and key[-1] in node):
        node[key[-1]] = value


def _nothing_there(key: Sequence[str]) -> SettingsError:
    return SettingsError(f"there is no {'.'.join(key)!r} to set", fix="check the names before it")


MOST_COMPLAINTS = 8
"""The most complaints that are made at once."""


def explained(
    error: ValidationError,
    kind: type[Table] = Settings,
    *,
    more: Sequence[str] = (),
    under: str = "",
) -> SettingsError:
    """Pydantic's complaints about a `kind` of table, and `more`, in our words.

    `under` is what leads to the `kind` in the settings.
    """
    found, said = list[SettingsError](), list[tuple[object, ...]]()
    for one in error.errors(include_url=False):
        place, came = (one["loc"][:-1], id(one.get("input"))), one["type"] != "missing"
        if came and place in said:
            continue  # a value that may have one of several types is refused once for each
        said += [place] * came
        if not one["loc"]:
            found += map(SettingsError, _faults(one))
        else:
            found.append(_wrong(one, kind, under=under))
    found += map(SettingsError, more)
    if len(found) > MOST_COMPLAINTS:
        left = len(found) - MOST_COMPLAINTS
        found[MOST_COMPLAINTS:] = [SettingsError(f"and {left} more")]
    return together(found)


def _faults(one: ErrorDetails) -> list[str]:
    """The faults that a check of a whole table found, one a line."""
    return (own_words(one) or one["msg"]).splitlines()


def _wrong(one: ErrorDetails, kind: type[Table], *, under: str) -> SettingsError:
    """One complaint in our words: where, what was expected, what came."""
    place, loc = error_path(one), one["loc"]
    if one["type"] in ("extra_forbidden", "literal_error"):
        known = one["type"] == "literal_error"
        advice = advice_on(under + place, one.get("input"), known=known)
        if advice is not None:
            what = f"{place} = {one['input']!r}" if known else place
            return SettingsError(f"{what} is no longer a setting", fix=advice)
    if one["type"] == "extra_forbidden":
        fields = _table(loc, kind).model_fields
        names = [field.alias or name for name, field in fields.items()]
        return SettingsError(f"unknown key {place!r}", fix=nearest(str(loc[-1]), names))
    if one["type"] == "missing":
        choices = _choices(_field(loc, kind))
        return SettingsError(
            f"{place} is missing",
            expected=" or ".join(map(repr, choices)) or None,
            fix=f"add it, or --set {place}={choices[0]}" if choices and kind is Settings else None,
        )
    ours, got = own_words(one), printable(repr(one["input"]))
    if ours is not None:
        return SettingsError(f"{place} is wrong: {ours}", got=got)
    return SettingsError(f"{place} is wrong", expected=expected(one), got=got)


def _table(loc: Sequence[object], kind: type[Table]) -> type[Table]:
    """The table that a place of pydantic's lies in: one of a `kind`, or the `kind` itself."""
    above = kind.model_fields.get(str(loc[0])) if len(loc) > 1 else None
    named = (above.annotation, *get_args(above.annotation)) if above else ()
    return next((one for one in named if isinstance(one, type) and issubclass(one, Table)), kind)


def _field(loc: Sequence[object], kind: type[Table]) -> FieldInfo | None:
    """The field that a place of pydantic's means, if a table has it."""
    return _table(loc, kind).model_fields.get(str(loc[-1])) if loc else None


def _choices(field: FieldInfo | None) -> list[str]:
    """The values that a field takes, if they are a few words."""
    found = get_args(field.annotation) if field is not None else ()
    return list(found) if found and all(isinstance(one, str) for one in found) else []


def anchored(table: T, folder: Path) -> T:
    """Make the relative paths of a table and of those in it absolute.

    `$CONFIDE_DATA/...` stays until the data is read.
    """

    def of(value: object, kinds: Sequence[object]) -> object:
        if isinstance(value, Table):
            return anchored(value, folder)
        if isinstance(value, tuple):
            return tuple(of(one, kinds) for one in value)
        if not isinstance(value, str) or value in ("", SIMULATED):
            return value
        if VECTORS in kinds and value in models.known() and not (folder / value).exists():
            return value
        made = _anchor(value, folder) if {PATH, VECTORS} & {*kinds} else value
        return _encoder(value, folder) if ENCODER in kinds else made

    values = {name: getattr(table, name) for name in type(table).model_fields}
    fields = type(table).model_fields
    made = {name: of(value, fields[name].metadata) for name, value in values.items()}
    return table.model_copy(update={n: one for n, one in made.items() if one != values[n]})


def _anchor(text: str, folder: Path) -> str:
    if text.startswith("$"):
        return text
    home = text == "~" or text.startswith("~/")
    return str(folder / (Path(text).expanduser() if home else text))


def _encoder(text: str, folder: Path) -> str:
    """The path of an encoder's folder; a name that no folder here has stays a name."""
    path = _anchor(text, folder)
    return path if text[:1] in "./~$" or _is_folder(path) else text


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # the name is too long for a file
        return False
