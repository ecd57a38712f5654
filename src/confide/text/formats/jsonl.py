"""JSON: one document per line, in our own full form, or as doccano and other tools write it.

docs/formats/jsonl.md lists what is understood. A file with one JSON list of such objects, or a
single object, is read too; so are the exports of annotation tools, and lists of tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from confide.errors import DataError, FormatError
from confide.files import Tree
from confide.text import reading, rows
from confide.text.document import PAIR, Document, Entity, Relation, Sentence, Span, pack_spans
from confide.text.places import CHARACTERS, UTF16
from confide.text.reading import Draft, Format, Options, Output, Reading, Source, Supports, Version
from confide.text.rows import Key, Row, clean, malformed, quoted, whole_number
from confide.text.segment import segmented, text_of_tokens, tokens_covered

# --- Records of annotation tools
#
# Each becomes one of our own: text and entities by offsets.
#
# Only what was accepted is read: the places of what was rejected, ignored, skipped or cancelled are
# kept by that name. A tool's record may hold several annotators' versions of one text.

_MOST_LABELS = 100  # of one region of Label Studio


class AnnotatorRecord(NamedTuple):
    """One annotator's version of a text, as a record of our own, and how its offsets may count."""

    annotator: str
    record: Tree
    units: tuple[str, ...] = (CHARACTERS, UTF16)


_LEFT_OUT = {
    "rejected": "rejected texts or annotations are left out, this one first",
    "ignored": "ignored texts or annotations are left out, this one first",
    "cancelled": "cancelled or skipped annotations are left out, this one first",
    "not-annotated": "texts without anybody's annotation: read without entities, this one first",
}


@dataclass(frozen=True, slots=True)
class ToolRecord:
    """A tool's object, where it stands, and where to report what it loses."""

    tree: Tree
    where: str
    source: Source
    left: defaultdict[str, list[str]]

    def lost(self, kind: str, what: str) -> None:
        """Report a loss."""
        self.source.problems.lost(kind, self.where, what)

    def leave_out(self, kind: str) -> None:
        """Count something that is left out on purpose."""
        self.left[kind].append(self.where)

    def rows(self, key: str, tree: Tree | None = None) -> list[Tree]:
        """A list of objects in the record, or in a part of it; empty if it is missing.

        Raises FormatError if it is anything else.
        """
        held = Row(self.tree if tree is None else tree, self.where)
        return [row.tree for row in held.rows(key)]

    def accepted(self, answer: object) -> bool:
        """Return False for rejected or ignored answers, which are counted."""
        if answer in ("reject", "ignore"):
            self.leave_out("rejected" if answer == "reject" else "ignored")
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


def tool_records(
    value: object, where: str, *, source: Source, left: defaultdict[str, list[str]]
) -> tuple[str, list[AnnotatorRecord]]:
    """The tool that wrote a record ("" for our own form), and each annotator's version of it.

    Raises:
        FormatError: the value is no record, or a part of it does not have the tool's form.
    """
    if _is_pair(value):
        return "spaCy", [_pair(*value)]
    if not isinstance(value, dict):
        raise malformed("not a document", 'a JSON object with "text"', value, where=where)
    if not _MARKS.isdisjoint(value):
        for tool, belongs, records in _TOOLS:
            if belongs(value):
                return tool, list(records(ToolRecord(value, where, source, left)))
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
        record["spans"] = list(chain.from_iterable(spans.values()))
    if isinstance(cats, dict):
        record["meta"] = record.pop("cats")
    return AnnotatorRecord("", record, (CHARACTERS,))


def _ner_annotator(row: ToolRecord) -> Iterator[AnnotatorRecord]:
    record = {key: value for key, value in row.tree.items() if key != "classes"}
    yield AnnotatorRecord("", record, (UTF16, CHARACTERS))


# --- MedCATtrainer ------------------------------------------------------------------------


def _is_medcat(tree: Tree) -> bool:
    listed = tree.get("annotations")
    found = listed if isinstance(listed, list) else []
    known = not {"project", "last_modified"}.isdisjoint(tree)
    known = known or any("cui" in one for one in found if isinstance(one, dict))
    return known and "text" in tree and "annotations" in tree


def _medcat(row: ToolRecord) -> Iterator[AnnotatorRecord]:
    """Annotations by concept; what was deleted, killed or called irrelevant is left out."""
    entities: list[Tree] = []
    for one in row.rows("annotations"):
        unmeant = any(one.get(key) for key in ("deleted", "killed", "irrelevant"))
        if unmeant or one.get("validated") is False:
            row.leave_out("rejected" if one.get("validated") else "ignored")
            continue
        meta = one.get("meta_anns")
        said = [m for m in (meta.values() if isinstance(meta, dict) else ()) if isinstance(m, dict)]
        entities.append(
            {
                "start": one.get("start"),
                "end": one.get("end"),
                "type": row.source.options.bare_type,
                "text": one.get("value"),
                "concepts": [one.get("cui")],
                "attributes": [[str(m.get("name")), str(m.get("value"))] for m in said],
            }
        )
    tree = row.tree
    about = {key: tree[key] for key in ("project", "name") if isinstance(tree.get(key), str)}
    record = {"text": tree["text"], "entities": entities, "meta": about, "id": tree.get("id")}
    yield AnnotatorRecord(about.get("project", ""), record, (CHARACTERS,))


