"""WebAnno TSV 3: tokens, stacked layers, parts of tokens, relations, slots."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import detect, read, write
from text.formats import published
from text.formats.samples import again, links, mentions
from text.generated import kinds, put, tokenised


def test_sample(tmp_path):
    path = put(tmp_path, "note.tsv", published.WEBANNO)
    assert detect(path) == "webanno"
    reading = read(path)
    (document,) = reading.documents
    assert (document.id, document.text) == ("note", "😀 Ada Lovelace met Bob_1.\nIn Londonderry.")
    assert mentions(document) == [
        ("PER", "Ada Lovelace"), ("Event", "met"), ("PER", "Bob_1"), ("LOC", "Londonderry"),
        ("ORG_X", "Londonderry"), ("LOC", "London"),
    ]  # fmt: skip
    assert document.entities[0].concepts == ("Q7259",)
    assert links(document) == [("who", "met", "Ada Lovelace"), ("knows", "Ada Lovelace", "Bob_1")]
    assert [len(one.tokens) for one in document.sentences] == [6, 3]
    assert [(p.kind, p.lost) for p in reading.problems] == [("layer-ignored", False)]


def test_chains_are_named_as_lost(tmp_path):
    text = published.WEBANNO.replace("#T_SP=webanno.custom.Event|kind|", "#T_CH=webanno.Coref|a|")
    reading = read(put(tmp_path, "a.tsv", text))
    assert ("layer-ignored", True) in [(p.kind, p.lost) for p in reading.problems]


@settings(max_examples=30)
@given(document=tokenised())
def test_round_trip(tmp_path_factory, document):
    ids = [entity.id for entity in document.entities]
    relations = (Relation("R1", "to|[x]_y", ids[0], ids[-1]),) if ids else ()
    document = Document(
        "d", document.text, document.entities, relations, sentences=document.sentences
    )
    reading, problems = again([document], tmp_path_factory.mktemp("w") / "out", "webanno")
    (read_back,) = reading.documents
    assert (problems, reading.problems) == ([], [])
    assert (read_back.text, read_back.sentences) == (document.text, document.sentences)
    assert sorted(mentions(read_back)) == sorted(mentions(document))
    assert links(read_back) == links(document)


def test_nested_entities_and_concepts_are_held(tmp_path):
    entities = (Entity("T1", "A", ((0, 4),), concepts=("C:1",)), Entity("T2", "B", ((0, 18),)),
                Entity("T3", "A", ((0, 4),)))  # fmt: skip
    document = Document("d", "Rash after aspirin", entities)
    (found,) = again([document], tmp_path / "out", "webanno")[0].documents
    assert sorted((e.type, e.fragments, e.concepts) for e in found.entities) == sorted(
        (e.type, e.fragments, e.concepts) for e in entities
    )


def test_white_space_that_is_lost_is_said(tmp_path):
    assert kinds(write([Document("d", "a\tb")], tmp_path / "o", "webanno")) == [
        "white-space-unheld"
    ]
    assert read(tmp_path / "o").documents[0].text == "a b"


@each(("old", "new", "said"), [
    ("1-2\t3-6\tAda", "1-2\t3-60\tAda", "do not fit their offsets"),
    ("1-2\t3-6\tAda", "1-2\tAda", "not a line"),
    ("#T_RL=", "#T_XX=", "a layer of another form"),
    ("#T_RL=webanno.custom.Knows|label|BT_de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity",
     "#T_RL=webanno.custom.Knows", "does not say what they link"),
    ("2-1\t27-29", "2-1\t99999999-100000001", "a gap of blanks"),
])  # fmt: skip
def test_damage(tmp_path, old, new, said):
    with pytest.raises(FormatError, match=said):
        read(put(tmp_path, "a.tsv", published.WEBANNO.replace(old, new)))


def test_roles_without_a_column_of_targets(tmp_path):
    """The column of roles came last, and the reader looked beyond it (IndexError)."""
    target = "|de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity\n#T_RL"
    text = published.WEBANNO.replace(target, "\n#T_RL")
    assert text != published.WEBANNO
    with pytest.raises(FormatError, match="a column of roles without one of what they lead to"):
        read(put(tmp_path, "a.tsv", text), "webanno")


def test_a_line_that_ends_before_its_last_columns(tmp_path):
    """They are empty; the column of a slot's targets was looked for beyond the end (IndexError)."""
    lines = published.WEBANNO.split("\n")
    place = next(n for n, line in enumerate(lines) if "\tmet\t" in line)
    whole = read(put(tmp_path, "a.tsv", published.WEBANNO)).documents[0]
    cells = lines[place].split("\t")
    for cut in range(4, len(cells)):
        lines[place] = "\t".join(cells[:cut])
        (document,) = read(put(tmp_path, "a.tsv", "\n".join(lines))).documents
        assert document.text == whole.text
        assert len(document.entities) in (len(whole.entities), len(whole.entities) - 1)


def test_nothing_in_it(tmp_path):
    with pytest.raises(DataError, match="no token"):
        read(put(tmp_path, "a.tsv", "#FORMAT=WebAnno TSV 3.3\n\n"))
