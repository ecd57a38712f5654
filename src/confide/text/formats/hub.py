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
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from confide.errors import ConfideError, DataError, FormatError, os_errors_as
from confide.files import Tree, json_of, size_in_words, text_of, write_whole
from confide.text.document import Document, Problem, Sentence
from confide.text.draft import lay_out_tokens
from confide.text.files import LONGEST_JSON, MOST_UNPACKED, read_bytes, read_text, write_text
from confide.text.formats.jsonl import RecordReader
from confide.text.formats.tables import rows_of_table
from confide.text.reading import (
    Options,
    Reading,
    Supports,
    clean,
    extra,
    mend_surrogates,
    quoted,
    reduce_to,
    unheld,
    whole_number,
)
from confide.text.rows import Row, json_objects, literal_list
from confide.text.segment import segmented
from confide.text.tagging import (
    detect_scheme,
    entities_from_spans,
    flat_spans,
    parse_tag,
    scheme_named,
    spans_from_tags,
    tags_from_spans,
)

TOKENS = ("tokens", "words", "token")
TAGS = ("ner_tags", "tags", "ner_labels", "fine_ner_tags", "labels", "ner", "label")
_IDS = ("id", "doc_id", "document_id")
_OWN = frozenset((*_IDS, "text", "offsets"))
_CARD_NAME = re.compile(r"^\s*'?(\d{1,5})'?:\s*(\S+)\s*$", re.MULTILINE)
_NAMES = ("label.json", "labels.json", "label2id.json", "id2label.json")
_MOST_NAMES = 10_000


ARROW_FOLDER = "state.json"
"""The file in every folder that `datasets.save_to_disk` makes of one split."""


def saved_split(folder: Path) -> bool:
    """Return whether this is a split that `datasets.save_to_disk` wrote."""
    return (folder / ARROW_FOLDER).is_file() and (folder / "dataset_info.json").is_file()


def is_rows(keys: Iterable[str]) -> bool:
    """Return whether the keys of a record, or the columns of a table, are those of such rows."""
    known = {key.lower() for key in keys}
    return bool(known & set(TOKENS)) and bool(known & set(TAGS)) and not known & {"spans", "h"}


def _key(row: Tree, stated: int | str | None, known: Sequence[str]) -> str | None:
    if isinstance(stated, int) and -len(row) <= stated < len(row):
        return list(row)[stated]
    wanted = known if stated is None else (str(stated),)
    return next((key for key in wanted if key in row), None)


@dataclass(slots=True)
class _Table:
    """Rows of one source, and the names of its tags by the column."""

    path: Path
    options: Options
    names: dict[str, list[str]]
    problems: list[Problem] = field(default_factory=list)
    tokens: list[tuple[str, str, Row, list[str]]] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)
    empty: int = 0

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
                where=where,
                fix="state the columns of the token and the tag by their names",
            )
        words = row.words(key)
        if not words:
            self.empty += 1
            return
        tags = ["O"] * len(words)
        if tag is not None and not untagged:
            tags = self._named(row.values(tag), tag, row)
        if len(words) != len(tags):
            raise DataError(
                "a row has more tags than tokens, or fewer",
                expected=f"{len(words)} tags",
                got=str(len(tags)),
                where=where,
            )
        for other, value in tree.items():
            if isinstance(value, list | dict) and other not in (key, tag, *_OWN):
                self.ignored.setdefault(other, where)
        self.tokens.append((where, row.name(_IDS, name), row, words))
        self.tags.append(tags)

    def _named(self, tags: Sequence[object], column: str, row: Row) -> list[str]:
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
            elif isinstance(tag, str) and parse_tag(tag.strip())[0]:
                found.append(tag.strip())
            elif isinstance(tag, str) and tag.strip():
                found.append(f"I-{tag.strip()}")  # types without prefixes
            else:
                raise row.malformed("a tag", "a name or a number", tag)
        return found

    def documents(self) -> tuple[list[Document], str]:
        """The documents, and the scheme of their tags."""
        stated = self.options.scheme
        scheme = scheme_named(stated) if stated else detect_scheme(self.tags).scheme
        documents = []
        for (where, name, row, words), tags in zip(self.tokens, self.tags, strict=True):
            with self.options.document(self.problems, where):
                document = _layout(row, name, words, self.problems)
                documents.append(self._annotated(document, tags, scheme))
        for key, where in self.ignored.items():
            what = f"the column {quoted(key)} is not read"
            self.problems.append(Problem("key-ignored", where, what))
        if self.empty:
            what = f"{self.empty} rows without a token are left out"
            self.problems.append(Problem("empty-document", str(self.path), what))
        return documents, scheme

    def _annotated(self, document: Document, tags: Sequence[str], scheme: str) -> Document:
        spans, malformed = spans_from_tags(tags, scheme)
        for _, tag, why in malformed:
            what = f"{clean(tag)}: {why}"
            self.problems.append(Problem("malformed-tag", document.source, what))
        named = [(a, b, clean(kind) or self.options.bare_type) for a, b, kind in spans]
        for _, _, kind in named:
            self.options.require(kind, document.source)
        entities = entities_from_spans(document, [named])
        return Document(
            document.id,
            document.text,
            entities,
            sentences=document.sentences,
            attributes=document.attributes,
            source=document.source,
        )


