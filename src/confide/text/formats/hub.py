"""Rows of tokens and tags, as Hugging Face's `datasets` has them: JSON, CSV, parquet or Arrow.

A row is a sentence: `tokens` and `ner_tags`, as names or as numbers whose names the features give.
Our own rows have `text` and `offsets` too (of each token, in characters), so that the text comes
back as it was.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from confide.errors import ConfideError, DataError, FormatError, os_errors_as
from confide.files import Tree, decode_json, file_text, size_in_words, write_whole
from confide.text import files, reading, tagging
from confide.text.document import Document, Problems, Sentence
from confide.text.formats import notes
from confide.text.formats.jsonl import record_document
from confide.text.reading import Format, Options, Output, Reading, Sample, Source, Supports
from confide.text.rows import Row, clean, literal_list, mend_surrogates, whole_number, whole_numbers
from confide.text.segment import lay_out_tokens, segmented

TOKENS = ("tokens", "words", "token")
TAGS = ("ner_tags", "tags", "ner_labels", "fine_ner_tags", "labels", "ner", "label")
_IDS = ("id", "doc_id", "document_id")
_CARD_NAME = re.compile(r"^\s*'?(\d{1,5})'?:\s*(\S+)\s*$", re.MULTILINE)
_NAMES = ("label.json", "labels.json", "label2id.json", "id2label.json")
_MOST_NAMES = 10_000
_ARROW = (b"PAR1", b"ARROW1", b"\xff\xff\xff\xff")
ARROW_FOLDER = "state.json"
"""The file in every folder that `datasets.save_to_disk` makes of one split."""


def saved_split(folder: Path) -> bool:
    """Return whether this is a split that `datasets.save_to_disk` wrote."""
    return (folder / ARROW_FOLDER).is_file() and (folder / "dataset_info.json").is_file()


def _has_rows(keys: Iterable[str]) -> bool:
    """Return whether the keys of a record, or the columns of a table, are those of such rows."""
    known = {key.lower() for key in keys}
    return bool(known & set(TOKENS)) and bool(known & set(TAGS)) and not known & {"spans", "h"}


def _is_rows(sample: Sample) -> bool:
    if sample.is_json:
        return _has_rows(sample.keys)
    return len(sample.lines) > 1 and _has_rows(notes.header_of(sample.rows[0]))


def _key(row: Tree, stated: int | str | None, known: Sequence[str]) -> str | None:
    if isinstance(stated, int) and -len(row) <= stated < len(row):
        return list(row)[stated]
    wanted = known if stated is None else (str(stated),)
    return next((key for key in wanted if key in row), None)


class _Table:
    """Rows of one source, laid out as documents without entities, and their tags."""

    def __init__(self, source: Source, names: dict[str, list[str]]) -> None:
        self.source, self.options, self.names = source, source.options, names
        self.documents: list[Document] = []
        self.tags: list[list[str]] = []
        self.empty = 0

    def add(self, where: str, name: str, tree: Tree) -> None:
        """Take a row. Raises FormatError and DataError."""
        row = Row(tree, where)
        columns = self.options.columns or (None, None)
        key, tag = _key(tree, columns[0], TOKENS), _key(tree, columns[1], TAGS)
        untagged = self.options.columns is not None and self.options.columns[1] is None
        if key is None or (tag is None and not untagged):
            raise FormatError(
                "a row without tokens or tags",
                expected=f"{' or '.join(TOKENS[:2])}, and {' or '.join(TAGS[:3])}",
                got=f"the columns {', '.join(map(str, tree))[:200]}",
                fix="state the columns of the token and the tag by their names",
            )
        words = row.words(key)
        if not words:
            self.empty += 1
            return
        tags = ["O"] * len(words)
        if tag is not None and not untagged:
            tags = self._names(row.values(tag), tag, row)
        if len(words) != len(tags):
            raise DataError(
                "a row has more tags than tokens, or fewer",
                expected=f"{len(words)} tags",
                got=str(len(tags)),
            )
        text, offsets = tree.get("text"), tree.get("offsets")
        if isinstance(text, str) and offsets_fit(text, offsets, words):
            text = mend_surrogates(text, where, self.source.problems)
            spans = tuple((int(a), int(b)) for a, b in offsets)  # type: ignore[union-attr]
            sentences: tuple[Sentence, ...] = (Sentence(spans[0][0], spans[-1][1], spans),)
        else:
            text, sentences = lay_out_tokens([words], where, self.source.problems)
        known = {key, tag, *_IDS, "text", "offsets"}
        kept = {column: value for column, value in tree.items() if column not in known}
        attributes = self.source.attributes(kept, (), where, lost=False)
        own = row.name(_IDS, name)
        found = Document(own, text, sentences=sentences, attributes=attributes, source=where)
        self.documents.append(found)
        self.tags.append(tags)

    def _names(self, tags: Sequence[object], column: str, row: Row) -> list[str]:
        """The names of a row's tags, checked."""
        names = self.names.get(column) or self.names.get("")
        found: list[str] = []
        for tag in tags:
            number = whole_number(tag)
            if number is not None:
                if names is None:
                    raise DataError(
                        "the tags are numbers, and nothing names them",
                        expected="names such as B-Disease, or a dataset_info.json, label2id.json "
                        "or README.md with the names beside the file",
                        where=row.where,
                        fix="export names, or write the dataset with save_to_disk or to_parquet",
                    )
                if not 0 <= number < len(names):
                    what, most = "the number of a tag", f"from 0 to {len(names) - 1}"
                    raise FormatError(what, expected=most, got=str(tag)[:40], where=row.where)
                found.append(names[number])
            elif isinstance(tag, str) and tag.strip():
                prefixed = tagging.parse_tag(tag.strip())[0]
                found.append(tag.strip() if prefixed else f"I-{tag.strip()}")
            else:
                raise row.malformed("a tag", "a name or a number", tag)
        return found

    def annotated(self) -> tuple[list[Document], str]:
        """The documents, and the scheme of their tags."""
        problems, stated = self.source.problems, self.options.scheme
        scheme = tagging.scheme_named(stated or tagging.detect_scheme(self.tags).scheme)
        documents = []
        for document, tags in zip(self.documents, self.tags, strict=True):
            with self.options.document(problems, document.source):
                spans, malformed = tagging.spans_from_tags(tags, scheme)
                for _, tag, why in malformed:
                    problems.note("malformed-tag", document.source, f"{clean(tag)}: {why}")
                named = [(a, b, clean(kind) or self.options.bare_type) for a, b, kind in spans]
                entities = tagging.entities_from_spans(document, [named])
                documents.append(replace(document, entities=entities))
        if self.empty:
            what = f"{self.empty} rows without a token are left out"
            problems.note("empty-document", self.source.path, what)
        return documents, scheme


