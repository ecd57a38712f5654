"""FHIR R4 as JSON: texts of DocumentReference and the like, and findings as a Bundle.

A file is one resource, a Bundle of resources, or NDJSON as a bulk export gives it. An attachment
that is plain text becomes a document; one that is not, or that lies elsewhere, is named.

What is written is a Bundle of type collection: for each document a DocumentReference with its text,
for each entity a finding that refers to it, and a Provenance. A finding is an Observation or, where
the type is mapped and the document names its patient, a Condition or a MedicationStatement. Its
status follows its assertion, if it has one. An extension (`EVIDENCE`) holds type, offsets,
confidence and attributes, by which findings are read again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid5

from confide.errors import DataError, FormatError, SettingsError, printable
from confide.files import Tree
from confide.text import files, reading, rows
from confide.text.document import ASSERTION, Document, Entity
from confide.text.reading import Draft, Format, Options, Output, Reading, Source, Supports
from confide.text.rows import Row, clean
from confide.version import __version__

EVIDENCE = "urn:uuid:b2db2d86-6988-433e-8cf1-9dc4b4249029"
"""The address of the extension of a finding: `type`, `start`, `end`, `confidence`, `attribute`."""
_NAMES = UUID("f77756c8-51da-464d-b501-22f10a5916f1")  # of what is written, by what it holds
_TYPE = re.compile(r"\s*(text/[\w.+-]+)\s*(?:;\s*charset\s*=\s*\"?([\w.:-]+)\"?)?.*", re.DOTALL)
_ATTACHED = {
    "DocumentReference": "content", "DiagnosticReport": "presentedForm", "Media": "content",
    "Binary": "", "Observation": "valueAttachment", "Communication": "payload",
}  # fmt: skip
_ABOUT = ("status", "docStatus", "date", "created", "issued", "effectiveDateTime")
_DEEPEST = 8


# --- Texts and findings in ------------------------------------------------------------------------


class _Finding(NamedTuple):
    """A finding, the texts that it refers to, and what its extension says."""

    row: Row
    texts: list[str]
    said: Mapping[str, object]
    attributes: list[tuple[str, str]]


def _read(path: Path, options: Options) -> Reading:
    """Read a document for each text, called by its resource's type and id.

    Raises:
        FormatError: it is not FHIR's JSON, or an attachment or a finding is damaged.
        DataError: there is no text.
    """
    source = reading.open_source(path, options)
    documents: list[Document] = []
    numbers: dict[str, int] = {}  # of documents, by what may refer to them
    findings: list[_Finding] = []
    others: Counter[str] = Counter()
    for where, _, tree in source.objects():
        for address, resource in _resources(Row(tree, where)):
            kind = clean(str(resource.tree.get("resourceType", "nothing")))
            name = f"{kind}/{_named(resource, str(len(documents) + 1))}"
            with options.document(source.problems, f"{where} {name}"):
                finding = _finding(resource)
                if finding is not None:
                    findings.append(finding)
                    continue
                found = list(_texts(resource, name, source))
                for known in (address, name) if found else ():
                    numbers.setdefault(known, len(documents))
                documents += found
                others[kind] += not found and kind not in ("Device", "Provenance")
    if others := +others:
        named = ", ".join(f"{kind[:40]} {count}" for kind, count in others.most_common(8))
        source.problems.note("no-text", path, f"resources without a text: {named}")
    if not documents:
        raise DataError(
            "there is no text in these resources",
            expected="a DocumentReference with an attachment that is text and has data",
            where=str(path),
        )
    drafts: dict[int, Draft] = {}
    for one in findings:
        number = next((numbers[text] for text in one.texts if text in numbers), None)
        with options.document(source.problems, one.row.where):
            if number is None:
                what = "a finding that refers to no text in this file"
                source.problems.lost("finding-without-text", one.row.where, what)
                continue
            of = documents[number]
            draft = drafts.setdefault(
                number, Draft(source, of.id, of.text, of.source, attributes=of.attributes)
            )
            _add(draft, one)
    for number, draft in drafts.items():
        documents[number] = draft.document()
    return Reading(documents, source.problems, "fhir", {"encoding": source.encoding})


def _resources(row: Row, depth: int = 0, *, address: str = "") -> Iterator[tuple[str, Row]]:
    """A resource, or those of a bundle, each with its full address."""
    kind = row.tree.get("resourceType")
    if not isinstance(kind, str):
        raise FormatError("not a FHIR resource", expected='"resourceType"', where=row.where)
    if kind != "Bundle" or depth > _DEEPEST:
        yield address, row
        return
    for entry in row.rows("entry"):
        inner = entry.tree.get("resource")
        if isinstance(inner, dict) and "resourceType" in inner:
            full = entry.tree.get("fullUrl")
            known = full if isinstance(full, str) else ""
            yield from _resources(Row(inner, row.where), depth + 1, address=known)


def _named(resource: Row, otherwise: str) -> str:
    """The id of a resource or, if it has none, its master identifier."""
    given = resource.tree.get("masterIdentifier")
    identifier = Row(given if isinstance(given, dict) else {}, resource.where)
    return resource.name(("id",), identifier.name(("value",), otherwise))


def _texts(resource: Row, name: str, source: Source) -> Iterator[Document]:
    """The texts of a resource's attachments; a second one has a number behind its name."""
    tree = resource.tree
    about = {key: tree.get(key) for key in _ABOUT}
    subject = tree.get("subject")
    about["subject"] = subject.get("reference") if isinstance(subject, dict) else None
    concept = tree.get("type") or tree.get("code")
    if isinstance(concept, dict):
        coding = concept.get("coding")
        first = coding[0] if isinstance(coding, list) and coding else {}
        words = concept.get("text") or (isinstance(first, dict) and first.get("display"))
        about["type"] = words or None
    said = tuple((key, clean(value)) for key, value in about.items() if isinstance(value, str))
    key = _ATTACHED.get(str(tree.get("resourceType")))
    held = tree.get(key) if key else tree if key == "" else []
    number = 0
    for one in held if isinstance(held, list) else [held]:
        inner = one
        if isinstance(one, dict):
            inner = next((one[k] for k in ("attachment", "contentAttachment") if k in one), one)
        if isinstance(inner, dict):
            text = _text(Row(inner, resource.where), name, source)
            if text is not None and text.strip():
                number += 1
                own = name if number == 1 else f"{name}#{number}"
                yield Document(own, text, attributes=said, source=f"{resource.where} {own}")


