"""BioBERT's tables for relations (GAD, EU-ADR): a sentence with blinded entities, and a label.

A line is ``sentence TAB label``; a file that begins with the line ``index TAB sentence TAB label``
has a number before each. Entities are already replaced by their types, as in ``@GENE$``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.files import lines_of, read_text
from confide.text.formats.base import Options, Reading, shown
from confide.text.formats.sentences import one_sentence
from confide.text.pairs import pair_attributes

HEADER = ["index", "sentence", "label"]
POSITIVE, RELATED = "1", "related"
NEGATIVE = frozenset(("0", "false", "none", "na", "other", "no_relation", "no-relation"))
"""Labels, in lower case, that mean no relation; so does any label that ends in ``-false``."""
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
    text, encoding = read_text(path, options.encoding)
    problems: list[Problem] = []
    lines = [(number, line) for number, line in enumerate(lines_of(text), 1) if line.strip()]
    headed = bool(lines) and lines[0][1].split("\t") == HEADER
    documents = []
    file, stem = str(path), path.stem
    for number, line in lines[headed:]:
        where = f"{file}:{number}"
        sentence, label = _columns(line, where, headed=headed)
        blinded = _entities(sentence, options, where) if "@" in sentence else []
        name = f"{stem}:{number}"
        documents.append(_document(name, where, (sentence, label, blinded), problems))
    if not documents:
        raise DataError("the file is empty", where=str(path))
    details = {"encoding": encoding, "header": "yes" if headed else "no"}
    return Reading(documents, problems, "biobert", details)


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


def _entities(sentence: str, options: Options, where: str) -> list[Entity]:
    found = []
    for number, match in enumerate(_BLINDED.finditer(sentence), 1):
        options.require(match[1], where)
        found.append(Entity(f"T{number}", match[1], (match.span(),)))
    return found


def _document(
    name: str, where: str, row: tuple[str, str, list[Entity]], problems: list[Problem]
) -> Document:
    """A line as a document. Unless it has two entities, its label belongs to no pair."""
    sentence, label, entities = row
    kind = RELATED if label == POSITIVE else label
    relations: tuple[Relation, ...] = ()
    pairs = []
    if len(entities) == 2:
        head, tail = (entity.id for entity in entities)
        pairs = [(head, tail)]
        if not is_negative(label):
            relations = (Relation("R1", kind, head, tail),)
    else:
        what = f"the label {shown(label)} of a sentence with {len(entities)} blinded entities"
        problems.append(Problem("not-one-pair", where, what, lost=True))
    return Document(
        name,
        sentence,
        entities=tuple(entities),
        relations=relations,
        sentences=one_sentence(sentence),
        attributes=pair_attributes(pairs),
        source=where,
    )


def is_negative(label: str) -> bool:
    """Whether a label says that nothing holds between the two.

    >>> [label for label in ("0", "1", "CPR:4", "DDI-false", "False") if is_negative(label)]
    ['0', 'DDI-false', 'False']
    """
    label = label.lower()
    return label in NEGATIVE or label.endswith("-false")
