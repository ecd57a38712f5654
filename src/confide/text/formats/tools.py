"""The JSON of annotation tools: doccano, Prodigy, Label Studio, PubAnnotation and others."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from confide.errors import FormatError
from confide.files import Tree
from confide.text.document import PAIR, Document, Entity, Problem
from confide.text.draft import (
    TokenDocument,
    TokenLink,
    TokenMention,
    document_from_tokens,
    open_source,
    read_documents,
    tokens_of_document,
)
from confide.text.files import write_text
from confide.text.places import CHARACTERS, UTF16
from confide.text.reading import (
    Options,
    Reading,
    Supports,
    malformed,
    quoted,
    reduce_to,
    unheld,
    whole_number,
)
from confide.text.rows import Key, Row, json_objects
from confide.text.segment import segmented

# --- Records of annotation tools
#
# Each becomes one of our own: text and entities by offsets.
#
# Only what was accepted is read: `LeftOut` counts by name what was rejected, ignored, skipped or
# cancelled. A tool's record may hold several annotators' versions of one text.

_MOST_LABELS = 100  # of one region of Label Studio
_KEPT_BY_PRODIGY = frozenset(("text", "spans", "relations", "tokens", "answer", "is_binary"))
_MIN_KEYS = frozenset(("annotator", "annotation_id", "created_at", "updated_at", "lead_time"))
_CHAINED, _CONCEPT = "_lexicallyChainedTo", "concept"
_PUB_KEYS = frozenset(
    ("text", "denotations", "relations", "attributes", "modifications", "tracks", "namespaces")
)


class AnnotatorRecord(NamedTuple):
    """One annotator's version of a text, as a record of our own, and how its offsets may count."""

    annotator: str
    record: Tree
    units: tuple[str, ...] = (CHARACTERS, UTF16)


@dataclass(slots=True)
class LeftOut:
    """Counts what is left out of a file on purpose, by name: "rejected", "skipped", ..."""

    counts: dict[str, tuple[int, str]] = field(default_factory=dict)

    def count(self, kind: str, where: str) -> None:
        """One more of a kind; the place of the first is kept."""
        number, first = self.counts.get(kind, (0, where))
        self.counts[kind] = number + 1, first

    def problems(self) -> Iterator[Problem]:
        """A problem for each kind. Nothing is lost: nobody accepted it."""
        for kind, (number, first) in self.counts.items():
            what = f"{number} {_NAMED[kind]}"
            yield Problem(kind, first, what)


_NAMED = {
    "rejected": "rejected texts or annotations are left out, this one first",
    "ignored": "ignored texts or annotations are left out, this one first",
    "cancelled": "cancelled or skipped annotations are left out, this one first",
    "not-annotated": "texts without anybody's annotation: read without entities, this one first",
}


@dataclass(frozen=True, slots=True)
class RecordProblems:
    """Where a record stands, and where to write down what it loses."""

    where: str
    problems: list[Problem]
    left: LeftOut
    bare_type: str = "entity"

    def lost(self, kind: str, what: str) -> None:
        """Write down a loss."""
        self.problems.append(Problem(kind, self.where, what, lost=True))

    def rows(self, row: Tree, key: str) -> list[Tree]:
        """A list of objects in a record; empty if it is missing. Raises FormatError."""
        value = row.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise malformed(f'"{key}"', "a list of objects", value, where=self.where)
        return value

    def accepted(self, answer: object) -> bool:
        """Return False for rejected or ignored answers, which are counted."""
        if answer in ("reject", "ignore"):
            self.left.count("rejected" if answer == "reject" else "ignored", self.where)
            return False
        return True


_MARKS = frozenset((
    "data", "annotation_id", "annotator", "answer", "_input_hash", "_task_hash", "denotations",
    "sourcedb", "tracks", "annotations", "classes",
))  # fmt: skip


def records_in(value: object) -> list[object]:
    """The records of a value of a file: of an export of one object those in it, else itself."""
    if not isinstance(value, dict) or "text" in value:
        return [value]
    if isinstance(value.get("classes"), list) and isinstance(value.get("annotations"), list):
        pairs = value["annotations"]
        return [
            {**one[1], "text": one[0], "classes": []} if _is_pair(one) else one for one in pairs
        ]
    if not isinstance(value.get("projects"), list):
        return [value]
    parts: list[object] = []
    for project in value["projects"]:
        documents = project.get("documents") if isinstance(project, dict) else None
        for one in documents if isinstance(documents, list) else [project]:
            named = isinstance(one, dict) and one is not project
            parts.append({**one, "project": project.get("name")} if named else one)
    return parts


