"""SemEval-2010 task 8: one sentence with two marked nominals, and the relation between them.

A sentence is ``number TAB "text with <e1>...</e1> and <e2>...</e2>"``. The line after it is the
label, whose end says the direction, ``Cause-Effect(e2,e1)``, or ``Other``; then a comment. The
task's test file has the sentences alone. KBP37 has the same form, with blanks between all tokens
and inside the marks, labels such as ``per:title(e1,e2)``, and ``no_relation``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confide.errors import FormatError
from confide.text.document import Document, Problem, Span
from confide.text.files import LONGEST_LINE, write_text
from confide.text.formats.base import Options, Reading, shown, unheld
from confide.text.formats.draft import Source, gathered, opened
from confide.text.formats.pair_json import marked_pairs
from confide.text.formats.sentences import one_sentence
from confide.text.pairs import NO_RELATION

OTHER = "Other"
_SENTENCE = re.compile(r"(\d+)\t(.*\S.*)", re.DOTALL | re.ASCII)
_LABEL = re.compile(r"[A-Za-z][\w:/.-]*(\(e[12],e[12]\))?")
_COMMENT = "Comment:"
_MARK = re.compile(r"<(/?)e([12])>")


@dataclass(slots=True)
class _Item:
    """The lines of one sentence."""

    where: str
    number: str
    marked: str
    label: str | None = None
    comment: str = ""


def read(path: Path, options: Options) -> Reading:
    """Read the file: each sentence becomes a document, named by its number, about its one pair.

    Marks and outer quotation marks are removed from the text. Both entities have the type
    `options.bare_type`. A relation goes from e1 to e2, and its type is the whole label, direction
    included; ``Other`` and ``no_relation`` are none. A comment becomes the attribute "comment".

    Raises:
        FormatError: a line is not of this format, or a sentence does not mark e1 and e2 once each.
        DataError: there is no sentence, or the type was not declared.
    """
    source = opened(path, options, longest=LONGEST_LINE)
    items = list(_items(source))
    bare = [item for item in items if item.label is None]
    if bare:
        what = (
            f"{len(bare)} of {len(items)} sentences have no label: they are read without relation"
        )
        source.problems.append(Problem("no-label", bare[0].where, what))
    rows = ((item.where, item.number, item) for item in items)
    return gathered(source, rows, partial(_document, source), format="semeval")


def is_semeval(lines: Sequence[str]) -> bool:
    """Whether a file begins with such a sentence."""
    first = next((line for line in lines if line.strip()), "")
    match = _SENTENCE.fullmatch(first)
    return match is not None and "<e1>" in match[2] and "<e2>" in match[2]


def _items(source: Source) -> Iterator[_Item]:
    item: _Item | None = None
    for where, _, line in source.lines():
        line = line.strip()
        match = _SENTENCE.fullmatch(line)
        if match:
            if item is not None:
                yield item
            item = _Item(where, match[1], match[2])
        elif item is not None and line.startswith(_COMMENT):
            item.comment = line.removeprefix(_COMMENT).strip()
        elif item is not None and item.label is None and _LABEL.fullmatch(line):
            item.label = line
        else:
            error = FormatError(
                f"a line that is no sentence, label or comment: {shown(line)}",
                expected='number TAB "text", then Relation(e1,e2) or Other, then Comment:',
                where=where,
            )
            source.options.skip(error, source.problems, where)
            item = None
    if item is not None:
        yield item


def _document(source: Source, where: str, name: str, item: _Item) -> Document:
    marked = item.marked.strip()
    if len(marked) > 1 and marked[0] == marked[-1] == '"':
        marked = marked[1:-1].strip()
    text, spans = _unmarked(marked, where)
    comment = (("comment", item.comment),) if item.comment else ()
    draft = source.draft(name, text, where, attributes=comment)
    draft.sentences = one_sentence(text)
    ends = [draft.entity(source.options.bare_type, [span]) for span in spans]
    draft.pair(ends[0], ends[1], item.label)
    return draft.document()


def _unmarked(marked: str, where: str) -> tuple[str, tuple[Span, Span]]:
    """A text without its four marks, and the places of e1 and e2."""
    borders: dict[str, int] = {}
    text, last, twice = "", 0, False
    for match in _MARK.finditer(marked):
        text += marked[last : match.start()]
        last = match.end()
        if text[-1:] in ("", " ") and marked[last : last + 1] == " ":
            last += 1  # a mark that stands alone, as in KBP37
        twice = twice or match[0] in borders
        borders[match[0]] = len(text)
    text += marked[last:]
    whole = len(borders) == 4 and not twice
    for mark in ("</e1>", "</e2>"):
        borders[mark] = len(text[: borders.get(mark, 0)].rstrip())
    first, second = (
        (borders.get(f"<e{number}>", 0), borders.get(f"</e{number}>", 0)) for number in (1, 2)
    )
    if not whole or first[0] >= first[1] or second[0] >= second[1]:
        raise FormatError(
            "the sentence does not mark two nominals",
            expected="<e1>...</e1> and <e2>...</e2>, each once and not empty",
            where=where,
        )
    return text, (first, second)


# --- writing ------------------------------------------------------------------------------

_DIRECTED = re.compile(r".*\(e[12],e[12]\)")


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a sentence for each pair, e1 its head and e2 its tail; `scheme` is not used.

    A relation that states no direction goes from e1 to e2; a pair without one is ``Other``. Types
    and identifiers of entities are not held. Raises DataError if the file cannot be written.
    """
    problems: list[Problem] = []
    lines: list[str] = []
    types: set[str] = set()
    overlaps = 0
    for part, pair, label in marked_pairs(documents, path, problems):
        head, tail = (part.mentions[end] for end in pair)
        if head.start < tail.end and tail.start < head.end:
            overlaps += 1
            continue
        types |= {head.type, tail.type}
        tokens = [token for sentence in part.sentences for token in sentence]
        for number, mention in ((1, head), (2, tail)):
            tokens[mention.start] = f"<e{number}>{tokens[mention.start]}"
            tokens[mention.end - 1] += f"</e{number}>"
        number = len(lines) // 4 + 1
        sentence = " ".join(" ".join(tokens).split())
        named = label if _DIRECTED.fullmatch(label) else f"{'_'.join(label.split())}(e1,e2)"
        named = OTHER if label == NO_RELATION else named
        lines += [f'{number}\t"{sentence}"', named, "Comment:", ""]
    write_text(path, "\n".join(lines) + "\n" if lines else "")
    bare = len(types) if len(types) > 1 else 0
    return [
        *problems,
        *unheld(path, "pairs of overlapping entities are not written", overlaps,
                kind="pairs-unheld"),
        *unheld(path, "types of entities are not written", bare, kind="types-unheld"),
    ]  # fmt: skip