# --- Label Studio -------------------------------------------------------------------------


def _label_studio(row: ToolRecord) -> Iterator[AnnotatorRecord]:
    data = row.tree["data"]
    strings = [value for value in data.values() if isinstance(value, str)]
    text = data.get("text", strings[0] if len(strings) == 1 else None)
    done = row.rows("annotations" if row.tree.get("annotations") else "completions")
    rest = {key: value for key, value in data.items() if key != "text" and value != text}
    record: Tree = {"text": text, "meta": rest, "id": row.tree.get("id")}
    if not done:
        row.leave_out("not-annotated")
        yield AnnotatorRecord("", record)
    for number, one in enumerate(done, 1):
        if one.get("was_cancelled") or one.get("skipped"):
            row.leave_out("cancelled")
            continue
        entities, relations = _results(one.get("result"), row)
        who = _person(one) or (f"annotation {number}" if len(done) > 1 else "")
        yield AnnotatorRecord(who, {**record, "entities": entities, "relations": relations})


def _person(tree: Tree) -> str:
    """The name of an annotator; a person may be an object with an address or a number."""
    person: Any = tree.get("completed_by") or tree.get("annotator")
    if isinstance(person, dict):
        person = next((person[key] for key in ("email", "username", "id") if person.get(key)), "")
    return str(person) if isinstance(person, str | int) else ""


def _results(given: object, row: ToolRecord) -> tuple[list[Tree], list[Tree]]:
    """The entities and relations of one annotation."""
    entities: list[Tree] = []
    relations: list[Tree] = []
    for item in given if isinstance(given, list) else []:
        value = item.get("value") if isinstance(item, dict) else None
        if isinstance(item, dict) and item.get("type") == "relation":
            head, tail = item.get("from_id"), item.get("to_id")
            if item.get("direction") == "left":  # the arrow points to where it was drawn from
                head, tail = tail, head
            labels: Sequence[object] = item.get("labels") or ["relation"]
            relations += [{"from_id": head, "to_id": tail, "type": label} for label in labels]
        elif isinstance(value, dict) and isinstance(value.get("labels"), list):
            entities += _regions(value, item.get("id"), row)
        else:
            kind = item.get("type") if isinstance(item, dict) else type(item).__name__
            row.lost("key-ignored", f"a result of type {quoted(str(kind))} is not understood")
    return entities, relations


def _regions(value: Tree, name: object, row: ToolRecord) -> Iterator[Tree]:
    """A region as an entity for each of its labels; the first has its id."""
    labels = value["labels"]
    if len(labels) > _MOST_LABELS:
        raise FormatError(
            "a region has far too many labels",
            expected=f"at most {_MOST_LABELS}",
            got=f"{len(labels):,}",
            where=row.where,
        )
    part = {key: value.get(key) for key in ("start", "end", "text")}
    for number, label in enumerate(labels):
        yield {**part, "id": None if number else name, "type": label}


_MIN_KEYS = frozenset(
    ("annotator", "annotation_id", "created_at", "updated_at", "lead_time", "id", "text")
)


def _label_studio_min(row: ToolRecord) -> Iterator[AnnotatorRecord]:
    """JSON-MIN: a row for each annotation, its regions in lists under the names of the controls."""
    entities: list[Tree] = []
    rest: Tree = {}
    for key, value in row.tree.items():
        regions = value if isinstance(value, list) else []
        if regions and all(isinstance(one, dict) and "labels" in one for one in regions):
            for region in regions:
                if not isinstance(region["labels"], list):
                    raise malformed('"labels"', "a list", region["labels"], where=row.where)
                entities += _regions(region, None, row)
        elif key not in _MIN_KEYS:
            rest[key] = value
    text = row.tree.get("text")
    if text is None:  # the text has the name that the project gave it: the one that fits
        surfaces = [one.get("text") for one in entities[:20]]
        fits = [key for key, one in rest.items() if isinstance(one, str)
                and all(isinstance(part, str) and part in one for part in surfaces)]  # fmt: skip
        text = rest.pop(fits[0]) if fits else None
    record: Tree = {"text": text, "entities": entities, "meta": rest, "id": row.tree.get("id")}
    yield AnnotatorRecord(_person(row.tree), record)


# --- Prodigy ------------------------------------------------------------------------------

_KEPT_BY_PRODIGY = frozenset(("text", "spans", "relations", "tokens", "answer", "is_binary"))


