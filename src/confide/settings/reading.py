"""One short TOML file -> typed settings. Unknown keys are refused, with the nearest known one.

>>> parse({"method": "fedavg", "rouns": 3, "site": [{"name": "north", "train": "n.conll"}]})
Traceback (most recent call last):
confide.errors.SettingsError: unknown key 'rouns'; to fix it, did you mean 'rounds'?
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from confide.errors import MissingDataError, SettingsError, printable
from confide.settings.base import Table
from confide.settings.defaults import defaults
from confide.settings.tables import (
    REFERENCES,
    SIMULATED,
    TABLES,
    Settings,
    kind_of,
)
from confide.settings.tomlfile import DEEPEST, LONGEST_KEY, parse_toml, read_toml

T = TypeVar("T", bound=Table)
D = TypeVar("D", bound=Table)
_MOST_EXTENDED = 4
"""How many files may stand one upon the other."""


def load(path: Path | str, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file, then apply `[when.METHOD]` and `key=value` overrides, in this order.

    Relative paths in the file are taken from the file's folder. Raises SettingsError.
    """
    path = Path(path)
    tree = read_tree(path)
    try:
        return parse(tree, overrides, folder=path.parent.resolve())
    except SettingsError as error:
        raise SettingsError(
            error.what, expected=error.expected, got=error.got, where=str(path), fix=error.fix
        ) from error.__cause__


def read_tree(path: Path, *, above: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a settings file, over those of the file that it `extends`.

    `above` are the files that lead to this one. Raises MissingDataError, SettingsError.
    """
    try:
        tree = read_toml(path)
    except MissingDataError as error:
        raise MissingDataError(
            "there is no such settings file",
            where=error.where,
            fix="check the path, or list the built-in ones with `confide recipes`",
        ) from error
    below = tree.pop("extends", None)
    if below is None:
        return tree
    above = (*above, os.path.realpath(path))
    if not isinstance(below, str) or not below:
        raise _extends("extends is not a file's name", path, below)
    if os.path.realpath(path.parent / below) in above:
        raise _extends("extends goes round in circles", path, below)
    if len(above) > _MOST_EXTENDED:
        raise _extends(f"more than {_MOST_EXTENDED} files extend each other", path, below)
    try:
        merged = read_tree(path.parent / below, above=above)
    except (SettingsError, MissingDataError) as error:
        raise type(error)(
            error.what,
            expected=error.expected,
            got=error.got,
            where=f"{error.where}, which {path} extends",
            fix=error.fix,
        ) from error
    try:
        for key, value in leaves(tree):
            _put(merged, key, value)
    except SettingsError as error:
        raise SettingsError(
            f"it does not fit the file that it extends: {error.what}",
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
        fix="name another file, or take the line out",
    )


def parse(
    tree: Mapping[str, Any], overrides: Sequence[str] = (), *, folder: Path | None = None
) -> Settings:
    """Typed settings from a tree of plain values. Raises SettingsError."""
    plain: dict[str, Any] = _copy(tree)
    given = [parse_assignment(text) for text in overrides]
    method = next((v for k, v in reversed(given) if k == ["method"]), plain.get("method"))
    when = plain.get("when")
    special = when.get(method) if isinstance(when, dict) and isinstance(method, str) else None
    for key, value in leaves(special if isinstance(special, dict) else {}):
        _put(plain, key, value)
    for key, value in given:
        _put(plain, key, value)
    _rename(plain)
    for tree in defaults(*_chosen(plain)):
        for key, value in leaves(tree):
            _put(plain, key, value, unless_there=True)
    try:
        settings = Settings.model_validate(plain)
    except ValidationError as error:
        raise explained(error) from error
    return settings if folder is None else anchored(settings, folder)


RENAMED = {
    ("options", "adversary"): ("lightner", "adversary"),
    ("options", "reversal"): ("lightner", "reversal"),
}
"""Keys that have another name now: old files go on working."""


def _rename(plain: dict[str, Any]) -> None:
    """Put what stands under an old name under the new one, and say so."""
    for (table, old), new in RENAMED.items():
        held = plain.get(table)
        if isinstance(held, dict) and old in held:
            warnings.warn(
                f"{table}.{old} is called {'.'.join(new)} now", FutureWarning, stacklevel=3
            )
            _put(plain, list(new), held.pop(old), unless_there=True)


def _chosen(plain: Mapping[str, Any]) -> tuple[str, str, str]:
    """The task, the method that trains, and the kind of model of settings not yet typed."""
    values = {name: field.default for name, field in Settings.model_fields.items()}
    task, method, base = (str(plain.get(k, values[k])) for k in ("task", "method", "base"))
    model = plain.get("model")
    kind = model.get("kind") if isinstance(model, dict) else None
    named = base if method in REFERENCES else method
    return task, named, kind_of(task, str(kind or values["model"].kind))


def own_settings(kind: type[T], options: Mapping[str, Any]) -> T:
    """A method's own settings from the table `[options]`. Raises SettingsError."""
    try:
        return kind.model_validate(dict(options))
    except ValidationError as error:
        raise explained(error, kind, tables={}) from error


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


def parse_assignment(text: str) -> tuple[list[str], Any]:
    """The keys and the value of `key=value`, which is TOML or plain text. Raises SettingsError."""
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
            "an override goes too deep, or names a key that is too long",
            expected=f"at most {DEEPEST} keys of {LONGEST_KEY} characters",
            got=printable(repr(key)),
        )
    return keys, parsed


