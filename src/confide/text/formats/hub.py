"""Rows of tokens and tags, as Hugging Face's `datasets` has them: JSON, CSV, parquet or Arrow.

A row is a sentence: `tokens` and `ner_tags`, as names or as numbers whose names the features give.
Our own rows have `text` and `offsets` too (of each token, in characters), so that the text comes
back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import ConfideError, DataError, FormatError
from confide.text.align import entities_from_spans
from confide.text.document import Document, Problem, Sentence
from confide.text.files import LONGEST_JSON, read_bytes, read_text
from confide.text.formats.base import Options, Reading, shown, whole, whole_text
from confide.text.formats.delimited import rows_of_table
from confide.text.formats.folders import saved_split
from confide.text.formats.jsonl import rows_of
from confide.text.formats.literals import list_of
from confide.text.formats.marked import laid_out
from confide.text.formats.records import RecordReader, clean
from confide.text.formats.rows import Row
from confide.text.schemes import detect_scheme, parse_tag, scheme_named, spans_from_tags
from confide.userfiles import Tree, json_of, text_of

TOKENS = ("tokens", "words", "token")
TAGS = ("ner_tags", "tags", "ner_labels", "fine_ner_tags", "labels", "ner", "label")
_IDS = ("id", "doc_id", "document_id")
_OWN = frozenset((*_IDS, "text", "offsets"))
_CARD_NAME = re.compile(r"^\s*'?(\d{1,5})'?:\s*(\S+)\s*$", re.MULTILINE)
_NAMES = ("label.json", "labels.json", "label2id.json", "id2label.json")
_MOST_NAMES = 10_000


def is_rows(keys: Iterable[str]) -> bool:
    """Whether the keys of a record, or the columns of a table, are those of such rows."""
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
            number = whole(tag)
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
                raise row.odd("a tag", "a name or a number", tag)
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
            what = f"the column {shown(key)} is not read"
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
    if isinstance(text, str) and fitting(text, places, words):
        text = whole_text(text, row.where, problems)
        spans = tuple((int(a), int(b)) for a, b in places)  # type: ignore[union-attr]
    else:
        text, (spans,) = laid_out([words], row.where, problems)
    attributes = tuple(
        (clean(key), clean(str(value)))
        for key, value in row.tree.items()
        if key not in _OWN and isinstance(value, str | int | float)
    )
    sentences = (Sentence(spans[0][0], spans[-1][1], spans),)
    return Document(name, text, sentences=sentences, attributes=attributes, source=row.where)


def fitting(text: str, places: object, words: Sequence[str]) -> bool:
    """Whether places are the offsets of words in a text, in order."""
    if not isinstance(places, list | tuple) or len(places) != len(words):
        return False
    last = 0
    for place, word in zip(places, words, strict=True):
        ends = [whole(offset) for offset in place] if isinstance(place, list | tuple) else []
        if len(ends) != 2 or ends[0] is None or ends[1] is None:
            return False
        start, end = ends[0], ends[1]
        if start < last or not word or text[start:end] != word or end - start != len(word):
            return False
        last = end
    return True


def read(path: Path, options: Options) -> Reading:
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
        from confide.text.formats.arrow import rows_and_names  # only with pyarrow

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
        yield from rows_of(text, path, options=options, problems=problems)
        return
    lists = {*TOKENS, *TAGS, *(str(one) for one in options.columns or ())} - {"None"}
    for where, cells in rows_of_table(text, path, options=options, problems=problems):
        tree: Tree = dict(cells)
        with options.document(problems, where):
            for key, cell in cells.items():
                if key in lists:
                    tree[key] = list_of(cell, where)
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
    return names_of(features)


def names_of(features: Tree) -> dict[str, list[str]]:
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


def is_saved(path: Path) -> bool:
    """Whether this is a folder that `save_to_disk` wrote."""
    return saved_split(path)
