"""The format of a file or folder, detected from its content."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from confide.errors import ConfideError, DataError, FormatError, MissingDataError
from confide.text.archives import files_below, is_folder, must_be_a_path
from confide.text.files import decode, lines_of, read_bytes
from confide.text.formats import bioc, ddi, hub, i2b2, i2b2_2009
from confide.text.formats.ade import is_ade
from confide.text.formats.biobert import is_biobert
from confide.text.formats.chemprot import is_chemprot
from confide.text.formats.columns import find_layout
from confide.text.formats.conllu import is_conllu
from confide.text.formats.delimited import header_of
from confide.text.formats.docbin import is_docbin
from confide.text.formats.docred import is_docred
from confide.text.formats.fhir import is_fhir
from confide.text.formats.folders import files_under, saved_split
from confide.text.formats.i2b2_xml import is_i2b2_xml
from confide.text.formats.markup import root_name
from confide.text.formats.notes import is_notes
from confide.text.formats.nyt10 import is_nyt10
from confide.text.formats.opennre import is_opennre
from confide.text.formats.pair_json import is_fewrel, is_tacred
from confide.text.formats.pgr import is_pgr
from confide.text.formats.psytar import ZIP
from confide.text.formats.rows import first_keys
from confide.text.formats.semeval import is_semeval
from confide.text.formats.token_json import shape_of
from confide.text.formats.webanno import is_webanno
from confide.text.formats.xmi import ROOTS
from confide.text.looks import text_looks_like, zip_of

_SAMPLE = 1 << 18
BRAT = frozenset((".ann", ".a1", ".a2"))
_BIONLP = re.compile(rb"(?:[TREMNA#]\d+|\*)\t")
_JSON = re.compile(  # no tagged "[]"
    r'(\[\s*)?\{\s*("[^"\t]*"\s*:|\}[ ,\]]*(\n|$)|$)|\[\s*\]\s*$'
    r'|(\[\s*){1,2}"(?:[^"\\\n]|\\.)*+("\s*,\s*\{\s*["}]|$)'  # a text and what is said of it
)
_PUBTATOR = re.compile(r"[^|\t\n]+\|[ta]\|")
_ARROW = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
_BY_BYTES: dict[str, Callable[[bytes], bool]] = {
    "psytar": lambda raw: raw.startswith(ZIP),
    "datasets": lambda raw: raw.startswith(_ARROW),
    "docbin": is_docbin,
    "bioc": lambda raw: root_name(raw) == bioc.ROOT,
    "ddi": lambda raw: root_name(raw) == ddi.ROOT,
    "xmi": lambda raw: root_name(raw) in ROOTS,
    "i2b2-xml": lambda raw: root_name(raw) != "" and is_i2b2_xml(raw),
}
_BY_LINES: dict[str, Callable[[list[str]], bool]] = {
    "i2b2-2009": i2b2_2009.is_entries,
    "nyt10": is_nyt10,
    "pgr": is_pgr,
    "ade": is_ade,
    "biobert": is_biobert,
    "conllu": is_conllu,
}


def detect(path: Path | str, encoding: str | None = None, *, skip_broken: bool = False) -> str:
    """The format (a key of `FORMATS`) of a file, or of the files of a folder.

    A ``.txt`` file that is nothing else is raw text ("text"). A workbook is taken for PsyTAR's, the
    only one that is read. Folders are searched at any depth; with `skip_broken`, a file in one that
    cannot be read does not matter.

    Raises:
        MissingDataError: there is no such file.
        DataError: the file is empty.
        FormatError: the file has an unknown format, or the folder holds several formats.
    """
    path = Path(path)
    must_be_a_path(path)
    if is_folder(path):
        return _of_folder(path, encoding, skip_broken=skip_broken)
    if path.suffix.lower() in BRAT:
        return "brat"
    if path.suffix.lower() == i2b2.RELATIONS and _BIONLP.match(read_bytes(path)):
        return "brat"
    siblings = any(path.with_suffix(suffix).is_file() for suffix in BRAT)
    if path.suffix.lower() == ".txt" and siblings:
        return "brat"
    if i2b2.belongs(path):
        return "i2b2"
    raw = read_bytes(path)
    _must_be_unpacked(raw, path)
    for name, marks in _BY_BYTES.items():
        if marks(raw):
            return name
    text, _ = decode(raw, str(path), encoding=encoding)
    return _of_text(text[:_SAMPLE], path)


def _must_be_unpacked(raw: bytes, path: Path) -> None:
    """Raise FormatError for an archive of files; a workbook is a zip file too, and passes."""
    zipped = raw.startswith(ZIP) and b"[Content_Types].xml" not in raw and b"xl/" not in raw
    if zipped or raw[257:262] == b"ustar":
        raise FormatError(
            zip_of(raw).what if zipped else "a tar archive of several files",
            where=str(path),
            fix=f"name what is in it: {path.name}! for all, or {path.name}!/folder/file",
        )


def _of_text(text: str, path: Path) -> str:
    """The format of a sample of a file's text."""
    lines = lines_of(text)
    first = next((line for line in lines if line.strip()), None)
    if first is None:
        raise DataError("the file is empty", where=str(path))
    if is_webanno(text):
        return "webanno"
    if _PUBTATOR.match(first):
        return "pubtator"
    if is_semeval(lines):
        return "semeval"
    whole = lines[:-1] if len(text) == _SAMPLE and len(lines) > 1 else lines
    if is_opennre(whole):
        return "opennre"
    if _is_json(text):
        return _of_json(text, whole)
    if i2b2.is_relation_line(first):
        return "i2b2"
    lines = whole  # without one that is cut in the middle
    for name, belongs in _BY_LINES.items():
        if belongs(lines):
            return name
    header = header_of(first)
    if header and hub.is_rows(header) and len(lines) > 1:
        return "datasets"
    if header and is_notes(header, path) and len(lines) > 1:
        return "notes"
    try:
        find_layout(lines, None, str(path))
    except ConfideError as error:
        if path.suffix.lower() in (".txt", ".text"):
            return "text"
        looks = text_looks_like(text)
        raise FormatError(
            "the format is not known",
            expected="one of the formats in `confide data check --help`: CoNLL columns, brat, "
            "JSON Lines, BioC, XMI, ..., or raw text in a .txt file",
            got=looks.what,
            where=f"{path}:1",
            fix=looks.fix,
        ) from error
    return "conll"


