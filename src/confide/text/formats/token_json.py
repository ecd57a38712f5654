"""GLiNER, SpERT and DyGIE: JSON with lists of tokens, and mentions by the numbers of tokens.

Each form is a `Shape`, and one reader serves them all; GLiNER's is written, too.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.files import Tree
from confide.text.document import Document, Problem
from confide.text.draft import (
    Link,
    Marked,
    Mention,
    document_of,
    gathered,
    marked_of,
    opened,
)
from confide.text.files import write_text
from confide.text.reading import Keeps, Options, Reading, cut_down, unheld
from confide.text.rows import Key, Row, rows_of
from confide.text.segment import segmented


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a document in a form.

    `id` is the key of its name, `tokens` that of its tokens. `sentences`: there is a list of tokens
    for each sentence, and so of mentions and links; numbers of tokens count from the document's
    first. Otherwise a record is one sentence. `mention` says where start, end and type stand in an
    item of `mentions`, by key or place; `last`: the end is the last token, not one past it. `link`
    says where type, head and tail stand in an item of `links`; head and tail are the numbers of
    mentions, or, if there are five, the first and last tokens of head and tail.
    """

    name: str
    id: str
    tokens: str
    mentions: str
    mention: tuple[Key, Key, Key]
    links: str
    link: tuple[Key, ...]
    sentences: bool = False
    last: bool = True

    @property
    def known(self) -> frozenset[str]:
        """The keys that are read."""
        return frozenset((self.id, self.tokens, self.mentions, self.links))


GLINER = Shape("gliner", "id", "tokenized_text", "ner", (0, 1, 2), "relations", (2, 0, 1))
SPERT = Shape(
    "spert", "orig_id", "tokens", "entities", ("start", "end", "type"),
    "relations", ("type", "head", "tail"), last=False,
)  # fmt: skip
DYGIE = Shape(
    "dygie", "doc_key", "sentences", "ner", (0, 1, 2), "relations", (4, 0, 1, 2, 3),
    sentences=True,
)  # fmt: skip
SHAPES = (GLINER, SPERT, DYGIE)
_QUIET = frozenset(("dataset", "_sentence_start", "sentence_start"))


def shape_of(keys: Sequence[str]) -> str | None:
    """The form that the keys of a record are of."""
    known = set(keys)
    if {"tokenized_text", "ner"} <= known:
        return "gliner"
    if {"sentences", "ner"} <= known or {"sentences", "doc_key"} <= known:
        return "dygie"
    return "spert" if {"tokens", "entities"} <= known else None


def reader(shape: Shape) -> Callable[[Path, Options], Reading]:
    """The reader of a form. It raises FormatError and DataError (docs/formats/tokens.md)."""

    def read(path: Path, options: Options) -> Reading:
        ignored: set[str] = set()

        def one(where: str, name: str, tree: Tree) -> Document | None:
            marked = _marked(shape, Row(tree, where), name)
            if not any(marked.sentences):
                what = "a record without a token"
                source.problems.append(Problem("empty-document", where, what))
                return None
            _note_keys(shape, tree, ignored, where=where, problems=source.problems)
            return document_of(marked, options, source.problems)

        source = opened(path, options)
        rows = rows_of(source.text, path, options=options, problems=source.problems)
        return gathered(source, rows, one, format=shape.name)

    return read


def _note_keys(
    shape: Shape, tree: Tree, ignored: set[str], *, where: str, problems: list[Problem]
) -> None:
    """Report keys that hold something that is not read, each once."""
    for key, value in tree.items():
        empty = not value or (isinstance(value, list) and not any(value))
        plain = isinstance(value, str | int | float)
        if key in shape.known or key in _QUIET or empty or plain or key in ignored:
            continue
        ignored.add(key)
        what = f"{key[:40]!r} is not read, here and further on"
        problems.append(Problem("key-ignored", where, what, lost=True))


def _marked(shape: Shape, row: Row, name: str) -> Marked:
    sentences = (
        [row.strings(one, f'"{shape.tokens}"') for one in row.values(shape.tokens)]
        if shape.sentences
        else [row.words(shape.tokens)]
    )
    extra = [
        (key, str(value))
        for key, value in row.tree.items()
        if key not in shape.known and key not in _QUIET and isinstance(value, str | int | float)
    ]
    marked = Marked(row.name((shape.id,), name), row.where, sentences, attributes=tuple(extra))
    for item in _items(shape, row, shape.mentions):
        marked.mentions.append(_mention(shape, row, item))
    for item in _items(shape, row, shape.links):
        marked.links.append(_link(shape, row, item, marked.mentions))
    return marked


def _items(shape: Shape, row: Row, key: str) -> Iterator[object]:
    """The mentions or links, of all sentences one after the other."""
    for value in row.values(key):
        if not shape.sentences:
            yield value
        elif isinstance(value, list):
            yield from value
        else:
            raise row.malformed(f'"{key}"', "a list for each sentence", value)


def _mention(shape: Shape, row: Row, item: object) -> Mention:
    what = f'an item of "{shape.mentions}"'
    start, end = (row.whole(row.part(item, key, what), what) for key in shape.mention[:2])
    kind = row.type(row.part(item, shape.mention[2], what), f"the type of {what}")
    return Mention(start, end + shape.last, kind)


def _link(shape: Shape, row: Row, item: object, mentions: Sequence[Mention]) -> Link:
    what = f'an item of "{shape.links}"'
    kind = row.type(row.part(item, shape.link[0], what), f"the type of {what}")
    numbers = [row.whole(row.part(item, key, what), what) for key in shape.link[1:]]
    if len(numbers) == 2:
        return Link(kind, numbers[0], numbers[1])
    at = {(one.start, one.end - 1): place for place, one in reversed([*enumerate(mentions)])}
    head, tail = (at.get((a, b), -1) for a, b in (numbers[:2], numbers[2:]))
    return Link(kind, head, tail)


# --- writing GLiNER's form ----------------------------------------------------------------


def write_gliner(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a record for each sentence; `scheme` is not used.

    Nested entities are kept, several fragments and white space are not. Raises DataError if the
    file cannot be written.
    """
    cut, problems = cut_down(documents, Keeps(relations=True, sentences=True), path)
    records: list[Tree] = []
    for document in cut:
        marked = marked_of(document, problems)
        for part in _by_sentence(marked, problems) if marked is not None else ():
            (tokens,) = part.sentences
            records.append(
                {
                    GLINER.id: part.id,
                    GLINER.tokens: tokens,
                    GLINER.mentions: [[one.start, one.end - 1, one.type] for one in part.mentions],
                    GLINER.links: [[one.head, one.tail, one.type] for one in part.links],
                }
            )
    lines = [json.dumps(record, ensure_ascii=False) for record in records]
    write_text(path, "[" + ",\n".join(lines) + "]\n")
    return [*problems, *_respaced(documents, path)]


def _by_sentence(marked: Marked, problems: list[Problem]) -> list[Marked]:
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


def _respaced(documents: Sequence[Document], path: Path) -> list[Problem]:
    """One problem for the documents whose white space no list of tokens holds."""
    count = 0
    for document in map(segmented, documents):
        rows = (" ".join(document.token_texts(sentence)) for sentence in document.sentences)
        count += document.text != "\n".join(rows)
    return unheld(path, "documents lose their white space", count, kind="white-space-unheld")
