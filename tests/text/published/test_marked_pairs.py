"""BioBERT's tables, ChemProt's JSON Lines, SemEval-2010 task 8: one marked pair in each text."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile

import pytest

from cases import each
from confide.errors import DataError, FormatError
from confide.text.checking import check
from confide.text.document import Document, Entity, Relation, pair_attributes, stated_pairs
from confide.text.formats import read, write
from text.generated import kinds, put

TABLE = (
    "The @GENE$ gene is tied to @DISEASE$. Not by chance.\t1\n"
    '"No" tie of @DISEASE$ to @GENE$ was seen.\t0\n'
)
HEADED = (
    "index\tsentence\tlabel\n7\tBlock of @CHEMICAL$ by @GENE$ .\tCPR:4\n"
    "8\t@DRUG$ or @DRUG$ .\tDDI-false\n"
)
CHEMPROT = [
    {"text": "(<< TCDD >>) raised [[ Cyp1a1 ]]; A >> B.", "label": "ACTIVATOR", "metadata": []},
    {"text": "<< beta [1] receptor >> binds [[ [3H]glycine ]]", "label": "AGONIST", "metadata": []},
]
SEMEVAL = (
    '1\t"A <e1>ridge</e1> rises from the <e2>sea floor</e2>."\r\n'
    "Entity-Origin(e2,e1)\r\nComment: odd.\r\n\r\n"
    '2\t"He said "the <e2>author</e2>" <e1>wrote</e1>."\r\nOther\r\nComment:\r\n'
)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_stated_pairs():
    def document(*attributes):
        return Document("d", "x", attributes=attributes)

    assert stated_pairs(document(("k", "v"))) is None
    assert stated_pairs(document(("k", "v"), *pair_attributes([("T1", "T2")]))) == [("T1", "T2")]
    assert stated_pairs(document(*pair_attributes([]))) == []
    odd = (("pair", "a"), ("pair", "a b"), ("pair", "a b"), ("pair", "b c d"))
    assert stated_pairs(document(*odd)) == [("a", "b")]


class TestBioBert:
    def test_without_a_header(self, tmp_path):
        path = put(tmp_path, "train.tsv", TABLE)
        reading = read(path)
        first, second = reading.documents
        assert (reading.format, reading.problems) == ("biobert", [])
        assert reading.details["header"] == "no"
        assert (first.id, first.source) == ("train:1", f"{path}:1")
        assert [(e.type, first.surface(e)) for e in first.entities] == [
            ("GENE", "@GENE$"),
            ("DISEASE", "@DISEASE$"),
        ]
        assert first.relations == (Relation("R1", "related", "T1", "T2"),)
        assert len(first.sentences) == 1  # whatever full stops are in it
        assert (second.relations, stated_pairs(second)) == ((), [("T1", "T2")])
        assert second.entities[0].type == "DISEASE"  # in the order of the text
        assert second.text.startswith('"No"')

    def test_with_a_header(self, tmp_path):
        reading = read(put(tmp_path, "test.tsv", HEADED))
        first, second = reading.documents
        assert (reading.format, reading.details["header"], first.id) == ("biobert", "yes", "test:2")
        assert [relation.type for relation in first.relations] == ["CPR:4"]
        assert second.relations == ()
        assert [entity.type for entity in second.entities] == ["DRUG", "DRUG"]

    def test_a_sentence_without_one_pair_is_named(self, tmp_path):
        more = "@GENE$ and @GENE$ and @DISEASE$ \t1\n@CHEM-GENE$ x\t1"
        path = put(tmp_path, "a.tsv", TABLE * 2 + more)
        assert read(path).format == "biobert"  # most sentences have a pair
        path = put(tmp_path, "a.tsv", TABLE + more)
        reading = read(path, "biobert")
        assert [(p.kind, p.where, p.lost) for p in reading.problems] == [
            ("not-one-pair", f"{path}:3", True),
            ("not-one-pair", f"{path}:4", True),
        ]
        assert [stated_pairs(document) for document in reading.documents[2:]] == [[], []]
        assert [len(document.relations) for document in reading.documents] == [1, 0, 0, 0]

    @each("row", ["a @GENE$ b @DISEASE$", "a\tb\t1", "a @GENE$ b @X$\t", "\t1"])
    def test_a_line_of_other_columns_is_an_error(self, tmp_path, row):
        path = put(tmp_path, "a.tsv", TABLE + row)
        with pytest.raises(FormatError) as caught:
            read(path, "biobert")
        assert caught.value.where == f"{path}:3"

    def test_conll_of_two_columns_is_not_taken_for_a_table(self, tmp_path):
        path = put(tmp_path, "a.tsv", "@GENE$\tB-X\nand\tO\n@DISEASE$\tB-X\n")
        assert read(path).format == "conll"

    def test_declared_types(self, tmp_path):
        path = put(tmp_path, "a.tsv", TABLE)
        with pytest.raises(DataError, match="not declared"):
            read(path, types=["GENE"])
        with pytest.raises(DataError, match="empty"):
            read(put(tmp_path, "b.tsv", "index\tsentence\tlabel\n"), "biobert")

    def test_check_shows_relations(self, tmp_path):
        report = check(put(tmp_path, "a.tsv", TABLE))
        assert report.relations == {"related": 1}
        assert report.counts["relations"] == 1


class TestChemProt:
    def test_marks_are_taken_out(self, tmp_path):
        reading = read(put(tmp_path, "train.txt", lines(CHEMPROT)), bare_type="argument")
        first, second = reading.documents
        assert (reading.format, reading.problems) == ("chemprot", [])
        assert first.text == "(TCDD) raised Cyp1a1; A >> B."
        assert first.entities == (
            Entity("T1", "argument", ((1, 5),)),
            Entity("T2", "argument", ((14, 20),)),
        )
        assert first.relations == (Relation("R1", "ACTIVATOR", "T1", "T2"),)
        assert (first.id, stated_pairs(first)) == ("train:1", [("T1", "T2")])
        assert second.text == "beta [1] receptor binds [3H]glycine"
        assert [second.surface(e) for e in second.entities] == ["beta [1] receptor", "[3H]glycine"]

    def test_other_json_lines_stay_json_lines(self, tmp_path):
        plain = [{"text": "a << b >> c", "label": [[0, 1, "X"]]}]
        assert read(put(tmp_path, "a.jsonl", lines(plain))).format == "jsonl"
        mixed = [*CHEMPROT, {"text": "no marks", "label": "x"}]
        assert read(put(tmp_path, "b.jsonl", lines(mixed))).format == "jsonl"

    @each(
        "row",
        [
            {"text": "no marks", "label": "x"},
            {"text": "[[ a ]] and << b >>", "label": "x"},
            {"text": "<< a >> [[ b ]]", "label": ""},
            {"text": "<< a >> [[ b ]]"},
            {"label": "x"},
            {"text": "<<  >> and [[ b ]]", "label": "x"},
        ],
    )
    def test_a_line_that_marks_no_pair_is_an_error(self, tmp_path, row):
        path = put(tmp_path, "a.txt", lines([*CHEMPROT, row]))
        with pytest.raises(FormatError) as caught:
            read(path, "chemprot")
        assert caught.value.where == f"{path}:3"

    def test_what_is_not_read_is_named(self, tmp_path):
        row = {**CHEMPROT[0], "metadata": ["x"]}
        reading = read(put(tmp_path, "a.txt", lines([row])))
        assert kinds(reading.problems) == ["key-ignored"]


class TestSemEval:
    def test_direction_stays_in_the_label(self, tmp_path):
        path = put(tmp_path, "TRAIN.TXT", SEMEVAL)
        reading = read(path)
        first, second = reading.documents
        assert (reading.format, reading.problems) == ("semeval", [])
        assert (first.id, first.source) == ("1", f"{path}:1")
        assert first.text == "A ridge rises from the sea floor."
        assert [first.surface(entity) for entity in first.entities] == ["ridge", "sea floor"]
        assert first.relations == (Relation("R1", "Entity-Origin(e2,e1)", "T1", "T2"),)
        assert first.attributes == (("pair", "T1 T2"), ("comment", "odd."))
        assert second.text == 'He said "the author" wrote.'
        assert [second.surface(entity) for entity in second.entities] == ["wrote", "author"]
        assert (second.relations, stated_pairs(second)) == ((), [("T1", "T2")])

    def test_sentences_without_labels(self, tmp_path):
        text = '1\t"<e1>a</e1> <e2>b</e2>"\n2\t"<e1>c</e1> d <e2>e</e2>"\n'
        reading = read(put(tmp_path, "a.txt", text))
        assert [document.text for document in reading.documents] == ["a b", "c d e"]
        (problem,) = reading.problems
        assert (problem.kind, problem.lost) == ("no-label", False)
        assert problem.what.startswith("2 sentences")

    @each(
        ("text", "line"),
        [
            ('1\t"<e1>a</e1> <e2>b</e2>"\nCause Effect', 2),
            ('1\t"<e1>a</e1> <e2>b</e2>"\nOther\nOther', 3),
            ('1\t"<e1>a</e1> <e2>b"\nOther', 1),
            ('1\t"<e1>a</e1> <e1>b</e1> <e2>c</e2>"\nOther', 1),
            ('1\t"<e1></e1> <e2>b</e2>"\nOther', 1),
            ('1\t"</e1>a<e1> <e2>b</e2>"\nOther', 1),
        ],
    )
    def test_lines_that_do_not_fit_are_errors(self, tmp_path, text, line):
        path = put(tmp_path, "a.txt", text)
        with pytest.raises(FormatError) as caught:
            read(path, "semeval")
        assert caught.value.where == f"{path}:{line}"


@each(("name", "content"), [("a.tsv", TABLE), ("a.txt", lines(CHEMPROT)), ("a.TXT", SEMEVAL)])
def test_json_lines_hold_everything(tmp_path, name, content):
    documents = read(put(tmp_path, name, content)).documents
    assert write(documents, tmp_path / "b.jsonl", "jsonl") == []
    again = read(tmp_path / "b.jsonl").documents

    def content_of(docs):
        return [(d.id, d.text, d.entities, d.relations, d.sentences, d.attributes) for d in docs]

    assert content_of(again) == content_of(documents)


def test_an_archive_of_several_files_is_named_with_what_is_in_it(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.xml", "<document/>")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    put(tmp_path, "b.tar.gz", raw.getvalue())
    for name in ("a.zip", "b.tar.gz"):
        with pytest.raises(FormatError, match=r"name what is in it: .*!/folder/file"):
            read(tmp_path / name)
