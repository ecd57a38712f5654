"""File formats: what confide reads and writes, and how it detects a file's format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from confide.errors import MissingDataError, SettingsError
from confide.text.archives import must_be_a_path
from confide.text.document import Document, Problem
from confide.text.files import must_be_known
from confide.text.formats import (
    ade,
    biobert,
    bioc,
    brat,
    chemprot,
    conll,
    conll_write,
    ddi,
    doccano,
    i2b2,
    jsonl,
    nyt10,
    opennre,
    pgr,
    plain,
    psytar,
    pubtator,
    semeval,
    table,
)
from confide.text.formats.base import Format, Options, Reading
from confide.text.formats.sniff import detect, files_in
from confide.text.uncollected import uncollected

__all__ = ["FORMATS", "Format", "Options", "Reading", "detect", "read", "write"]

FORMATS: dict[str, Format] = {
    "conll": Format("conll", "CoNLL columns", ".conll", conll.read, conll_write.write),
    "brat": Format("brat", "brat standoff", "", brat.read, brat.write, whole=True),
    "jsonl": Format("jsonl", "JSON Lines", ".jsonl", jsonl.read, jsonl.write),
    "doccano": Format("doccano", "doccano's JSON Lines", ".jsonl", jsonl.read, doccano.write),
    "pubtator": Format("pubtator", "PubTator", ".pubtator", pubtator.read, pubtator.write),
    "bioc": Format("bioc", "BioC", "", bioc.read, None),
    "biobert": Format("biobert", "BioBERT's table of relations", ".tsv", biobert.read, None),
    "chemprot": Format("chemprot", "ChemProt's JSON Lines", ".jsonl", chemprot.read, None),
    "ddi": Format("ddi", "DDI corpus", "", ddi.read, None, whole=True),
    "i2b2": Format("i2b2", "i2b2/VA 2010", "", i2b2.read, None, whole=True),
    "semeval": Format("semeval", "SemEval-2010 task 8", ".txt", semeval.read, None),
    "nyt10": Format("nyt10", "NYT10's lines, and GIDS'", ".txt", nyt10.read, None),
    "opennre": Format("opennre", "OpenNRE's JSON Lines", ".jsonl", opennre.read, opennre.write),
    "pgr": Format("pgr", "PGR's table", ".tsv", pgr.read, None),
    "ade": Format("ade", "ADE corpus", "", ade.read, None, whole=True),
    "ade-positive": Format(
        "ade-positive", "ADE corpus without negatives", "", ade.read_positive, None, whole=True
    ),
    "psytar": Format("psytar", "PsyTAR workbook", ".xlsx", psytar.read, None),
    "table": Format("table", "a table of relations", ".tsv", table.read, table.write),
    "text": Format("text", "raw text, no annotation", ".txt", plain.read, plain.write),
}


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        SettingsError: there is none.
    """
    if name not in FORMATS:
        raise SettingsError(
            "the format is not known", expected=" or ".join(FORMATS), got=repr(name)
        )
    return FORMATS[name]


def read(
    path: Path | str,
    format: str | None = None,
    *,
    scheme: str | None = None,
    encoding: str | None = None,
    columns: tuple[int, int | None] | None = None,
    bare_type: str = "entity",
    types: Collection[str] | None = None,
) -> Reading:
    """Read annotated documents from a file or a folder.

    Args:
        path: a file (gzip is unpacked), or a folder: one of brat, i2b2 or DDI files, the ADE
            corpus, or one of files of one other format, which are read in the order of their names.
        format: a key of `FORMATS`; None: detect it from the content.
        scheme: the tag scheme of CoNLL files; None: detect it.
        encoding: the encoding of every file; None: that of a byte order mark, or else UTF-8.
        columns: the columns of the token and the tag (None: no tags) in CoNLL files, counted from
            0; None: find them.
        bare_type: the type of entities whose tags are only B, I and O.
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
    path = Path(path)
    must_be_a_path(path)
    must_be_known(encoding)
    options = Options(
        scheme, encoding, columns, bare_type, None if types is None else frozenset(types)
    )
    kind = format_named(detect(path, encoding) if format is None else format)
    with uncollected():
        if kind.whole or not path.is_dir():
            return kind.read(path, options)
        readings = [kind.read(file, options) for file in files_in(path)]
    if not readings:
        raise MissingDataError("the folder holds no data file", where=str(path))
    return Reading(
        [document for reading in readings for document in reading.documents],
        [problem for reading in readings for problem in reading.problems],
        kind.name,
        readings[0].details,
    )


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
            fix="name the format to write",
        )
    return kind.write(documents, Path(path), scheme)
