"""File formats: what confide reads and writes, and how files and folders are told apart."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError, SettingsError, os_errors_as
from confide.text import files, reading
from confide.text.document import Document, Problem, Problems
from confide.text.formats import (
    brat,
    conll,
    docbin,
    fhir,
    hub,
    inception,
    jsonl,
    notes,
    omop,
    pubmed,
)
from confide.text.published import adverse, bags, i2b2, relations
from confide.text.reading import Columns, Format, Options, Output, Reading, Sample, Version

__all__ = ["FORMATS", "Columns", "Format", "Options", "Reading", "detect", "read", "write"]

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        brat.BRAT, inception.XMI, inception.WEBANNO, pubmed.PUBTATOR, relations.SEMEVAL,
        bags.OPENNRE, pubmed.BIOC, relations.CHEMPROT, fhir.FHIR, relations.DOCRED,
        relations.TACRED, relations.FEWREL, jsonl.GLINER, jsonl.DYGIE, jsonl.SPERT,
        docbin.DOCBIN, hub.DATASETS, *jsonl.FORMATS, i2b2.I2B2, i2b2.I2B2_2009, i2b2.I2B2_XML,
        relations.DDI, bags.NYT10, bags.PGR, adverse.ADE, adverse.ADE_POSITIVE, relations.BIOBERT,
        adverse.PSYTAR, conll.CONLLU, notes.NOTES, notes.TABLE, omop.OMOP, omop.NOTE_NLP,
        conll.CONLL, notes.TEXT,
    )
}  # fmt: skip
"""All formats by name. A file belongs to the first that knows it for its own."""


def format_named(name: str) -> Format:
    """The format of that name. Raises SettingsError if there is none."""
    if name not in FORMATS:
        raise SettingsError(
            "the format is not known", expected=" or ".join(FORMATS), got=repr(name)
        )
    return FORMATS[name]


# --- Files of a folder ----------------------------------------------------------------------------


_HIDDEN = re.compile(r"(^|[/\\])(\.|__MACOSX)")


def files_under(folder: Path) -> list[Path]:
    """The data files of a folder and of all folders in it, without hidden files and READMEs.

    The folder may be in an archive. A folder whose data files are the ADE corpus, or a split that
    `datasets` saved, stands for itself, since they are read together. No link to a folder is
    followed.

    Raises:
        DataError: the system refuses to list a folder.
    """
    if not folder.is_dir():
        inside = (file for file in files.files_below(folder) if _is_data(file))
        return sorted(file for file in inside if not _HIDDEN.search(str(file.relative_to(folder))))
    found: list[Path] = []
    with os_errors_as(DataError, "the folder cannot be read", where=folder):
        for place, folders, names in os.walk(folder, onerror=_raise):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            found += _data_in(Path(place), [Path(place, name) for name in sorted(names)])
    return found


def _raise(error: OSError) -> None:
    raise error


def _is_data(file: Path) -> bool:
    return not file.name.startswith(".") and reading.NO_DATA.search(file.name) is None


def _data_in(folder: Path, inside: Sequence[Path]) -> list[Path]:
    """The data files among those directly in a folder, or the folder if it stands for itself."""
    if hub.saved_split(folder):
        return [folder]
    found = [file for file in inside if _is_data(file) and file.is_file()]
    return [folder] if found and all(map(adverse.corpus_file, found)) else found


def folder_read_whole(folder: Path) -> str:
    """The format of a folder that is read as one, whatever else is in it; empty for any other."""
    below = list(folder.rglob("*")) if folder.is_dir() else list(files.files_below(folder))
    endings = {file.suffix.lower() for file in below}
    if not endings.isdisjoint(brat.MARKS):
        return "brat"
    if i2b2.CONCEPTS in endings:
        return "i2b2"
    trees = relations.xml_files(folder)
    if trees and files.root_name(files.read_bytes(trees[0])) == relations.ROOT:
        return "ddi"
    if files_under(folder) == [folder]:
        return "datasets" if hub.saved_split(folder) else "ade"
    return ""


# --- Corpora of several files ---------------------------------------------------------------------

PARTS = ("train", "dev", "test")
_SET = r"(?:[-_. ]?set)?"
_PART_NAMES = {
    "train": re.compile(rf"(?i)train(?:ing)?{_SET}"),
    "dev": re.compile(
        rf"(?i)(?<![a-z])(?:devel(?:opment)?|dev|valid(?:ation)?|val){_SET}(?![a-z])"
    ),
    "test": re.compile(rf"(?i)(?<![a-z])(?:test(?:ing)?|eval){_SET}(?![a-z])"),
}


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
    leaves = list(dict.fromkeys(leaf for path in paths for leaf in _corpus_data_in(path, ())))
    by_folder = _parts_by_folder(leaves)
    groups: dict[tuple[Path, str], dict[str, list[Path]]] = {}
    for leaf in leaves:
        part, rest = _part(leaf)
        part, key = by_folder.get(leaf, (part, (leaf.parent, rest)))
        groups.setdefault(key, {name: [] for name in PARTS})[part].append(leaf)
    # groups without a train file join the only group beside them with one, or train on dev
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
    return dict(zip(_names(list(groups)), groups.values(), strict=True))


def _corpus_data_in(path: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """The files of a path; a folder of brat, i2b2 or DDI files counts as one.

    `above` are the folders that led to this one; a link back to one of them is not followed.
    """
    files.must_be_a_path(path)
    if not path.is_dir():
        yield path
        return
    with os_errors_as(DataError, "the folder cannot be read", where=path):
        state = path.stat()
        if (state.st_dev, state.st_ino) in above:
            return
        above = (*above, (state.st_dev, state.st_ino))
        inside = sorted(child for child in path.iterdir() if not child.name.startswith("."))
        together = _one_corpus(path, inside)
    if together:
        yield path
        return
    leaves = _data_in(path, inside)
    leaves += [leaf for child in inside if child.is_dir() for leaf in _corpus_data_in(child, above)]
    if not leaves:
        raise MissingDataError("the folder holds no data file", where=str(path))
    yield from leaves


def _one_corpus(folder: Path, inside: Sequence[Path]) -> bool:
    """Return whether the files in a folder are read together, as with brat, i2b2 and DDI."""
    notes = [child for child in inside if child.name.lower() in i2b2.FOLDERS and child.is_dir()]
    first = next((child for child in inside if child.suffix.lower() == ".xml"), None)
    return (
        any(child.suffix in brat.MARKS for child in inside)
        or any(i2b2.is_note_file(file) for place in (folder, *notes) for file in place.iterdir())
        or (first is not None and first.is_file()
            and files.root_name(files.read_bytes(first)) == relations.ROOT)
        or hub.saved_split(folder)
    )  # fmt: skip


def _part(path: Path) -> tuple[str, str]:
    """Which part a file's name says it is ("train" if none), and the rest of the name."""
    stem = path.name if path.is_dir() else path.name.removesuffix(".gz").rpartition(".")[0]
    stem = stem or path.name
    for part, pattern in _PART_NAMES.items():
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
        folder = leaf.parent
        named = next(
            (part for part, name in _PART_NAMES.items() if name.fullmatch(folder.name)), ""
        )
        if named and _part(leaf) == ("train", leaf.name.removesuffix(".gz").rpartition(".")[0]):
            found.setdefault(folder.parent, {}).setdefault(named, []).append(leaf)
    placed: dict[Path, tuple[str, tuple[Path, str]]] = {}
    for above, parts in found.items():
        if len(parts) < 2 or "train" not in parts:
            continue
        stems = {part: {_part(leaf)[1] for leaf in own} for part, own in parts.items()}
        alike = all(own <= stems["train"] for own in stems.values())
        for part, own in parts.items():
            placed |= {leaf: (part, (above, _part(leaf)[1] if alike else "")) for leaf in own}
    return placed


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


