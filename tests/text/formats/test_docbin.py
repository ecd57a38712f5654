"""DocBin, against spaCy itself: what it wrote is read, what we write it reads."""

from __future__ import annotations

import zlib

import pytest

pytest.importorskip("spacy")

import spacy
from spacy.tokens import Doc, DocBin, Span

from confide.errors import DataError, FormatError, SettingsError
from confide.text.document import Document, Entity
from confide.text.formats import detect, read, write
from confide.text.segment import segmented
from text.formats.samples import mentions
from text.generated import kinds, put

VOCAB = spacy.blank("xx").vocab


def theirs(path):
    words = ["Ada", "Lovelace", "\n", "met", "Bob", "."]
    doc = Doc(VOCAB, words=words, spaces=[True, False, False, True, False, False],
              sent_starts=[True, False, False, True, False, False])  # fmt: skip
    doc.set_ents([Span(doc, 0, 2, "PERSON", kb_id="Q7259"), Span(doc, 4, 5, "PERSON")])
    doc.spans["sc"] = [Span(doc, 0, 2, "PERSON"), Span(doc, 3, 5, "Event")]
    doc.spans["other"] = [Span(doc, 3, 4, "Verb")]
    plain = Doc(VOCAB, words=["No", "entity"], spaces=[True, False])
    held = DocBin(attrs=["ENT_IOB", "ENT_TYPE", "ENT_KB_ID", "SENT_START"], docs=[doc, plain])
    path.write_bytes(held.to_bytes())
    return path


def test_what_spacy_wrote(tmp_path):
    path = theirs(tmp_path / "train.spacy")
    assert detect(path) == "docbin"
    reading = read(path)
    first, second = reading.documents
    assert first.text == "Ada Lovelace\nmet Bob."
    assert mentions(first) == [
        ("PERSON", "Ada Lovelace"), ("PERSON", "Bob"), ("Event", "met Bob"), ("Verb", "met"),
    ]  # fmt: skip
    assert first.entities[0].concepts == ("Q7259",)
    assert first.entities[3].attributes == (("span_group", "other"),)
    assert [first.token_texts(one) for one in first.sentences] == [
        ("Ada", "Lovelace"), ("met", "Bob", "."),
    ]  # fmt: skip
    assert (second.text, second.entities, second.sentences) == ("No entity", (), ())
    assert reading.problems == []


def test_what_we_write_spacy_reads(tmp_path):
    document = segmented(Document("n1", "Rash  after\taspirin. No 😀 pain.", (
        Entity("T1", "ADE", ((0, 4),), concepts=("C1",)), Entity("T2", "Event", ((0, 19),)),
        Entity("T3", "ADE", ((26, 30),)),
    ), attributes=(("ward", "b"), ("pair", "T1 T2"), ("pair", "T1 T3"))))  # fmt: skip
    path = tmp_path / "a.spacy"
    assert write([document], path, "docbin") == []
    (doc,) = DocBin().from_disk(path).get_docs(VOCAB)
    assert doc.text == document.text
    assert [(e.label_, e.text) for e in doc.ents] == [
        ("Event", "Rash  after\taspirin"),
        ("ADE", "pain"),
    ]
    assert sorted((s.label_, s.start_char, s.end_char) for s in doc.spans["sc"]) == sorted(
        (e.type, e.start, e.end) for e in document.entities
    )
    assert [s.text for s in doc.sents] == ["Rash  after\taspirin. ", "No 😀 pain."] or len(
        list(doc.sents)
    ) == 2
    (again,) = read(path).documents
    assert (again.id, again.text, again.sentences) == ("n1", document.text, document.sentences)
    assert again.attributes == document.attributes
    assert sorted(mentions(again)) == sorted(mentions(document))
    assert {e.concepts for e in again.entities} == {("C1",), ()}


def test_a_span_without_a_token_and_a_document_without_one(tmp_path):
    doc = Doc(VOCAB, words=["a", "b"])
    doc.spans["sc"] = [Span(doc, 1, 1, "X")]
    (tmp_path / "a.spacy").write_bytes(DocBin(docs=[Doc(VOCAB), doc]).to_bytes())
    reading = read(tmp_path / "a.spacy")
    assert [(one.text, one.entities) for one in reading.documents] == [("", ()), ("a b ", ())]
    assert [(one.kind, one.lost) for one in reading.problems] == [("empty-span", True)]


def test_damaged_and_huge(tmp_path):
    raw = theirs(tmp_path / "a.spacy").read_bytes()
    for spoiled in (raw[:-20], raw[:40] + b"\0" * 40 + raw[80:], zlib.compress(b"\x81\xa1a\x01")):
        with pytest.raises((FormatError, DataError)):
            read(put(tmp_path, "b.spacy", spoiled), "docbin")
    with pytest.raises(FormatError, match="holds more than"):
        read(put(tmp_path, "c.spacy", zlib.compress(bytes(1 << 26))), "docbin")


def test_categories_and_extensions_are_named(tmp_path):
    doc = Doc(VOCAB, words=["a"])
    doc.cats = {"sad": 1.0}
    doc.user_data["._.", "x", None, None] = 1
    (tmp_path / "a.spacy").write_bytes(DocBin(docs=[doc], store_user_data=True).to_bytes())
    assert kinds(read(tmp_path / "a.spacy").problems) == ["key-ignored", "key-ignored"]


def test_without_spacy(tmp_path, monkeypatch):
    import sys

    path = theirs(tmp_path / "a.spacy")
    monkeypatch.setitem(sys.modules, "srsly", None)
    with pytest.raises(SettingsError, match=r"pip install 'confide\[spacy\]'"):
        read(path)
