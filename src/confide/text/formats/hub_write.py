"""Documents to rows of tokens and tags, as JSON Lines, CSV, parquet or a folder for `datasets`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from confide.errors import DataError, os_errors_as
from confide.text.align import flat_spans
from confide.text.document import Document, Problem
from confide.text.extras import extra
from confide.text.files import write_text
from confide.text.formats.base import unheld
from confide.text.formats.folders import ARROW_FOLDER
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.schemes import tags_from_spans
from confide.text.segment import segmented
from confide.userfiles import Tree, write_whole

OUTSIDE = "O"
_DATA = "data-00000-of-00001.arrow"
_KEEPS = Keeps(fragments=True, sentences=True)  # what is in pieces is named by flat_spans


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


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write rows: the ending of the path says how.

    ``.parquet`` is parquet and ``.csv`` a table, anything else with an ending JSON Lines; a path
    without an ending becomes a folder that `datasets.load_from_disk` opens. In parquet and folders
    the tags are numbers, which the features name.

    Raises:
        SettingsError: parquet or a folder needs pyarrow, which is not installed.
        DataError: the file cannot be written.
    """
    cut, problems = cut_down(documents, _KEEPS, path)
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


def _features(names: Sequence[str]) -> Tree:
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
    features = _features(names)
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
