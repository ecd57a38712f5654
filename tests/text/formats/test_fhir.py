"""FHIR: findings as a Bundle that a library of FHIR accepts, and what comes back from it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from cases import each
from confide.errors import FormatError, SettingsError
from confide.text.document import Document, Entity
from confide.text.formats import Options, read, write
from confide.text.formats.fhir import EVIDENCE
from text.generated import any_documents, kinds, put

TEXT = "Rash after\naspirin 😀, 81 mg."
NOTE = Document(
    "DocumentReference/n1",
    TEXT,
    (
        Entity("T1", "ADE", ((0, 4),), 0.875, ("C0015230", "L27.0")),
        Entity("T2", "Drug", ((5, 18),), 0.5),
        Entity("T3", "Dose", ((22, 27),)),
    ),
    attributes=(
        ("status", "superseded"),
        ("date", "2026-11-29T08:00:00Z"),
        ("subject", "Patient/p1"),
        ("type", "Summary"),
    ),
)
MAP = '[types]\nADE = "Condition"\nDrug = "MedicationStatement"\n'


def bundle_of(documents, folder, map=None):
    """What is written, and the problems; a library checks it where there is one."""
    file = None if map is None else put(folder, "map.toml", map)
    problems = write(documents, folder / "out.json", "fhir", map=file)
    tree = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return tree, problems


def resources(tree, kind):
    return [
        entry["resource"] for entry in tree["entry"] if entry["resource"]["resourceType"] == kind
    ]


def accepted(tree):
    """Nothing, or an error of the library; skips without it."""
    library = pytest.importorskip("fhir.resources.R4B.bundle")
    library.Bundle.model_validate(tree)


def test_types_are_resources_only_where_they_are_mapped(tmp_path):
    tree, problems = bundle_of([NOTE], tmp_path, MAP)
    assert problems == []
    (condition,) = resources(tree, "Condition")
    (drug,) = resources(tree, "MedicationStatement")
    (dose,) = resources(tree, "Observation")
    (reference,) = resources(tree, "DocumentReference")
    assert condition["code"] == {
        "text": "Rash",
        "coding": [{"code": "C0015230"}, {"code": "L27.0"}],
    }
    assert drug["medicationCodeableConcept"] == {"text": "after aspirin"}
    assert (dose["code"], dose["valueCodeableConcept"]) == ({"text": "Dose"}, {"text": "81 mg"})
    assert condition["verificationStatus"]["coding"][0]["code"] == "unconfirmed"
    assert (drug["status"], dose["status"]) == ("unknown", "preliminary")
    assert [one["subject"] for one in (condition, drug, dose, reference)] == [
        {"reference": "Patient/p1"}
    ] * 4
    for one in (condition, drug, dose):  # whoever looks at one alone sees that software wrote it
        assert one["meta"]["security"][0]["code"] == "DEVAST"
    (made,) = resources(tree, "Provenance")
    addresses = {entry["fullUrl"]: entry["resource"]["resourceType"] for entry in tree["entry"]}
    assert len(addresses) == len(tree["entry"])
    assert [addresses[one["reference"]] for one in made["target"]] == [
        "Condition", "MedicationStatement", "Observation",
    ]  # fmt: skip
    assert addresses[made["agent"][0]["who"]["reference"]] == "Device"
    assert addresses[made["entity"][0]["what"]["reference"]] == "DocumentReference"
    accepted(tree)


def test_the_library_refuses_what_is_wrong(tmp_path):
    tree, _ = bundle_of([NOTE], tmp_path, MAP)
    del resources(tree, "Condition")[0]["subject"]
    with pytest.raises(ValueError, match="subject"):
        accepted(tree)


def test_it_comes_back(tmp_path):
    said = replace(NOTE.entities[0], attributes=(("assertion", "absent"), ("Negated", "")))
    note = replace(NOTE, entities=(said, *NOTE.entities[1:]))
    bundle_of([note], tmp_path, MAP)
    reading = read(tmp_path / "out.json")
    (again,) = reading.documents
    assert reading.problems == []
    assert (again.id, again.text, again.attributes) == (note.id, note.text, note.attributes)
    assert again.entities == note.entities


def test_the_status_of_a_finding_follows_its_assertion(tmp_path):
    """What is absent is never written as if it were there; another's illness is no Condition."""
    wanted = {
        "present": ("Condition", "unconfirmed", "unknown", None),
        "absent": ("Condition", "refuted", "not-taken", "NEG"),
        "possible": ("Condition", "provisional", "unknown", "IND"),
        "historical": ("Condition", "unconfirmed", "unknown", None),
        "hypothetical": ("Observation", None, None, None),
        "conditional": ("Observation", None, None, None),
        "associated_with_someone_else": ("Observation", None, None, None),
        "odd": ("Condition", "unconfirmed", "unknown", None),
    }
    for value, (kind, verified, taken, meaning) in wanted.items():
        entities = tuple(replace(one, attributes=(("assertion", value),)) for one in NOTE.entities)
        tree, problems = bundle_of([replace(NOTE, entities=entities)], tmp_path, MAP)
        assert problems == []
        accepted(tree)
        rash, drug, dose = (
            entry["resource"] for entry in tree["entry"] if "extension" in entry["resource"]
        )
        assert rash["resourceType"] == kind, value
        found = rash.get("verificationStatus", {"coding": [{"code": None}]})
        assert found["coding"][0]["code"] == verified, value
        assert drug.get("status") in (taken, "preliminary"), value
        found = dose.get("interpretation", [{"coding": [{"code": None}]}])
        assert found[0]["coding"][0]["code"] == meaning, value
        assert ("focus" in dose) == (value == "associated_with_someone_else")
        assert ("clinicalStatus" in rash) == (value == "historical")