def _text(row: Row, name: str, source: Source) -> str | None:
    """The text of an attachment; None, and a problem, for one that has none."""
    given, data = row.tree.get("contentType"), row.tree.get("data")
    match = _TYPE.fullmatch(given) if isinstance(given, str) else None
    plain = match is not None and match[1] in ("text/plain", "text/markdown")
    if given is not None and not plain:
        what = f"{name} is {clean(str(given))[:60]}, not plain text"
        source.problems.lost("not-plain-text", row.where, what)
        return None
    if not isinstance(data, str):
        if "url" in row.tree:
            what = f"{name} lies elsewhere (url): nothing is fetched"
            source.problems.lost("text-elsewhere", row.where, what)
        return None
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError("an attachment that is not base64", where=row.where) from error
    charset = source.options.encoding or (match[2] if match is not None else None)
    text, _ = files.decode_text(raw, f"{row.where} {name}", encoding=charset)
    return rows.mend_surrogates(text, row.where, source.problems)


def _finding(resource: Row) -> _Finding | None:
    """The finding that a resource is; None for one without the extension. Raises FormatError."""
    marks = [one for one in _rows(resource, "extension") if one.tree.get("url") == EVIDENCE]
    if not marks:
        return None
    said: dict[str, object] = {}
    attributes: list[tuple[str, str]] = []
    for one in marks[0].rows("extension"):
        if one.string("url") == "attribute":
            parts = {part.string("url"): part.tree for part in one.rows("extension")}
            named = Row(parts.get("name", {}), one.where).string("valueString")
            value = Row(parts["value"], one.where).string("valueString") if "value" in parts else ""
            attributes.append((named, value))
            continue
        values = [value for key, value in one.tree.items() if key.startswith("value")]
        said[one.string("url")] = values[0] if values else None
    links = [*_rows(resource, "derivedFrom")]
    links += [link for one in _rows(resource, "evidence") for link in _rows(one, "detail")]
    texts = [str(link.tree.get("reference")) for link in links]
    return _Finding(resource, texts, said, attributes)


def _rows(row: Row, key: str) -> list[Row]:
    """The objects of a list; none where others put something else."""
    values = row.tree.get(key)
    listed = values if isinstance(values, list) else []
    return [Row(one, row.where) for one in listed if isinstance(one, dict)]


def _add(draft: Draft, finding: _Finding) -> None:
    """Take a finding into its document. Raises FormatError."""
    tree, said = finding.row.tree, Row(dict(finding.said), finding.row.where)
    sure = said.tree.get("confidence")
    if sure is not None and (isinstance(sure, bool) or not isinstance(sure, int | float)
                             or not 0 <= sure <= 1):  # fmt: skip
        raise said.malformed('"confidence"', "a number from 0 to 1", sure)
    held = (tree.get(key) for key in ("valueCodeableConcept", "code", "medicationCodeableConcept"))
    concept = Row(next((one for one in held if isinstance(one, dict)), {}), said.where)
    codes = (one.tree.get("code") for one in _rows(concept, "coding"))
    draft.entity(
        said.string("type"),
        [(said.number("start"), said.number("end"))],
        surface=concept.tree.get("text"),
        where=said.where,
        concepts=tuple(clean(code) for code in codes if isinstance(code, str)),
        confidence=None if sure is None else float(sure),
        attributes=tuple(finding.attributes),
    )