def _prodigy(row: ToolRecord) -> Iterator[AnnotatorRecord]:
    if not row.accepted(row.tree.get("answer")):
        return
    entities: list[Tree] = []
    at: dict[object, str] = {}
    for span in row.rows("spans"):
        if row.accepted(span.get("answer")):
            name = f"T{len(entities) + 1}"
            tokens = (whole_number(span.get(key)) for key in ("token_start", "token_end"))
            numbers = (token for token in tokens if token is not None)
            for key in (_place(span), _place(span)[:2], *numbers):
                at.setdefault(key, name)
            part = {key: span.get(key) for key in ("start", "end", "label", "score")}
            entities.append({"id": name, **part})
    relations = [
        {
            "type": relation.get("label"),
            "head": _end(relation, "head", at),
            "tail": _end(relation, "child", at),
        }
        for relation in row.rows("relations")
    ]
    record = {key: value for key, value in row.tree.items()
              if key not in _KEPT_BY_PRODIGY and not key.startswith("_")}  # fmt: skip
    record |= {"text": row.tree["text"], "entities": entities, "relations": relations}
    person = row.tree.get("_annotator_id") or row.tree.get("_session_id") or ""
    yield AnnotatorRecord(person if isinstance(person, str) else "", record, (CHARACTERS,))


def _place(span: Tree) -> tuple[int | None, int | None, str]:
    start, end = (whole_number(span.get(key)) for key in ("start", "end"))
    return start, end, str(span.get("label"))


def _end(relation: Tree, side: str, at: dict[object, str]) -> str:
    """The id of the span at an end of a relation; a token without a span has a name of its own."""
    span = relation.get(f"{side}_span")
    found = None
    if isinstance(span, dict):
        found = at.get(_place(span)) or at.get(_place(span)[:2])
    token = whole_number(relation.get(side))
    return found or at.get(token, f"token {token}")


# --- PubAnnotation ------------------------------------------------------------------------

_CHAINED = "_lexicallyChainedTo"
CONCEPT = "concept"
"""The attribute that a concept of an entity becomes in PubAnnotation."""
_SOURCE_KEYS = ("sourcedb", "sourceid", "divid")
_PUB_KEYS = frozenset((
    "text", "denotations", "relations", "attributes", "modifications", "tracks", "namespaces",
    *_SOURCE_KEYS,
))  # fmt: skip
_PUB_TAKEN = _PUB_KEYS | _MARKS | {"id"}


def _pubannotation(row: ToolRecord) -> Iterator[AnnotatorRecord]:
    """Denotations, attributes and relations; each of several tracks is an annotator's version."""
    tree, tracks = row.tree, row.rows("tracks")
    meta = {key: value for key, value in tree.items() if key not in _PUB_KEYS}
    named = [str(tree[key]) for key in _SOURCE_KEYS if isinstance(tree.get(key), str | int)]
    record: Tree = {"text": tree["text"], "meta": meta, "id": ":".join(named) or None}
    if isinstance(tree.get("id"), str | int):
        record["id"] = meta.pop("id")
    for track in tracks or [tree]:
        project = track.get("project")
        annotator = project if tracks and isinstance(project, str) else ""
        yield AnnotatorRecord(annotator, {**record, **_denotations(track, row)})


def _denotations(track: Tree, row: ToolRecord) -> Tree:
    """The entities and relations of a track; a chain of fragments is one entity."""
    entities: dict[str, Tree] = {}
    for number, one in enumerate(row.rows("denotations", track), 1):
        spans = one.get("span")
        given = spans if isinstance(spans, list) else [spans]
        parts = [part for part in given if isinstance(part, dict)]
        if not parts or len(parts) != len(given):
            wanted = '{"begin": ..., "end": ...}'
            raise malformed("a denotation's span", wanted, spans, where=row.where)
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
    for one in row.rows("relations", track):
        head, tail = str(one.get("subj")), str(one.get("obj"))
        if one.get("pred") == _CHAINED and {head, tail} <= entities.keys() and head != tail:
            entities[tail]["fragments"] += entities.pop(head)["fragments"]
            continue
        own = {"id": one["id"]} if isinstance(one.get("id"), str) else {}
        relations.append({**own, "type": one.get("pred"), "head": head, "tail": tail})
    said = [(one, "subj", one.get("obj", "true")) for one in row.rows("attributes", track)]
    said += [(one, "obj", "true") for one in row.rows("modifications", track)]
    known = {one["id"]: one for one in relations if "id" in one} | entities
    for one, subject, value in said:
        key, about = one.get("pred"), known.get(str(one.get(subject)))
        if about is None or not isinstance(key, str):
            row.lost("dangling-attribute", f"{quoted(str(key))} is of no denotation")
        elif key == CONCEPT and "fragments" in about:
            about.setdefault("concepts", []).append(str(value))
        else:
            about.setdefault("attributes", []).append([key, str(value)])
    return {"entities": list(entities.values()), "relations": relations}


