"""Corpora to and from Hugging Face's `datasets` (extra `datasets`): entities, a row for a sentence.

A row has `id` (of its document), `text`, `tokens`, `offsets` (of each token in the text, in
characters) and `ner_tags`, IOB2 as a ClassLabel. Rows from elsewhere need `tokens` and `ner_tags`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.errors import DataError
from confide.jobs.predict import read_sources
from confide.text.document import Document, Problem, Sentence
from confide.text.formats.hub import OUTSIDE, offsets_fit, rows_of_documents
from confide.text.tagging import entities_from_spans, spans_from_tags

if TYPE_CHECKING:
    from datasets import Dataset


def to_dataset(
    sources: Sequence[str | Path] | Sequence[Document], *, format: str | None = None
) -> tuple[Dataset, list[Problem]]:
    """The sentences of documents, or of files that confide reads, as a `datasets.Dataset`.

    Also what a row cannot hold: entities that are nested, discontinuous or cross sentences; raises
    as `confide.api.read`.
    """
    from datasets import ClassLabel, Dataset, Features, List, Value

    documents = [one for one in sources if isinstance(one, Document)]
    files = [one for one in sources if not isinstance(one, Document)]
    if files:
        documents += read_sources(files, format=format)
    rows, problems = rows_of_documents(documents)
    types = sorted({entity.type for document in documents for entity in document.entities})
    names = [OUTSIDE, *(f"{part}-{name}" for name in types for part in "BI")]
    features = Features(
        {
            "id": Value("string"),
            "text": Value("string"),
            "tokens": List(Value("string")),
            "offsets": List(List(Value("int32"))),
            "ner_tags": List(ClassLabel(names=names)),
        }
    )
    return Dataset.from_list(rows, features=features), problems


def from_dataset(
    dataset: Dataset, *, tokens: str = "tokens", tags: str = "ner_tags", scheme: str = "iob2"
) -> list[Document]:
    """The documents of a dataset, one for each row, with the entities that its tags mark.

    Args:
        dataset: a split: rows with tokens and their tags, as names or as a ClassLabel's numbers.
        tokens: the column of tokens.
        tags: the column of tags.
        scheme: the tag scheme.

    Raises:
        DataError: a column is missing, tags are numbers without names, or a row's lengths differ.
    """
    missing = [name for name in (tokens, tags) if name not in dataset.column_names]
    if missing:
        raise DataError(
            f"the dataset has no column {' and no column '.join(map(repr, missing))}",
            expected="tokens and tags", got=", ".join(dataset.column_names),
            fix="name the columns: from_dataset(data, tokens=..., tags=...)",
        )  # fmt: skip
    names = getattr(getattr(dataset.features[tags], "feature", None), "names", None)
    documents = []
    for number, row in enumerate(dataset):
        own = row[tags]
        if not all(isinstance(tag, str) for tag in own):
            if names is None:
                raise DataError(
                    "the tags are numbers, and the dataset does not name them",
                    where=f"row {number}",
                    expected="strings, or a ClassLabel",
                    fix="cast the column: data.cast_column(...)",
                )
            own = [names[int(tag)] for tag in own]
        documents.append(_document(row, number, words=row[tokens], tags=own, scheme=scheme))
    return documents


def _document(
    row: dict[str, Any], number: int, *, words: Sequence[str], tags: Sequence[str], scheme: str
) -> Document:
    """The document of a row."""
    name = f"row {number}"
    if len(words) != len(tags):
        raise DataError(
            "a row has more tags than tokens, or fewer", where=name,
            expected=f"{len(words)} tags", got=str(len(tags)),
        )  # fmt: skip
    text, places = row.get("text"), row.get("offsets")
    if not (isinstance(text, str) and places and offsets_fit(text, places, words)):
        text, places, at = " ".join(words), [], 0
        for word in words:
            places.append((at, at + len(word)))
            at += len(word) + 1
    cut = tuple((int(a), int(b)) for a, b in places)
    sentences = (Sentence(0, len(text), cut),) if cut else ()
    document = Document(f"{row.get('id', 'row')}-{number}", text, sentences=sentences, source=name)
    spans = spans_from_tags(tags, scheme)[0]
    entities = entities_from_spans(document, [spans] if cut else [])
    return Document(document.id, text, entities, sentences=sentences, source=name)
