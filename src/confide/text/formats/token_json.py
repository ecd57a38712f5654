"""GLiNER, SpERT and DyGIE: JSON with lists of tokens, and mentions by the numbers of tokens.

Each form is a `Shape`; one reader and one writer serve them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confide.text.document import Document, Problem
from confide.text.draft import (
    Link,
    Marked,
    Mention,
    by_sentence,
    document_of,
    gathered,
    marked_of,
    opened,
    respaced,
)
from confide.text.files import write_text
from confide.text.reading import Keeps, Options, Reading, cut_down
from confide.text.rows import Key, Row, rows_of
from confide.userfiles import Tree


@dataclass(frozen=True, slots=True)
class Shape:
    """How a form writes a document.

    `id` is the key of its name, `tokens` that of its tokens. `sentences`: there is a list of tokens
    for each sentence, and so of mentions and links; numbers of tokens count from the document's
    first. Otherwise a record is one sentence. `mention` says where start, end and type stand in an
    item of `mentions`, by key or place; `last`: the end is the last token, not one past it. `link`
    says where type, head and tail stand in an item of `links`; head and tail are the numbers of
    mentions, or, if there are five, the first and last tokens of head and tail. `lines`: JSON
    Lines are written, not a list.
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
    lines: bool = False

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
    sentences=True, lines=True,
)  # fmt: skip
SHAPES = (GLINER, SPERT, DYGIE)
_KEEPS = Keeps(relations=True, sentences=True)
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
            raise row.odd(f'"{key}"', "a list for each sentence", value)


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


# --- writing ------------------------------------------------------------------------------


def writer(shape: Shape) -> Callable[[Sequence[Document], Path, str], list[Problem]]:
    """The writer of a form; nested entities are kept, several fragments and white space are not."""

    def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
        keeps = _KEEPS
        cut, problems = cut_down(documents, keeps, path)
        records: list[Tree] = []
        for document in cut:
            marked = marked_of(document, problems)
            if marked is not None:
                parts = [marked] if shape.sentences else by_sentence(marked, problems)
                records += [_record(shape, part) for part in parts]
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        whole = "\n".join(lines) if shape.lines else "[" + ",\n".join(lines) + "]"
        write_text(path, whole + "\n")
        return [*problems, *respaced(documents, path)]

    return write


def _record(shape: Shape, marked: Marked) -> Tree:
    record: Tree = {shape.id: marked.id}
    starts = marked.starts
    mentions: list[list[object]] = [[] for _ in starts]
    links: list[list[object]] = [[] for _ in starts]
    for mention in marked.mentions:
        home = _home(starts, mention.start)
        values = mention.start, mention.end - shape.last, mention.type
        mentions[home].append(_item(shape.mention, values))
    for link in marked.links:
        ends = [marked.mentions[end] for end in link[1:3] if isinstance(end, int)]
        numbers: list[object] = list(link[1:3])
        if len(shape.link) == 5:
            numbers = [place for end in ends for place in (end.start, end.end - 1)]
        links[_home(starts, ends[0].start)].append(_item(shape.link, (link.type, *numbers)))
    if shape.sentences:
        return {
            **record,
            shape.tokens: marked.sentences,
            shape.mentions: mentions,
            shape.links: links,
        }
    (tokens,) = marked.sentences
    return {**record, shape.tokens: tokens, shape.mentions: mentions[0], shape.links: links[0]}


def _home(starts: Sequence[int], token: int) -> int:
    return max(number for number, start in enumerate(starts) if start <= token)


def _item(keys: Sequence[Key], values: Sequence[object]) -> object:
    """An object or a list with the values at their keys."""
    pairs = list(zip(keys, values, strict=True))
    if isinstance(keys[0], str):
        return {str(key): value for key, value in pairs}
    return [value for _, value in sorted(pairs, key=lambda pair: int(pair[0]))]
