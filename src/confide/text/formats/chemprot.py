"""ChemProt as SciBERT's authors published it: JSON Lines whose text marks one pair of arguments.

``<< a >>`` is the first argument in the text and ``[[ b ]]`` the other, whichever of them is the
chemical: the file does not give the roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confide.errors import FormatError
from confide.text.document import Document, Span
from confide.text.formats.base import Options, Reading, shown, whole_text
from confide.text.formats.draft import Source, gathered, opened
from confide.text.formats.jsonl import rows_of
from confide.text.formats.records import clean
from confide.text.formats.sentences import one_sentence
from confide.userfiles import Tree, json_of

_SAMPLE = 20


class Marked(NamedTuple):
    """A text without its marks, and the places of its two arguments."""

    text: str
    first: Span
    second: Span


def read(path: Path, options: Options) -> Reading:
    """Read the file: each line becomes a document of one sentence that asks about its one pair.

    Marks are removed from the text. Both entities have the type `options.bare_type`; the relation,
    whose type is the label, goes from ``<< a >>`` to ``[[ b ]]``.

    Raises:
        FormatError: a line is not JSON, has no text or label, or does not mark two arguments.
        DataError: there is no line, or the type was not declared.
    """
    source = opened(path, options)
    rows = rows_of(source.text, path, options=options, problems=source.problems)
    return gathered(source, rows, partial(_document, source), format="chemprot")


def is_chemprot(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file are such JSON Lines."""
    first = [line for line in lines if line.strip()][:_SAMPLE]
    return bool(first) and all(map(_is_row, first))


def _is_row(line: str) -> bool:
    try:
        row = json_of(line)
    except ValueError:
        return False
    return (
        isinstance(row, dict)
        and isinstance(row.get("label"), str)
        and isinstance(row.get("text"), str)
        and unmarked(row["text"]) is not None
    )


def unmarked(text: str) -> Marked | None:
    """A text without the marks of its two arguments; None if it does not mark two.

    A text may hold further ``>>`` and ``]]``: the first one after its opening mark closes it.

    >>> unmarked("(<< TCDD >>) and [[ Cyp1a1 ]].")
    Marked(text='(TCDD) and Cyp1a1.', first=(1, 5), second=(11, 17))
    """
    first = _between(text, "<< ", " >>", start=0)
    second = _between(text, "[[ ", " ]]", start=first[1] + 3) if first else None
    if first is None or second is None:
        return None
    parts = [text[: first[0] - 3], text[slice(*first)]]
    parts += [text[first[1] + 3 : second[0] - 3], text[slice(*second)]]
    start = len(parts[0])
    after = start + len(parts[1]) + len(parts[2])
    return Marked(
        "".join(parts) + text[second[1] + 3 :],
        (start, start + len(parts[1])),
        (after, after + len(parts[3])),
    )


def _between(text: str, opens: str, closes: str, *, start: int) -> Span | None:
    """What is between two marks of three characters, without surrounding white space."""
    begin = text.find(opens, start) + 3
    while begin > 2 and text[begin : begin + 1].isspace():
        begin = text.find(opens, begin) + 3
    end = text.find(closes, begin + 1) if 2 < begin < len(text) else -1
    while end > 0 and text[end - 1].isspace():
        end = text.find(closes, end + 1)
    return (begin, end) if end > 0 else None


def _document(source: Source, where: str, name: str, row: Tree) -> Document:
    text, label = row.get("text"), row.get("label")
    if not isinstance(text, str) or not isinstance(label, str) or not label.strip():
        raise FormatError(
            "a line without text or label", expected='"text" and "label", strings', where=where
        )
    found = unmarked(whole_text(text, where, source.problems))
    if found is None:
        raise FormatError(
            "the text does not mark two arguments",
            expected="<< a >> and after it [[ b ]], with blanks",
            where=where,
        )
    draft = source.draft(name, found.text, where)
    draft.sentences = one_sentence(found.text)
    for key in sorted(row.keys() - {"text", "label"}):
        if row[key]:
            draft.note("key-ignored", f"{shown(key)} is not read")
    ends = [draft.entity(source.options.bare_type, [span]) for span in found[1:]]
    draft.pair(ends[0], ends[1], clean(label.strip()))
    return draft.document()