# --- Findings out ---------------------------------------------------------------------------------

_CODES = "http://terminology.hl7.org/CodeSystem/"
_ID = re.compile(r"[A-Za-z0-9.-]{1,64}")
_PATIENT = re.compile(r"(?:\S+/)?(?:Patient|Group)/[A-Za-z0-9.-]{1,64}|urn:(?:uuid|oid):\S+")
_INSTANT = re.compile(
    r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]{1,9})?(Z|[+-](0[0-9]|1[0-3]):[0-5][0-9])"
)
_STATUS = ("current", "superseded", "entered-in-error")
_DOC_STATUS = ("preliminary", "final", "amended", "entered-in-error")
_CONTROL = re.compile(r"[\0-\x1f\s]+")
_KINDS = ("Condition", "MedicationStatement")
_ELSEWHERE = frozenset(("associated_with_someone_else", "hypothetical", "conditional"))
"""Assertions of what is nothing that the patient has: never a Condition or MedicationStatement."""
_VERIFIED = {"absent": "refuted", "possible": "provisional"}
_INTERPRETED = {"absent": ("NEG", "Negative"), "possible": ("IND", "Indeterminate")}


def _write(documents: Sequence[Document], out: Output) -> None:
    """Write a Bundle. `out.map` has the resource of each mapped type: `[types] Drug = "..."`.

    Raises:
        SettingsError: a type is mapped to another resource.
        DataError: the file cannot be written.
    """
    kinds = dict(out.map.get("types", {}))
    for name, kind in kinds.items():
        if kind not in _KINDS:
            raise SettingsError(
                f"the map has another resource for {printable(name, 60)}",
                expected=" or ".join(_KINDS),
                got=printable(kind, 60),
                fix="leave the type out: it becomes an Observation",
            )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    bundle = {"resourceType": "Bundle", "type": "collection", "timestamp": now}
    around = f'{{\n{json.dumps(bundle)[1:-1]}, "entry": [\n', "\n]}\n"
    out.write_json(_entries(documents, kinds, now, out=out), around=around)


def _entries(
    documents: Sequence[Document], kinds: Mapping[str, object], now: str, *, out: Output
) -> Iterator[Tree]:
    """The entries of the Bundle: what wrote it, then each document and what was found in it."""
    device = {
        "resourceType": "Device",
        "deviceName": [{"name": "confide", "type": "other"}],
        "version": [{"value": __version__}],
    }
    made = _address("device", __version__)
    yield {"fullUrl": made, "resource": device}
    unnamed = unheld = unsaid = 0
    for number, document in enumerate(documents):
        if not document.text.strip():
            out.problems.lost("empty-document", document.where, "a document without a text")
            continue
        own = _address(str(number), document.id, document.text)
        reference, patient, left = _reference(document)
        unheld += left
        yield {"fullUrl": own, "resource": reference}
        targets = []
        for place, entity in enumerate(document.entities):
            words = _words(document.surface(entity))
            if not words or not _words(entity.type):
                where = document.at(entity.start, entity.end)
                what = f"{entity.type} {entity.id} has no character that can be seen"
                out.problems.lost("no-token", where, what)
                continue
            unsaid += len(entity.attributes) - len(_named_attributes(entity))
            kind = kinds.get(entity.type)
            unnamed += kind is not None and patient is None
            if entity.said(ASSERTION) in _ELSEWHERE:
                kind = None  # nothing that the patient has
            finding = _resource(entity, words, kind if patient else None, patient=patient)
            link: Tree = {"reference": own}
            if finding["resourceType"] == "Condition":
                finding["evidence"] = [{"detail": [link]}]
            else:
                finding["derivedFrom"] = [link]
            if finding["resourceType"] == "Observation":
                finding["device"] = {"reference": made}
            targets.append({"reference": _address(str(number), str(place), own)})
            yield {"fullUrl": targets[-1]["reference"], "resource": finding}
        if targets:
            assembler = {"system": f"{_CODES}provenance-participant-type", "code": "assembler"}
            provenance = {
                "resourceType": "Provenance",
                "target": targets,
                "recorded": now,
                "agent": [{"type": {"coding": [assembler]}, "who": {"reference": made}}],
                "entity": [{"role": "source", "what": {"reference": own}}],
            }
            yield {"fullUrl": _address("provenance", own), "resource": provenance}
    out.unheld("document-attributes-unheld", unheld, "attributes of documents have no place")
    out.unheld("attributes-unheld", unsaid, "attributes of entities have no name")
    if unnamed:
        what = f"{unnamed} findings of mapped types are Observations: their texts name no patient"
        out.problems.note("no-patient", out.path, what)