def _put(
    tree: dict[str, Any], key: Sequence[str], value: Any, *, unless_there: bool = False
) -> None:
    node: Any = tree
    for part in key[:-1]:
        if isinstance(node, list) and part.isdecimal() and len(part) < 9 and int(part) < len(node):
            node = node[int(part)]
        elif isinstance(node, dict):
            node = node.setdefault(part, {})
        else:
            raise SettingsError(f"there is no {'.'.join(key)!r} to set")
    if not isinstance(node, dict):
        raise SettingsError(f"there is no {'.'.join(key)!r} to set")
    if not (unless_there and key[-1] in node):
        node[key[-1]] = value


def explained(
    error: ValidationError,
    kind: type[Table] = Settings,
    *,
    tables: Mapping[str, type[Table]] = MappingProxyType(TABLES),
) -> SettingsError:
    """The first complaint of pydantic about a `kind` with these tables, in our words."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        table = tables.get(str(first["loc"][0]), kind) if len(first["loc"]) > 1 else kind
        known = [field.alias or name for name, field in table.model_fields.items()]
        return SettingsError(f"unknown key {place!r}", fix=nearest(str(first["loc"][-1]), known))
    message = first["msg"].removeprefix("Value error, ")
    if not place:
        return SettingsError(message)
    return SettingsError(f"{place} is wrong: {message}", got=printable(repr(first.get("input"))))


def anchored(settings: Settings, folder: Path) -> Settings:
    """Relative paths become absolute; `$CONFIDE_DATA/...` stays until the data is read."""
    update: dict[str, Any] = {
        "site": tuple(anchored_table(site, folder) for site in settings.site),
        "split": settings.split and anchored_table(settings.split, folder),
        "public": anchored_table(settings.public, folder),
        "classifier": settings.classifier.model_copy(
            update={"encoder": _encoder(settings.classifier.encoder, folder)}
        ),
    }
    if settings.key and settings.key != SIMULATED:
        update["key"] = _anchor(settings.key, folder)
    model: dict[str, Any] = {"context": _encoder(settings.model.context, folder)}
    if settings.model.vectors:
        model["vectors"] = _anchor(settings.model.vectors, folder)
    update["model"] = settings.model.model_copy(update=model)
    return settings.model_copy(update=update)


def anchored_table(table: D, folder: Path) -> D:
    """The same with the paths of a site, or of a corpus that is dealt to sites."""
    update: dict[str, Any] = {
        name: tuple(_anchor(path, folder) for path in getattr(table, name))
        for name in ("train", "dev", "test", "files")
        if hasattr(table, name)
    }
    for name in ("vectors", "key", "memory", "context"):
        value = getattr(table, name, None)
        if value:
            update[name] = (_encoder if name == "context" else _anchor)(value, folder)
    return table.model_copy(update=update)


def _anchor(text: str, folder: Path) -> str:
    if text.startswith("$"):
        return text
    home = text == "~" or text.startswith("~/")
    return str(folder / (Path(text).expanduser() if home else text))


def _encoder(text: str, folder: Path) -> str:
    """A folder's path, unless it is a name that no folder here has."""
    path = _anchor(text, folder)
    return path if text[:1] in "./~$" or _is_folder(path) else text


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # a name that is too long for a file
        return False