_TOOLS: tuple[
    tuple[str, Callable[[Tree], bool], Callable[[ToolRecord], Iterator[AnnotatorRecord]]], ...
] = (
    ("Label Studio", lambda row: "text" not in row and isinstance(row.get("data"), dict),
     _label_studio),
    ("Label Studio, JSON-MIN",
     lambda row: "annotation_id" in row or {"annotator", "lead_time"} <= row.keys(),
     _label_studio_min),
    ("Prodigy",
     lambda row: "text" in row and not {"answer", "_input_hash", "_task_hash"}.isdisjoint(row),
     _prodigy),
    ("MedCATtrainer", _is_medcat, _medcat),
    ("NER Annotator", lambda row: {"classes", "text"} <= row.keys(), _ner_annotator),
    ("PubAnnotation",
     lambda row: "text" in row and not {"denotations", "sourcedb", "tracks"}.isdisjoint(row),
     _pubannotation),
)  # fmt: skip
"""A tool, whether an object is one of its records, and the records of our own that it becomes."""


# --- Documents from JSON objects ------------------------------------------------------------------
#
# Our own full form, and the forms that annotation tools write.

_ENTITIES = ("entities", "spans", "label", "labels")
_START = ("start", "start_offset", "begin")
_END = ("end", "end_offset")
_TYPE = ("type", "label", "tag", "entity")
_HEAD = ("head", "from_id", "from")
_TAIL = ("tail", "to_id", "to")
_KNOWN = frozenset((*_ENTITIES, "id", "text", "relations", "sentences", "attributes", "Comments"))


