"""Which format a file or folder is in, told from its content."""

from __future__ import annotations

import re
from pathlib import Path

from confide.errors import ConfideError, DataError, FormatError, MissingDataError
from confide.text.files import decode, lines_of, read_bytes
from confide.text.formats.ade import corpus_file, is_ade
from confide.text.formats.columns import find_layout
from confide.text.formats.psytar import ZIP

_SAMPLE = 1 << 18
BRAT = frozenset((".ann", ".a1", ".a2"))
_IGNORED = re.compile(
    r"(?i)^(readme|license|licence|source|notice|changelog)|\.(md|html?|pdf|png)$"
)
_JSON = re.compile(r'\[\s*[{\]]|\{\s*("[^"\t]*"\s*:|\}|$)')
_PUBTATOR = re.compile(r"[^|\t\n]+\|[ta]\|")


def detect(path: Path | str, encoding: str | None = None) -> str:
    """The format (a key of `FORMATS`) of a file, or of the files of a folder.

    A ``.txt`` file that is nothing else is raw text ("text"). A workbook is taken for PsyTAR's, the
    only one that is read.

    Raises:
        MissingDataError: there is no such file.
        DataError: it is empty.
        FormatError: it is none of the formats, or a folder of several formats.
    """
    path = Path(path)
    if path.is_dir():
        return _of_folder(path, encoding)
    if path.suffix.lower() in BRAT:
        return "brat"
    siblings = any(path.with_suffix(suffix).is_file() for suffix in BRAT)
    if path.suffix.lower() == ".txt" and siblings:
        return "brat"
    raw = read_bytes(path)
    if raw.startswith(ZIP):
        return "psytar"
    text, _ = decode(raw, str(path), encoding=encoding)
    return _of_text(text[:_SAMPLE], path)


def _of_text(text: str, path: Path) -> str:
    """The format of a sample of a file's text."""
    lines = lines_of(text)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise DataError("the file is empty", where=str(path))
    if _PUBTATOR.match(first):
        return "pubtator"
    if _is_json(text):
        return "jsonl"
    if len(text) == _SAMPLE and len(lines) > 1:
        lines.pop()  # cut in the middle
    if is_ade(lines):
        return "ade"
    try:
        find_layout(lines, None, str(path))
    except ConfideError as error:
        if path.suffix.lower() in (".txt", ".text"):
            return "text"
        raise FormatError(
            "the format is not known",
            expected="CoNLL columns, brat, JSON Lines, PubTator, the ADE corpus, PsyTAR, or raw "
            "text in a .txt file",
            where=f"{path}:1",
            fix="state the format (and for CoNLL the columns)",
        ) from error
    return "conll"


def _is_json(text: str) -> bool:
    """Whether a text is JSON Lines, one JSON object or a list of them."""
    return _JSON.match(text.lstrip()) is not None


def files_in(folder: Path) -> list[Path]:
    """The data files of a folder in the order of their names: no hidden ones, no READMEs.

    A folder whose data files are the ADE corpus stands for itself: they are read together.

    Raises:
        DataError: the system does not let us look.
    """
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error
    files = [
        file
        for file in inside
        if file.is_file() and not file.name.startswith(".") and not _IGNORED.search(file.name)
    ]
    return [folder] if files and all(map(corpus_file, files)) else files


def _of_folder(folder: Path, encoding: str | None) -> str:
    if any(file.suffix.lower() in BRAT for file in folder.rglob("*")):
        return "brat"
    files = files_in(folder)
    if not files:
        raise MissingDataError("the folder holds no data file", where=str(folder))
    if files == [folder]:
        return "ade"
    found = {detect(file, encoding): file for file in files}
    if len(found) > 1:
        raise FormatError(
            "the folder holds several formats",
            expected="files of one format",
            got=", ".join(f"{name} ({file.name})" for name, file in sorted(found.items())),
            where=str(folder),
            fix="name the files one by one",
        )
    return next(iter(found))
