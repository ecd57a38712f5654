"""Settings that anybody may have written: only our errors may come of them, with the file's name.

The built-in recipes and files of sites, agreements and kits are changed as `readers` does with
corpora; others are made up from the keys that settings have, with values of any kind. Some extend
each other, or what is no file. A failure is an exception that is none of ours, one that does not
name the file or has what a terminal could obey, or more than `SLOW` seconds of the processor.

    python benchmarks/security/fuzz/run.py settings --count 100000 --seed 1
"""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel
from spoiling import enlarged, spoiled
from tally import Tally
from watch import Watch

from confide.errors import KitError, MissingDataError, SettingsError
from confide.flare.kit import Consortium, Kit, open_consortium, open_kit
from confide.recipes import recipe_path
from confide.recipes import recipes as known_recipes
from confide.settings import Settings, SiteFile, dump, load_settings, load_site
from confide.settings.sitefile import Agreement, ConsentFile, load_consent

SLOW = 2.0
LARGE_ONES = 100
"""One input of so many is large."""
LONGEST = 3000
"""Characters of an error."""
_VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 2**31, 2**63 - 1, -(2**63), 10**30, 16**5000, True, False, 0.0, 0.5, -1e308),
    *(float("inf"), float("nan"), "", "a", "fedavg", "x" * 5000, "\x1b[2J", "\u202e", "é", "../x"),
    *(
        "~",
        "~nobody/x",
        "$CONFIDE_DATA/x",
        "/dev/zero",
        "a\nb",
        "\x00",
        "\x7f",
        "1",
        "*",
        "2027-11-23",
    ),
    *("tags.x", "9" * 400, "²", [], {}, [[]], [{}], datetime.date(2026, 11, 23), datetime.time(1)),
    datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC),
)


def attack(count: int, seed: int) -> Tally:
    """So many inputs, over all kinds of files in turn; the same for the same seed."""
    draw = random.Random(seed)
    watch = Watch((SettingsError, MissingDataError, KitError), SLOW)
    with tempfile.TemporaryDirectory() as folder:
        kinds = list(_kinds())
        for number in range(count):
            kind = kinds[number % len(kinds)]
            place = Path(folder, "in")
            shutil.rmtree(place, ignore_errors=True)
            (place / "local").mkdir(parents=True)
            label = f"input {number}, {kind.__name__.strip('_')}"
            file, act = kind(place, draw)
            error = watch.attempt(label, act)
            if error is not None:
                _judge(watch, label, error, file)
    return watch.tally(count)


def _judge(watch: Watch, label: str, error: Exception, file: Path) -> None:
    """An error names the file, is short, and is printable."""
    said = str(error)
    if str(file.parent) not in said and "an override" not in said:
        watch.fail(label, f"the file is not named: {said[:200]!r}")
    if len(said) > LONGEST:
        watch.fail(label, f"{len(said)} characters: {said[:200]!r}")
    if not said.replace("\n", "").isprintable():
        watch.fail(label, f"not printable: {said[:200]!r}")


# --- kinds of files -----------------------------------------------------------------------

_Target = tuple[Path, Callable[[], object]]


def _kinds() -> tuple[Callable[[Path, random.Random], _Target], ...]:
    return (_recipe, _made_up, _extending, _site, _consent, _consortium, _kit, _override)


def _spoilt(raw: bytes, draw: random.Random) -> bytes:
    return (enlarged if draw.randrange(LARGE_ONES) == 0 else spoiled)(raw, draw)


def _use(file: Path, overrides: tuple[str, ...] = ()) -> None:
    dump(load_settings(file, overrides))


def _recipe(place: Path, draw: random.Random) -> _Target:
    file = place / "s.toml"
    raw = recipe_path(draw.choice(known_recipes()).name).read_bytes()
    file.write_bytes(_spoilt(raw, draw))
    return file, lambda: _use(file)


def _made_up(place: Path, draw: random.Random) -> _Target:
    file = place / "s.toml"
    file.write_bytes(_toml(_tree(Settings, draw)))
    return file, lambda: _use(file)


def _extending(place: Path, draw: random.Random) -> _Target:
    file = place / "s.toml"
    below = draw.choice(
        ["s.toml", "t.toml", "./s.toml", "../in/s.toml", "none.toml", "pipe", "/dev/zero", "local",
         "", "\x00", "x" * 300, "a/" * 3000, "~/s.toml", "s.toml/x", 7, [], "loop", "big.toml"]
    )  # fmt: skip
    file.write_bytes(_toml({"extends": below, **_tree(Settings, draw)}))
    other = {"extends": draw.choice(["s.toml", "t.toml", "u.toml"]), **_tree(Settings, draw)}
    if draw.random() < 0.5:
        del other["extends"]
    (place / "t.toml").write_bytes(_toml(other))
    (place / "u.toml").write_bytes(_toml({"extends": "t.toml"}))
    os.mkfifo(place / "pipe")
    (place / "loop").symlink_to("loop")
    if below == "big.toml":
        (place / "big.toml").write_bytes(b"# \n" * 4_000_000)
    return file, lambda: _use(file)


