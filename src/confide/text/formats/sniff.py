"""The format of a file or folder, detected from its content, and which files are one corpus."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from confide.errors import ConfideError, DataError, FormatError, MissingDataError
from confide.text.files import (
    decode_text,
    files_below,
    is_folder,
    lines_of,
    must_be_a_path,
    read_bytes,
    root_name,
    text_looks_like,
    zip_of,
)
from confide.text.formats import bioc, hub
from confide.text.formats.conll import find_layout
from confide.text.formats.conllu import is_conllu
from confide.text.formats.docbin import is_docbin
from confide.text.formats.hub import saved_split
from confide.text.formats.plain import is_fhir
from confide.text.formats.tables import header_of, is_notes
from confide.text.formats.tools import token_format
from confide.text.formats.webanno import is_webanno
from confide.text.formats.xmi import ROOTS
from confide.text.published import i2b2, relations
from confide.text.published.ade import corpus_file, is_ade
from confide.text.published.bags import is_nyt10, is_opennre, is_pgr
from confide.text.published.i2b2 import is_i2b2_xml
from confide.text.published.psytar import ZIP
from confide.text.published.relations import (
    is_biobert,
    is_chemprot,
    is_docred,
    is_fewrel,
    is_semeval,
    is_tacred,
)
from confide.text.reading import NO_DATA
from confide.text.rows import first_keys

# --- Files of a folder ----------------------------------------------------------------------------
#
# The data files, at any depth, on disk or in an archive.


def files_in(folder: Path) -> list[Path]:
    """The data files directly in a folder, sorted by name, without hidden files and READMEs.

    A folder whose data files are the ADE corpus, or a split that `datasets` saved, stands for
    itself, since they are read together.

    Raises:
        DataError: the system refuses to list the folder.
    """
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error
    return _leaves(folder, [file for file in inside if file.is_file()])


def files_under(folder: Path) -> list[Path]:
    """The data files of a folder and of all folders in it; no link to a folder is followed.

    Raises:
        DataError: the system refuses to list a folder.
    """
    if not folder.is_dir():
        return [file for file in sorted(files_below(folder)) if not _hidden(file, folder)]
    found: list[Path] = []
    for place, names in _walk(folder):
        found += _leaves(place, [place / name for name in names])
    return found


def _hidden(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    return any(part.startswith((".", "__MACOSX")) for part in parts) or _no_data(file)


def _no_data(file: Path) -> bool:
    return file.name.startswith(".") or NO_DATA.search(file.name) is not None


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder and the names of its files, sorted. Raises DataError."""
    try:
        for place, folders, files in os.walk(folder, onerror=_refused):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(place)
            yield here, sorted(name for name in files if (here / name).is_file())
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error


def _refused(error: OSError) -> None:
    raise error


def _leaves(folder: Path, inside: list[Path]) -> list[Path]:
    """The data files among those of a folder, or the folder if it stands for itself."""
    if saved_split(folder):
        return [folder]
    files = [file for file in inside if not _no_data(file)]
    return [folder] if files and all(map(corpus_file, files)) else files


