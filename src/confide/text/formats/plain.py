"""Raw text: a file is one document without annotation; offsets count every character of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from confide.errors import DataError
from confide.text.document import Document, Problem
from confide.text.files import read_text, write_text
from confide.text.formats.base import Options, Reading, unheld


def read(path: Path, options: Options) -> Reading:
    """Read a file as one document, named by the file's stem.

    Raises:
        FormatError: the bytes do not fit the encoding.
        DataError: there is nothing but white space in it.
    """
    text, encoding = read_text(path, options.encoding)
    if not text.strip():
        raise DataError("the file is empty", where=str(path))
    document = Document(path.stem, text, source=str(path))
    return Reading([document], [], "text", {"encoding": encoding})


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write the texts, separated by empty lines; `scheme` is not used."""
    write_text(path, "\n\n".join(document.text for document in documents))
    entities = sum(len(document.entities) for document in documents)
    relations = sum(len(document.relations) for document in documents)
    return [
        *unheld(path, "entities: raw text has none", entities, kind="entities-unheld"),
        *unheld(path, "relations: raw text has none", relations, kind="relations-unheld"),
    ]
