"""Documents to spaCy's DocBin: `ents` for what does not overlap, a span group for everything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confide.errors import DataError, os_errors_as
from confide.text.document import Document, Problem
from confide.text.extras import extra
from confide.text.formats.base import unheld
from confide.text.formats.docbin import GROUP
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.marked import Marked, Mention, marked_of
from confide.text.segment import segmented
from confide.userfiles import Tree, write_whole

_KEEPS = Keeps(concepts=True, attributes=True, sentences=True)


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a DocBin with the documents' text as it is; `scheme` is not used.

    Entities are widened to tokens. `ents` holds the longest of those that overlap, and the span
    group "sc" all entities of a document where some do. The id and the attributes are user data.

    Raises:
        SettingsError: spaCy is not installed.
        DataError: the file cannot be written.
    """
    spacy: Any = extra("spacy", "spacy", where=path, what="DocBin files")
    tokens: Any = extra("spacy.tokens", "spacy", where=path, what="DocBin files")
    cut, problems = cut_down(documents, _KEEPS, path)
    vocab = spacy.blank("xx").vocab
    held = tokens.DocBin(
        attrs=["ENT_IOB", "ENT_TYPE", "ENT_KB_ID", "SENT_START"], store_user_data=True
    )
    several = 0
    for document in cut:
        marked = marked_of(document, problems)
        if marked is not None:
            held.add(_doc(segmented(document), marked, vocab, tokens))
        several += sum(len(entity.concepts) > 1 for entity in document.entities)
    with os_errors_as(DataError, "the file cannot be written", where=path):
        write_whole(path, held.to_bytes())
    what = "entities have several concepts: the first is written"
    return [*problems, *unheld(path, what, several, kind="concepts-unheld")]


def _doc(document: Document, marked: Marked, vocab: Any, library: Any) -> Any:
    """A spaCy document of the same text."""
    words, spaces, starts, numbers = _words(document)
    doc = library.Doc(vocab, words=words, spaces=spaces, sent_starts=starts)
    spans = []
    for mention in marked.mentions:
        first, last = numbers[mention.start], numbers[mention.end - 1] + 1
        spans.append(library.Span(doc, first, last, label=mention.type, kb_id=mention.concept))
    flat = [spans[number] for number in _flat(marked.mentions)]
    doc.set_ents(flat, default="outside")
    if len(flat) < len(spans):
        doc.spans[GROUP] = spans
    said: Tree = {"id": document.id}
    for key, value in document.attributes:
        if key != "id":
            said[key] = [*said.get(key, []), value]
    doc.user_data.update(said)
    return doc


def _flat(mentions: Sequence[Mention]) -> list[int]:
    """The numbers of mentions that do not overlap: of those that do the longest, then the first."""
    chosen: list[int] = []
    taken: set[int] = set()
    order = sorted(range(len(mentions)), key=lambda n: mentions[n].start - mentions[n].end)
    for number in order:
        own = range(mentions[number].start, mentions[number].end)
        if taken.isdisjoint(own):
            taken.update(own)
            chosen.append(number)
    return chosen


def _words(document: Document) -> tuple[list[str], list[bool], list[bool], list[int]]:
    """Words and white space that make up the text, whether a blank follows, sentence starts.

    Also the number of the word of each token.
    """
    words: list[str] = []
    spaces: list[bool] = []
    starts: list[bool] = []
    numbers: list[int] = []
    offset = 0

    def gap(end: int) -> None:
        between = document.text[offset:end]
        if between and words and between[0] == " ":
            spaces[-1], between = True, between[1:]
        if between:
            words.append(between)
            spaces.append(False)
            starts.append(False)

    for sentence in document.sentences:
        for place, (start, end) in enumerate(sentence.tokens):
            gap(start)
            numbers.append(len(words))
            words.append(document.text[start:end])
            spaces.append(False)
            starts.append(place == 0)
            offset = end
    gap(len(document.text))
    return words, spaces, starts, numbers
