"""BioBERT's tables for relations (GAD, EU-ADR): a sentence with blinded entities, and a label.

A line is ``sentence TAB label``; a file that begins with the line ``index TAB sentence TAB label``
has a number before each. Entities are already replaced by their types, as in ``@GENE$``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from confide.errors import FormatError
from confide.text.document import Document
from confide.text.files import LONGEST_LINE
from confide.text.formats.base import Options, Reading, shown
from confide.text.formats.draft import Source, gathered, opened
from confide.text.formats.sentences import one_sentence

HEADER = ["index", "sentence", "label"]
POSITIVE, RELATED = "1", "related"
_BLINDED = re.compile(r"@([A-Za-z][\w-]*)\$")
_SAMPLE = 50


def read(path: Path, options: Options) -> Reading:
    """Read a table: each line becomes a document of one sentence that asks about its one pair.

    The pair goes from the first blinded entity to the second, since nothing says which is the head.
    The label ``1`` means the relation "related"; any other label that is not negative names it.

    Raises:
        FormatError: a line's columns differ from those of the first, or a label is empty.
        DataError: there is no sentence, or a type was not declared.
    """
    source = opened(path, options, longest=LONGEST_LINE)
    rows = list(source.lines())
    headed = bool(rows) and rows[0][2].split("\t") == HEADER

    def one(where: str, name: str, line: str) -> Document:
        return _document(source, where, name, _columns(line, where, headed=headed))

    return gathered(source, rows[headed:], one, format="biobert", header="yes" if headed else "no")


def is_biobert(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file are such a table: most sentences have a blinded pair."""
    rows = [line.split("\t") for line in lines if line.strip()][:_SAMPLE]
    headed = bool(rows) and rows[0] == HEADER
    rows = rows[headed:]
    width = 3 if headed else 2
    if any(len(row) != width for row in rows):
        return False
    paired = sum(" " in row[-2] and len(_BLINDED.findall(row[-2])) == 2 for row in rows)
    return 2 * paired > len(rows)


def _columns(line: str, where: str, *, headed: bool) -> tuple[str, str]:
    """The sentence and the label of a line."""
    columns = line.split("\t")
    if len(columns) != (3 if headed else 2) or not columns[-1].strip() or not columns[-2].strip():
        wanted = "index, sentence and label" if headed else "sentence and label"
        raise FormatError(
            f"a line of {len(columns)} columns, or an empty one among them",
            expected=f"{wanted}, cut by tabs",
            where=where,
        )
    return columns[-2], columns[-1].strip()


def _document(source: Source, where: str, name: str, row: tuple[str, str]) -> Document:
    """A line as a document. Unless it has two entities, its label belongs to no pair."""
    sentence, label = row
    draft = source.draft(name, sentence, where)
    draft.sentences = one_sentence(sentence)
    found = [draft.entity(match[1], [match.span()]) for match in _BLINDED.finditer(sentence)]
    if len(found) == 2:
        draft.pair(found[0], found[1], RELATED if label == POSITIVE else label)
    else:
        draft.pair("", "", None)
        what = f"the label {shown(label)} of a sentence with {len(found)} blinded entities"
        draft.note("not-one-pair", what)
    return draft.document()