# --- The format of a file or folder, detected from its content ------------------------------------


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
    files.must_be_a_path(path)
    if files.is_folder(path):
        return _detect_in_folder(path, encoding, skip_broken=skip_broken)
    raw = files.read_bytes(path)
    for name, one in FORMATS.items():
        if one.by_bytes is not None and one.by_bytes(path, raw):
            return name
    zipped = raw.startswith(files.ZIP)
    if zipped or files.is_tar(raw):
        raise FormatError(
            files.zip_of(raw).what if zipped else "a tar archive of several files",
            where=str(path),
            fix=f"name what is in it: {path.name}! for all, or {path.name}!/folder/file",
        )
    sample = Sample(path, files.decode_text(raw, str(path), encoding=encoding)[0])
    for name, one in FORMATS.items():
        if one.by_text is not None and one.by_text(sample):
            return name
    looks = files.text_looks_like(sample.text)
    raise FormatError(
        "the format is not known",
        expected="one of the formats in `confide data check --help`: CoNLL columns, brat, "
        "JSON Lines, BioC, XMI, ..., or raw text in a .txt file",
        got=looks.what,
        where=f"{path}:1",
        fix=looks.fix,
    )


def _detect_in_folder(folder: Path, encoding: str | None, *, skip_broken: bool) -> str:
    whole = folder_read_whole(folder)
    if whole:
        return whole
    found: dict[str, Path] = {}
    leaves = files_under(folder)
    for file in leaves:
        try:
            found.setdefault(detect(file, encoding, skip_broken=skip_broken), file)
        except (DataError, FormatError):
            if not skip_broken or (file == leaves[-1] and not found):
                raise
    if not found:
        raise MissingDataError("the folder holds no data file", where=str(folder))
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