def tool_records(value: object, notes: RecordProblems) -> tuple[str, list[AnnotatorRecord]]:
    """The tool that wrote a record ("" for our own form), and each annotator's version of it.

    Raises:
        FormatError: the value is no record, or a part of it does not have the tool's form.
    """
    if _is_pair(value):
        return "spaCy", [_pair(*value)]
    if not isinstance(value, dict):
        raise malformed("not a document", 'a JSON object with "text"', value, where=notes.where)
    if not _MARKS.isdisjoint(value):
        for tool, belongs, turned in _TOOLS:
            if belongs(value):
                return tool, list(turned(value, notes))
    return "", [AnnotatorRecord("", value)]


# --- spaCy's training data, and NER Annotator's -------------------------------------------


def _is_pair(value: object) -> TypeGuard[list[Any]]:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return isinstance(value[0], str) and isinstance(value[1], dict)


def _pair(text: str, said: Tree) -> AnnotatorRecord:
    """A text and what is said of it: spans are in groups, and whole texts in categories."""
    spans, cats = said.get("spans"), said.get("cats")
    record: Tree = {**said, "text": text}
    if isinstance(spans, dict) and all(isinstance(group, list) for group in spans.values()):
        record["spans"] = [one for group in spans.values() for one in group]
    if isinstance(cats, dict):
        record["meta"] = record.pop("cats")
    return AnnotatorRecord("", record, (CHARACTERS,))


def _is_ner_annotator(row: Tree) -> bool:
    return "classes" in row and "text" in row


def _ner_annotator(row: Tree, notes: RecordProblems) -> Iterator[AnnotatorRecord]:
    yield AnnotatorRecord(
        "", {key: row[key] for key in row if key != "classes"}, (UTF16, CHARACTERS)
    )


# --- MedCATtrainer ------------------------------------------------------------------------

_NOT_MEANT = ("deleted", "killed", "irrelevant")


def _is_medcat(row: Tree) -> bool:
    listed = row.get("annotations")
    held = listed if isinstance(listed, list) else []
    known = not {"project", "last_modified"}.isdisjoint(row)
    known = known or any("cui" in one for one in held if isinstance(one, dict))
    return known and "text" in row and "annotations" in row


def _medcat(row: Tree, notes: RecordProblems) -> Iterator[AnnotatorRecord]:
    """Annotations by concept; what was deleted, killed or called irrelevant is left out."""
    entities: list[Tree] = []
    for one in notes.rows(row, "annotations"):
        if any(one.get(key) for key in _NOT_MEANT) or one.get("validated") is False:
            notes.left.count("rejected" if one.get("validated") else "ignored", notes.where)
            continue
        meta = one.get("meta_anns")
        said = [m for m in (meta.values() if isinstance(meta, dict) else ()) if isinstance(m, dict)]
        entity = {key: one.get(key) for key in ("start", "end")}
        entity |= {"type": notes.bare_type, "text": one.get("value"), "concepts": [one.get("cui")]}
        entity["attributes"] = [[str(m.get("name")), str(m.get("value"))] for m in said]
        entities.append(entity)
    about = {key: row[key] for key in ("project", "name") if isinstance(row.get(key), str)}
    record: Tree = {"text": row["text"], "entities": entities, "meta": about}
    if row.get("id") is not None:
        record["id"] = row["id"]
    yield AnnotatorRecord(about.get("project", ""), record, (CHARACTERS,))


# --- Label Studio -------------------------------------------------------------------------


def _is_label_studio(row: Tree) -> bool:
    return "text" not in row and isinstance(row.get("data"), dict)


def _label_studio(row: Tree, notes: RecordProblems) -> Iterator[AnnotatorRecord]:
    data = row["data"]
    strings = [value for value in data.values() if isinstance(value, str)]
    text = data.get("text", strings[0] if len(strings) == 1 else None)
    key = "annotations" if row.get("annotations") else "completions"
    done = notes.rows(row, key)
    rest = {key: value for key, value in data.items() if key != "text" and value != text}
    record: Tree = {"text": text, "meta": rest}
    if row.get("id") is not None:
        record["id"] = row["id"]
    if not done:
        notes.left.count("not-annotated", notes.where)
        yield AnnotatorRecord("", record)
    for number, one in enumerate(done, 1):
        if one.get("was_cancelled") or one.get("skipped"):
            notes.left.count("cancelled", notes.where)
            continue
        entities, relations = _results(one.get("result"), notes)
        who = _person(one) or (f"annotation {number}" if len(done) > 1 else "")
        yield AnnotatorRecord(who, {**record, "entities": entities, "relations": relations})


