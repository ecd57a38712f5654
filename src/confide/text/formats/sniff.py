"""The format of a file or folder, detected from its content."""

from __future__ import annotations

import re
from pathlib import Path

from confide.errors import ConfideError, DataError, FormatError, MissingDataError
from confide.text.archives import is_folder, must_be_a_path
from confide.text.files import decode, lines_of, read_bytes
from confide.text.formats import bioc, ddi, i2b2
from confide.text.formats.ade import corpus_file, is_ade
from confide.text.formats.base import NO_DATA
from confide.text.formats.biobert import is_biobert
from confide.text.formats.chemprot import is_chemprot
from confide.text.formats.columns import find_layout
from confide.text.formats.markup import root_name
from confide.text.formats.nyt10 import is_nyt10
from confide.text.formats.opennre import is_opennre
from confide.text.formats.pgr import is_pgr
from confide.text.formats.psytar import ZIP
from confide.text.formats.semeval import is_semeval

_SAMPLE = 1 << 18
BRAT = frozenset((".ann", ".a1", ".a2"))
_JSON = re.compile(r'(\[\s*)?\{\s*("[^"\t]*"\s*:|\}[ ,\]]*(\n|$)|$)|\[\s*\]\s*$')  # no tagged "[]"
_PUBTATOR = re.compile(r"[^|\t\n]+\|[ta]\|")
_XML = {bioc.ROOT: "bioc", ddi.ROOT: "ddi"}
_BY_LINES = {"nyt10": is_nyt10, "pgr": is_pgr, "ade": is_ade, "biobert": is_biobert}


def detect(path: Path | str, encoding: str | None = None) -> str:
    """The format (a key of `FORMATS`) of a file, or of the files of a folder.

    A ``.txt`` file that is nothing else is raw text ("text"). A workbook is taken for PsyTAR's, the
    only one that is read. brat, i2b2 and the DDI corpus are searched for in all folders below.

    Raises:
        MissingDataError: there is no such file.
        DataError: the file is empty.
        FormatError: the file has an unknown format, or the folder holds several formats.
    """
    path = Path(path)
    must_be_a_path(path)
    if is_folder(path):
        return _of_folder(path, encoding)
    if path.suffix.lower() in BRAT:
        return "brat"
    siblings = any(path.with_suffix(suffix).is_file() for suffix in BRAT)
    if path.suffix.lower() == ".txt" and siblings:
        return "brat"
    if i2b2.belongs(path):
        return "i2b2"
    raw = read_bytes(path)
    _must_be_unpacked(raw, path)
    if raw.startswith(ZIP):
        return "psytar"
    if root_name(raw) in _XML:
        return _XML[root_name(raw)]
    text, _ = decode(raw, str(path), encoding=encoding)
    return _of_text(text[:_SAMPLE], path)


def _must_be_unpacked(raw: bytes, path: Path) -> None:
    """Raise FormatError for an archive of files; a workbook is a zip file too, and passes."""
    zipped = raw.startswith(ZIP) and b"[Content_Types].xml" not in raw and b"xl/" not in raw
    if zipped or raw[257:262] == b"ustar":
        raise FormatError(
            "an archive of several files",
            where=str(path),
            fix=f"name what is in it: {path.name}!/folder/file",
        )


def _of_text(text: str, path: Path) -> str:
    """The format of a sample of a file's text."""
    lines = lines_of(text)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise DataError("the file is empty", where=str(path))
    if _PUBTATOR.match(first):
        return "pubtator"
    if is_semeval(lines):
        return "semeval"
    whole = lines[:-1] if len(text) == _SAMPLE and len(lines) > 1 else lines
    if is_opennre(whole):
        return "opennre"
    if _is_json(text):
        return _of_json(text, lines)
    if i2b2.is_relation_line(first):
        return "i2b2"
    lines = whole  # without one that is cut in the middle
    for name, belongs in _BY_LINES.items():
        if belongs(lines):
            return name
    try:
        find_layout(lines, None, str(path))
    except ConfideError as error:
        if path.suffix.lower() in (".txt", ".text"):
            return "text"
        raise FormatError(
            "the format is not known",
            expected="CoNLL columns, brat, JSON Lines, PubTator, BioC, BioBERT's tables, ChemProt, "
            "DDI, i2b2, SemEval, the ADE corpus, PsyTAR, NYT10, OpenNRE, PGR, or raw text in a "
            ".txt file",
            where=f"{path}:1",
            fix="state the format (and for CoNLL the columns)",
        ) from error
    return "conll"


def _is_json(text: str) -> bool:
    """Whether a text is JSON Lines, one JSON object or a list of them."""
    return _JSON.match(text.lstrip()) is not None


def _of_json(text: str, lines: list[str]) -> str:
    """Which of the JSON formats a text has."""
    if bioc.begins_bioc(text):
        return "bioc"
    whole = lines[:-1] if len(text) == _SAMPLE and len(lines) > 1 else lines
    return "chemprot" if is_chemprot(whole) else "jsonl"


def one_corpus(folder: Path) -> bool:
    """Whether the files directly in a folder are read together, as with brat, i2b2 and DDI."""
    inside = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    if any(child.suffix in BRAT for child in inside):
        return True
    notes = [child for child in inside if child.name.lower() in i2b2.FOLDERS and child.is_dir()]
    if any(i2b2.belongs(file) for place in (folder, *notes) for file in place.iterdir()):
        return True
    first = next((child for child in inside if child.suffix.lower() == ".xml"), None)
    return first is not None and first.is_file() and root_name(read_bytes(first)) == ddi.ROOT


def files_in(folder: Path) -> list[Path]:
    """The data files of a folder, sorted by name, without hidden files and READMEs.

    A folder whose data files are the ADE corpus stands for itself, since they are read together.

    Raises:
        DataError: the system refuses to list the folder.
    """
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error
    files = [
        file
        for file in inside
        if file.is_file() and not file.name.startswith(".") and not NO_DATA.search(file.name)
    ]
    return [folder] if files and all(map(corpus_file, files)) else files


def _of_folder(folder: Path, encoding: str | None) -> str:
    if any(file.suffix.lower() in BRAT for file in folder.rglob("*")):
        return "brat"
    if any(file.suffix.lower() == i2b2.CONCEPTS for file in folder.rglob("*")):
        return "i2b2"
    trees = ddi.xml_files(folder)
    if trees and root_name(read_bytes(trees[0])) == ddi.ROOT:
        return "ddi"
    files = files_in(folder) if folder.is_dir() else []
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