def _layout(row: Row, name: str, words: Sequence[str], problems: list[Problem]) -> Document:
    """The text and tokens of a row: as its text and offsets say, if they fit the tokens."""
    text, places = row.tree.get("text"), row.tree.get("offsets")
    if isinstance(text, str) and offsets_fit(text, places, words):
        text = mend_surrogates(text, row.where, problems)
        spans = tuple((int(a), int(b)) for a, b in places)  # type: ignore[union-attr]
    else:
        text, (spans,) = lay_out_tokens([words], row.where, problems)
    attributes = tuple(
        (clean(key), clean(str(value)))
        for key, value in row.tree.items()
        if key not in _OWN and isinstance(value, str | int | float)
    )
    sentences = (Sentence(spans[0][0], spans[-1][1], spans),)
    return Document(name, text, sentences=sentences, attributes=attributes, source=row.where)


def offsets_fit(text: str, places: object, words: Sequence[str]) -> bool:
    """Return whether places are the offsets of words in a text, in order."""
    if not isinstance(places, list | tuple) or len(places) != len(words):
        return False
    last = 0
    for place, word in zip(places, words, strict=True):
        ends = [whole_number(offset) for offset in place] if isinstance(place, list | tuple) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            return False
        start, end = ends[0], ends[1]
        if start < last or not word or text[start:end] != word or end - start != len(word):
            return False
        last = end
    return True


def read_datasets(path: Path, options: Options) -> Reading:
    """Read rows of tokens and tags, from a file or from a folder that `save_to_disk` wrote.

    Rows with a text and entities by offsets, or a text alone, are read as JSON Lines are.

    Raises:
        SettingsError: parquet and Arrow need pyarrow, which is not installed.
        FormatError: the file is damaged, or a row does not have tokens and tags.
        DataError: there is no row, numbers of tags have no names, or a type was not declared.
    """
    encoding = "utf-8"
    names: dict[str, list[str]] = {}
    problems: list[Problem] = []
    rows: Iterable[tuple[str, str, Tree]]
    if path.is_dir() or _is_arrow(path):
        rows, names = rows_and_names(path)
    else:
        text, encoding = read_text(path, options.encoding, longest=LONGEST_JSON)
        names = _names_beside(path)
        rows = _rows_of_text(text, path, options, problems)
    table = _Table(path, options, names, problems)
    plain = RecordReader(options, problems)
    whole: list[Document] = []
    for where, name, tree in rows:
        with options.document(problems, where):
            if "text" in tree and not is_rows(tree) and options.columns is None:
                whole.append(plain.document(tree, name, where))
            else:
                table.add(where, name, tree)
    documents, scheme = table.documents()
    details = {"encoding": encoding} if whole else {"scheme": scheme, "encoding": encoding}
    if not whole and not documents:
        raise DataError("there is no row", where=str(path))
    return Reading([*whole, *documents], problems, "datasets", details)


def _is_arrow(path: Path) -> bool:
    return read_bytes(path)[:4] in (b"PAR1", b"ARRO", b"\xff\xff\xff\xff")


def _rows_of_text(
    text: str, path: Path, options: Options, problems: list[Problem]
) -> Iterator[tuple[str, str, Tree]]:
    if text.lstrip()[:1] in ("{", "["):
        yield from json_objects(text, path, options=options, problems=problems)
        return
    lists = {*TOKENS, *TAGS, *(str(one) for one in options.columns or ())} - {"None"}
    for where, cells in rows_of_table(text, path, options=options, problems=problems):
        tree: Tree = dict(cells)
        with options.document(problems, where):
            for key, cell in cells.items():
                if key in lists:
                    tree[key] = literal_list(cell, where)
                elif key == "offsets":
                    tree[key] = _nested(cell)
            yield where, f"{path.stem}:{where.rpartition(':')[2]}", tree


def _nested(cell: str) -> object:
    """A cell with a list of lists; None if it is none, and then it is not believed."""
    try:
        return json_of(cell)
    except ValueError:
        return None