def _person(row: Tree) -> str:
    """The name of an annotator; a person may be an object with an address or a number."""
    person: Any = next((row[k] for k in ("completed_by", "annotator") if row.get(k)), "")
    if isinstance(person, dict):
        person = next((person[key] for key in ("email", "username", "id") if person.get(key)), "")
    return str(person) if isinstance(person, str | int) else ""


def _results(given: object, notes: RecordProblems) -> tuple[list[Tree], list[Tree]]:
    """The entities and relations of one annotation."""
    entities: list[Tree] = []
    relations: list[Tree] = []
    for item in given if isinstance(given, list) else []:
        value = item.get("value") if isinstance(item, dict) else None
        if isinstance(item, dict) and item.get("type") == "relation":
            ends = {"from_id": item.get("from_id"), "to_id": item.get("to_id")}
            if item.get("direction") == "left":  # the arrow points to where it was drawn from
                ends = {"from_id": item.get("to_id"), "to_id": item.get("from_id")}
            labels: Sequence[object] = item.get("labels") or ["relation"]
            relations += [{**ends, "type": label} for label in labels]
        elif isinstance(value, dict) and isinstance(value.get("labels"), list):
            entities += _regions(value, item.get("id"), notes)
        else:
            kind = item.get("type") if isinstance(item, dict) else type(item).__name__
            notes.lost("key-ignored", f"a result of type {quoted(str(kind))} is not understood")
    return entities, relations


def _regions(value: Tree, name: object, notes: RecordProblems) -> Iterator[Tree]:
    """A region as an entity for each of its labels; the first has its id."""
    labels = value["labels"]
    if len(labels) > _MOST_LABELS:
        raise FormatError(
            "a region has far too many labels",
            expected=f"at most {_MOST_LABELS}",
            got=f"{len(labels):,}",
            where=notes.where,
        )
    part = {key: value.get(key) for key in ("start", "end", "text")}
    for number, label in enumerate(labels):
        own = {"id": name} if number == 0 and name is not None else {}
        yield {**part, **own, "type": label}


def _is_label_studio_min(row: Tree) -> bool:
    return "annotation_id" in row or {"annotator", "lead_time"} <= row.keys()


def _label_studio_min(row: Tree, notes: RecordProblems) -> Iterator[AnnotatorRecord]:
    """JSON-MIN: a row for each annotation, its regions in lists under the names of the controls."""
    entities: list[Tree] = []
    rest: Tree = {}
    for key, value in row.items():
        regions = value if isinstance(value, list) else []
        if regions and all(isinstance(one, dict) and "labels" in one for one in regions):
            for region in regions:
                if not isinstance(region["labels"], list):
                    raise malformed('"labels"', "a list", region["labels"], where=notes.where)
                entities += _regions(region, None, notes)
        elif key not in (*_MIN_KEYS, "id", "text"):
            rest[key] = value
    text = row.get("text")
    if text is None:  # the text has the name that the project gave it: the one that fits
        fits = [key for key, one in rest.items() if isinstance(one, str) and _fits(one, entities)]
        text = rest.pop(fits[0]) if fits else None
    record: Tree = {"text": text, "entities": entities, "meta": rest}
    yield AnnotatorRecord(
        _person(row), record if row.get("id") is None else {**record, "id": row["id"]}
    )


def _fits(text: str, entities: Sequence[Tree]) -> bool:
    """Return whether the surfaces of regions are those of a text."""
    return all(isinstance(one.get("text"), str) and one["text"] in text for one in entities[:20])


# --- Prodigy ------------------------------------------------------------------------------


def _is_prodigy(row: Tree) -> bool:
    return "text" in row and ("answer" in row or "_input_hash" in row or "_task_hash" in row)


def _prodigy(row: Tree, notes: RecordProblems) -> Iterator[AnnotatorRecord]:
    if not notes.accepted(row.get("answer")):
        return
    spans = [span for span in notes.rows(row, "spans") if notes.accepted(span.get("answer"))]
    entities: list[Tree] = []
    at: dict[object, str] = {}
    for number, span in enumerate(spans, 1):
        name = f"T{number}"
        at.setdefault(_place(span), name)
        at.setdefault(_place(span)[:2], name)
        for token in (_offset(span, "token_start"), _offset(span, "token_end")):
            if token is not None:
                at.setdefault(token, name)
        part = {key: span.get(key) for key in ("start", "end", "label", "score")}
        entities.append({"id": name, **part})
    relations = [
        {
            "type": relation.get("label"),
            "head": _end(relation, "head", at),
            "tail": _end(relation, "child", at),
        }
        for relation in notes.rows(row, "relations")
    ]
    record = {key: value for key, value in row.items()
              if key not in _KEPT_BY_PRODIGY and not key.startswith("_")}  # fmt: skip
    record |= {"text": row["text"], "entities": entities, "relations": relations}
    person = row.get("_annotator_id") or row.get("_session_id") or ""
    yield AnnotatorRecord(person if isinstance(person, str) else "", record, (CHARACTERS,))