def test_without_a_patient_every_finding_is_an_observation(tmp_path):
    odd = (("subject", "someone else"), ("status", "?"), ("x", "y"))
    tree, problems = bundle_of(
        [replace(NOTE, id="a note/1", attributes=odd), Document("e", "")], tmp_path, MAP
    )
    assert len(resources(tree, "Observation")) == 3
    assert [(one.kind, one.lost) for one in problems] == [
        ("empty-document", True), ("document-attributes-unheld", True), ("no-patient", False),
    ]  # fmt: skip
    assert "3 attributes" in problems[1].what and "2 findings" in problems[2].what
    (reference,) = resources(tree, "DocumentReference")
    assert (reference["status"], "subject" in reference) == ("current", False)
    accepted(tree)
    (again,) = read(tmp_path / "out.json").documents
    assert (again.id, again.entities) == ("DocumentReference/a note/1", NOTE.entities)


@settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(document=any_documents())
def test_any_document_is_valid(tmp_path, document):
    tree, _ = bundle_of([replace(document, attributes=NOTE.attributes)], tmp_path, MAP)
    accepted(tree)


@each(("map", "said"), [
    ('[types]\nDrug = "Medication"', "Condition or MedicationStatement"),
    ("[texts]\naspirin = 1", r"expected the tables \[types\]; got texts"),
    ("types = 1", "the map is not one of fhir"),
    ("types", "the TOML file cannot be read"),
])  # fmt: skip
def test_another_map_is_refused(tmp_path, map, said):
    with pytest.raises(SettingsError, match=said):
        bundle_of([NOTE], tmp_path, map)


def test_a_format_without_a_map_takes_none(tmp_path):
    with pytest.raises(SettingsError, match="the format takes none"):
        write([NOTE], tmp_path / "a.jsonl", "jsonl", map=put(tmp_path, "map.toml", MAP))


def reference(text, **more):
    attached = {"contentType": "text/plain", "data": base64.b64encode(text.encode()).decode()}
    content = [{"attachment": attached}]
    return {"resourceType": "DocumentReference", "id": "n", "content": content, **more}


def finding(*said, link="DocumentReference/n", **more):
    """An Observation of ours with these parts in its extension."""
    parts = [{"url": key, "valueX": value} for key, value in said]
    extension = [{"url": "http://elsewhere"}, {"url": EVIDENCE, "extension": parts}]
    link = {"derivedFrom": [{"reference": link}]}
    return {"resourceType": "Observation", "extension": extension, **link, **more}


def lines(folder, *rows):
    return put(folder, "a.ndjson", "".join(json.dumps(row) + "\n" for row in rows))


def test_findings_in_a_bulk_export_find_their_text(tmp_path):
    """Those that come first and those of another text too; offsets that are wrong are named."""
    good = (("type", "ADE"), ("start", 0), ("end", 4), ("confidence", 1))
    path = lines(
        tmp_path,
        finding(*good, code={"text": "x"}, valueCodeableConcept={"text": "Pain"}),
        reference("Rash."),
        {"resourceType": "Observation", "extension": 5, "code": {"text": "none of ours"}},
        finding(*good, link="DocumentReference/other"),
        finding(("type", "ADE"), ("start", 2), ("end", 90)),
        finding(("type", "ADE"), ("start", -5), ("end", -1)),
        finding(("type", "ADE"), ("start", 3), ("end", 3)),
    )
    reading = read(path, "fhir")
    (document,) = reading.documents
    assert document.entities == (Entity("T1", "ADE", ((0, 4),), 1.0),)
    assert kinds(reading.problems) == [
        "no-text", "finding-without-text", "text-mismatch", "beyond-text", "beyond-text",
        "empty-span",
    ]  # fmt: skip


@each("said", [
    (("start", 0), ("end", 4)),
    (("type", 5), ("start", 0), ("end", 4)),
    (("type", "ADE"), ("start", "x"), ("end", 4)),
    (("type", "ADE"), ("start", 0)),
    (("type", "ADE"), ("start", 0), ("end", 4), ("confidence", 2)),
    (("type", "ADE"), ("start", 0), ("end", 4), ("confidence", True)),
    (("type", "ADE"), ("start", 0), ("end", 4), ("attribute", "absent")),
    ((7, "ADE"),),
])  # fmt: skip
def test_a_broken_finding_is_named(tmp_path, said):
    path = lines(tmp_path, reference("Rash."), finding(*said), reference("Rash.", id="m"))
    with pytest.raises(FormatError) as caught:
        read(path, "fhir")
    assert caught.value.where == f"{path}:2"
    reading = read(path, "fhir", options=Options(skip_broken=True))
    assert len(reading.documents) == 2
    assert kinds(reading.problems) == ["broken-document"]
