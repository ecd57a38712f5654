"""i2b2's XML of 2012 and 2014, and MEDDOCAN's."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import FormatError
from confide.text.document import Entity, Relation
from confide.text.formats import detect, read
from text.formats import published
from text.formats.samples import links, mentions
from text.generated import kinds, put


def test_2014(tmp_path):
    path = put(tmp_path, "b.xml", published.XML_2014)
    assert detect(path) == "i2b2-xml"
    (document,) = read(path).documents
    assert mentions(document) == [
        ("DATE", "2067-05-03"), ("DOCTOR", "Oda"), ("PATIENT", "Zed"), ("CITY", "Bern"),
    ]  # fmt: skip
    assert document.entities[3].attributes == (("tag", "LOCATION"), ("comment", "sure"))


def test_2012(tmp_path):
    (document,) = read(put(tmp_path, "a.xml", published.XML_2012)).documents
    assert mentions(document)[:3] == [
        ("OCCURRENCE", "Admission"), ("TREATMENT", "aspirin"), ("DATE", "2026-06-13"),
    ]  # fmt: skip
    assert links(document) == [("OVERLAP", "aspirin", "2026-06-13")]
    assert ("modality", "FACTUAL") in document.entities[0].attributes


def test_meddocan(tmp_path):
    kind = "NOMBRE_PERSONAL_SANITARIO"
    tag = f'<{kind} id="T1" start="0" end="3" text="Ada" TYPE="{kind}" comment=""/>'
    page = f"<MEDDOCAN><TEXT><![CDATA[Ada, médica.]]></TEXT><TAGS>{tag}</TAGS></MEDDOCAN>"
    (document,) = read(put(tmp_path, "m.xml", page)).documents
    assert mentions(document) == [("NOMBRE_PERSONAL_SANITARIO", "Ada")]
    assert document.entities[0].attributes == ()


@each("shift", [-1, 1])
def test_offsets_that_count_otherwise(tmp_path, shift):
    page = published.XML_2014
    for number in (13, 23, 29, 32, 41, 44, 48, 52):
        page = page.replace(f'"{number}"', f'"{number + shift}"')
    reading = read(put(tmp_path, "b.xml", page))
    assert mentions(reading.documents[0])[1] == ("DOCTOR", "Oda")
    assert kinds(reading.problems) == ["offsets-counted"]


def test_line_ends_of_two_characters(tmp_path):
    text = "One\r\nTwo\r\nThree Four"
    tags = "".join(
        f'<A id="{word}" start="{text.index(word)}" end="{text.index(word) + len(word)}"'
        f' text="{word}" TYPE="X"/>' for word in ("Two", "Three", "Four")
    )  # fmt: skip
    page = f"<r><TEXT><![CDATA[{text}]]></TEXT><TAGS>{tags}</TAGS></r>"
    reading = read(put(tmp_path, "a.xml", page))
    assert [words for _, words in mentions(reading.documents[0])] == ["Two", "Three", "Four"]
    assert kinds(reading.problems) == ["offsets-counted"]


def test_tags_about_the_whole_document_are_named(tmp_path):
    page = "<root><TEXT>He smokes.</TEXT><TAGS><SMOKER id='D1' status='current'/></TAGS></root>"
    reading = read(put(tmp_path, "a.xml", page))
    assert [(p.kind, p.lost) for p in reading.problems] == [("tags-without-place", True)]


def test_characters_that_xml_escapes(tmp_path):
    tags = (
        '<TAG id="T1" start="1" end="5" text="Rash" TYPE="ADE" sure="a &quot;b&quot;"/>'
        '<TAG id="T2" start="19" end="26" text="aspirin" TYPE="Drug"/>'
        '<LINK id="R1" fromID="T2" toID="T1" TYPE="causes" x="y"/>'
    )
    text = "\nRash &amp; &lt;b>&#13;\nafter\taspirin ]]&gt; 😀."
    put(tmp_path, "out/n.xml", f"<deIdi2b2><TEXT>{text}</TEXT><TAGS>{tags}</TAGS></deIdi2b2>")
    (found,) = read(tmp_path / "out").documents
    assert found.text == "\nRash & <b>\r\nafter\taspirin ]]> 😀."
    assert found.entities == (
        Entity("T1", "ADE", ((1, 5),), attributes=(("sure", 'a "b"'),)),
        Entity("T2", "Drug", ((19, 26),)),
    )
    assert found.relations == (Relation("R1", "causes", "T2", "T1", attributes=(("x", "y"),)),)


def test_one_broken_file_of_many(tmp_path):
    from confide.text.formats import Options

    put(tmp_path, "deep/er/a.xml", published.XML_2014)
    put(tmp_path, "deep/b.xml", published.XML_2014.replace('start="13"', 'start="x"'))
    with pytest.raises(FormatError, match=r"b\.xml.*whole numbers"):
        read(tmp_path)
    reading = read(tmp_path, options=Options(skip_broken=True))
    assert [one.id for one in reading.documents] == ["a"]
    assert [(p.kind, p.lost) for p in reading.problems] == [("broken-document", True)]
    assert "b.xml" in reading.problems[0].where