def _place(span: Tree) -> tuple[int | None, int | None, str]:
    return _offset(span, "start"), _offset(span, "end"), str(span.get("label"))


def _offset(row: Tree, key: str) -> int | None:
    return whole_number(row.get(key))


def _end(relation: Tree, side: str, at: dict[object, str]) -> str:
    """The id of the span at an end of a relation; a token without a span has a name of its own."""
    span = relation.get(f"{side}_span")
    if isinstance(span, dict):
        found = at.get(_place(span)) or at.get(_place(span)[:2])
        if found is not None:
            return found
    token = _offset(relation, side)
    return at.get(token, f"token {token}")


# --- PubAnnotation ------------------------------------------------------------------------


def _is_pubannotation(row: Tree) -> bool:
    return "text" in row and ("denotations" in row or "sourcedb" in row or "tracks" in row)


def _pubannotation(row: Tree, notes: RecordProblems) -> Iterator[AnnotatorRecord]:
    """Denotations, attributes and relations; each of several tracks is an annotator's version."""
    tracks = notes.rows(row, "tracks")
    meta = {key: value for key, value in row.items() if key not in _PUB_KEYS}
    for key in ("sourcedb", "sourceid", "divid"):
        meta.pop(key, None)
    source = [row.get(key) for key in ("sourcedb", "sourceid", "divid")]
    record: Tree = {"text": row["text"], "meta": meta}
    named = [str(one) for one in source if isinstance(one, str | int)]
    if named:
        record["id"] = ":".join(named)
    if isinstance(row.get("id"), str | int):
        record["id"] = meta.pop("id")
    for track in tracks or [row]:
        project = track.get("project")
        annotator = project if tracks and isinstance(project, str) else ""
        yield AnnotatorRecord(annotator, {**record, **_denoted(track, notes)})


def _denoted(track: Tree, notes: RecordProblems) -> Tree:
    """The entities and relations of a track; a chain of fragments is one entity."""
    entities: dict[str, Tree] = {}
    for number, one in enumerate(notes.rows(track, "denotations"), 1):
        spans = one.get("span")
        given = spans if isinstance(spans, list) else [spans]
        parts = [part for part in given if isinstance(part, dict)]
        if not parts or len(parts) != len(given):
            raise malformed(
                "a denotation's span", '{"begin": ..., "end": ...}', spans, where=notes.where
            )
        name = str(one.get("id", f"T{number}"))
        while name in entities:
            name += "'"
        entities[name] = {
            "id": name,
            "type": one.get("obj"),
            "fragments": [[part.get("begin"), part.get("end")] for part in parts],
            "attributes": [],
        }
    relations: list[Tree] = []
    for one in notes.rows(track, "relations"):
        ends = str(one.get("subj")), str(one.get("obj"))
        if one.get("pred") == _CHAINED and set(ends) <= entities.keys() and ends[0] != ends[1]:
            entities[ends[1]]["fragments"] += entities.pop(ends[0])["fragments"]
            continue
        own = {"id": one["id"]} if isinstance(one.get("id"), str) else {}
        relations.append({**own, "type": one.get("pred"), "head": ends[0], "tail": ends[1]})
    said = [(one, "subj", "obj") for one in notes.rows(track, "attributes")]
    said += [(one, "obj", "") for one in notes.rows(track, "modifications")]
    known = {one["id"]: one for one in relations if "id" in one} | entities
    for one, subject, value in said:
        key, about = one.get("pred"), known.get(str(one.get(subject)))
        if about is None or not isinstance(key, str):
            notes.lost("dangling-attribute", f"{quoted(str(key))} is of no denotation")
        elif key == _CONCEPT and "fragments" in about:
            about.setdefault("concepts", []).append(str(one.get(value)))
        else:
            pair = [key, str(one.get(value, "true")) if value else "true"]
            about.setdefault("attributes", []).append(pair)
    return {"entities": list(entities.values()), "relations": relations}