def offsets_fit(text: str, places: object, words: Sequence[str]) -> bool:
    """Return whether places are the offsets of words in a text, in order."""
    if not isinstance(places, list | tuple) or len(places) != len(words):
        return False
    last = 0
    for place, word in zip(places, words, strict=True):
        ends = whole_numbers(place)
        if ends is None or len(ends) != 2 or ends[0] < last or not word:
            return False
        start, last = ends
        if text[start:last] != word or last - start != len(word):
            return False
    return True


def _read(path: Path, options: Options) -> Reading:
    """Read rows of tokens and tags, from a file or from a folder that `save_to_disk` wrote.

    Rows with a text and entities by offsets, or a text alone, are read as JSON Lines are.

    Raises:
        SettingsError: parquet and Arrow need pyarrow, which is not installed.
        FormatError: the file is damaged, or a row does not have tokens and tags.
        DataError: there is no row, numbers of tags have no names.
    """
    if path.is_dir() or files.read_bytes(path).startswith(_ARROW):
        source = Source(path, options, encoding="utf-8")
        rows, names = _rows_and_names(path)
    else:
        source = reading.open_source(path, options)
        rows, names = _rows_of_text(source), _names_beside(path)
    table = _Table(source, names)
    whole: list[Document] = []
    for where, name, tree in rows:
        with options.document(source.problems, where):
            if "text" in tree and not _has_rows(tree) and options.columns is None:
                whole.append(record_document(source, Row(tree, where), name))
            else:
                table.add(where, name, tree)
    documents, scheme = table.annotated()
    if not whole and not documents:
        raise DataError("there is no row", where=str(path))
    details = {"encoding": source.encoding}
    if not whole:
        details = {"scheme": scheme, **details}
    return Reading([*whole, *documents], source.problems, "datasets", details)