# --- The format of a file or folder, detected from its content ------------------------------------

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
    "ddi": lambda raw: root_name(raw) == relations.ROOT,
    "xmi": lambda raw: root_name(raw) in ROOTS,
    "i2b2-xml": lambda raw: root_name(raw) != "" and is_i2b2_xml(raw),
}
_BY_LINES: dict[str, Callable[[list[str]], bool]] = {
    "i2b2-2009": i2b2.is_entries,
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
    text, _ = decode_text(raw, str(path), encoding=encoding)
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
    """Return whether a text is JSON Lines, one JSON object or a list of them."""
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
    return token_format(keys) or ("datasets" if hub.is_rows(keys) else "jsonl")


def one_corpus(folder: Path) -> bool:
    """True if the files directly in a folder are read together, as with brat, i2b2 and DDI."""
    inside = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    if any(child.suffix in BRAT for child in inside):
        return True
    notes = [child for child in inside if child.name.lower() in i2b2.FOLDERS and child.is_dir()]
    if any(i2b2.belongs(file) for place in (folder, *notes) for file in place.iterdir()):
        return True
    first = next((child for child in inside if child.suffix.lower() == ".xml"), None)
    if first is not None and first.is_file() and root_name(read_bytes(first)) == relations.ROOT:
        return True
    return saved_split(folder)


def _of_folder(folder: Path, encoding: str | None, *, skip_broken: bool) -> str:
    below = list(folder.rglob("*")) if folder.is_dir() else list(files_below(folder))
    if any(file.suffix.lower() in BRAT for file in below):
        return "brat"
    if any(file.suffix.lower() == i2b2.CONCEPTS for file in below):
        return "i2b2"
    trees = relations.xml_files(folder)
    if trees and root_name(read_bytes(trees[0])) == relations.ROOT:
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


# --- Corpora of several files ---------------------------------------------------------------------
#
# The parts (train, dev, test) of one corpus, or several corpora.

__all__ = ["BRAT", "PARTS", "group_corpora"]

PARTS = ("train", "dev", "test")
_PART_NAMES = (
    ("train", re.compile(r"train(?:ing)?(?:[-_. ]?set)?", re.IGNORECASE)),
    (
        "dev",
        re.compile(
            r"(?<![a-z])(?:devel(?:opment)?|dev|valid(?:ation)?|val)(?:[-_. ]?set)?(?![a-z])",
            re.IGNORECASE,
        ),
    ),
    ("test", re.compile(r"(?<![a-z])(?:test(?:ing)?|eval)(?:[-_. ]?set)?(?![a-z])", re.IGNORECASE)),
)


def group_corpora(paths: Sequence[Path]) -> dict[str, dict[str, list[Path]]]:
    """Group files by corpus and part, in the order in which they were given.

    Files in one folder whose names differ only in words such as train, devel or test form one
    corpus; a file whose name has no such word is a corpus for training. Folders side by side whose
    whole names are such words hold the parts of one corpus, or of several if the files in them
    have the same names. A folder of brat files (or of i2b2's or DDI's) counts as one file; any
    other folder stands for its contents.

    Returns:
        For each corpus, a name (letters, digits, ``_ . -``; taken from the files' names or their
        folder) and its files by part. Every corpus has a file for training.

    Raises:
        MissingDataError: a folder holds nothing.
    """
    leaves = list(
        dict.fromkeys(leaf for path in paths for leaf in _corpus_leaves(path, frozenset()))
    )
    by_folder = _parts_by_folder(leaves)
    groups: dict[tuple[Path, str], dict[str, list[Path]]] = {}
    for leaf in leaves:
        part, rest = _part(leaf)
        key = leaf.parent, rest
        if leaf in by_folder:
            part, key = by_folder[leaf]
        parts = groups.setdefault(key, {name: [] for name in PARTS})
        parts[part].append(leaf)
    _join_orphans(groups)
    return dict(zip(_names(list(groups)), groups.values(), strict=True))


def _corpus_leaves(path: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """The files of a path; a folder of brat, i2b2 or DDI files counts as one.

    `above` are the folders that led to this one; a link back to one of them is not followed.
    """
    must_be_a_path(path)
    if not path.is_dir():
        yield path
        return
    try:
        state = path.stat()
        if (state.st_dev, state.st_ino) in above:
            return
        above |= {(state.st_dev, state.st_ino)}
        inside = sorted(child for child in path.iterdir() if not child.name.startswith("."))
        together = one_corpus(path)
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(path)) from error
    if together:
        yield path
        return
    leaves = files_in(path)
    leaves += [leaf for child in inside if child.is_dir() for leaf in _corpus_leaves(child, above)]
    if not leaves:
        raise MissingDataError("the folder holds no data file", where=str(path))
    yield from leaves


def _part(path: Path) -> tuple[str, str]:
    """Which part a file's name says it is ("train" if none), and the rest of the name."""
    stem = path.name if path.is_dir() else path.name.removesuffix(".gz").rpartition(".")[0]
    stem = stem or path.name
    for part, pattern in _PART_NAMES:
        found = pattern.search(stem)
        if found:
            rest = stem[: found.start()] + " " + stem[found.end() :]
            return part, re.sub(r"[^A-Za-z0-9]+", "-", rest).strip("-")
    return "train", stem


def _parts_by_folder(leaves: Sequence[Path]) -> dict[Path, tuple[str, tuple[Path, str]]]:
    """The part and corpus of files that lie in folders such as train/ and dev/, side by side.

    Only of files whose own names say no part.
    """
    found: dict[Path, dict[str, list[Path]]] = {}
    for leaf in leaves:
        named = next((part for part, name in _PART_NAMES if name.fullmatch(leaf.parent.name)), None)
        if named and _part(leaf) == ("train", leaf.name.removesuffix(".gz").rpartition(".")[0]):
            found.setdefault(leaf.parent.parent, {}).setdefault(named, []).append(leaf)
    placed = {}
    for folder, parts in found.items():
        if len(parts) < 2 or "train" not in parts:
            continue
        stems = {part: {_part(leaf)[1] for leaf in own} for part, own in parts.items()}
        alike = all(own <= stems["train"] for own in stems.values())
        for part, own in parts.items():
            for leaf in own:
                placed[leaf] = part, (folder, _part(leaf)[1] if alike else "")
    return placed


def _join_orphans(groups: dict[tuple[Path, str], dict[str, list[Path]]]) -> None:
    """Let groups without a train file join the only group beside them with one, or train on dev."""
    for key in [key for key, parts in groups.items() if not parts["train"]]:
        beside = [other for other in groups if other[0] == key[0] and groups[other]["train"]]
        orphan = groups[key]
        if len(beside) == 1:
            for part in ("dev", "test"):
                groups[beside[0]][part] += orphan[part]
            del groups[key]
        else:
            spare = "dev" if orphan["dev"] else "test"
            orphan["train"], orphan[spare] = orphan[spare], []


def _names(keys: Sequence[tuple[Path, str]]) -> list[str]:
    """A name for each site, from the rest of its files' names or their folder."""
    plain = [rest or folder.resolve().name for folder, rest in keys]
    twice = {name for name, count in Counter(plain).items() if count > 1}
    names: dict[str, None] = {}
    counts: Counter[str] = Counter()
    for name, (folder, rest) in zip(plain, keys, strict=True):
        wanted = f"{folder.resolve().name}-{rest}" if name in twice else name
        wanted = re.sub(r"[^A-Za-z0-9_.-]+", "-", wanted).strip("-_.")[:56] or "site"
        chosen = f"{wanted}-{counts[wanted] + 1}" if wanted in names else wanted
        counts[re.sub(r"-\d+$", "", chosen)] += 1
        names[chosen] = None
    return list(names)
