"""Settings of older releases: what their keys and values are called now, and what is gone.

Schema 1 was that of release 0.2. A settings file of schema 1 is refused, with the command that
rewrites it; the settings of a finished run are upgraded as they are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path

import tomli_w

from confide.errors import SettingsError, os_errors_as, printable
from confide.files import Tree, write_whole
from confide.removed import SMALL_BART
from confide.settings.toml import parse_toml, read_toml

SCHEMA = 2
COMMAND = "confide settings upgrade"

RENAMED: dict[str, tuple[str, dict[object, object]]] = {
    "at_once": ("micro_batch_size", {}),
    "bags.same": ("same_entity", {}),
    "classifier.longest": ("max_length", {}),
    "classifier.typed": ("typed_markers", {}),
    "classifier.width": ("max_span_width", {}),
    "federation.down": ("down", {"once": "cached"}),
    "federation.megabytes": ("max_upload_mb", {}),
    "federation.most_norm": ("max_norm_ratio", {}),
    "lightner.longest": ("max_length", {}),
    "lightner.where": ("prompts_in", {}),
    "options.hold_out": ("holdout_share", {}),
    "options.most": ("max_logit", {}),
    "options.past": ("past_weight", {}),
    "options.warm_rounds": ("warmup_rounds", {}),
    "pcnn.farthest": ("max_distance", {}),
    "pcnn.longest": ("max_length", {}),
    "privacy.held_out": ("holdout_scores", {"closed": "withheld", "open": "sent"}),
    "site.knows": ("annotates", {}),
    "site.test_knows": ("test_annotates", {}),
    "split.apart": ("disjoint_by", {}),
    "split.hold_out": ("holdout_from", {}),
    "training.moments": ("optimiser_state", {"fresh": "reset", "kept": "keep"}),
    "training.outside": ("unannotated_types", {"closed": "negative", "open": "ignore"}),
    "vocabulary.how": ("normalise", {}),
}
"""Keys of schema 1: their names in schema 2, in the same table, and their values' names."""

OPTIONS_OF = {
    **{key: {"feded", "dp-feded"} for key in ("hold_out", "most", "past")},
    "warm_rounds": {"lazy-mil"},
}
"""The methods whose options these were."""
REMOVED: dict[str, str] = {
    'task = "text"': SMALL_BART,
    "denoising": f"remove the table; {SMALL_BART}",
    'federation.sums = "integers"': 'set federation.sums = "masked", which gives the same sums'
    ' among three sites or more; or "plain"',
    "options.adversary": "set lightner.adversary",
    "options.reversal": "set lightner.reversal",
    "options.download": 'set federation.down = "int8", which sends fewer bytes for the same model,'
    " or leave it out",
    "options.label_share": "leave it out, so that all public labels are learnt",
    "options.label_decay": "leave it out, or stop by held-out sentences: options.holdout_share",
    "options.distil_on": "leave it out, so that all public text is distilled",
    "options.sparse": "leave it out: rows of zeros never travel, but under masks",
    "options.wire_dtype": 'set federation.up and federation.down to "float16" instead',
}
"""Advice on what is gone, by dotted key or table; by `key = "value"` where only a value went."""
_KEPT_BY = {"options.wire_dtype": {"feded", "dp-feded"}}
"""The methods that still have a setting which others no longer have."""
_NEAREST = {'federation.sums = "integers"': "masked"}
"""The nearest value that there is, by `key = "value"`."""


def advice_on(place: str, value: object, *, known: bool) -> str | None:
    """Say what to write instead of an old key, or of an old value of a `known` key.

    None: there never was one.
    """
    plain = re.sub(r"\.[0-9]+(?=\.)", "", place)
    new, values = RENAMED.get(plain, ("", {}))
    rewrite = f"`{COMMAND} FILE` rewrites a file of schema 1"
    if new and not known:
        table, dot, _ = place.rpartition(".")
        return f"write {table}{dot}{new}; {rewrite}"
    if isinstance(value, str) and value in values:
        return f'write "{values[value]}"; {rewrite}'
    return REMOVED.get(f'{place} = "{value}"' if known else place)


def is_old(tree: Mapping[str, object]) -> bool:
    """Return whether settings say that they are of an older schema."""
    schema = tree.get("schema")
    return type(schema) is int and schema < SCHEMA


def must_be_of_today(tree: Mapping[str, object], *, file: object = None) -> None:
    """Raise SettingsError if settings are of an older schema."""
    if is_old(tree):
        raise SettingsError(
            "these settings were written for an older confide",
            expected=f"schema {SCHEMA}",
            got=f"schema {tree['schema']}",
            where=None if file is None else printable(file, 1000),
            fix=f"rewrite the file: `{COMMAND} {'FILE' if file is None else printable(file)}`",
        )


