"""What a format cannot hold is named: over all writers, nothing is lost silently."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from confide.errors import ConfideError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import FORMATS, read, write
from confide.text.reading import Output, Supports, reduce_to
from text.generated import any_documents, kinds, tokenised

WRITTEN = [name for name, kind in FORMATS.items()
           if kind.write and name not in ("table", "note-nlp")]  # fmt: skip


def there_and_back(documents, folder, name):
    """What is read again, and whether writing or reading named a loss."""
    path = folder / f"out{FORMATS[name].suffix}"
    problems = write(documents, path, name)
    try:
        reading = read(path, name)
    except ConfideError:
        return [], problems
    return reading.documents, [*problems, *reading.problems]


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(document=any_documents())
def test_whatever_is_missing_was_named(tmp_path_factory, name, document):
    again, problems = there_and_back([document], tmp_path_factory.mktemp("any"), name)
    lost = any(problem.lost for problem in problems)
    for part in ("entities", "relations"):
        before, after = len(getattr(document, part)), sum(len(getattr(one, part)) for one in again)
        assert after <= before
        assert lost or after == before, part


@pytest.mark.parametrize("name", [name for name in WRITTEN if name not in ("text", "notes")])
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(document=tokenised())
def test_entities_of_tokens_come_back_where_they_were(tmp_path_factory, name, document):
    again, problems = there_and_back([document], tmp_path_factory.mktemp("tokens"), name)
    found = Counter((e.type, one.surface(e)) for one in again for e in one.entities)
    wanted = Counter((e.type, document.surface(e)) for e in document.entities)
    assert found == wanted or any(problem.lost for problem in problems)
    assert found == wanted or name in ("brat", "pubtator", "xmi")  # odd characters


def test_what_is_kept_and_what_is_counted(tmp_path):
    entities = (
        Entity("T1", "A", ((0, 1),), 0.5, ("C",), (("k", "v"),)),
        Entity("T2", "A", ((0, 1), (2, 3))),
    )
    relations = (Relation("R1", "r", "T1", "T2"), Relation("R2", "r", "C", "D", level="concept"))
    document = Document("d", "a b c", entities, relations, attributes=(("x", "y"),))
    out = Output(tmp_path)
    (cut,) = reduce_to(Supports(), [document], out)
    assert cut.entities == (Entity("T1", "A", ((0, 1),)),)
    assert (cut.relations, cut.attributes) == ((), ())
    assert sorted(kinds(out.problems)) == [
        "attributes-unheld", "confidences-unheld", "discontinuous", "document-attributes-unheld",
        "relations-unheld",
    ]  # fmt: skip
    assert all(problem.lost for problem in out.problems)
    (cut,) = reduce_to(Supports(fragments=True, relations=True), [document], out)
    assert [relation.id for relation in cut.relations] == ["R1"]
    assert "relation-unheld" in kinds(out.problems)