def _is_json(text: str) -> bool:
    """Whether a text is JSON Lines, one JSON object or a list of them."""
    return _JSON.match(text.lstrip()) is not None


def _of_json(text: str, lines: list[str]) -> str:
    """Which of the JSON formats a text has."""
    if bioc.begins_bioc(text):
        return "bioc"
    if is_chemprot(lines):
        return "chemprot"
    keys, inner = first_keys(text)
    if is_fhir(keys):
        return "fhir"
    if is_docred(keys):
        return "docred"
    if is_tacred(keys):
        return "tacred"
    if is_fewrel(keys, inner):
        return "fewrel"
    return shape_of(keys) or ("datasets" if hub.is_rows(keys) else "jsonl")


def one_corpus(folder: Path) -> bool:
    """Whether the files directly in a folder are read together, as with brat, i2b2 and DDI."""
    inside = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    if any(child.suffix in BRAT for child in inside):
        return True
    notes = [child for child in inside if child.name.lower() in i2b2.FOLDERS and child.is_dir()]
    if any(i2b2.belongs(file) for place in (folder, *notes) for file in place.iterdir()):
        return True
    first = next((child for child in inside if child.suffix.lower() == ".xml"), None)
    if first is not None and first.is_file() and root_name(read_bytes(first)) == ddi.ROOT:
        return True
    return saved_split(folder)


def _of_folder(folder: Path, encoding: str | None, *, skip_broken: bool) -> str:
    below = list(folder.rglob("*")) if folder.is_dir() else list(files_below(folder))
    if any(file.suffix.lower() in BRAT for file in below):
        return "brat"
    if any(file.suffix.lower() == i2b2.CONCEPTS for file in below):
        return "i2b2"
    trees = ddi.xml_files(folder)
    if trees and root_name(read_bytes(trees[0])) == ddi.ROOT:
        return "ddi"
    files = files_under(folder)
    if not files:
        raise MissingDataError("the folder holds no data file", where=str(folder))
    if files == [folder]:
        return _standing_alone(folder)
    found: dict[str, Path] = {}
    for file in files:
        try:
            found.setdefault(detect(file, encoding, skip_broken=skip_broken), file)
        except (DataError, FormatError):
            if not skip_broken or (file == files[-1] and not found):
                raise
    if len(found) > 1:
        raise FormatError(
            "the folder holds several formats",
            expected="files of one format",
            got=", ".join(
                f"{name} ({file.relative_to(folder)})" for name, file in sorted(found.items())
            ),
            where=str(folder),
            fix="name the files one by one",
        )
    return next(iter(found))


def _standing_alone(folder: Path) -> str:
    """The format of a folder that is read as one."""
    return "datasets" if saved_split(folder) else "ade"
