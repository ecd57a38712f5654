"""Tokens with mentions and links by number: what many JSON forms are, to documents and back."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from confide.errors import DataError
from confide.text.document import Document, Problem, Sentence, Span
from confide.text.formats.base import Options, place, unheld, whole_text
from confide.text.formats.draft import Draft
from confide.text.formats.offsets import NOWHERE
from confide.text.segment import segmented

PLACEHOLDER = "\ufffd"
_FROM, _TO = itemgetter(0), itemgetter(1)


class Mention(NamedTuple):
    """A run of tokens of the whole document, `start` to one before `end`, and its type."""

    start: int
    end: int
    type: str
    concept: str = ""


class Link(NamedTuple):
    """A relation between two mentions by their numbers, or between two concepts by their names."""

    type: str
    head: int | str
    tail: int | str
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Marked:
    """A document as such a form has it: sentences of tokens, mentions and links."""

    id: str
    where: str
    sentences: list[list[str]]
    mentions: list[Mention] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def starts(self) -> list[int]:
        """The number of the first token of each sentence."""
        starts = [0]
        for sentence in self.sentences:
            starts.append(starts[-1] + len(sentence))
        return starts[:-1]


def laid_out(
    sentences: Sequence[Sequence[str]], where: str, problems: list[Problem]
) -> tuple[str, list[tuple[Span, ...]]]:
    """The text of sentences (tokens joined by blanks, sentences by newlines), and their tokens.

    An empty token is read as U+FFFD, which is reported.
    """
    lines: list[str] = []
    spans: list[tuple[Span, ...]] = []
    offset = 0
    for sentence in sentences:
        tokens = [token if token.strip() else PLACEHOLDER for token in sentence]
        if PLACEHOLDER in tokens and list(sentence) != tokens:
            what = "an empty token is read as U+FFFD"
            problems.append(Problem("empty-token", where, what))
        tokens = [whole_text(token, where, problems) for token in tokens]
        row: list[Span] = []
        for token in tokens:
            row.append((offset, offset + len(token)))
            offset += len(token) + 1
        if row:
            lines.append(" ".join(tokens))
            spans.append(tuple(row))
    return "\n".join(lines), spans


def document_of(marked: Marked, options: Options, problems: list[Problem]) -> Document:
    """The document, its entities T1, T2, ... and its relations R1, R2, ...

    Reported as lost are mentions of tokens that are not there, and links to such mentions.

    Raises:
        DataError: there is no token, or a type was not declared.
    """
    text, spans = laid_out(marked.sentences, marked.where, problems)
    if not spans:
        raise DataError("a document without a token", where=marked.where)
    tokens = list(chain.from_iterable(spans))
    sentences = tuple(Sentence(row[0][0], row[-1][1], row) for row in spans)
    draft = Draft(marked.id, text, marked.where, options, problems, sentences, marked.attributes)
    keys: list[str] = []
    for start, end, kind, concept in marked.mentions:
        fits = 0 <= start < end <= len(tokens)
        span = (tokens[start][0], tokens[end - 1][1]) if fits else (start, end)
        if not fits and start < end:
            span = NOWHERE
        keys.append(draft.entity(kind, [span], concepts=(concept,) if concept else ()))
    names: dict[int | str, str] = dict(enumerate(keys))
    for kind, head, tail, said in marked.links:
        concepts = isinstance(head, str) and isinstance(tail, str)
        ends = (names.get(end, str(end)) for end in (head, tail))
        draft.relation(kind, *ends, concepts=concepts, attributes=said)
    return draft.document()


# --- documents to tokens ------------------------------------------------------------------


def marked_of(document: Document, problems: list[Problem]) -> Marked | None:
    """A document as tokens, with the entities that have some; None for one without a token.

    Entities have one fragment. Reported are entities that are widened to whole tokens
    ("not-on-token-border"), and those without a token ("no-token") with their relations, lost.
    """
    ready = segmented(document)
    where = document.source or document.id
    tokens = [token for sentence in ready.sentences for token in sentence.tokens]
    if not tokens:
        what = "a document without a token has no place"
        problems.append(Problem("empty-document", where, what, lost=True))
        return None
    mentions: list[Mention] = []
    numbers: dict[str, int] = {}
    for entity in document.entities:
        first = bisect_right(tokens, entity.start, key=_TO)
        last = bisect_left(tokens, entity.end, key=_FROM)
        at = place(document, entity.start, entity.end)
        if first >= last:
            what = f"{entity.type} {entity.id} covers no token"
            problems.append(Problem("no-token", at, what, lost=True))
            continue
        if (tokens[first][0], tokens[last - 1][1]) != (entity.start, entity.end):
            what = f"{entity.type} {entity.id} taken to whole tokens"
            problems.append(Problem("not-on-token-border", at, what))
        numbers[entity.id] = len(mentions)
        mentions.append(Mention(first, last, entity.type, next(iter(entity.concepts), "")))
    links: list[Link] = []
    for relation in document.relations:
        ends: tuple[int | str | None, int | str | None] = relation.head, relation.tail
        if relation.level == "entity":
            ends = numbers.get(relation.head), numbers.get(relation.tail)
        if ends[0] is None or ends[1] is None:
            what = f"{relation.type} {relation.id} does not link two written mentions"
            problems.append(Problem("relation-unheld", where, what, lost=True))
            continue
        links.append(Link(relation.type, ends[0], ends[1], relation.attributes))
    sentences = [list(ready.token_texts(sentence)) for sentence in ready.sentences]
    return Marked(document.id, where, sentences, mentions, links, document.attributes)


def by_sentence(marked: Marked, problems: list[Problem]) -> list[Marked]:
    """A document cut into one for each sentence; what crosses a border is reported as lost."""
    starts = marked.starts
    if len(starts) == 1:
        return [marked]
    home = [bisect_right(starts, mention.start) - 1 for mention in marked.mentions]
    borders = [*starts[1:], starts[-1] + len(marked.sentences[-1])]
    parts = [
        Marked(f"{marked.id}:{number}", marked.where, [sentence], attributes=marked.attributes)
        for number, sentence in enumerate(marked.sentences, 1)
    ]
    places: dict[int, tuple[int, int]] = {}
    for number, mention in enumerate(marked.mentions):
        sentence = home[number]
        if mention.end > borders[sentence]:
            what = f"{mention.type} {mention.start}-{mention.end} crosses a sentence's end"
            problems.append(Problem("crosses-sentence", marked.where, what, lost=True))
            continue
        start = starts[sentence]
        places[number] = sentence, len(parts[sentence].mentions)
        moved = mention._replace(start=mention.start - start, end=mention.end - start)
        parts[sentence].mentions.append(moved)
    for link in marked.links:
        head, tail = (places.get(end) if isinstance(end, int) else None for end in link[1:3])
        if head is None or tail is None or head[0] != tail[0]:
            what = f"{link.type} links two sentences, or what was not written"
            problems.append(Problem("relation-unheld", marked.where, what, lost=True))
            continue
        parts[head[0]].links.append(link._replace(head=head[1], tail=tail[1]))
    return parts


def respaced(documents: Sequence[Document], path: Path) -> list[Problem]:
    """One problem for the documents whose white space no list of tokens holds."""
    count = 0
    for document in map(segmented, documents):
        rows = (" ".join(document.token_texts(sentence)) for sentence in document.sentences)
        count += document.text != "\n".join(rows)
    return unheld(path, "documents lose their white space", count, kind="white-space-unheld")