def _names_beside(path: Path) -> dict[str, list[str]]:
    """The names of tags that the files beside a JSON or CSV file give; "" is any column."""
    folders = [path.parent, path.parent.parent]
    for folder in folders:
        for info in ("dataset_info.json", "dataset_infos.json"):
            found = _features(_json_beside(folder / info))
            if found:
                return found
        for name in _NAMES:
            numbers = _numbered(_json_beside(folder / name))
            if numbers:
                return {"": numbers}
    for folder in folders:
        card = folder / "README.md"
        try:
            page = text_of(card) if card.is_file() else ""
        except (OSError, ValueError):
            page = ""
        head = page.split("\n---", 1)[0] if page.startswith("---") else ""
        part = head.partition("class_label:")[2].partition("names:")[2]
        pairs = {int(number): name.strip("'\"") for number, name in _CARD_NAME.findall(part)}
        if pairs and sorted(pairs) == list(range(len(pairs))):
            return {"": [pairs[number] for number in range(len(pairs))]}
    return {}


def _json_beside(file: Path) -> object:
    try:
        return json_of(text_of(file)) if file.is_file() else None
    except (ConfideError, OSError, ValueError):
        return None


def _features(info: object) -> dict[str, list[str]]:
    """The names of tags by column, from any dataset_info with features."""
    if not isinstance(info, dict):
        return {}
    features = info.get("features")
    if not isinstance(features, dict):
        inner = (_features(one) for one in list(info.values())[:50])
        return next((found for found in inner if found), {})
    return names_of_labels(features)


def names_of_labels(features: Tree) -> dict[str, list[str]]:
    """The names of the numbers in each column of class labels."""
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


def _numbered(names: object) -> list[str]:
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


def rows_and_names(path: Path) -> tuple[Iterator[tuple[str, str, Tree]], dict[str, list[str]]]:
    """The rows of a file or of a saved split, and the names of the tags in its columns.

    Raises:
        SettingsError: pyarrow is not installed.
        FormatError: a file is damaged, or holds far more than it weighs.
        DataError: a part of a saved split is missing.
    """
    if not path.is_dir():
        raw = read_bytes(path)
        return _rows(raw, path), _named(_features_in(raw, path))
    info = _object(path / "dataset_info.json")
    features = info.get("features")
    parts = _object(path / ARROW_FOLDER).get("_data_files")
    held = [part.get("filename") for part in parts or () if isinstance(part, dict)]
    names = [name for name in held if isinstance(name, str) and _plain(name)]
    if not names or len(names) > _MOST_PARTS or len(names) != len(held):
        raise FormatError(
            "a saved dataset without files", expected="_data_files", where=str(path / ARROW_FOLDER)
        )

    def every() -> Iterator[tuple[str, str, Tree]]:
        for name in names:
            yield from _rows(read_bytes(path / name), path / name)

    return every(), _named(features)


def _plain(name: str) -> bool:
    """Return whether this is the name of a file in the folder, not a way out of it."""
    return Path(name).name == name and name not in ("", "..")


def _object(file: Path) -> Tree:
    try:
        found = json_of(text_of(file))
    except (OSError, ValueError) as error:
        raise DataError(f"a saved dataset is damaged ({error})", where=str(file)) from error
    if not isinstance(found, dict):
        raise FormatError("a saved dataset is damaged", expected="an object", where=str(file))
    return found


def _named(features: object) -> dict[str, list[str]]:
    return names_of_labels(features) if isinstance(features, dict) else {}


def _arrow(path: Path) -> Any:
    return extra("pyarrow", "datasets", where=path, what="parquet and Arrow files")


def _features_in(raw: bytes, path: Path) -> object:
    """The features that `datasets` writes into a file's schema."""
    schema = _opened(raw, path)[0]
    held = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json_of(held) if held else {}
    except ValueError:
        return {}
    info = found.get("info") if isinstance(found, dict) else None
    return info.get("features") if isinstance(info, dict) else {}


def _opened(raw: bytes, path: Path) -> tuple[Any, Iterator[Any]]:
    """The schema of a file and its batches. Raises FormatError."""
    arrow = _arrow(path)
    try:
        if raw.startswith(b"PAR1"):
            parquet = extra("pyarrow.parquet", "datasets", where=path, what="parquet files")
            file = parquet.ParquetFile(io.BytesIO(raw))
            return file.schema_arrow, file.iter_batches(batch_size=_BATCH)
        ipc = extra("pyarrow.ipc", "datasets", where=path, what="Arrow files")
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
    _, batches = _opened(raw, path)
    most = min(MOST_UNPACKED, max(_FREE, _MOST_TIMES * len(raw)))
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


# --- Writing rows of tokens and tags
#
# As JSON Lines, CSV, parquet or a folder for `datasets`.

OUTSIDE = "O"
_DATA = "data-00000-of-00001.arrow"
_KEEPS = Supports(fragments=True, sentences=True)  # what is in pieces is named by flat_spans


