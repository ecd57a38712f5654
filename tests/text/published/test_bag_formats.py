"""NYT10's lines, OpenNRE's JSON Lines, PGR's table: a sentence, a pair by name, a label."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError, FormatError
from confide.text.checking import check
from confide.text.document import Relation, pair_attributes, stated_pairs
from confide.text.formats import read
from confide.text.published.bags import unescaped
from text.generated import kinds, put, tokenised

BORN = "/people/person/place_of_birth"
SIX = (
    f"/m/1\t/m/2\tAda_Lovelace\tLondon\t{BORN}\tIn London, Ada_Lovelace lived. Twice? ###END### \n"
    "/m/1\t/m/3\tAda_Lovelace\tTurin\tNA\tAda_Lovelace never saw Turin . ###END### \n"
)
SEVEN = f"m.1\tm.2\tada_lovelace\tlondon\t{BORN}\tada_lovelace of london .\t###END###\n"
HEADER = (
    "FILE_ID\tSENTENCE\tGENE\tPHENOTYPE\tGENE_ID\tPHENOTYPE_ID\tGENE_START_POSITION\t"
    "GENE_END_POSITION\tPHENOTYPE_START_POSITION\tPHENOTYPE_END_POSITION\tRELATION"
)
CURATED = HEADER + "\tCONFIRMATION (CORRECT(C) | INCORRECT(I) | UNCERTAIN(U))\n"


def surfaces(document):
    return [document.surface(entity) for entity in document.entities]


class TestNyt10:
    def test_six_columns(self, tmp_path):
        path = put(tmp_path, "train.tsv", SIX)
        reading = read(path)
        first, second = reading.documents
        assert (reading.format, kinds(reading.problems)) == ("nyt10", [])
        assert first.text == "In London, Ada Lovelace lived. Twice?"
        assert surfaces(first) == ["Ada Lovelace", "London"]
        assert [entity.concepts for entity in first.entities] == [("/m/1",), ("/m/2",)]
        assert first.relations == (Relation("R1", BORN, "T1", "T2"),)
        assert (first.id, first.source, len(first.sentences)) == ("train:1", f"{path}:1", 1)
        assert (second.relations, stated_pairs(second)) == ((), [("T1", "T2")])
        assert {entity.type for entity in first.entities} == {"entity"}
        assert read(path, bare_type="thing").documents[0].entities[0].type == "thing"

    def test_seven_columns(self, tmp_path):
        reading = read(put(tmp_path, "train.txt", SEVEN.replace("\n", "\r\n")))
        (document,) = reading.documents
        assert (reading.format, document.text) == ("nyt10", "ada lovelace of london .")
        assert surfaces(document) == ["ada lovelace", "london"]

    @each(
        "sentence,head,tail,found",
        [
            ("a_b saw b_c , said b .", "b", "b_c", ["b", "b c"]),  # a word, not a part of one
            ("x (Rome), a_b x", "Rome", "a_b", ["Rome", "a b"]),
            ("of George_Eld_ and X", "George_Eld", "X", ["George_Eld", "X"]),
            ("x and x", "x", "x", ["x", "x"]),
            ("ROME and a", "Rome", "a", ["ROME", "a"]),
        ],
    )
    def test_names_have_places_of_their_own(self, tmp_path, sentence, head, tail, found):
        line = f"1\t2\t{head}\t{tail}\tr\t{sentence} ###END###\n"
        (document,) = read(put(tmp_path, "a.txt", line)).documents
        assert [surface.replace(" ", "_") for surface in surfaces(document)] == [
            surface.replace(" ", "_") for surface in found
        ]
        assert len({entity.fragments for entity in document.entities}) == 2

    def test_what_is_doubtful_or_not_there_is_named(self, tmp_path):
        lines = (
            "1\t2\ta\tRome\tr\ta of Rome or Rome . ###END###\n"
            "1\t2\ta\tPerugia\tr\tPerugino and a . ###END###\n"
            "1\t2\ta\tb\tr\ta b"
        )
        path = put(tmp_path, "a.txt", lines)
        reading = read(path, "nyt10")
        assert [(p.kind, p.where, p.lost) for p in reading.problems] == [
            ("ambiguous-mention", f"{path}:1", False),
            ("mention-not-found", f"{path}:2", True),
            ("no-end", f"{path}:3", False),
        ]
        first, second, third = reading.documents
        assert first.entities[1].start == 5
        assert (stated_pairs(second), second.relations, len(second.entities)) == ([], (), 1)
        assert third.relations

    @each("row", ["1\t2\ta\tb\tr\n", "1\t2\ta\t\tr\ta ###END###\n", "1\t" * 9])
    def test_other_columns_are_an_error(self, tmp_path, row):
        path = put(tmp_path, "a.txt", SIX + row)
        with pytest.raises(FormatError) as caught:
            read(path, "nyt10")
        assert caught.value.where == f"{path}:3"

    def test_an_empty_file(self, tmp_path):
        with pytest.raises(DataError, match="empty"):
            read(put(tmp_path, "a.txt", "\n"), "nyt10")

    def test_a_map_that_disagrees_is_named(self, tmp_path):
        path = put(tmp_path, "train.tsv", SIX)
        put(tmp_path, "relation2id.txt", f"2\nNA 0\n{BORN}s 1\n")
        (problem,) = read(path).problems
        assert (problem.kind, problem.where, problem.lost) == ("not-in-map", f"{path}:1", False)
        assert problem.what.endswith(f"the nearest that is there: {BORN}s")
        assert read(tmp_path).documents  # the map is no data
        put(tmp_path, "relation2id.txt", f"NA 0\n{BORN} 0\n")
        assert kinds(read(path).problems) == ["map-number"]
        put(tmp_path, "relation2id.txt", f"NA 0\n{BORN} 1\nother 2\n")
        assert read(path).problems == []
        put(tmp_path, "relation2id.txt", "NA\n")
        assert kinds(read(path).problems) == ["map-unread"]

    def test_a_bag_of_ten_thousand_sentences(self, tmp_path):
        path = put(tmp_path, "a.txt", SEVEN * 10_000)
        documents = read(path).documents
        assert len({one.id for one in documents}) == 10_000
        assert {one.entities for one in documents} == {documents[0].entities}


TEXT = {
    "text": "Ada Lovelace lived in London.",
    "h": {"name": "ada lovelace", "id": "Q7259", "pos": [0, 12], "type": "Person"},
    "t": {"name": "London", "id": "Q84", "pos": [22, 28]},
    "relation": "lived in",
}
TOKENS = {
    "token": ["Ada", "Lovelace", "'s", "London", "."],
    "h": {"name": "ada lovelace", "id": "Q7259", "pos": [0, 2]},
    "t": {"name": "London", "id": "Q84", "pos": [3, 4]},
    "relation": "NA",
}


class TestOpenNre:
    @each("dumps", [json.dumps, repr])
    def test_both_forms(self, tmp_path, dumps):
        path = put(tmp_path, "train.txt", f"{dumps(TEXT)}\n{dumps(TOKENS)}\n")
        reading = read(path)
        first, second = reading.documents
        assert (reading.format, reading.problems) == ("opennre", [])
        assert surfaces(first) == surfaces(second) == ["Ada Lovelace", "London"]
        assert [entity.type for entity in first.entities] == ["Person", "entity"]
        assert first.entities[0].concepts == ("Q7259",)
        assert first.relations == (Relation("R1", "lived in", "T1", "T2"),)
        assert second.text == "Ada Lovelace 's London ."
        assert second.token_texts(second.sentences[0]) == tuple(TOKENS["token"])
        assert (second.relations, stated_pairs(second)) == ((), [("T1", "T2")])

    def test_nothing_in_a_line_is_run(self, tmp_path):
        trap = "{'text': 'a b', 'h': {'pos': [0, 1]}, 't': __import__('os').abort()}"
        path = put(tmp_path, "a.txt", json.dumps(TEXT) + "\n" + trap)
        with pytest.raises(FormatError) as caught:
            read(path, "opennre")
        assert caught.value.where == f"{path}:2"
        assert os.getpid()

    @each(
        "change,kind",
        [
            ({"t": {"name": "Paris", "pos": [22, 28]}}, "text-mismatch"),
            ({"t": {"name": "London", "pos": [22, 99]}}, "beyond-text"),
            ({"t": {"name": "London", "pos": [28, 22]}}, "empty-span"),
            ({"t": {"name": "London", "pos": [21, 22]}}, "empty-span"),
            ({"t": {"name": "Paris"}}, "mention-not-found"),
            ({"t": {"name": "London", "pos": [22, 28], "kg": 1}}, "key-ignored"),
            ({"tags": ["a"]}, "key-ignored"),
            ({"relation": None}, "no-label"),
        ],
    )
    def test_what_does_not_fit_is_named(self, tmp_path, change, kind):
        reading = read(put(tmp_path, "a.txt", json.dumps(TEXT | change)), "opennre")
        assert kinds(reading.problems) == [kind]
        (document,) = reading.documents
        lost = kind in ("beyond-text", "empty-span", "mention-not-found")
        assert stated_pairs(document) == ([] if lost else [("T1", "T2")])

    @each(
        "change",
        [
            *({"t": value} for value in (None, "London", {"pos": [1.5, 2]}, {"pos": [True, 2]})),
            *({"t": {"pos": value}} for value in ([1], "12")),
            {"t": {"pos": [0, 1], "name": 7}}, {"relation": 7}, {"relation": " "}, {"text": 7},
        ],
    )  # fmt: skip
    def test_parts_of_another_form_are_errors(self, tmp_path, change):
        path = put(tmp_path, "a.txt", json.dumps(TEXT | change))
        with pytest.raises(FormatError) as caught:
            read(path, "opennre")
        assert caught.value.where == f"{path}:1"

    def test_names_without_positions_are_looked_for(self, tmp_path):
        row = {**TEXT, "h": {"name": "Ada Lovelace"}, "t": {"name": "london"}}
        (document,) = read(put(tmp_path, "a.txt", json.dumps(row))).documents
        assert surfaces(document) == ["Ada Lovelace", "London"]

    def test_odd_tokens(self, tmp_path):
        row = {**TOKENS, "token": ["Ada", "Love lace", "", "London", "."]}
        row["h"] = {"name": "Ada Love lace", "pos": [0, 2]}
        (document,) = read(put(tmp_path, "a.txt", json.dumps(row))).documents
        tokens = document.token_texts(document.sentences[0])
        assert tokens == ("Ada", "Love", "lace", "London", ".")
        assert surfaces(document) == ["Ada Love lace", "London"]

    def test_other_keys_are_attributes_and_a_map_is_compared(self, tmp_path):
        path = put(tmp_path, "a.txt", json.dumps(TEXT | {"id": 7, "file": "x", "pair": "T1 T9"}))
        put(tmp_path, "a_rel2id.json", json.dumps({"NA": 0, "live in": 1}))
        reading = read(path)
        (document,) = reading.documents
        assert document.id == "7"
        assert document.attributes == (*pair_attributes([("T1", "T2")]), ("file", "x"))
        assert kinds(reading.problems) == ["key-ignored", "not-in-map"]

    @given(tokenised(max_sentences=1), st.sampled_from(["no-relation", "causes"]))
    def test_a_sentence_with_its_pair_comes_back(self, tmp_path_factory, document, label):
        if len(document.entities) < 2:
            return
        head, tail = document.entities[:2]
        ends = [
            {"name": document.surface(one), "pos": [one.start, one.end], "type": one.type}
            for one in (head, tail)
        ]
        line = {"text": document.text, "h": ends[0], "t": ends[1]}
        line["relation"] = label if label == "causes" else "NA"
        path = put(tmp_path_factory.mktemp("opennre"), "a.jsonl", json.dumps(line))
        (again,) = read(path, "opennre").documents
        assert again.text == document.text
        assert [(e.type, e.fragments) for e in again.entities] == [
            (e.type, e.fragments) for e in (head, tail)
        ]
        assert [r.type for r in again.relations] == ([label] if label == "causes" else [])


def row(sentence, label, *more, gene=("BRCA1", 0), phenotype=("cancer", 15)):
    """A row of PGR's table; a name with the offset at which it stands."""
    places = [str(n) for name, start in (gene, phenotype) for n in (start, start + len(name))]
    names = [gene[0], phenotype[0], "672", "HP_0002664"]
    return "\t".join(["77", sentence, *names, *places, label, *more]) + "\n"


