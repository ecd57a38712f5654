"""File formats: what confide reads and writes, and how it detects a file's format."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from confide.errors import DataError, MissingDataError, SettingsError
from confide.text.document import Document, Problem
from confide.text.files import is_folder, must_be_a_path, must_be_known
from confide.text.formats import (
    bioc,
    brat,
    conll,
    conllu,
    docbin,
    hub,
    jsonl,
    plain,
    pubtator,
    tables,
    tools,
    webanno,
    xmi,
)
from confide.text.formats import tools as token_json
from confide.text.formats.sniff import detect, files_under
from confide.text.published import ade, bags, i2b2, psytar, relations
from confide.text.published import relations as ddi
from confide.text.reading import (
    Columns,
    Format,
    Options,
    Reading,
    Version,
    choose_versions,
    gc_paused,
)

__all__ = ["FORMATS", "Columns", "Format", "Options", "Reading", "detect", "read", "write"]

FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format("conll", "CoNLL columns", ".conll", conll.read_conll, conll.write_conll),
        Format("conllu", "CoNLL-U with entities in MISC", ".conllu", conllu.read_conllu, None),
        Format(
            "brat", "brat standoff, and BioNLP's", "", brat.read_brat, brat.write_brat, whole=True
        ),
        Format("jsonl", "JSON Lines", ".jsonl", jsonl.read_jsonl, jsonl.write_jsonl),
        Format(
            "doccano",
            "doccano's JSON Lines",
            ".jsonl",
            jsonl.read_jsonl,
            tools.writer(tools.DOCCANO),
        ),
        Format(
            "prodigy",
            "Prodigy's JSON Lines",
            ".jsonl",
            jsonl.read_jsonl,
            tools.writer(tools.PRODIGY),
        ),
        Format(
            "labelstudio",
            "Label Studio's JSON",
            ".json",
            jsonl.read_jsonl,
            tools.writer(tools.LABEL_STUDIO),
        ),
        Format("labelstudio-min", "Label Studio's JSON-MIN", ".json", jsonl.read_jsonl, None),
        Format("medcattrainer", "MedCATtrainer's JSON", ".json", jsonl.read_jsonl, None),
        Format("spacy", "spaCy's training data as JSON", ".json", jsonl.read_jsonl, None),
        Format("ner-annotator", "NER Annotator's JSON", ".json", jsonl.read_jsonl, None),
        Format(
            "pubannotation",
            "PubAnnotation's JSON",
            ".json",
            jsonl.read_jsonl,
            tools.writer(tools.PUBANNOTATION),
        ),
        Format(
            "datasets",
            "rows of Hugging Face's datasets",
            ".jsonl",
            hub.read_datasets,
            hub.write_datasets,
        ),
        Format("docbin", "spaCy's DocBin", ".spacy", docbin.read_docbin, docbin.write_docbin),
        Format(
            "gliner",
            "GLiNER's JSON",
            ".json",
            token_json.reader(token_json.GLINER),
            token_json.write_gliner,
        ),
        Format("spert", "SpERT's JSON", ".json", token_json.reader(token_json.SPERT), None),
        Format("dygie", "DyGIE's JSON Lines", ".jsonl", token_json.reader(token_json.DYGIE), None),
        Format("tacred", "TACRED's JSON", ".json", relations.read_tacred, None),
        Format("fewrel", "FewRel's JSON", ".json", relations.read_fewrel, None),
        Format("docred", "DocRED's JSON", ".json", relations.read_docred, None),
        Format("xmi", "UIMA CAS as XMI", "", xmi.read_xmi, xmi.write_xmi, by_annotator=True),
        Format(
            "webanno",
            "WebAnno TSV 3",
            "",
            webanno.read_webanno,
            webanno.write_webanno,
            by_annotator=True,
        ),
        Format(
            "pubtator", "PubTator", ".pubtator", pubtator.read_pubtator, pubtator.write_pubtator
        ),
        Format("bioc", "BioC", ".json", bioc.read_bioc, bioc.write_bioc),
        Format("biobert", "BioBERT's table of relations", ".tsv", relations.read_biobert, None),
        Format("chemprot", "ChemProt's JSON Lines", ".jsonl", relations.read_chemprot, None),
        Format("ddi", "DDI corpus", "", ddi.read_ddi, None, whole=True),
        Format("i2b2", "i2b2/VA 2010", "", i2b2.read_2010, None, whole=True),
        Format("i2b2-2009", "i2b2 2009, medications", "", i2b2.read_2009, None, whole=True),
        Format("i2b2-xml", "i2b2's XML of 2012 and 2014", "", i2b2.read_xml, None),
        Format("semeval", "SemEval-2010 task 8, and KBP37", ".txt", relations.read_semeval, None),
        Format("nyt10", "NYT10's lines, and GIDS'", ".txt", bags.read_nyt10, None),
        Format("opennre", "OpenNRE's JSON Lines", ".jsonl", bags.read_opennre, None),
        Format("pgr", "PGR's table", ".tsv", bags.read_pgr, None),
        Format("ade", "ADE corpus", "", ade.read_ade, None, whole=True),
        Format(
            "ade-positive",
            "ADE corpus without negatives",
            "",
            ade.read_ade_positive,
            None,
            whole=True,
        ),
        Format("psytar", "PsyTAR workbook", ".xlsx", psytar.read_psytar, None),
        Format(
            "notes", "a table of notes, CSV or TSV", ".csv", tables.read_notes, tables.write_notes
        ),
        Format("fhir", "FHIR's texts as JSON", ".json", plain.read_fhir, None),
        Format("table", "a table of relations", ".tsv", tables.read_table, tables.write_table),
        Format("text", "raw text, no annotation", ".txt", plain.read_plain, plain.write_plain),
    )
}
_INSTEAD = {
    "conllu": "conll", "i2b2-xml": "brat", "labelstudio-min": "labelstudio", "spert": "gliner",
}  # fmt: skip
"""The nearest format to write instead of one that is only read, if it is not jsonl."""


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
    path = Path(path)
    must_be_a_path(path)
    must_be_known(encoding)
    stated = {
        "scheme": scheme,
        "encoding": encoding,
        "columns": columns,
        "bare_type": bare_type,
        "types": None if types is None else frozenset(types),
    }
    given = {key: value for key, value in stated.items() if value is not None}
    how = replace(options or Options(), **given)  # type: ignore[arg-type]
    must_be_known(how.encoding)
    if format is None:
        format = detect(path, how.encoding, skip_broken=how.skip_broken)
    kind = format_named(format)
    with gc_paused():
        leaves = _leaves(kind, path)
        if len(leaves) == 1 and not kind.by_annotator:
            return kind.read(leaves[0], how)
        return _together(kind, path, leaves, how)


def _leaves(kind: Format, path: Path) -> list[Path]:
    """The files and folders that are read one by one."""
    if not is_folder(path):
        return [path]
    leaves = files_under(path)
    if kind.whole and not (leaves and all(leaf.is_dir() for leaf in leaves)):
        return [path]
    if not leaves:
        raise MissingDataError("the folder holds no data file", where=str(path))
    return leaves


def _together(kind: Format, path: Path, leaves: Sequence[Path], how: Options) -> Reading:
    """Several files as one reading; a broken one is left out if that is wished."""
    problems: list[Problem] = []
    readings: list[Reading] = []
    versions: list[Version] = []
    for leaf in leaves:
        with how.document(problems, leaf):
            reading = kind.read(leaf, how)
            readings.append(reading)
            problems += reading.problems
            if kind.by_annotator:
                versions += [_version(leaf, document) for document in reading.documents]
    if not readings:
        raise DataError("no file is left", where=str(path))
    details = dict(readings[0].details)
    if not kind.by_annotator:
        documents = [document for reading in readings for document in reading.documents]
        several = [version for reading in readings for version in reading.versions]
        return Reading(documents, problems, kind.name, details, several)
    chosen = choose_versions(versions, how.annotators, where=str(path), problems=problems)
    if not chosen.documents:
        raise DataError("nobody's annotation is left", where=str(path))
    details |= chosen.details
    return Reading(chosen.documents, problems, kind.name, details, chosen.versions)


_EXPORTED = frozenset(("annotation", "annotation_ser", "curation", "annotations"))


def _version(leaf: Path, document: Document) -> Version:
    """A file's document, and whose it is.

    INCEpTION exports ``annotation/DOCUMENT/ANNOTATOR.xmi``.
    """
    if leaf.parent.parent.name.lower() in _EXPORTED:
        return Version(leaf.name.partition(".")[0], replace(document, id=leaf.parent.name))
    return Version("", document)


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
            fix=f"write {_INSTEAD.get(format, 'jsonl, which holds everything')}",
        )
    return kind.write(documents, Path(path), scheme)
