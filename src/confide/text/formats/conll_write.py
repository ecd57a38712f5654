"""Documents to CoNLL with two columns, the token and the tag, separated by a tab."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from confide.text.align import flat_spans
from confide.text.document import Document, Problem
from confide.text.files import write_parts
from confide.text.formats.base import place, unheld
from confide.text.formats.columns import is_document_mark
from confide.text.schemes import TokenSpan, scheme_named, tags_from_spans
from confide.text.segment import segmented

_PLACEHOLDER = "\ufffd"
_BREAKS = re.compile(r"[\t\n\r\ufeff\0]")
_BLANK = re.compile(r"\s+")


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write documents as one CoNLL file, and return what it cannot hold.

    Documents without sentences are segmented first. Documents of several sentences follow a
    ``# newdoc id =`` line; attributes are comment lines ``# key = value``.

    Raises:
        SettingsError: there is no such scheme.
        DataError: the file cannot be written.
    """
    scheme = scheme_named(scheme)
    problems: list[Problem] = []
    ready = [segmented(document) for document in documents]
    marked = any(len(document.sentences) > 1 for document in ready)
    write_parts(path, (_part(document, marked, scheme, problems) for document in ready))
    return problems + _unheld(ready, path)


def _part(document: Document, marked: bool, scheme: str, problems: list[Problem]) -> str:
    """A segmented document as lines; what they cannot hold goes to `problems`."""
    if not document.sentences:
        what = "a document without a token has no line"
        problems.append(Problem("empty-document", document.source or document.id, what, True))
        return ""
    lines = _head(document, marked)
    spans, lost = flat_spans(document)
    problems += lost
    for sentence, (tokens, kept) in enumerate(
        zip(map(document.token_texts, document.sentences), spans, strict=True)
    ):
        start = document.sentences[sentence].start
        safe = [_token(token, document, start, problems) for token in tokens]
        tags = _tags(len(tokens), kept, scheme, (document, start), problems)
        lines += [f"{token}\t{tag}" for token, tag in zip(safe, tags, strict=True)]
        if tokens:
            lines.append("")
    return "\n".join(lines) + "\n" if lines else ""


def _head(document: Document, marked: bool) -> list[str]:
    """The comment lines above a document."""
    pairs = [("newdoc id", document.id)] if marked else []
    pairs += document.attributes
    return [f"# {key} = {_BLANK.sub(' ', value)}" for key, value in pairs]


def _token(token: str, document: Document, start: int, problems: list[Problem]) -> str:
    """A token in a form that fits a column."""
    safe = _BREAKS.sub(" ", token).strip(" ") if _BREAKS.search(token) else token
    if not safe or safe.isspace():
        safe = _PLACEHOLDER
    if is_document_mark(safe):
        safe = _PLACEHOLDER + safe
    if safe != token:
        where = place(document, start, start)
        what = "a token of this sentence cannot stand in a column as it is"
        problems.append(Problem("token-changed", where, what))
    return safe


def _tags(
    length: int,
    spans: Sequence[TokenSpan],
    scheme: str,
    where: tuple[Document, int],
    problems: list[Problem],
) -> list[str]:
    """The tags of a sentence; reports types that a column cannot hold, and neighbours in IO."""
    named = [(start, end, _BLANK.sub("_", kind)) for start, end, kind in spans]
    at = place(where[0], where[1], where[1])
    for kind in sorted({kind for _, _, kind in spans if _BLANK.search(kind)}):
        problems.append(Problem("type-changed", at, f"{kind!r} has blanks: written with _"))
    if scheme == "io":
        for before, now in zip(named, named[1:], strict=False):
            if before[1] == now[0] and before[2] == now[2]:
                what = f"two {now[2]} next to each other are one in IO"
                problems.append(Problem("neighbours-joined", at, what, True))
    return tags_from_spans(length, named, scheme)


def _unheld(documents: Sequence[Document], path: Path) -> list[Problem]:
    """Problems for what no CoNLL file can hold, counted over all documents."""
    entities = [entity for document in documents for entity in document.entities]
    relations = sum(len(document.relations) for document in documents)
    respaced = sum(document.text != _joined(document) for document in documents)
    return [
        *unheld(path, "relations: CoNLL has no relations", relations, kind="relations-unheld"),
        *unheld(
            path,
            "confidences: CoNLL has no place for them",
            sum(entity.confidence is not None for entity in entities),
            kind="confidences-unheld",
        ),
        *unheld(
            path,
            "entities with concepts or attributes: CoNLL holds types only",
            sum(bool(entity.concepts or entity.attributes) for entity in entities),
            kind="attributes-unheld",
        ),
        *unheld(
            path,
            "documents lose their white space: CoNLL holds tokens only",
            respaced,
            kind="white-space-unheld",
        ),
    ]


def _joined(document: Document) -> str:
    """The text that a reader will make of the document's tokens."""
    return "\n".join(" ".join(document.token_texts(sentence)) for sentence in document.sentences)