def _rows_of_text(source: Source) -> Iterator[tuple[str, str, Tree]]:
    if source.text.lstrip()[:1] in ("{", "["):
        yield from source.objects()
        return
    lists = {*TOKENS, *TAGS, *map(str, source.options.columns or ())} - {"None"}
    for where, cells in notes.rows_of_table(source):
        tree: Tree = dict(cells)
        with source.options.document(source.problems, where):
            for key, cell in cells.items():
                if key in lists:
                    tree[key] = literal_list(cell)
                elif key == "offsets":
                    tree[key] = _json_or_none(cell)
            yield where, f"{source.path.stem}:{where.rpartition(':')[2]}", tree


def _json_or_none(text: str | bytes) -> Any:
    """The value of a JSON text; None if it is none, and then it is not believed."""
    try:
        return decode_json(text)
    except ValueError:
        return None


# --- Names of tags --------------------------------------------------------------------------------


def _names_beside(path: Path) -> dict[str, list[str]]:
    """The names of tags that the files beside a JSON or CSV file give; "" is any column."""
    folders = [path.parent, path.parent.parent]

    def text_beside(file: Path) -> str:
        try:
            return file_text(file) if file.is_file() else ""
        except (ConfideError, OSError, ValueError):
            return ""

    for folder in folders:
        for info in ("dataset_info.json", "dataset_infos.json"):
            found = _names_in(_json_or_none(text_beside(folder / info)))
            if found:
                return found
        for name in _NAMES:
            names = _by_number(_json_or_none(text_beside(folder / name)))
            if names:
                return {"": names}
    for folder in folders:
        page = text_beside(folder / "README.md")
        head = page.split("\n---", 1)[0] if page.startswith("---") else ""
        part = head.partition("class_label:")[2].partition("names:")[2]
        names = _by_number({number: name.strip("'\"") for number, name in _CARD_NAME.findall(part)})
        if names:
            return {"": names}
    return {}


def _names_in(info: object) -> dict[str, list[str]]:
    """The names of the numbers in each column of class labels, from a dataset_info."""
    if not isinstance(info, dict):
        return {}
    features = info.get("features")
    if not isinstance(features, dict):
        inner = (_names_in(one) for one in list(info.values())[:50])
        return next((found for found in inner if found), {})
    found = {}
    for column, feature in features.items():
        for _ in range(4):  # a list of class labels has one of three forms
            if isinstance(feature, list) and len(feature) == 1:
                feature = feature[0]
            elif isinstance(feature, dict) and "names" not in feature:
                feature = feature.get("feature")
        names = feature.get("names") if isinstance(feature, dict) else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            found[column] = names
    return found


def _by_number(names: object) -> list[str]:
    """Names by number, from {"O": 0, ...} or {"0": "O", ...}."""
    if not isinstance(names, dict) or len(names) > _MOST_NAMES:
        return []
    pairs = {}
    for key, value in names.items():
        number, name = (value, key) if isinstance(value, int) else (key, value)
        if not str(number).isdigit() or len(str(number)) > 6 or not isinstance(name, str):
            return []
        pairs[int(number)] = name
    whole = sorted(pairs) == list(range(len(pairs)))
    return [pairs[number] for number in range(len(pairs))] if whole else []


# --- Rows of parquet files and Arrow streams ------------------------------------------------------
#
# Under a limit: a small file may hold a huge one.

_FREE, _MOST_TIMES = 1 << 23, 64
_BATCH = 1000
_MOST_PARTS = 4096


def _library(module: str, path: Path) -> Any:
    return reading.extra(module, "datasets", where=path, what="parquet and Arrow files")


