"""DocRED: sentences of tokens, entities as sets of mentions, and relations between entities.

An entity is a concept here: its mentions share the identifier ``V0``, ``V1``, ..., and relations
link concepts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from confide.text.document import Document, Problem
from confide.text.files import write_text
from confide.text.formats.base import Options, Reading, unheld
from confide.text.formats.draft import gathered, opened
from confide.text.formats.jsonl import rows_of
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.marked import (
    Link,
    Marked,
    Mention,
    document_of,
    marked_of,
    respaced,
)
from confide.text.formats.rows import Row
from confide.userfiles import Tree

_KEEPS = Keeps(relations=True, concept_relations=True, concepts=True, said=True, sentences=True)
_EVIDENCE = "evidence"


def is_docred(keys: Sequence[str]) -> bool:
    """Whether the keys of a record are DocRED's."""
    return {"sents", "vertexSet"} <= set(keys)


def read(path: Path, options: Options) -> Reading:
    """Read a document for each record. The sentences of its evidence are a relation's attribute.

    Raises:
        FormatError: a record does not have DocRED's form.
        DataError: there is no record, or a type was not declared.
    """
    source = opened(path, options)
    bare = 0

    def one(where: str, name: str, tree: Tree) -> Document:
        nonlocal bare
        bare += "labels" not in tree
        return document_of(_marked(Row(tree, where), name), options, source.problems)

    rows = rows_of(source.text, path, options=options, problems=source.problems)
    reading = gathered(source, rows, one, format="docred")
    if bare:
        what = f"{bare} of {len(reading.documents)} documents have no relations: read without"
        source.problems.append(Problem("no-label", str(path), what))
    return reading


def _marked(row: Row, name: str) -> Marked:
    sentences = [row.strings(one, '"sents"') for one in row.values("sents")]
    marked = Marked(row.name(("title",), name), row.where, sentences)
    starts = marked.starts
    vertices = row.values("vertexSet")
    for number, vertex in enumerate(vertices):
        if not isinstance(vertex, list):
            raise row.odd('an item of "vertexSet"', "a list of mentions", vertex)
        for item in vertex:
            marked.mentions.append(_mention(row, item, starts, f"V{number}"))
    for label in row.rows("labels"):
        head, tail = label.number("h"), label.number("t")
        if not 0 <= head < len(vertices) or not 0 <= tail < len(vertices):
            raise row.odd('"h" and "t"', f"entities from 0 to {len(vertices) - 1}", head)
        evidence = " ".join(str(one) for one in label.values(_EVIDENCE))
        said = ((_EVIDENCE, evidence),) if evidence else ()
        marked.links.append(Link(label.string("r"), f"V{head}", f"V{tail}", said))
    return marked


def _mention(row: Row, item: object, starts: Sequence[int], concept: str) -> Mention:
    what = "a mention"
    sentence = row.whole(row.part(item, "sent_id", what), "a mention's sent_id")
    place = row.part(item, "pos", what)
    first, last = (row.whole(row.part(place, n, '"pos"'), '"pos"') for n in (0, 1))
    kind = row.type(row.part(item, "type", what), "a mention's type")
    if not 0 <= sentence < len(starts) or first < 0:
        return Mention(-1, -1, kind, concept)
    return Mention(starts[sentence] + first, starts[sentence] + last, kind, concept)


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a record for each document; `scheme` is not used.

    Mentions with one first concept are one entity; a mention without a concept is one of its own. A
    relation between mentions becomes one between their entities. Raises DataError if the file
    cannot be written.
    """
    cut, problems = cut_down(documents, _KEEPS, path)
    records: list[str] = []
    raised = several = said = 0
    for document in cut:
        marked = marked_of(document, problems)
        if marked is not None:
            record, count = _record(marked, problems)
            records.append(json.dumps(record, ensure_ascii=False))
            raised += count
        several += sum(len(entity.concepts) > 1 for entity in document.entities)
        said += sum(bool(entity.attributes) for entity in document.entities)
    write_text(path, "[" + ",\n".join(records) + "]\n")
    if raised:
        what = f"{raised} relations between mentions are written between their entities"
        problems.append(Problem("relations-raised", str(path), what))
    return [
        *problems,
        *unheld(path, "entities have several concepts: the first is written", several,
                kind="concepts-unheld"),
        *unheld(path, "entities lose attributes", said, kind="attributes-unheld"),
        *respaced(documents, path),
    ]  # fmt: skip


def _record(marked: Marked, problems: list[Problem]) -> tuple[Tree, int]:
    """A document's record, and how many of its relations were between mentions."""
    starts = marked.starts
    names = [one.concept or f"mention {number}" for number, one in enumerate(marked.mentions)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    vertices: list[list[Tree]] = [[] for _ in numbers]
    tokens = [token for sentence in marked.sentences for token in sentence]
    for name, mention in zip(names, marked.mentions, strict=True):
        home = max(number for number, start in enumerate(starts) if start <= mention.start)
        vertices[numbers[name]].append(
            {
                "name": " ".join(tokens[mention.start : mention.end]),
                "sent_id": home,
                "pos": [mention.start - starts[home], mention.end - starts[home]],
                "type": mention.type,
            }
        )
    labels: list[Tree] = []
    raised = 0
    for link in marked.links:
        ends = [names[end] if isinstance(end, int) else end for end in (link.head, link.tail)]
        raised += isinstance(link.head, int)
        if not set(ends) <= numbers.keys():
            what = f"{link.type} links a concept that no mention has"
            problems.append(Problem("relation-unheld", marked.where, what, lost=True))
            continue
        evidence = [int(one) for one in dict(link.attributes).get(_EVIDENCE, "").split()
                    if one.isdigit()]  # fmt: skip
        label = {"r": link.type, "h": numbers[ends[0]], "t": numbers[ends[1]]}
        labels.append({**label, _EVIDENCE: evidence})
    return {
        "title": marked.id, "sents": marked.sentences, "vertexSet": vertices, "labels": labels,
    }, raised  # fmt: skip
