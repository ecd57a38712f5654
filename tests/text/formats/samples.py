"""Helpers that the tests of formats share."""

from __future__ import annotations

from confide.text.formats import read, write
from text.generated import put


def laid(folder, name, content, **others):
    """A file, and others beside it, in an empty folder: the path that is read."""
    for other, text in others.items():
        put(folder, other.replace("__", "."), text)
    return put(folder, name, content)


def mentions(document):
    """Type and words of every entity, in order."""
    return [(entity.type, document.surface(entity)) for entity in document.entities]


def links(document):
    """Type, head's words and tail's words of every relation between mentions."""
    words = {entity.id: document.surface(entity) for entity in document.entities}
    return [(one.type, words.get(one.head, one.head), words.get(one.tail, one.tail))
            for one in document.relations]  # fmt: skip


def again(documents, path, format):
    """What is read of documents that were written in a format, and what writing reported."""
    problems = write(documents, path, format)
    return read(path, format), problems