class TestPgr:
    def test_labels_of_the_knowledge_base(self, tmp_path):
        sentence = "BRCA1 mutated, cancer."
        path = put(
            tmp_path, "train.tsv", f"{HEADER}\n{row(sentence, 'True')}{row(sentence, 'FALSE')}"
        )
        reading = read(path)
        first, second = reading.documents
        assert (reading.format, reading.problems) == ("pgr", [])
        assert [(e.type, e.concepts) for e in first.entities] == [
            ("Gene", ("672",)),
            ("Phenotype", ("HP_0002664",)),
        ]
        assert first.relations == (Relation("R1", "gene-phenotype", "T1", "T2"),)
        assert (second.relations, stated_pairs(second)) == ((), [("T1", "T2")])
        assert ("file", "77") in first.attributes
        assert (first.id, reading.details["curated"]) == ("train:2", "no")

    @each(
        "label,verdict,holds",
        [("TRUE", "C", True), ("True", "I", False), ("False", "C", False), ("FALSE", "I", True)],
    )
    def test_curated_labels(self, tmp_path, label, verdict, holds):
        path = put(tmp_path, "test.tsv", CURATED + row("BRCA1 mutated, cancer.", label, verdict))
        (document,) = read(path).documents
        assert bool(document.relations) is holds

    def test_an_uncertain_label_is_named(self, tmp_path):
        path = put(tmp_path, "test.tsv", CURATED + row("BRCA1 mutated, cancer.", "TRUE", "U"))
        reading = read(path)
        assert [(p.kind, p.lost) for p in reading.problems] == [("uncertain-label", True)]
        assert (stated_pairs(reading.documents[0]), reading.documents[0].relations) == ([], ())

    def test_offsets_count_escapes(self, tmp_path):
        sentence = "p &lt; 0.1 for BRCA1 &amp; cancer (&quot;x&quot;)."
        places = {"gene": ("BRCA1", 15), "phenotype": ("cancer", 27)}
        path = put(tmp_path, "a.tsv", f"{HEADER}\n{row(sentence, 'True', **places)}")
        reading = read(path)
        (document,) = reading.documents
        assert (document.text, reading.problems) == ('p < 0.1 for BRCA1 & cancer ("x").', [])
        assert surfaces(document) == ["BRCA1", "cancer"]

    @given(st.lists(st.sampled_from(["&lt;", "&amp;", "&#916;", "&", "a", "&nothing;", ";"])))
    def test_moved_offsets_point_at_the_same_characters(self, pieces):
        plain = {"&lt;": "<", "&amp;": "&", "&#916;": "Δ"}
        text, shifts = unescaped("".join(pieces))
        assert text == "".join(plain.get(piece, piece) for piece in pieces)
        assert [behind - shrunk for behind, shrunk in shifts] == [
            len("".join(plain.get(piece, piece) for piece in pieces[: number + 1]))
            for number, piece in enumerate(pieces)
            if piece in plain
        ]

    def test_wrong_offsets_are_named(self, tmp_path):
        text = "BRCA1 mutated, cancer."
        rows = row(text, "True", gene=("BRCA1", 2)) + row(text, "True", gene=("AA", 3))
        reading = read(put(tmp_path, "a.tsv", f"{HEADER}\n{rows}"))
        assert [(p.kind, p.lost) for p in reading.problems] == [
            ("offset-mismatch", False),
            ("offset-mismatch", False),
            ("mention-not-found", True),
        ]
        assert surfaces(reading.documents[0]) == ["BRCA1", "cancer"]
        assert stated_pairs(reading.documents[1]) == []

    @each(
        "table",
        [
            f"{HEADER}\n77\tx\n",
            f"{HEADER}\n" + row("BRCA1 mutated, cancer.", "maybe"),
            CURATED + row("BRCA1 mutated, cancer.", "True", "X"),
            f"{HEADER}\n" + row("BRCA1 mutated, cancer.", "True").replace("\t15\t", "\tx\t"),
            f"{HEADER}\tGENE\n" + row("BRCA1 mutated, cancer.", "True", "x"),
            "FILE_ID\tSENTENCE\n1\t2\n",
        ],
    )
    def test_another_table_is_an_error(self, tmp_path, table):
        path = put(tmp_path, "a.tsv", table)
        with pytest.raises(FormatError) as caught:
            read(path, "pgr")
        assert caught.value.where.startswith(f"{path}:")

    def test_no_rows(self, tmp_path):
        with pytest.raises(DataError, match="no rows"):
            read(put(tmp_path, "a.tsv", HEADER + "\n"), "pgr")


def test_check_counts_and_names(tmp_path):
    put(tmp_path, "relation2id.txt", "NA 0\n")
    report = check(put(tmp_path, "train.tsv", SIX))
    assert (report.counts["documents"], report.relations) == (2, {BORN: 1})
    assert report.kinds == {"not-in-map": 1}