def _rows_and_names(path: Path) -> tuple[Iterator[tuple[str, str, Tree]], dict[str, list[str]]]:
    """The rows of a file or of a saved split, and the names of the tags in its columns.

    Raises:
        SettingsError: pyarrow is not installed.
        FormatError: a file is damaged, or holds far more than it weighs.
        DataError: a part of a saved split is missing.
    """
    if not path.is_dir():
        raw = files.read_bytes(path)
        schema, _ = _open(raw, path)
        held = (schema.metadata or {}).get(b"huggingface")  # what `datasets` writes
        found = _json_or_none(held) if held else None
        info = found.get("info") if isinstance(found, dict) else None
        return _rows(raw, path), _names_in(info)
    info, state = _object(path / "dataset_info.json"), path / ARROW_FOLDER
    parts = _object(state).get("_data_files")
    listed = [part.get("filename") for part in parts or () if isinstance(part, dict)]
    # names of files in the folder, not ways out of it
    names = [name for name in listed if isinstance(name, str) and Path(name).name == name
             and name not in ("", "..")]  # fmt: skip
    if not names or len(names) > _MOST_PARTS or len(names) != len(listed):
        what = "a saved dataset without files"
        raise FormatError(what, expected="_data_files", where=str(state))
    each = (path / name for name in names)
    rows = (row for part in each for row in _rows(files.read_bytes(part), part))
    return rows, _names_in({"features": info.get("features") or {}})


def _object(file: Path) -> Tree:
    try:
        found = decode_json(file_text(file))
    except (OSError, ValueError) as error:
        raise DataError(f"a saved dataset is damaged ({error})", where=str(file)) from error
    if not isinstance(found, dict):
        raise FormatError("a saved dataset is damaged", expected="an object", where=str(file))
    return found


def _open(raw: bytes, path: Path) -> tuple[Any, Iterator[Any]]:
    """The schema of a file and its batches. Raises FormatError."""
    arrow, ipc = _library("pyarrow", path), _library("pyarrow.ipc", path)
    try:
        if raw.startswith(b"PAR1"):
            file = _library("pyarrow.parquet", path).ParquetFile(io.BytesIO(raw))
            return file.schema_arrow, file.iter_batches(batch_size=_BATCH)
        if raw.startswith(b"ARROW1"):
            whole = ipc.open_file(arrow.py_buffer(raw))
            return whole.schema, (whole.get_batch(n) for n in range(whole.num_record_batches))
        stream = ipc.open_stream(arrow.py_buffer(raw))
        return stream.schema, iter(stream)
    except Exception as error:  # a damaged file fails anywhere in arrow
        raise _damaged(error, path) from error


def _damaged(error: Exception, path: Path) -> FormatError:
    return FormatError(
        f"the parquet or Arrow file is damaged ({type(error).__name__})",
        where=str(path),
        fix="write it again",
    )


def _rows(raw: bytes, path: Path) -> Iterator[tuple[str, str, Tree]]:
    """Every row: its place, a name for it, and its values."""
    _, batches = _open(raw, path)
    most = min(files.MOST_UNPACKED, max(_FREE, _MOST_TIMES * len(raw)))
    held = number = 0
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
            held += batch.nbytes + 64 * batch.num_rows
            rows = batch.to_pylist() if held <= most else []
        except Exception as error:  # as above
            raise _damaged(error, path) from error
        if held > most:
            raise FormatError(
                f"the file of {len(raw):,} bytes holds more than {size_in_words(most)}",
                expected=f"at most {_MOST_TIMES} times its own size",
                where=str(path),
                fix="write it in several files",
            )
        for row in rows:
            number += 1
            yield f"{path}#{number}", f"{path.stem}:{number}", row


# --- Writing rows of tokens and tags --------------------------------------------------------------
#
# As JSON Lines, CSV, parquet or a folder for `datasets`.

OUTSIDE = "O"
_DATA = "data-00000-of-00001.arrow"
_COLUMNS = ("id", "text", "tokens", "offsets", "ner_tags")


