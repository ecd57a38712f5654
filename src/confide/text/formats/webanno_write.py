"""Documents to WebAnno TSV 3.3, one file each: named entities with identifiers, and relations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.text.document import Document, Problem
from confide.text.files import write_text
from confide.text.formats.base import file_name, unheld
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.layers import NAMED_ENTITY, RELATION, units_of
from confide.text.formats.marked import Marked, marked_of
from confide.text.formats.webanno import MARK
from confide.text.segment import segmented

_KEEPS = Keeps(relations=True, concepts=True, sentences=True)
_HEAD = (
    f"{MARK}.3",
    f"#T_SP={NAMED_ENTITY}|identifier|value",
    f"#T_RL={RELATION}|label|BT_{NAMED_ENTITY}",
    "",
)
_SPECIAL = re.compile(r"[\\\[\]|_;*]|->")
_BLANK = re.compile(r"[\t\n\r\0]")


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a folder of files; `scheme` is not used.

    Entities are widened to tokens. White space other than blanks, and one line end between two
    sentences, is lost. Raises DataError if the files cannot be written.
    """
    cut, problems = cut_down(documents, _KEEPS, path)
    taken: set[str] = set()
    several = other = 0
    for document in map(segmented, cut):
        marked = marked_of(document, problems)
        if marked is None:
            continue
        name = file_name(document.id, taken)
        write_text(path / f"{name}.tsv", "\n".join(_lines(document, marked)) + "\n")
        other += _kept(document) != document.text
        several += sum(len(entity.concepts) > 1 for entity in document.entities)
    concepts = "entities have several concepts: the first is written"
    return [
        *problems,
        *unheld(path, "documents lose their white space", other, kind="white-space-unheld"),
        *unheld(path, concepts, several, kind="concepts-unheld"),
    ]


def _kept(document: Document) -> str:
    """The text that a reader makes of the tokens and their offsets."""
    pieces: list[str] = []
    last = 0
    for number, sentence in enumerate(document.sentences):
        for place, (start, end) in enumerate(sentence.tokens):
            gap = start - last
            line = number and place == 0 and gap
            pieces += ["\n" + " " * (gap - 1) if line else " " * gap, document.text[start:end]]
            last = end
    return "".join(pieces)


def _lines(document: Document, marked: Marked) -> Iterator[str]:
    yield from _HEAD
    offsets = [offset for one in document.sentences for token in one.tokens for offset in token]
    units = units_of(document.text, offsets)
    ends_at: dict[int, list[str]] = {}
    labels: dict[int, list[str]] = {}
    names = _names(document)
    for link in marked.links:
        assert isinstance(link.head, int) and isinstance(link.tail, int)
        head, tail = marked.mentions[link.head], marked.mentions[link.tail]
        place = f"{names[head.start]}[{link.head + 1}_{link.tail + 1}]"
        ends_at.setdefault(tail.start, []).append(place)
        labels.setdefault(tail.start, []).append(_escaped(link.type))
    over: dict[int, list[int]] = {}
    for number, mention in enumerate(marked.mentions):
        for token in range(mention.start, mention.end):
            over.setdefault(token, []).append(number)
    number = 0
    for sentence in document.sentences:
        yield ""
        whole = document.text[sentence.start : sentence.end]
        yield f"#Text={_BLANK.sub(' ', whole)}"
        for start, end in sentence.tokens:
            own = over.get(number, [])
            stack = [(_escaped(marked.mentions[n].concept) if marked.mentions[n].concept else "*",
                      _escaped(marked.mentions[n].type), n + 1) for n in own]  # fmt: skip
            cells = [
                names[number],
                f"{units[2 * number]}-{units[2 * number + 1]}",
                _escaped(document.text[start:end], token=True),
                "|".join(f"{concept}[{n}]" for concept, _, n in stack) or "_",
                "|".join(f"{kind}[{n}]" for _, kind, n in stack) or "_",
                "|".join(labels.get(number, ())) or "_",
                "|".join(ends_at.get(number, ())) or "_",
            ]
            yield "\t".join(cells) + "\t"
            number += 1


def _names(document: Document) -> list[str]:
    """The names of all tokens: sentence and place, from 1."""
    return [
        f"{number}-{place}"
        for number, sentence in enumerate(document.sentences, 1)
        for place in range(1, len(sentence.tokens) + 1)
    ]


def _escaped(value: str, *, token: bool = False) -> str:
    plain = _BLANK.sub(" ", value)
    return plain.replace("\\", "\\\\") if token else _SPECIAL.sub(r"\\\g<0>", plain)