# --- Reading and writing --------------------------------------------------------------------------


def read(
    path: Path | str,
    format: str | None = None,
    *,
    options: Options | None = None,
    scheme: str | None = None,
    encoding: str | None = None,
    columns: Columns | None = None,
    bare_type: str | None = None,
    types: Collection[str] | None = None,
) -> Reading:
    """Read annotated documents from a file or a folder.

    Args:
        path: a file (gzip is unpacked), or a folder, which is searched at any depth: one of brat,
            i2b2 or DDI files, the ADE corpus, a saved dataset, or one of files of one other format,
            which are read in the order of their names.
        format: a key of `FORMATS`; None: detect it from the content.
        options: all that follows and more, such as whose annotation is read; the arguments below
            come before what it says.
        scheme: the tag scheme of CoNLL files and rows of tags; None: detect it.
        encoding: the encoding of every file; None: that of a byte order mark, or else UTF-8.
        columns: the columns of the token and the tag (None: no tags), by number or name; of a
            table of notes, those of the id and the text. None: find them.
        bare_type: the type of entities whose tags are only B, I and O; "entity" by default.
        types: the entity types that may occur; None: any.

    Returns:
        Documents, problems (each with file and line or offset), format, and details of how the
        first file was read ("scheme", "encoding", "columns", ...).

    Raises:
        MissingDataError: there is no such file or folder.
        FormatError, SchemeError: the content does not follow its format or scheme.
        DataError: there is nothing in it, or a type is not among `types`.
        SettingsError: an argument names a format, scheme or encoding that does not exist.
    """
    path, given = Path(path), options or Options()
    files.must_be_a_path(path)
    how = replace(
        given,
        scheme=given.scheme if scheme is None else scheme,
        encoding=given.encoding if encoding is None else encoding,
        columns=given.columns if columns is None else columns,
        bare_type=given.bare_type if bare_type is None else bare_type,
        types=given.types if types is None else frozenset(types),
    )
    files.must_be_known(how.encoding)
    if format is None:
        format = detect(path, how.encoding, skip_broken=how.skip_broken)
    kind = format_named(format)
    with reading.gc_paused():
        leaves = _leaves(kind, path)
        alone = len(leaves) == 1 and not kind.by_annotator
        found = kind.read(leaves[0], how) if alone else _read_together(kind, path, leaves, how)
    _note_unread(kind.name, path, found.problems)
    if how.types is not None:
        everything, found.documents[:] = found.documents[:], []
        for document in everything:
            with how.document(found.problems, document.source):
                reading.check_types([document], how.types)
                found.documents.append(document)
        if not found.documents:
            raise reading.no_document(path, found.problems, "there is no document")
    return found


