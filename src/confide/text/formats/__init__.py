"""File formats: what confide reads and writes, and how it detects a file's format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError, SettingsError
from confide.text import files, reading
from confide.text.document import Document, Problem, Problems
from confide.text.formats import brat, conll, docbin, hub, inception, jsonl, notes, pubmed, tools
from confide.text.formats.folders import files_under, folder_read_whole
from confide.text.published import ade, bags, i2b2, psytar, relations
from confide.text.reading import Columns, Format, Options, Output, Reading, Sample, Version

__all__ = ["FORMATS", "Columns", "Format", "Options", "Reading", "detect", "read", "write"]

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        brat.BRAT, inception.XMI, inception.WEBANNO, pubmed.PUBTATOR, relations.SEMEVAL,
        bags.OPENNRE, pubmed.BIOC, relations.CHEMPROT, notes.FHIR, relations.DOCRED,
        relations.TACRED, relations.FEWREL, tools.GLINER, tools.DYGIE, tools.SPERT,
        docbin.DOCBIN, hub.DATASETS, *jsonl.FORMATS, i2b2.I2B2, i2b2.I2B2_2009, i2b2.I2B2_XML,
        relations.DDI, bags.NYT10, bags.PGR, ade.ADE, ade.ADE_POSITIVE, relations.BIOBERT,
        psytar.PSYTAR, conll.CONLLU, notes.NOTES, notes.TABLE, conll.CONLL, notes.TEXT,
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
    documents: Sequence[Document], path: Path | str, format: str, *, scheme: str = "iob2"
) -> list[Problem]:
    """Write documents, and return what the format cannot hold (nothing is dropped silently).

    Args:
        documents: in the order of the file.
        path: a file; for brat a folder.
        format: a key of `FORMATS` whose format has a writer.
        scheme: the tag scheme of a CoNLL file.

    Raises:
        SettingsError: there is no such format or scheme, or the format is read-only.
        DataError: the system refuses to write there.
    """
    kind = format_named(format)
    if kind.write is None:
        raise SettingsError(
            "the format is only read, never written",
            expected=" or ".join(name for name, one in FORMATS.items() if one.write),
            got=repr(format),
            fix=f"write {kind.instead}",
        )
    out = Output(Path(path), scheme)
    kind.write(reading.reduce_to(kind.supports, documents, out), out)
    return out.problems
