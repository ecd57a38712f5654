"""Documents to the JSON of annotation tools: doccano, Prodigy, Label Studio and PubAnnotation.

Each tool has its `Keeps` and one function from a document to its record; all are read by `jsonl`.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from confide.text.document import Document, Entity, Problem
from confide.text.files import write_text
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.pairs import PAIR
from confide.text.segment import segmented
from confide.userfiles import Tree

_FROM, _TO = itemgetter(0), itemgetter(1)
Writer = Callable[[Sequence[Document], Path, str], list[Problem]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's form: what it keeps, a document's record, and whether the file is one list."""

    keeps: Keeps
    record: Callable[[Document], Tree]
    one_list: bool = False


def writer(tool: Tool) -> Writer:
    """The writer of a tool's form; it raises DataError if the file cannot be written."""

    def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
        cut, problems = cut_down(documents, tool.keeps, path)
        lines = [json.dumps(tool.record(document), ensure_ascii=False) for document in cut]
        if tool.one_list:
            write_text(path, "[" + ",\n".join(lines) + "]\n")
        else:
            write_text(path, "".join(f"{line}\n" for line in lines))
        return problems

    return write


def _numbered(document: Document) -> dict[str, str]:
    """The names T1, T2, ... that a reader gives to entities without any."""
    return {entity.id: f"T{number}" for number, entity in enumerate(document.entities, 1)}


def _meta(document: Document, names: Mapping[str, str] | None = None) -> Tree:
    """The attributes as an object: one value, or a list of several; pairs by the new names."""
    meta: Tree = {}
    for key, value in document.attributes:
        if key == PAIR and names is not None:
            value = " ".join(names.get(end, end) for end in value.split())
        if key in meta:
            before = meta[key] if isinstance(meta[key], list) else [meta[key]]
            meta[key] = [*before, value]
        else:
            meta[key] = value
    return meta


def _doccano(document: Document) -> Tree:
    numbers = {entity.id: number for number, entity in enumerate(document.entities, 1)}
    record: Tree = {"id": document.id, "text": document.text}
    meta = _meta(document, {name: str(number) for name, number in numbers.items()})
    record |= {key: value for key, value in meta.items() if key not in (*record, *_DOCCANO)}
    record["entities"] = [
        {"id": number, "label": one.type, "start_offset": one.start, "end_offset": one.end}
        for number, one in enumerate(document.entities, 1)
    ]
    if max(document.text, default="") > "\uffff":  # a browser would count otherwise: say the text
        for entity, item in zip(document.entities, record["entities"], strict=True):
            item["text"] = document.surface(entity)
    record["relations"] = [
        {"id": number, "from_id": numbers[one.head], "to_id": numbers[one.tail], "type": one.type}
        for number, one in enumerate(document.relations, 1)
    ]
    return record


_DOCCANO = ("entities", "relations", "label", "labels", "spans", "meta", "sentences", "attributes")


def _prodigy(document: Document) -> Tree:
    ready = segmented(document)
    tokens = [token for sentence in ready.sentences for token in sentence.tokens]
    spans = {entity.id: _span(entity, tokens) for entity in document.entities}
    relations: list[Tree] = []
    for one in document.relations:
        head, tail = spans[one.head], spans[one.tail]
        relations.append(
            {
                "head": head.get("token_end", -1),
                "child": tail.get("token_end", -1),
                "head_span": head,
                "child_span": tail,
                "label": one.type,
            }
        )
    return {
        "id": document.id,
        "text": document.text,
        "meta": _meta(document, _numbered(document)),
        "tokens": [
            {
                "text": document.text[start:end],
                "start": start,
                "end": end,
                "id": number,
                "ws": document.text[end : end + 1].isspace(),
            }
            for number, (start, end) in enumerate(tokens)
        ],
        "spans": list(spans.values()),
        "relations": relations,
        "answer": "accept",
    }


def _span(entity: Entity, tokens: Sequence[tuple[int, int]]) -> Tree:
    """A span, with its first and last token if it has any."""
    span: Tree = {"start": entity.start, "end": entity.end, "label": entity.type}
    first = bisect_right(tokens, entity.start, key=_TO)
    last = bisect_left(tokens, entity.end, key=_FROM) - 1
    return span if first > last else {**span, "token_start": first, "token_end": last}


def _label_studio(document: Document) -> Tree:
    results: list[Tree] = [
        {
            "id": entity.id,
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": _region(document, entity),
        }
        for entity in document.entities
    ]
    results += [
        {
            "type": "relation",
            "from_id": relation.head,
            "to_id": relation.tail,
            "direction": "right",
            "labels": [relation.type],
        }
        for relation in document.relations
    ]
    data = {"text": document.text}
    data |= {key: value for key, value in _meta(document).items() if key not in data}
    return {"id": document.id, "data": data, "annotations": [{"result": results}]}


def _region(document: Document, entity: Entity) -> Tree:
    return {
        "start": entity.start,
        "end": entity.end,
        "text": document.surface(entity),
        "labels": [entity.type],
    }


def _label_studio_min(document: Document) -> Tree:
    record: Tree = {"id": document.id, "text": document.text}
    record["label"] = [_region(document, entity) for entity in document.entities]
    meta = _meta(document, _numbered(document))
    record |= {key: value for key, value in meta.items() if key not in record}
    return {**record, "annotation_id": document.id}


def _pubannotation(document: Document) -> Tree:
    denotations: list[Tree] = []
    said: list[tuple[str, str, str]] = []
    for entity in document.entities:
        spans = [{"begin": start, "end": end} for start, end in entity.fragments]
        span = spans[0] if len(spans) == 1 else spans
        denotations.append({"id": entity.id, "span": span, "obj": entity.type})
        said += [(entity.id, CONCEPT, concept) for concept in entity.concepts]
        said += [(entity.id, key, value) for key, value in entity.attributes]
    relations = []
    for one in document.relations:
        ends = {"subj": one.head, "obj": one.tail}
        relations.append({"id": one.id, "pred": one.type, **ends})
        said += [(one.id, key, value) for key, value in one.attributes]
    record: Tree = {"sourceid": document.id, "text": document.text, "denotations": denotations}
    record["relations"] = relations
    record["attributes"] = [
        {"id": f"A{number}", "subj": subject, "pred": key, "obj": value}
        for number, (subject, key, value) in enumerate(said, 1)
    ]
    meta = _meta(document)
    return record | {key: value for key, value in meta.items() if key not in _PUBANNOTATION}


CONCEPT = "concept"
"""The attribute that a concept of an entity becomes in PubAnnotation."""
_PUBANNOTATION = frozenset((
    "id", "sourceid", "sourcedb", "divid", "text", "denotations", "relations", "attributes",
    "modifications", "tracks", "namespaces",
))  # fmt: skip
DOCCANO = Tool(Keeps(relations=True, attributes=True), _doccano)
PRODIGY = Tool(Keeps(relations=True, attributes=True), _prodigy)
LABEL_STUDIO = Tool(Keeps(relations=True, attributes=True), _label_studio, one_list=True)
LABEL_STUDIO_MIN = Tool(Keeps(attributes=True), _label_studio_min, one_list=True)
PUBANNOTATION = Tool(
    Keeps(fragments=True, relations=True, concepts=True, said=True, attributes=True),
    _pubannotation,
    one_list=True,
)