def _leaves(kind: Format, path: Path) -> list[Path]:
    """The files and folders that are read one by one."""
    if not files.is_folder(path):
        return [path]
    leaves = files_under(path)
    if kind.whole and not (leaves and all(leaf.is_dir() for leaf in leaves)):
        return [path]
    if not leaves:
        raise MissingDataError("the folder holds no data file", where=str(path))
    return leaves


_ENDINGS = {
    "brat": (*brat.ENDINGS, ".txt"),
    "i2b2": (".txt", i2b2.CONCEPTS, i2b2.ASSERTIONS, i2b2.RELATIONS),
    "ddi": (".xml",),
}
"""Of the files of formats whose folders are read whole."""


def _note_unread(name: str, path: Path, problems: Problems) -> None:
    """Report the data files of a folder that are none of its format's."""
    if name not in _ENDINGS or not files.is_folder(path):
        return
    other = [file for file in files_under(path) if file.suffix.lower() not in _ENDINGS[name]]
    if other:
        what = f"files in the folder that are not {name}'s were not read: {len(other)}"
        problems.lost("files-not-read", other[0], what)


_EXPORTED = frozenset(("annotation", "annotation_ser", "curation", "annotations"))


def _read_together(kind: Format, path: Path, leaves: Sequence[Path], how: Options) -> Reading:
    """Several files as one reading; broken ones are skipped if `skip_broken` is set."""
    whole = Reading([], Problems(), kind.name)
    versions: list[Version] = []
    read_any = False
    for leaf in leaves:
        with how.document(whole.problems, leaf):
            one = kind.read(leaf, how)
            if not read_any:
                whole.details.update(one.details)
            read_any = True
            whole.problems.extend(one.problems)
            whole.documents.extend(one.documents)
            whole.versions.extend(one.versions)
            # INCEpTION exports annotation/DOCUMENT/ANNOTATOR.xmi
            exported = leaf.parent.parent.name.lower() in _EXPORTED
            for document in one.documents:
                named = replace(document, id=leaf.parent.name) if exported else document
                versions.append(Version(leaf.name.partition(".")[0] if exported else "", named))
    if not read_any:
        raise DataError("no file is left", where=str(path))
    if not kind.by_annotator:
        return whole
    documents, details, several = reading.choose_versions(
        versions, how.annotators, where=str(path), problems=whole.problems
    )
    if not documents:
        raise DataError("nobody's annotation is left", where=str(path))
    return Reading(documents, whole.problems, kind.name, whole.details | details, several)


def write(
    documents: Sequence[Document],
    path: Path | str,
    format: str,
    *,
    scheme: str = "iob2",
    map: Path | str | None = None,
    predicted: bool = False,
) -> list[Problem]:
    """Write documents, and return what the format cannot hold (nothing is dropped silently).

    Args:
        documents: in the order of the file.
        path: a file; for brat a folder.
        format: a key of `FORMATS` whose format has a writer.
        scheme: the tag scheme of a CoNLL file.
        map: a TOML file that says what types, or texts, are in the format's own terms; of `fhir`
            and `note-nlp`.
        predicted: a model found it all: `labelstudio` has predictions then, with confidences, and
            no annotation.

    Raises:
        SettingsError: there is no such format or scheme, the format is read-only, or the map is not
            as the format takes it.
        DataError: the system refuses to write there.
    """
    kind = format_named(format)
    if predicted and format == "labelstudio":
        kind = jsonl.LABEL_STUDIO_PREDICTIONS
    if kind.write is None:
        raise SettingsError(
            "the format is only read, never written",
            expected=" or ".join(name for name, one in FORMATS.items() if one.write),
            got=repr(format),
            fix=f"write {kind.instead}",
        )
    known = {} if map is None else reading.read_map(Path(map), kind)
    out = Output(Path(path), scheme, known)
    kind.write(reading.reduce_to(kind.supports, documents, out), out)
    return out.problems
