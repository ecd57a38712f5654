"""NYT10's lines (Riedel et al. 2010; GIDS too): a sentence, two entities in it, and a relation.

``id1 id2 name1 name2 relation sentence ###END###``, separated by tabs; the end mark is a seventh
column or ends the sixth. The words of a name are joined by ``_``, in its column and in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from confide.errors import FormatError
from confide.text.document import Document, Problem, Span
from confide.text.files import LONGEST_LINE
from confide.text.formats.base import Options, Reading
from confide.text.formats.draft import gathered, opened
from confide.text.formats.one_pair import (
    End,
    Line,
    document_of,
    find_names,
    map_problems,
    whole_words,
)
from confide.text.formats.placing import LONGEST_NAME, Effort
from confide.text.formats.records import clean

END = "###END###"
_SAMPLE = 20


def read(path: Path, options: Options) -> Reading:
    """Read the lines: each becomes a document of one sentence that asks about its pair.

    A name is looked up as a word of the sentence; the first of several places counts. Its ``_``
    become blanks, which leaves offsets alone and gives ordinary words. Entities have the file's
    identifiers as concepts and the type `options.bare_type`; ``NA`` is no relation.

    Raises:
        FormatError: a line does not have six or seven columns, or one is empty.
        DataError: there is no line, or the type was not declared.
    """
    source, effort = opened(path, options, longest=LONGEST_LINE), Effort(str(path))
    labels: list[tuple[str, str]] = []
    open_ended: list[str] = []

    def one(where: str, name: str, row: str) -> Document:
        *ends, label, sentence = _columns(row, where)
        open_ended.extend([] if _ended(row) else [where])
        sentence, places = _placed(ends[2:], sentence, (where, effort), source.problems)
        labels.append((label, where))
        head, tail = (
            End(name, options.bare_type, clean(concept), place)
            for name, concept, place in zip(ends[2:], ends, places, strict=False)
        )
        line = Line(name, where, sentence, (head, tail), clean(label))
        return document_of(line, options, source.problems)

    reading = gathered(source, source.lines(), one, format="nyt10")
    if open_ended:
        count = f"{len(open_ended)} of {len(reading.documents)}"
        what = f"{count} lines do not end with {END}: are they whole?"
        source.problems.append(Problem("no-end", open_ended[0], what))
    source.problems.extend(map_problems(path, labels))
    return reading


def is_nyt10(lines: Sequence[str]) -> bool:
    """Whether the first lines of a file are such lines."""
    first = [line for line in lines if line.strip()][:_SAMPLE]
    return bool(first) and all(_ended(line) and line.count("\t") in (5, 6) for line in first)


def _ended(row: str) -> bool:
    return row.rstrip().endswith(END)


def _columns(row: str, where: str) -> list[str]:
    """Two identifiers, two names, the relation and the sentence."""
    columns = [column.strip() for column in row.split("\t")]
    if len(columns) > 6 and columns[-1] in (END, ""):
        columns.pop()
    columns[-1] = columns[-1].removesuffix(END).rstrip()
    if len(columns) != 6 or not all(columns):
        raise FormatError(
            f"a line of {len(columns)} columns, or an empty one among them",
            expected=f"id1, id2, name1, name2, relation, sentence {END}, cut by tabs",
            where=where,
        )
    return columns


def _placed(
    names: Sequence[str],
    sentence: str,
    context: tuple[str, Effort],
    problems: list[Problem],
) -> tuple[str, list[tuple[Span, ...] | None]]:
    """The sentence with the names as they are read, and their places."""
    where, effort = context
    places = find_names(sentence, names, where=where, problems=problems, effort=effort)
    if "_" not in sentence:
        return sentence, places
    spans = [span for fragments in places for span in fragments or ()]
    known = [name for name in names if len(name) <= LONGEST_NAME]
    spans += [span for name in known for span in whole_words(sentence, name)]
    letters = list(sentence)
    for start, end in spans:
        letters[start:end] = _apart("".join(letters[start:end]))
    return "".join(letters), places


def _apart(name: str) -> str:
    """A name with blanks for its ``_``; one that begins or ends with them keeps those."""
    inner = name.strip("_")
    start = name.find(inner) if inner else 0
    return name[:start] + inner.replace("_", " ") + name[start + len(inner) :] if inner else name
