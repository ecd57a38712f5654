"""Published corpora: what they are, their licences, and where they are on this machine.

Nothing is downloaded. The environment variable `CONFIDE_DATA` names one folder with a sub-folder
for each corpus, which has the name and the files that `CORPORA` lists.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from confide.errors import MissingDataError, SettingsError
from confide.text.files import exists

VARIABLE = "CONFIDE_DATA"


@dataclass(frozen=True, slots=True)
class Corpus:
    """A published corpus, or a file of word vectors.

    `name` is its folder under `$CONFIDE_DATA`; `files` are the files by split (a split may have
    several), relative to that folder. `kind` is "ner", "relations" or "vectors". `scheme` is ""
    where the format has no tags, or where copies differ. `notes` are traps for the reader. One that
    is `shipped` comes with confide, and is found without `$CONFIDE_DATA`.
    """

    name: str
    title: str
    kind: Literal["ner", "relations", "vectors"]
    licence: str
    published: str
    files: Mapping[str, tuple[str, ...]]
    format: str = ""
    scheme: str = ""
    types: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    shipped: bool = False

    def path(self, split: str) -> str:
        """The first file of a split, as settings name it: `$CONFIDE_DATA/name/file`."""
        return f"${VARIABLE}/{self.name}/{self.files[split][0]}"


def _corpora() -> Mapping[str, Corpus]:
    table = tomllib.loads((files("confide.text.published") / "corpora.toml").read_text("utf-8"))
    for entry in table.values():
        for key in ("types", "notes"):
            entry[key] = tuple(entry.get(key, ()))
        for split, paths in entry["files"].items():
            entry["files"][split] = (paths,) if isinstance(paths, str) else tuple(paths)
    return MappingProxyType({name: Corpus(name=name, **entry) for name, entry in table.items()})


CORPORA = _corpora()
"""The corpora that recipes know, by name."""


def locate(path: str | Path) -> Path:
    """The place of a file on this machine; `$CONFIDE_DATA` and `~` at its start are expanded.

    A corpus that is shipped is found with confide itself if it is not in `$CONFIDE_DATA`.

    Other paths come back as they are, whether or not they exist: their reader says so.

    Raises:
        MissingDataError: a file under `$CONFIDE_DATA` is not there. For a corpus of `CORPORA` the
            error says what it is, its licence, where it is published and where to put it.
        SettingsError: the path starts with another variable.
    """
    text = os.fspath(path)
    variable = re.match(r"\$(?:\{(\w+)\}|(\w+))", text)
    if variable is None:
        return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)
    if (variable[1] or variable[2]) != VARIABLE:
        raise SettingsError(
            "paths may start with one variable only", expected=f"${VARIABLE}", got=variable[0]
        )
    inside = text[variable.end() :].lstrip("/\\")
    root = os.environ.get(VARIABLE, "")
    ours = _shipped_file(inside)
    if ours is not None and not (root and exists(Path(root).expanduser() / inside)):
        return ours
    if not root:
        raise _missing(inside, f"the variable {VARIABLE} is not set")
    found = Path(root).expanduser() / inside
    if not exists(found):
        raise _missing(inside, f"{inside!r} does not lie under ${VARIABLE}")
    return found


def _shipped_file(inside: str) -> Path | None:
    """The file of a corpus that comes with confide; None for any other."""
    name, _, file = inside.replace("\\", "/").partition("/")
    corpus = CORPORA.get(name)
    if corpus is None or not corpus.shipped:
        return None
    known = file in [one for parts in corpus.files.values() for one in parts]
    return Path(str(files("confide.corpora").joinpath(name, file))) if known else None


def _missing(inside: str, what: str) -> MissingDataError:
    """The error for a file that is not there, with advice."""
    name = re.split(r"[/\\]", inside, maxsplit=1)[0]
    corpus = CORPORA.get(name)
    if corpus is None:
        near = get_close_matches(name, CORPORA, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]!r}? Else " if near else ""
        return MissingDataError(
            what, fix=f"{hint}put it there, or let {VARIABLE} name the folder that holds it"
        )
    needed = ", ".join(part for parts in corpus.files.values() for part in parts)
    return MissingDataError(
        f"{what}. {corpus.title}. Licence: {corpus.licence}. Published: {corpus.published}",
        expected=f"in the folder {name}: {needed}",
        fix=f"get it there, put its files into ${VARIABLE}/{name}, and let {VARIABLE} name the "
        "folder above",
    )
