"""DocRED: entities of several mentions, relations between entities."""

from __future__ import annotations

import json

import pytest

from confide.errors import FormatError
from confide.text.formats import detect, read
from text.formats import published
from text.formats.samples import mentions
from text.generated import kinds, put


def test_sample(tmp_path):
    path = put(tmp_path, "a.json", published.DOCRED)
    (document,) = read(path).documents
    assert detect(path) == "docred"
    assert mentions(document) == [("PER", "Ada Lovelace"), ("PER", "She"), ("LOC", "London")]
    assert [entity.concepts for entity in document.entities] == [("V0",), ("V0",), ("V1",)]
    (relation,) = document.relations
    assert (relation.type, relation.head, relation.tail, relation.level) == (
        "P551", "V0", "V1", "concept",
    )  # fmt: skip
    assert relation.attributes == (("evidence", "0 1"),)


def test_entities_that_are_not_there(tmp_path):
    (row,) = json.loads(published.DOCRED)
    row["labels"][0]["h"] = 7
    with pytest.raises(FormatError, match="from 0 to 1"):
        read(put(tmp_path, "a.json", json.dumps([row])))
    row["labels"] = []
    row["vertexSet"][0][0]["sent_id"] = 9
    reading = read(put(tmp_path, "a.json", json.dumps([row])))
    assert kinds(reading.problems) == ["empty-span"]