def _override(place: Path, draw: random.Random) -> _Target:
    file = place / "s.toml"
    file.write_bytes(recipe_path(draw.choice(known_recipes()).name).read_bytes())
    line = _toml(_tree(Settings, draw)).decode("utf-8", "replace").split("\n")[0]
    text = draw.choice(
        ["method=", "rounds=", "site.0.name=", "a" + ".a" * 400 + "=", "=", "tags.²="]
    )
    value = draw.choice(["1", str(2**63), "9" * 5000, "\x00", "[1,", "nan", "0x" + "f" * 9000])
    text = draw.choice([line, text + value, text + "[" * 5000])
    return file, lambda: _use(file, (text,))


def _site(place: Path, draw: random.Random) -> _Target:
    file = place / "local" / "site.toml"
    plain = {"schema": 2, "name": "n", "format": "conll", "train": ["t"], "key": "k",
             "guards": {"min_sentences": 5}}  # fmt: skip
    raw = _spoilt(_toml(plain), draw) if draw.random() < 0.5 else _toml(_tree(SiteFile, draw))
    file.write_bytes(raw)
    return file, lambda: load_site(file)


def _consent(place: Path, draw: random.Random) -> _Target:
    file = place / "local" / "consent.toml"
    agreement = {"wire": "0123456789abcdef", "rounds": 3, "until": datetime.date(2027, 1, 1)}
    raw = _toml({"schema": 1, "site": "n", "method": {"fedavg": agreement}})
    if draw.random() < 0.5:
        tree = {"site": "n", "method": {"fedavg": _tree(Agreement, draw)}}
        raw = _toml(draw.choice([tree, _tree(ConsentFile, draw)]))
    file.write_bytes(_spoilt(raw, draw))
    return file, lambda: load_consent(file)


def _described(kind: type, draw: random.Random) -> dict[str, Any]:
    names = [name for name in kind.__dataclass_fields__ if name != "path"]  # type: ignore[attr-defined]
    plain: dict[str, Any] = dict.fromkeys(names, "north") | {
        "schema": 1,
        "port": 8002,
        "kind": "site",
    }
    if "sites" in names:
        plain |= {"sites": ["north"], "days": 365.0}
    for _ in range(draw.choice([0, 0, 1, 2])):
        plain[draw.choice(sorted(plain))] = draw.choice(_VALUES[:-3])
    return plain


def _consortium(place: Path, draw: random.Random) -> _Target:
    file = place / "consortium.toml"
    raw = _toml(_described(Consortium, draw))
    file.write_bytes(_spoilt(raw, draw) if draw.random() < 0.7 else raw)
    return file, lambda: open_consortium(place)


def _kit(place: Path, draw: random.Random) -> _Target:
    file = place / "local" / "confide.json"
    described = {name: _short(value) for name, value in _described(Kit, draw).items()}
    raw = json.dumps(described).encode()
    file.write_bytes(_spoilt(raw, draw) if draw.random() < 0.7 else raw)
    return place / "x", lambda: open_kit(place)


# --- trees --------------------------------------------------------------------------------


def _short(value: Any) -> Any:
    """Numbers that Python writes in decimals."""
    return 10**4000 if isinstance(value, int) and value > 10**4000 else value


def _toml(tree: dict[str, Any]) -> bytes:
    """A tree as TOML; numbers of any length are written, as a person could."""
    return tomli_w.dumps(_plain(tree)).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else _short(value)


def _tree(kind: type[BaseModel], draw: random.Random, *, deep: int = 3) -> dict[str, Any]:
    """Some of the keys that a table has, with values of any kind; tables where tables belong."""
    tree: dict[str, Any] = {}
    names = sorted(kind.model_fields)
    for name in draw.sample(names, draw.randint(0, min(5, len(names)))):
        field = kind.model_fields[name]
        inner = [one for one in _tables(field.annotation) if deep]
        key = field.alias or name
        if inner and draw.random() < 0.8:
            table = _tree(inner[0], draw, deep=deep - 1)
            tree[key] = draw.choice([table, [table, table]]) if name == "site" else table
        elif draw.random() < 0.4 and field.default.__class__ in (int, float, str, bool):
            tree[key] = field.default
        else:
            tree[key] = draw.choice(_VALUES)
    if draw.random() < 0.1:
        tree[draw.choice(["x", "", "\x00", "a.b", "y" * 300, "when"])] = draw.choice(_VALUES)
    return tree


def _tables(annotation: Any) -> list[type[BaseModel]]:
    """The tables that a field may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [found for one in arguments for found in _tables(one)]