def rows_of_documents(
    documents: Sequence[Document], scheme: str = "iob2"
) -> tuple[list[Tree], list[Problem]]:
    """A row for each sentence: id, text, tokens, offsets and ner_tags; and what it cannot hold."""
    problems: list[Problem] = []
    rows: list[Tree] = []
    for document in map(segmented, documents):
        spans, lost = flat_spans(document)
        problems += lost
        if not document.sentences:
            what = "a document without a token has no row"
            where = document.source or document.id
            problems.append(Problem("empty-document", where, what, lost=True))
        for sentence, own in zip(document.sentences, spans, strict=True):
            start = sentence.start
            rows.append(
                {
                    "id": document.id,
                    "text": document.text[start : sentence.end],
                    "tokens": list(document.token_texts(sentence)),
                    "offsets": [[a - start, b - start] for a, b in sentence.tokens],
                    "ner_tags": tags_from_spans(len(sentence.tokens), own, scheme),
                }
            )
    return rows, problems


def names_of_tags(rows: Sequence[Tree]) -> list[str]:
    """Every tag of some rows: first O, then by type, B before I."""
    tags = {tag for row in rows for tag in row["ner_tags"]} - {OUTSIDE}
    types = sorted({tag[2:] for tag in tags})
    return [OUTSIDE, *(f"{part}-{name}" for name in types for part in "BILESU"
                       if f"{part}-{name}" in tags or part in "BI")]  # fmt: skip


def write_datasets(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write rows: the ending of the path says how.

    ``.parquet`` is parquet and ``.csv`` a table, anything else with an ending JSON Lines; a path
    without an ending becomes a folder that `datasets.load_from_disk` opens. In parquet and folders
    the tags are numbers, which the features name.

    Raises:
        SettingsError: parquet or a folder needs pyarrow, which is not installed.
        DataError: the file cannot be written.
    """
    cut, problems = reduce_to(documents, _KEEPS, path)
    rows, lost = rows_of_documents(cut, scheme)
    problems += lost
    relations = sum(len(document.relations) for document in cut)
    problems += unheld(path, "relations: a row has none", relations, kind="relations-unheld")
    if path.suffix == ".parquet" or not path.suffix:
        _write_arrow(rows, path)
    elif path.suffix == ".csv":
        page = io.StringIO(newline="")
        table = csv.writer(page)
        table.writerow(("id", "text", "tokens", "offsets", "ner_tags"))
        for row in rows:
            lists = (json.dumps(row[key], ensure_ascii=False)
                     for key in ("tokens", "offsets", "ner_tags"))  # fmt: skip
            table.writerow((row["id"], row["text"].replace("\0", " "), *lists))
        write_text(path, page.getvalue())
    else:
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return problems


def _features_of(names: Sequence[str]) -> Tree:
    """The features of the columns, as `datasets` writes them."""
    string = {"dtype": "string", "_type": "Value"}
    number = {"dtype": "int32", "_type": "Value"}

    def several(feature: Tree) -> Tree:
        return {"feature": feature, "_type": "List"}

    return {
        "id": string,
        "text": string,
        "tokens": several(string),
        "offsets": several(several(number)),
        "ner_tags": several({"names": list(names), "_type": "ClassLabel"}),
    }


def _write_arrow(rows: Sequence[Tree], path: Path) -> None:
    """A parquet file, or the folder of a saved split."""
    arrow: Any = extra("pyarrow", "datasets", where=path, what="parquet and Arrow files")
    names = names_of_tags(rows)
    numbers = {name: number for number, name in enumerate(names)}
    features = _features_of(names)
    schema = arrow.schema(
        [
            ("id", arrow.string()),
            ("text", arrow.string()),
            ("tokens", arrow.list_(arrow.string())),
            ("offsets", arrow.list_(arrow.list_(arrow.int32()))),
            ("ner_tags", arrow.list_(arrow.int64())),
        ],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    coded = [{**row, "ner_tags": [numbers[tag] for tag in row["ner_tags"]]} for row in rows]
    table = arrow.Table.from_pylist(coded, schema=schema)
    held = io.BytesIO()
    if path.suffix == ".parquet":
        parquet: Any = extra("pyarrow.parquet", "datasets", where=path, what="parquet files")
        parquet.write_table(table, held)
        _put(path, held.getvalue())
        return
    ipc: Any = extra("pyarrow.ipc", "datasets", where=path, what="Arrow files")
    with ipc.new_stream(held, schema) as stream:
        stream.write_table(table)
    _put(path / _DATA, held.getvalue())
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
    _put(path / "dataset_info.json", json.dumps(info, indent=2).encode())
    _put(path / ARROW_FOLDER, json.dumps(state, indent=2).encode())


def _put(path: Path, raw: bytes) -> None:
    with os_errors_as(DataError, "the file cannot be written", where=path):
        write_whole(path, raw)