def _first_of(row: Tree, keys: Iterable[str]) -> Any:
    """The value of the first of `keys` that is present and not null, or None."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


def record_document(
    source: Source, row: Row, name: str, *, units: tuple[str, ...] = (CHARACTERS, UTF16)
) -> Document:
    """The document of an object.

    Args:
        source: its file.
        row: the object.
        name: the document's id if the object has no "id".
        units: how its offsets may be counted if nothing in it tells, its own rule first.

    Raises:
        FormatError: there is no text, or a part has the wrong form.
    """
    tree = row.tree
    if tree.get("text") is None:
        raise FormatError(
            'a document without "text"',
            expected='a "text", or the keys of another form, such as "tokens" and "ner_tags"',
            got=f"the keys {', '.join(map(clean, tree))[:200]}" if tree else "no key",
            where=row.where,
            fix="rename the key of its text, or state the format",
        )
    given = tree.get("id")
    called = clean(str(given)) if isinstance(given, str | int) else name
    draft = Draft(source, called, row.text("text", source.problems), row.where)
    draft.units, draft.keep = units, True
    for key in _ENTITIES:
        if key != "label" or not isinstance(tree.get(key), str):
            for item in row.values(key):
                _add_entity(draft, item)
    for number, item in enumerate(row.rows("relations"), 1):
        _add_relation(draft, item, number)
    draft.sentences = _sentences(row, draft.text)
    draft.attributes = _attributes(source, row)
    return draft.document()


def _add_entity(draft: Draft, item: object) -> None:
    if isinstance(item, list) and len(item) >= 3:
        item = {"start": item[0], "end": item[1], "type": item[2]}
    if not isinstance(item, dict):
        raise malformed("an entity", "[start, end, type] or an object", item, where=draft.where)
    row = Row(item, draft.where)
    kind = _first_of(item, _TYPE)
    if not isinstance(kind, str) or not kind:
        raise row.malformed("an entity's type", "a string that is not empty", kind)
    kind = clean(kind)
    given = _first_of(item, ("fragments", "offsets"))
    if given is None:
        given = [[_first_of(item, _START), _first_of(item, _END)]]
    else:
        draft.units = (CHARACTERS,)  # our own form, and that of Python's libraries
    spans = _fragments(row, given, f"the offsets of {kind}")
    if not spans:
        raise row.malformed(f"the offsets of {kind}", "at least one fragment", None)
    concepts = row.values("concepts")
    if not all(isinstance(concept, str | int | float) for concept in concepts):
        raise row.malformed('"concepts"', "a list of strings", concepts)
    surface, name = item.get("text"), item.get("id")
    key = draft.entity(
        kind,
        spans,
        given=clean(str(name)) if isinstance(name, str | int) else "",
        surface=" ".join(map(str, surface)) if isinstance(surface, list) else surface,
        confidence=_confidence(row),
        concepts=tuple(clean(str(concept)) for concept in concepts),
        attributes=_pairs(row),
    )
    if sure := _attribute_confidences(row):
        draft.sure[key] = sure


def _fragments(row: Row, value: object, what: str) -> list[Span]:
    if not isinstance(value, list):
        raise row.malformed(what, "[[start, end], ...]", value)
    return [_ends_of(row, pair, what) for pair in value]


def _ends_of(row: Row, pair: object, what: str) -> Span:
    if type(pair) is list and len(pair) == 2 and type(pair[0]) is type(pair[1]) is int:
        return pair[0], pair[1]  # as nearly always
    ends = rows.whole_numbers(pair)
    if ends is None or len(ends) != 2:
        raise row.malformed(what, "whole numbers, a start and an end", pair)
    return ends[0], ends[1]


def _confidence(row: Row) -> float | None:
    value = _first_of(row.tree, ("confidence", "score"))
    return None if value is None else _probability(row, value)


def _probability(row: Row, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise row.malformed("a confidence", "a number from 0 to 1", value)
    return float(value)


def _pairs(row: Row) -> tuple[tuple[str, str], ...]:
    """Attributes, from a list of pairs or an object."""
    value = row.tree.get("attributes")
    pairs = list(value.items()) if isinstance(value, dict) else value or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(part, str | int | float) for part in pair)
        for pair in pairs
    ):
        expected = "an object or a list of pairs of strings"
        raise row.malformed('"attributes"', expected, value)
    return tuple((clean(str(key)), clean(str(content))) for key, content in pairs)


def _attribute_confidences(row: Row) -> tuple[tuple[str, float], ...]:
    """Confidences of attributes, in the forms that attributes have."""
    value = row.tree.get("attribute_confidences")
    if value is None:
        return ()
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
        for pair in pairs
    ):
        expected = "an object or a list of pairs, a name and a number"
        raise row.malformed('"attribute_confidences"', expected, value)
    return tuple((clean(name), _probability(row, sure)) for name, sure in pairs)


def _add_relation(draft: Draft, row: Row, number: int) -> None:
    item = row.tree
    kind = _first_of(item, ("type", "label"))
    ends = [_first_of(item, keys) for keys in (_HEAD, _TAIL)]
    if not isinstance(kind, str) or not all(isinstance(end, str | int) for end in ends):
        raise row.malformed("a relation", '"type", "head" and "tail"', item)
    head, tail = (clean(str(end)) for end in ends)
    draft.relation(
        clean(kind),
        head,
        tail,
        given=clean(str(item.get("id", f"R{number}"))),
        concepts=item.get("level") == "concept",
        confidence=_confidence(row),
        attributes=_pairs(row),
    )


def _sentences(row: Row, text: str) -> tuple[Sentence, ...]:
    sentences = []
    last = 0
    for one in row.rows("sentences"):
        start, end = _ends_of(row, [one.tree.get("start"), one.tree.get("end")], "a sentence")
        tokens = _fragments(row, one.tree.get("tokens"), "the tokens of a sentence")
        borders = [last, start, *(offset for token in tokens for offset in token), end]
        if borders != sorted(borders) or end > len(text) or any(a >= b for a, b in tokens):
            what = "sentences or tokens out of order"
            raise row.malformed(what, "ascending offsets", one.tree)
        sentences.append(Sentence(start, end, pack_spans(tokens)))
        last = end
    return tuple(sentences)


def _attributes(source: Source, row: Row) -> tuple[tuple[str, str], ...]:
    """Our "attributes", then "meta" and every other key that holds one plain value.

    In "meta", and of pairs, a list of plain values is several attributes.
    """
    tree, meta = row.tree, row.tree.get("meta")
    others = {key: value for key, value in tree.items() if key not in _KNOWN}
    if isinstance(meta, dict):
        del others["meta"]
        others |= meta
    if isinstance(tree.get("label"), str):
        others["label"] = tree["label"]
    pairs = list(_pairs(row))
    for key, value in others.items():
        listed = key == PAIR or (isinstance(meta, dict) and key in meta)
        if listed and isinstance(value, list) and all(
            isinstance(one, str | int | float) for one in value
        ):  # fmt: skip
            pairs += [(clean(key), clean(str(one))) for one in value]
        else:
            pairs += source.attributes({key: value}, (), row.where)
    return tuple(pairs)


def _read(path: Path, options: Options) -> Reading:
    """Read JSON Lines, or a JSON list of documents.

    Raises:
        FormatError: a line is not JSON or not a document (no text, an offset that is not a number).
        DataError: there is no document.
    """
    source = reading.open_source(path, options)
    text, source.text = source.text, ""
    return read_records(source, rows.json_values(text, path), format="jsonl")


def read_records(source: Source, values: Iterable[rows.Value], *, format: str) -> Reading:
    """The documents of JSON values, in our own form or in those of tools, and whose they are.

    Raises:
        FormatError: a value is not a document.
        DataError: there is no document.
    """
    options, problems = source.options, source.problems
    left: defaultdict[str, list[str]] = defaultdict(list)
    versions: list[Version] = []
    written_by: set[str] = set()

    def add(value: object, name: str, where: str) -> None:
        if value is None:
            left["cancelled"].append(where)
            return
        tool, found = tool_records(value, where, source=source, left=left)
        written_by.add(tool)
        for who, record, units in found:
            document = record_document(source, Row(record, where), name, units=units)
            versions.append(Version(who, document))

    for where, name, given in values:
        try:
            value = rows.parse_json(given, where) if isinstance(given, str) else given
            parts = records_in(value)
            if len(parts) == 1:
                add(parts[0], name, where)
                continue
        except (DataError, FormatError) as error:
            options.skip(error, problems, where)
            continue
        for number, part in enumerate(parts, 1):
            with options.document(problems, f"{where}#{number}"):
                add(part, f"{name}:{number}", f"{where}#{number}")
    for kind, places in left.items():  # nothing is lost: nobody accepted it
        source.note_each(kind, places, _LEFT_OUT[kind])
    if not versions:
        out = ", ".join(f"{len(places)} {kind}" for kind, places in left.items())
        if out:
            raise DataError(f"no document was accepted: {out}", where=str(source.path))
        raise reading.no_document(source.path, problems, "the file is empty")
    if "Prodigy" in written_by:  # its records have no ids: the text says which belong together
        first: dict[str, Version] = {}
        for number, version in enumerate(versions):
            other = first.setdefault(version.document.text, version)
            if other.annotator != version.annotator:
                document = replace(version.document, id=other.document.id)
                versions[number] = Version(version.annotator, document)
    documents, details, several = reading.choose_versions(
        versions, options.annotators, where=str(source.path), problems=problems
    )
    details = {"encoding": source.encoding, **details}
    if any(written_by):
        details["written by"] = " and ".join(sorted(written_by - {""}))
    return Reading(documents, problems, format, details, several)


# --- Documents to the JSON of annotation tools ----------------------------------------------------


def writer(
    record: Callable[[Document], Tree],
    around: tuple[str, str] | None = None,
    *,
    taken: Set[str] = frozenset(),
) -> Callable[[Sequence[Document], Output], None]:
    """The writer of a tool's form: a record for each document, as JSON Lines or in a list.

    An attribute of a document whose name is `taken` has no place in its record.
    """

    def write(documents: Sequence[Document], out: Output) -> None:
        out.write_json(map(record, documents), around=around)
        lose = sum(any(key in taken for key, _ in one.attributes) for one in documents)
        what = "documents lose an attribute that has the name of a key of the format's own"
        out.unheld("document-attributes-unheld", lose, what)

    return write


def _meta(document: Document, names: Mapping[str, str] | None = None) -> Tree:
    """The attributes as an object: one value, or a list of several; pairs by the new names."""
    meta: Tree = {}
    for key, value in document.attributes:
        if key == PAIR and names is not None:
            value = " ".join(names.get(end, end) for end in value.split())
        meta.setdefault(key, []).append(value)
    return {key: values if len(values) > 1 else values[0] for key, values in meta.items()}


_NOT_BARE = _KNOWN | _MARKS | {"meta", "tokens"}
"""Names that mean something else in an object with a text."""


def doccano_record(document: Document) -> Tree:
    """A document as doccano has it, with numbers for ids."""
    numbers = {entity.id: number for number, entity in enumerate(document.entities, 1)}
    meta = _meta(document, {name: str(number) for name, number in numbers.items()})
    entities: list[Tree] = [
        {"id": number, "label": one.type, "start_offset": one.start, "end_offset": one.end}
        for number, one in enumerate(document.entities, 1)
    ]
    if max(document.text, default="") > "\uffff":  # a browser would count otherwise: say the text
        for entity, item in zip(document.entities, entities, strict=True):
            item["text"] = document.surface(entity)
    relations = [
        {"id": number, "from_id": numbers[one.head], "to_id": numbers[one.tail], "type": one.type}
        for number, one in enumerate(document.relations, 1)
    ]
    record: Tree = {"id": document.id, "text": document.text}
    bare = {k: v for k, v in meta.items() if isinstance(v, str) and k not in _NOT_BARE}
    rest = {key: value for key, value in meta.items() if key not in bare}
    record |= bare | ({"meta": rest} if rest else {})
    return record | {"entities": entities, "relations": relations}


def prodigy_record(document: Document) -> Tree:
    """A document as Prodigy has it, with the tokens of the entities."""
    ready = segmented(document)
    tokens = [token for sentence in ready.sentences for token in sentence.tokens]
    spans = {entity.id: _span(entity, tokens) for entity in document.entities}
    names = {entity.id: f"T{number}" for number, entity in enumerate(document.entities, 1)}
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
        "meta": _meta(document, names),
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
    first, last = tokens_covered(tokens, entity.start, entity.end)
    return span if first >= last else {**span, "token_start": first, "token_end": last - 1}


def label_studio_results(
    document: Document, *, control: str = "label", shown: str = "text"
) -> list[Tree]:
    """The entities and relations as Label Studio's results.

    `control` is the name of the tag with the labels, `shown` that of the text.
    """
    regions: list[Tree] = [
        {
            "id": entity.id,
            "from_name": control,
            "to_name": shown,
            "type": "labels",
            "value": {
                "start": entity.start,
                "end": entity.end,
                "text": document.surface(entity),
                "labels": [entity.type],
            },
            **({} if entity.confidence is None else {"score": entity.confidence}),
        }
        for entity in document.entities
    ]
    relations: list[Tree] = [
        {
            "type": "relation",
            "from_id": relation.head,
            "to_id": relation.tail,
            "direction": "right",
            "labels": [relation.type],
        }
        for relation in document.relations
    ]
    return regions + relations


def _label_studio_task(document: Document) -> Tree:
    return {"id": document.id, "data": {**_meta(document), "text": document.text}}


def label_studio_record(document: Document) -> Tree:
    """A document as Label Studio has it: one annotation."""
    annotations = [{"result": label_studio_results(document)}]
    return {**_label_studio_task(document), "annotations": annotations}


def label_studio_score(document: Document) -> float:
    """The score by which Label Studio orders tasks, the lowest first: 1 if nothing was found."""
    return 1.0 if document.least_sure is None else document.least_sure


def label_studio_prediction(document: Document) -> Tree:
    """A document with what a model found, as a prediction of Label Studio."""
    found = {"result": label_studio_results(document), "score": label_studio_score(document)}
    return {**_label_studio_task(document), "predictions": [found]}


def pubannotation_record(document: Document) -> Tree:
    """A document as PubAnnotation has it; concepts become attributes."""
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
        relations.append({"id": one.id, "pred": one.type, "subj": one.head, "obj": one.tail})
        said += [(one.id, key, value) for key, value in one.attributes]
    attributes = [
        {"id": f"A{number}", "subj": subject, "pred": key, "obj": value}
        for number, (subject, key, value) in enumerate(said, 1)
    ]
    record: Tree = {"sourceid": document.id, "text": document.text, "denotations": denotations}
    record |= {"relations": relations, "attributes": attributes}
    meta = _meta(document).items()
    return record | {key: value for key, value in meta if key not in _PUB_TAKEN}


# --- Writing our own full form, and the formats of this module ------------------------------------


def document_record(document: Document) -> Tree:
    """A document in our own full form; empty parts are left out, except the entities."""
    row: Tree = {"id": document.id, "text": document.text}
    row["entities"] = list(map(_filled, document.entities))
    row["relations"] = list(map(_filled, document.relations))
    row["sentences"] = [
        {"start": sentence.start, "end": sentence.end, "tokens": tuple(sentence.tokens)}
        for sentence in document.sentences
    ]
    row["attributes"] = document.attributes
    return {key: value for key, value in row.items() if value or key in ("id", "text", "entities")}


def _filled(one: Entity | Relation) -> Tree:
    """The fields of a mention or a relation that say something; a level only of concepts."""
    row = {name: getattr(one, name) for name in one.__slots__}
    if row.get("level") == "entity":
        del row["level"]
    return {key: value for key, value in row.items() if value is not None and value != ()}


_TOOL = Supports(relations=True, attributes=True)
_PUBANNOTATION = replace(_TOOL, fragments=True, concepts="all", said=True)
_write_doccano = writer(doccano_record)
_write_prodigy = writer(prodigy_record)
_write_label_studio = writer(label_studio_record, reading.JSON_LIST, taken={"text"})
LABEL_STUDIO_PREDICTIONS = Format(
    "labelstudio", "Label Studio's JSON", ".json", _read,
    writer(label_studio_prediction, reading.JSON_LIST, taken={"text"}),
    replace(_TOOL, confidences=True),
)  # fmt: skip
"""The format `labelstudio` for what a model found."""
_write_pubannotation = writer(pubannotation_record, reading.JSON_LIST, taken=_PUB_TAKEN)
FORMATS = (
    Format("jsonl", "JSON Lines", ".jsonl", _read, writer(document_record),
           by_text=lambda sample: sample.is_json),
    Format("doccano", "doccano's JSON Lines", ".jsonl", _read, _write_doccano, _TOOL),
    Format("prodigy", "Prodigy's JSON Lines", ".jsonl", _read, _write_prodigy, _TOOL),
    Format("labelstudio", "Label Studio's JSON", ".json", _read, _write_label_studio, _TOOL),
    Format("labelstudio-min", "Label Studio's JSON-MIN", ".json", _read, instead="labelstudio"),
    Format("medcattrainer", "MedCATtrainer's JSON", ".json", _read),
    Format("spacy", "spaCy's training data as JSON", ".json", _read),
    Format("ner-annotator", "NER Annotator's JSON", ".json", _read),
    Format("pubannotation", "PubAnnotation's JSON", ".json", _read, _write_pubannotation,
           _PUBANNOTATION),
)  # fmt: skip
"""JSON Lines, and the tools whose JSON the same reader understands."""


# --- GLiNER, SpERT and DyGIE: JSON with lists of tokens, and mentions by the numbers of tokens ----
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

    id: str
    tokens: str
    mentions: str
    mention: tuple[Key, Key, Key]
    links: str
    link: tuple[Key, ...]
    sentences: bool = False
    last: bool = True

    def _document(self, source: Source, where: str, name: str, tree: Tree) -> Document | None:
        """The document of an object. Raises FormatError and DataError (docs/formats/tokens.md)."""
        row = Row(tree, where)
        sentences = [row.words(self.tokens)] if not self.sentences else [
            row.strings(one, f'"{self.tokens}"') for one in row.values(self.tokens)
        ]  # fmt: skip
        if not any(sentences):
            source.problems.note("empty-document", where, "a record without a token")
            return None
        known = {self.id, self.tokens, self.mentions, self.links}
        known |= {"dataset", "_sentence_start", "sentence_start"}
        attributes = source.attributes(tree, known, where)
        found = reading.TokenDocument(
            row.name((self.id,), name), where, sentences, attributes=attributes
        )
        what = f'an item of "{self.mentions}"'
        for item in self._items(row, self.mentions):
            start, end = (row.whole(row.part(item, key, what), what) for key in self.mention[:2])
            kind = row.type(row.part(item, self.mention[2], what), f"the type of {what}")
            found.mentions.append(reading.TokenMention(start, end + self.last, kind))
        what = f'an item of "{self.links}"'
        at = {(one.start, one.end - 1): n for n, one in reversed([*enumerate(found.mentions)])}
        for item in self._items(row, self.links):
            kind = row.type(row.part(item, self.link[0], what), f"the type of {what}")
            ends = [row.whole(row.part(item, key, what), what) for key in self.link[1:]]
            if len(ends) == 4:
                ends = [at.get((ends[n], ends[n + 1]), -1) for n in (0, 2)]
            found.links.append(reading.TokenLink(kind, ends[0], ends[1]))
        return reading.document_from_tokens(found, source)

    def _items(self, row: Row, key: str) -> Iterator[object]:
        """The mentions or links, of all sentences one after the other."""
        for value in row.values(key):
            if not self.sentences:
                yield value
            elif isinstance(value, list):
                yield from value
            else:
                raise row.malformed(f'"{key}"', "a list for each sentence", value)


_GLINER = Shape("id", "tokenized_text", "ner", (0, 1, 2), "relations", (2, 0, 1))
_SPERT = Shape(
    "orig_id", "tokens", "entities", ("start", "end", "type"),
    "relations", ("type", "head", "tail"), last=False,
)  # fmt: skip
_DYGIE = Shape(
    "doc_key", "sentences", "ner", (0, 1, 2), "relations", (4, 0, 1, 2, 3),
    sentences=True,
)  # fmt: skip


def _write_gliner(documents: Sequence[Document], out: Output) -> None:
    """Write a record for each sentence.

    Nested entities are kept, white space is not. Raises DataError if the file cannot be written.
    """
    records: list[Tree] = []
    for document in documents:
        marked = reading.tokens_of_document(document, out.problems)
        for part in _by_sentence(marked, out) if marked is not None else ():
            records.append(
                {
                    _GLINER.id: part.id,
                    _GLINER.tokens: part.sentences[0],
                    _GLINER.mentions: [[one.start, one.end - 1, one.type] for one in part.mentions],
                    _GLINER.links: [[one.head, one.tail, one.type] for one in part.links],
                }
            )
    out.write_json(records, around=reading.JSON_LIST)
    respaced = sum(text_of_tokens(one) != one.text for one in map(segmented, documents))
    out.unheld("white-space-unheld", respaced, "documents lose their white space")


def _by_sentence(marked: reading.TokenDocument, out: Output) -> list[reading.TokenDocument]:
    """A document cut into one for each sentence; what crosses a border is reported as lost."""
    starts = marked.starts
    if len(starts) == 1:
        return [marked]
    borders = [*starts[1:], starts[-1] + len(marked.sentences[-1])]
    parts = [
        reading.TokenDocument(
            f"{marked.id}:{number}", marked.where, [sentence], attributes=marked.attributes
        )
        for number, sentence in enumerate(marked.sentences, 1)
    ]
    places: dict[int | str, tuple[int, int]] = {}
    for number, mention in enumerate(marked.mentions):
        sentence = bisect_right(starts, mention.start) - 1
        if mention.end > borders[sentence]:
            what = f"{mention.type} {mention.start}-{mention.end} crosses a sentence's end"
            out.problems.lost("crosses-sentence", marked.where, what)
            continue
        start = starts[sentence]
        places[number] = sentence, len(parts[sentence].mentions)
        moved = mention._replace(start=mention.start - start, end=mention.end - start)
        parts[sentence].mentions.append(moved)
    for link in marked.links:
        head, tail = places.get(link.head), places.get(link.tail)
        if head is None or tail is None or head[0] != tail[0]:
            what = f"{link.type} links two sentences, or what was not written"
            out.problems.lost("relation-unheld", marked.where, what)
            continue
        parts[head[0]].links.append(link._replace(head=head[1], tail=tail[1]))
    return parts


GLINER = Format(
    "gliner",
    "GLiNER's JSON",
    ".json",
    reading.objects_reader("gliner", _GLINER._document),
    _write_gliner,
    Supports(relations=True, sentences=True),
    by_text=lambda sample: sample.has_keys("tokenized_text", "ner"),
)
SPERT = Format(
    "spert",
    "SpERT's JSON",
    ".json",
    reading.objects_reader("spert", _SPERT._document),
    by_text=lambda sample: sample.has_keys("tokens", "entities"),
    instead="gliner",
)
DYGIE = Format(
    "dygie",
    "DyGIE's JSON Lines",
    ".jsonl",
    reading.objects_reader("dygie", _DYGIE._document),
    by_text=lambda sample: (
        sample.has_keys("sentences", "ner") or sample.has_keys("sentences", "doc_key")
    ),
)
