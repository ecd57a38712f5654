"""What was found, in other forms: JSON, transformers' pipeline, a page; hostile text stays text."""

from __future__ import annotations

import json

from confide.jobs.loading import Annotated
from confide.text.document import Document, Entity, Relation

TEXT = "<script>x</script> aspirin gave a bad & ugly rash"
DRUG, BAD, RASH = TEXT.index("aspirin"), TEXT.index("bad"), TEXT.index("rash")
FOUND = Annotated(
    Document(
        "x",
        TEXT,
        (
            Entity("T2", "Effect", ((BAD, BAD + 3), (RASH, RASH + 4)), 0.5),
            Entity("T1", "<b>Drug", ((DRUG, DRUG + 7),), 0.987),
            Entity("T3", "Effect", ((RASH, RASH + 4),)),
        ),
        (Relation("R1", "causes", "T1", "T2", confidence=0.25),
         Relation("R2", "is", "C1", "C2", level="concept")),
    )
)  # fmt: skip


def test_entities_come_in_order_of_place() -> None:
    assert [one.text for one in FOUND.entities] == ["aspirin", "bad rash", "rash"]
    assert repr(FOUND.relations) == "(causes('aspirin', 'bad rash', 0.25),)"


def test_a_dictionary_is_json_and_its_relations_name_entities() -> None:
    found = json.loads(json.dumps(FOUND.to_dict()))
    by_id = {one["id"]: one for one in found["entities"]}
    (relation,) = found["relations"]
    assert by_id[relation["head"]]["text"] == "aspirin"
    assert by_id[relation["tail"]]["fragments"] == [[34, 37], [RASH, RASH + 4]]
    assert found["text"][by_id["T1"]["start"] : by_id["T1"]["end"]] == "aspirin"


def test_the_form_of_transformers_spans_fragments() -> None:
    assert FOUND.to_hf()[1] == {
        "entity_group": "Effect", "score": 0.5, "word": TEXT[34 : RASH + 4], "start": 34,
        "end": RASH + 4,
    }  # fmt: skip


def test_html_escapes_text_and_types_and_marks_each_character_once() -> None:
    page = FOUND._repr_html_()
    assert "<script" not in page and "<b>" not in page
    assert "&lt;b&gt;Drug 99 %" in page
    assert page.count("<mark") == 3  # the second entity of the last word is not marked again
    assert page.count(">rash<") == 1
    assert "</mark> &amp; ugly <mark" in page
    assert "<td>aspirin</td><td>causes</td><td>bad rash</td><td>25 %</td>" in page


def test_entities_that_touch_are_both_marked() -> None:
    marks = (Entity("1", "DRUG", ((0, 5),)), Entity("2", "DOSE", ((5, 8),)))
    page = Annotated(Document("x", "drug15mg", marks))._repr_html_()
    assert page.count("<mark") == 2