def _address(*parts: str) -> str:
    """The address of a resource in the bundle: the same for the same content."""
    return f"urn:uuid:{uuid5(_NAMES, json.dumps(parts))}"


def _words(text: str) -> str:
    """A string as FHIR has them: without control characters, white space as one blank."""
    return _CONTROL.sub(" ", clean(text)).strip()


def _reference(document: Document) -> tuple[Tree, Tree | None, int]:
    """The DocumentReference of a text, its patient, and the number of attributes left out."""
    said = {key: value for key, value in document.attributes if value.strip()}
    held = {
        "status": said.get("status") in _STATUS,
        "docStatus": said.get("docStatus") in _DOC_STATUS,
        "date": _INSTANT.fullmatch(said.get("date", "")) is not None,
        "subject": _PATIENT.fullmatch(said.get("subject", "")) is not None,
        "type": _words(said.get("type", "")) != "",
    }
    patient = {"reference": said["subject"]} if held["subject"] else None
    own = document.id.removeprefix("DocumentReference/")
    tree: Tree = {"resourceType": "DocumentReference"}
    if _ID.fullmatch(own):
        tree["id"] = own
    elif _words(own):
        tree["masterIdentifier"] = {"value": _words(own)}
    tree["status"] = said["status"] if held["status"] else "current"
    tree |= {key: said[key] for key in ("docStatus", "date") if held[key]}
    if held["type"]:
        tree["type"] = {"text": _words(said["type"])}
    if patient:
        tree["subject"] = patient
    data = base64.b64encode(clean(document.text).encode()).decode()
    attachment = {"contentType": "text/plain; charset=utf-8", "data": data}
    tree["content"] = [{"attachment": attachment}]
    return tree, patient, len(document.attributes) - sum(held.values())


def _resource(entity: Entity, words: str, kind: object, *, patient: Tree | None) -> Tree:
    """The resource of an entity, without what it refers to."""
    said: list[Tree] = [
        {"url": "type", "valueString": _words(entity.type)},
        {"url": "start", "valueUnsignedInt": entity.start},
        {"url": "end", "valueUnsignedInt": entity.end},
    ]
    if entity.confidence is not None:
        said.append({"url": "confidence", "valueDecimal": entity.confidence})
    for name, value in _named_attributes(entity):
        parts = (("name", name), ("value", _words(value)))
        held = [{"url": url, "valueString": text} for url, text in parts if text]
        said.append({"url": "attribute", "extension": held})
    concept: Tree = {"text": words}
    if codes := [_words(one) for one in entity.concepts if _words(one)]:
        concept["coding"] = [{"code": code} for code in codes]
    asserted = {
        "system": f"{_CODES}v3-ObservationValue", "code": "DEVAST", "display": "device asserted",
    }  # fmt: skip
    tree: Tree = {
        "resourceType": kind or "Observation",
        "meta": {"security": [asserted]},
        "extension": [{"url": EVIDENCE, "extension": said}],
    }
    if patient:
        tree["subject"] = patient
    asserted_as = entity.said(ASSERTION)
    if kind == "Condition":
        if asserted_as == "historical":
            tree["clinicalStatus"] = _coded(f"{_CODES}condition-clinical", "inactive")
        status = _VERIFIED.get(asserted_as, "unconfirmed")
        verified = _coded(f"{_CODES}condition-ver-status", status)
        return tree | {"verificationStatus": verified, "code": concept}
    if kind == "MedicationStatement":
        status = "not-taken" if asserted_as == "absent" else "unknown"
        return tree | {"status": status, "medicationCodeableConcept": concept}
    if asserted_as in _INTERPRETED:
        code, display = _INTERPRETED[asserted_as]
        meaning = _coded(f"{_CODES}v3-ObservationInterpretation", code, display=display)
        tree["interpretation"] = [meaning]
    if asserted_as == "associated_with_someone_else":
        tree["focus"] = [{"display": "someone other than the patient"}]
    about = {"text": _words(entity.type)}
    return tree | {"status": "preliminary", "code": about, "valueCodeableConcept": concept}


def _named_attributes(entity: Entity) -> list[tuple[str, str]]:
    """Its attributes whose name has a character that can be seen."""
    return [(_words(name), value) for name, value in entity.attributes if _words(name)]


def _coded(system: str, code: str, **more: str) -> Tree:
    """A concept of one code."""
    return {"coding": [{"system": system, "code": code, **more}]}


FHIR = Format(
    "fhir",
    "FHIR R4 as JSON: texts, and findings as a Bundle",
    ".json",
    _read,
    _write,
    Supports(confidences=True, concepts="all", said=True, attributes=True),
    by_text=lambda sample: sample.has_keys("resourceType"),
    maps=("types",),
)