_TOOLS: tuple[
    tuple[str, Callable[[Tree], bool], Callable[[Tree, RecordProblems], Iterator[AnnotatorRecord]]],
    ...,
] = (
    ("Label Studio", _is_label_studio, _label_studio),
    ("Label Studio, JSON-MIN", _is_label_studio_min, _label_studio_min),
    ("Prodigy", _is_prodigy, _prodigy),
    ("MedCATtrainer", _is_medcat, _medcat),
    ("NER Annotator", _is_ner_annotator, _ner_annotator),
    ("PubAnnotation", _is_pubannotation, _pubannotation),
)


# --- Documents to the JSON of annotation tools ----------------------------------------------------
#
# Doccano, Prodigy, Label Studio and PubAnnotation.
#
# Each tool has its `Supports` and one function from a document to its record; `jsonl` reads all.

_FROM, _TO = itemgetter(0), itemgetter(1)
Writer = Callable[[Sequence[Document], Path, str], list[Problem]]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool's form: what it keeps, a document's record, and whether the file is one list."""

    keeps: Supports
    record: Callable[[Document], Tree]
    one_list: bool = False


def writer(tool: Tool) -> Writer:
    """The writer of a tool's form; it raises DataError if the file cannot be written."""

    def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
        cut, problems = reduce_to(documents, tool.keeps, path)
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


def _to_doccano(document: Document) -> Tree:
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


def _to_prodigy(document: Document) -> Tree:
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


def _to_label_studio(document: Document) -> Tree:
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


def _to_pubannotation(document: Document) -> Tree:
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
DOCCANO = Tool(Supports(relations=True, attributes=True), _to_doccano)
PRODIGY = Tool(Supports(relations=True, attributes=True), _to_prodigy)
LABEL_STUDIO = Tool(Supports(relations=True, attributes=True), _to_label_studio, one_list=True)
PUBANNOTATION = Tool(
    Supports(fragments=True, relations=True, concepts=True, said=True, attributes=True),
    _to_pubannotation,
    one_list=True,
)


# --- GLiNER, SpERT and DyGIE: JSON with lists of tokens, and mentions by the numbers of tokens
#
# Each form is a `Shape`, and one reader serves them all; GLiNER's is written, too.


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


def token_format(keys: Sequence[str]) -> str | None:
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
            return document_from_tokens(marked, options, source.problems)

        source = open_source(path, options)
        rows = json_objects(source.text, path, options=options, problems=source.problems)
        return read_documents(source, rows, one, format=shape.name)

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


def _marked(shape: Shape, row: Row, name: str) -> TokenDocument:
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
    marked = TokenDocument(
        row.name((shape.id,), name), row.where, sentences, attributes=tuple(extra)
    )
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


def _mention(shape: Shape, row: Row, item: object) -> TokenMention:
    what = f'an item of "{shape.mentions}"'
    start, end = (row.whole(row.part(item, key, what), what) for key in shape.mention[:2])
    kind = row.type(row.part(item, shape.mention[2], what), f"the type of {what}")
    return TokenMention(start, end + shape.last, kind)


def _link(shape: Shape, row: Row, item: object, mentions: Sequence[TokenMention]) -> TokenLink:
    what = f'an item of "{shape.links}"'
    kind = row.type(row.part(item, shape.link[0], what), f"the type of {what}")
    numbers = [row.whole(row.part(item, key, what), what) for key in shape.link[1:]]
    if len(numbers) == 2:
        return TokenLink(kind, numbers[0], numbers[1])
    at = {(one.start, one.end - 1): place for place, one in reversed([*enumerate(mentions)])}
    head, tail = (at.get((a, b), -1) for a, b in (numbers[:2], numbers[2:]))
    return TokenLink(kind, head, tail)


# --- writing GLiNER's form ----------------------------------------------------------------


def write_gliner(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a record for each sentence; `scheme` is not used.

    Nested entities are kept, several fragments and white space are not. Raises DataError if the
    file cannot be written.
    """
    cut, problems = reduce_to(documents, Supports(relations=True, sentences=True), path)
    records: list[Tree] = []
    for document in cut:
        marked = tokens_of_document(document, problems)
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


def _by_sentence(marked: TokenDocument, problems: list[Problem]) -> list[TokenDocument]:
    """A document cut into one for each sentence; what crosses a border is reported as lost."""
    starts = marked.starts
    if len(starts) == 1:
        return [marked]
    home = [bisect_right(starts, mention.start) - 1 for mention in marked.mentions]
    borders = [*starts[1:], starts[-1] + len(marked.sentences[-1])]
    parts = [
        TokenDocument(
            f"{marked.id}:{number}", marked.where, [sentence], attributes=marked.attributes
        )
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