def rows_of_documents(
    documents: Sequence[Document], scheme: str = "iob2"
) -> tuple[list[Tree], Problems]:
    """A row for each sentence: id, text, tokens, offsets and ner_tags; and what it cannot hold."""
    problems = Problems()
    rows: list[Tree] = []
    for document in map(segmented, documents):
        spans, lost = tagging.flat_spans(document)
        problems += lost
        if not document.sentences:
            what = "a document without a token has no row"
            problems.lost("empty-document", document.where, what)
        for sentence, own in zip(document.sentences, spans, strict=True):
            start = sentence.start
            rows.append(
                {
                    "id": document.id,
                    "text": document.text[start : sentence.end],
                    "tokens": list(document.token_texts(sentence)),
                    "offsets": [[a - start, b - start] for a, b in sentence.tokens],
                    "ner_tags": tagging.tags_from_spans(len(sentence.tokens), own, scheme),
                }
            )
    return rows, problems


def _write(documents: Sequence[Document], out: Output) -> None:
    """Write rows: the ending of the path says how.

    ``.parquet`` is parquet and ``.csv`` a table, anything else with an ending JSON Lines; a path
    without an ending becomes a folder that `datasets.load_from_disk` opens. In parquet and folders
    the tags are numbers, which the features name.

    Raises:
        SettingsError: parquet or a folder needs pyarrow, which is not installed.
        DataError: the file cannot be written.
    """
    rows, lost = rows_of_documents(documents, out.scheme)
    out.problems.extend(lost)
    if out.path.suffix == ".parquet" or not out.path.suffix:
        with os_errors_as(DataError, "the file cannot be written", where=out.path):
            _write_arrow(rows, out.path)
    elif out.path.suffix == ".csv":
        page = io.StringIO(newline="")
        table = csv.writer(page)
        table.writerow(_COLUMNS)
        for row in rows:
            lists = (json.dumps(row[key], ensure_ascii=False) for key in _COLUMNS[2:])
            table.writerow((row["id"], row["text"].replace("\0", " "), *lists))
        out.write(page.getvalue())
    else:
        out.write_json(rows)


def _write_arrow(rows: Sequence[Tree], path: Path) -> None:
    """A parquet file, or the folder of a saved split."""
    arrow = _library("pyarrow", path)
    tags = {tag for row in rows for tag in row["ner_tags"]} - {OUTSIDE}
    names = [OUTSIDE, *(f"{part}-{name}" for name in sorted({tag[2:] for tag in tags})
             for part in "BILESU" if f"{part}-{name}" in tags or part in "BI")]  # fmt: skip
    numbers = {name: number for number, name in enumerate(names)}
    string = {"dtype": "string", "_type": "Value"}
    offset = {"dtype": "int32", "_type": "Value"}
    label = {"names": names, "_type": "ClassLabel"}

    def listed(feature: Tree) -> Tree:
        return {"feature": feature, "_type": "List"}

    kinds = (string, string, listed(string), listed(listed(offset)), listed(label))
    features = dict(zip(_COLUMNS, kinds, strict=True))  # as `datasets` writes them
    types = (
        arrow.string(),
        arrow.string(),
        arrow.list_(arrow.string()),
        arrow.list_(arrow.list_(arrow.int32())),
        arrow.list_(arrow.int64()),
    )
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = arrow.schema(list(zip(_COLUMNS, types, strict=True)), metadata=metadata)
    coded = [{**row, "ner_tags": [numbers[tag] for tag in row["ner_tags"]]} for row in rows]
    table = arrow.Table.from_pylist(coded, schema=schema)
    held = io.BytesIO()
    if path.suffix == ".parquet":
        _library("pyarrow.parquet", path).write_table(table, held)
        write_whole(path, held.getvalue())
        return
    with _library("pyarrow.ipc", path).new_stream(held, schema) as stream:
        stream.write_table(table)
    write_whole(path / _DATA, held.getvalue())
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    state: Tree = {
        "_data_files": [{"filename": _DATA}],
        "_fingerprint": sha256(held.getvalue()).hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    write_whole(path / "dataset_info.json", json.dumps(info, indent=2).encode())
    write_whole(path / ARROW_FOLDER, json.dumps(state, indent=2).encode())


DATASETS = Format(
    "datasets",
    "rows of Hugging Face's datasets",
    ".jsonl",
    _read,
    _write,
    Supports(fragments=True, sentences=True),  # what is in pieces is named by flat_spans
    by_bytes=lambda path, raw: raw.startswith(_ARROW),
    by_text=_is_rows,
)