def upgraded(tree: Tree) -> tuple[Tree, list[str]]:
    """Settings of schema 1 as those of schema 2, and a line for each change."""
    found, changes = deepcopy(tree), dict[str, None]()
    when = found["when"] if isinstance(found.get("when"), dict) else {}
    for method, tables in (("", found), *when.items()):
        methods = {str(method or found.get("method", "")), str(found.get("base"))}
        for old, (new, values) in RENAMED.items():
            *above, last = old.split(".")
            if above == ["options"] and not methods & {"", *OPTIONS_OF[last]}:
                continue  # another method's option
            for table in _tables(tables, above):
                if last in table:
                    before = table.pop(last)
                    after = values.get(before, before) if isinstance(before, str) else before
                    table[new] = after
                    place = ".".join((*above, new))
                    if before != after:
                        changes[f"{old} = {before!r} -> {place} = {after!r}"] = None
                    elif last != new:
                        changes[f"{old} -> {place}"] = None
    return found | {"schema": SCHEMA}, list(changes)


def upgraded_text(text: str) -> tuple[str, list[str]]:
    """A settings file of schema 1 as one of schema 2, with its comments, and what changed.

    Comments are lost only where the file writes its keys in an unusual way; the changes say so.
    Raises SettingsError.
    """
    wanted, changes = upgraded(parse_toml(text))
    new = text
    for old, (name, values) in RENAMED.items():
        last = old.rpartition(".")[2]
        key = re.compile(
            rf"""(?<![\w-]){last}(?P<is>["']?[ \t]*=[ \t]*)(?P<value>["'][\w-]*["'])?"""
        )
        for match in reversed([*key.finditer(new)]):
            probe = new[: match.start()] + _PROBE + new[match.start() + len(last) :]
            place = _place_of_probe(probe)
            if place != old.split(".")[:-1]:
                continue  # another table's key, or a comment
            value = match["value"] or ""
            value = f'"{values[value[1:-1]]}"' if value[1:-1] in values else value
            new = new[: match.start()] + name + match["is"] + value + new[match.end() :]
    stated = re.compile(r"^schema([ \t]*=[ \t]*)1\b", re.MULTILINE)
    if "schema" in parse_toml(text):
        new = stated.sub(rf"schema\g<1>{SCHEMA}", new, count=1)
    else:
        first = re.search(r"^[ \t]*[^#\s]", new, re.MULTILINE)
        start = first.start() if first else len(new)
        new = f"{new[:start]}schema = {SCHEMA}\n{new[start:]}"
    if parse_toml(new) != wanted:
        new = tomli_w.dumps(wanted)
        changes.append("all comments are lost")
    return new, changes


def upgrade_settings(file: Path | str, *, in_place: bool = False) -> tuple[Path, list[str]]:
    """Rewrite a settings file of an older release. Gives the new file and a line for each change.

    Without `in_place` the new file lies beside it, as NAME.schema2.toml. Raises MissingDataError,
    SettingsError (also if a file of that name is there already).
    """
    file = Path(file)
    tree = read_toml(file)
    if tree.get("schema", 1) != 1:
        raise SettingsError(
            "these settings need no upgrade", got=f"schema {printable(tree['schema'], 40)}",
            where=printable(file, 1000),
        )  # fmt: skip
    text, changes = upgraded_text(file.read_text(encoding="utf-8"))
    new = file if in_place else file.with_name(f"{file.stem}.schema{SCHEMA}{file.suffix}")
    if not in_place and new.exists():
        raise SettingsError(
            "the new file is there already", where=printable(new, 1000),
            fix="remove it, or rewrite the old one with --in-place",
        )  # fmt: skip
    with os_errors_as(SettingsError, "the settings cannot be written", where=new):
        write_whole(new, text.encode())
    return new, changes


_PROBE = "confide-was-here"


def _place_of_probe(text: str) -> list[str] | None:
    """The table of the probe key, without [when.METHOD] and list places; None: it is no key."""
    try:
        level: list[tuple[list[str], object]] = [([], parse_toml(text))]
    except SettingsError:
        return None
    while level:
        path, node = level.pop()
        if isinstance(node, dict):
            if _PROBE in node:
                return path[2:] if path[:1] == ["when"] else path
            level += [([*path, key], value) for key, value in node.items()]
        elif isinstance(node, list):
            level += [(path, value) for value in node]
    return None


def _tables(tree: Tree, above: list[str]) -> list[Tree]:
    """The table of this name; all of a list of tables."""
    found = tree.get(above[0]) if above else tree
    return [one for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]


def upgraded_run(tree: Tree) -> Tree:
    """The settings of an old run as they would be written today.

    What is gone is left out: it decides nothing about a model that is trained already.
    """
    found, _ = upgraded(tree)
    methods = {str(found.get("method")), str(found.get("base"))}
    for name in REMOVED:
        key, _, value = name.partition(" = ")
        *above, last = key.split(".")
        for table in _tables(found, above):
            if value and f'"{table.get(last)}"' == value:
                table[last] = _NEAREST.get(name, table[last])
            elif not value and not methods & _KEPT_BY.get(key, set()):
                table.pop(last, None)
    return found
