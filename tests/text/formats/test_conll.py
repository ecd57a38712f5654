"""CoNLL columns in the variants that are found in the wild; each trap is a test."""

from __future__ import annotations

import gzip
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError, FormatError, MissingDataError, SchemeError, SettingsError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import read, write
from text.generated import joined, kinds, put, tokenised

TWO = "Mild\tB-AE\nrash\tI-AE\n.\tO\n\nNo\tO\nfever\tB-AE\n"


def rows(reading):
    """Each document as tokens and entities: the tokens' texts, (type, surface)."""
    return [
        (
            [token for sentence in doc.sentences for token in doc.token_texts(sentence)],
            [(entity.type, doc.surface(entity)) for entity in doc.entities],
        )
        for doc in reading.documents
    ]


EXPECTED = [(["Mild", "rash", "."], [("AE", "Mild rash")]), (["No", "fever"], [("AE", "fever")])]


@each(
    "content",
    [
        TWO,
        TWO.rstrip("\n"),
        TWO.replace("\t", " "),
        TWO.replace("\t", "   "),
        TWO.replace("\n", "\r\n"),
        TWO.replace("\n", "\r"),
        TWO.replace("\n\n", "\n\t\n"),
        TWO.replace("\n\n", "\n \t \n\n\n"),
        "\n\n" + TWO + "\n\n\n",
        "\ufeff" + TWO,
        TWO.replace("\tO", "\tO ").replace("AE\n", "AE \n"),
        TWO.replace("B-AE\nrash", "I-AE\nrash").replace("B-", "I-"),
        TWO.replace("I-AE", "E-AE").replace("fever\tB", "fever\tS"),
        TWO.replace("I-AE", "L-AE").replace("fever\tB", "fever\tU"),
        TWO.replace("B-", "").replace("I-", ""),
        TWO.replace("Mild\t", "Mild\tNN\t").replace("rash\t", "rash\tNN\t").replace(".\t", ".\t.\t")
        .replace("No\t", "No\tDT\t").replace("fever\t", "fever\tNN\t"),
        "1\tMild\tB-AE\t-\tann\n2\trash\tI-AE\t-\tann\n3\t.\tO\t-\t-\n\n1\tNo\tO\t-\t-\n"
        "2\tfever\tB-AE\t-\tann\n",
        "# id 1\tdomain=x\nMild _ _ B-AE\nrash _ _ I-AE\n. _ _ O\n\n# id 2\tdomain=x\nNo _ _ O\n"
        "fever _ _ B-AE\n",
        "B-AE\tMild\nI-AE\trash\nO\t.\n\nO\tNo\nB-AE\tfever\n",
    ],
)  # fmt: skip
def test_every_variant_reads_the_same(tmp_path, content):
    reading = read(put(tmp_path, "a.conll", content))
    assert (reading.format, rows(reading)) == ("conll", EXPECTED)
    assert set(kinds(reading.problems)) <= {"doubtful-scheme"}


@each(
    ("scheme", "tags"),
    [
        ("iob1", "I-X B-X I-X O"),
        ("iob2", "B-X B-X I-X O"),
        ("iobes", "S-X B-X E-X O"),
        ("bilou", "U-X B-X L-X O"),
        ("iob2", "B B I O"),
        ("iobes", "S B E O"),
    ],
)
def test_the_scheme_is_found_and_said(tmp_path, scheme, tags):
    content = "".join(f"w\t{tag}\n" for tag in tags.split())
    reading = read(put(tmp_path, "a.conll", content), bare_type="X")
    assert reading.details["scheme"] == scheme
    assert [(e.type, e.start, e.end) for e in reading.documents[0].entities] == [
        ("X", 0, 1),
        ("X", 2, 5),
    ]
    assert reading.problems == []


def test_offsets_ids_and_sources(tmp_path):
    path = put(tmp_path, "a.conll", TWO)
    first, second = read(path).documents
    assert (first.id, second.id) == ("a:1", "a:5")
    assert (first.source, second.source) == (f"{path}:1", f"{path}:5")
    assert (first.text, second.text) == ("Mild rash .", "No fever")
    assert first.sentences[0].tokens == ((0, 4), (5, 9), (10, 11))
    assert first.entities[0] == Entity("T1", "AE", ((0, 9),))


@each(
    "mark", ["-DOCSTART- -X- -X- O\n\n", "-DOCSTART-\tO\n\n", "-DOCSTART-\n", "# newdoc id = b\n"]
)
def test_document_marks_group_sentences(tmp_path, mark):
    content = f"{mark}{TWO}\n{mark.replace('= b', '= c')}{TWO}"
    one, two = read(put(tmp_path, "a.conll", content)).documents
    assert one.text == two.text == "Mild rash .\nNo fever"
    assert len(one.sentences) == 2
    assert [one.surface(entity) for entity in one.entities] == ["Mild rash", "fever"]
    assert one.id != two.id


def test_names_in_document_marks_and_attributes_in_comments(tmp_path):
    content = "-DOCSTART- (XO-1) O\n\n" + TWO + "\n# begin document (nw/7); part 0\n" + TWO
    content += "\n# doc_id = 9\n# genre = mail\n" + TWO + "\n# doc_id = 9\n" + TWO
    one, two, three = read(put(tmp_path, "a.conll", content)).documents
    assert (one.id, two.id, three.id) == ("XO-1", "(nw/7); part 0", "9")
    assert len(three.sentences) == 4
    lone = read(put(tmp_path, "b.conll", "# id 07-a\tdomain=dev\na _ _ O\n")).documents[0]
    assert lone.attributes == (("id", "07-a"), ("domain", "dev"))


def test_hashes_may_be_tokens(tmp_path):
    content = "#\tO\n#sad\tB-X\n\n# sent_id = 7\n#\tB-X\n#1\tI-X\n"
    reading = read(put(tmp_path, "a.conll", content))
    assert [tokens for tokens, _ in rows(reading)] == [["#", "#sad"], ["#", "#1"]]
    assert reading.documents[1].attributes == (("sent_id", "7"),)
    only = read(put(tmp_path, "b.conll", "# O\n# B-X\n"))
    assert [tokens for tokens, _ in rows(only)] == [["#", "#"]]


def test_marks_and_blanks_inside_tokens(tmp_path):
    content = "a\ufeff\tO\n\tB-X\n\xa0\tO\nNew York\tB-Y\n\u2028\x85\tO\nb\u2028c\x85\x0cd\tO\n"
    reading = read(put(tmp_path, "a.conll", content))
    tokens, entities = rows(reading)[0]
    assert tokens == ["a", "\ufffd", "\ufffd", "New York", "\ufffd", "b\u2028c\x85\x0cd"]
    assert entities == [("X", "\ufffd"), ("Y", "New York")]
    assert kinds(reading.problems) == ["byte-order-mark", *["empty-token"] * 3]
    assert reading.problems[1].where.endswith("a.conll:2")


def test_malformed_tags_are_repaired_and_named(tmp_path):
    content = "a\tI-X\nb\tO\nc\tB-X\nd\tI-Y\n"
    path = put(tmp_path, "a.conll", content)
    reading = read(path)
    assert rows(reading)[0][1] == [("X", "a"), ("X", "c"), ("Y", "d")]
    assert [(p.kind, p.where) for p in reading.problems] == [
        ("doubtful-scheme", str(path)),
        ("malformed-tag", f"{path}:3"),
    ]
    stated = read(path, scheme="bio")
    assert kinds(stated.problems) == ["malformed-tag", "malformed-tag"]
    assert [p.where for p in stated.problems] == [f"{path}:1", f"{path}:4"]
    assert rows(stated) == rows(reading)


@each(
    ("tags", "stated", "line"),
    [
        ("I-X I-X O B-X", "bilou", 5),  # never opened, but no scheme explains all: see below
        ("O I-X B-X", "iob2", 3),
        ("O B-X I-X", "iob1", 3),
        ("B-X I-X O", "iobes", 3),
        ("B-X E-X O", "iob2", 3),
        ("S-X O O", "bilou", 2),
        ("B-X O O", "io", 2),
    ],
)
def test_a_stated_scheme_that_the_tags_contradict_is_refused(tmp_path, tags, stated, line):
    content = "\n" + "".join(f"w\t{tag}\n" for tag in tags.split())
    path = put(tmp_path, "a.conll", content)
    if line == 5:
        assert read(path, scheme=stated).problems
        return
    with pytest.raises(SchemeError) as caught:
        read(path, scheme=stated)
    assert caught.value.where == f"{path}:{line}"
    assert caught.value.fix


def test_io_or_iob1_is_a_doubt_that_is_said(tmp_path):
    reading = read(put(tmp_path, "a.conll", "a\tI-X\nb\tO\n"))
    assert kinds(reading.problems) == ["doubtful-scheme"]
    assert "IOB1 or IO" in reading.problems[0].what


@each(
    ("content", "line"),
    [
        ("a\tB-X\nb\tX-PER\nc\tO\nd\tO\ne\tO\nf\tO\n", 2),
        ("a\tB-X\nb\t\nc\tO\nd\tO\ne\tO\nf\tO\n", 2),
        ("a\tB-X\nb\to\nc\tO\nd\tO\ne\tO\nf\tO\n", 2),
    ],
)
def test_what_is_no_tag_is_an_error_with_its_line(tmp_path, content, line):
    path = put(tmp_path, "a.conll", content)
    with pytest.raises(SchemeError) as caught:
        read(path, "conll")
    assert caught.value.where == f"{path}:{line}"


@each("tags", ["b-x i-x O", "X-B X-I O", "b_x O O"])
def test_tags_that_only_look_like_types_are_not_misread(tmp_path, tags):
    content = "".join(f"w\t{tag}\n" for tag in tags.split())
    with pytest.raises(FormatError):
        read(put(tmp_path, "a.conll", content), "conll")
    with pytest.raises(FormatError):
        read(put(tmp_path, "a.conll", content), "conll", columns=(0, 1))


@each(
    ("content", "line"),
    [
        ("a\tB-X\nb\nc\tO\n", 2),
        ("a\tB-X\nb O\nc\tO\n", 2),
        ("a B-X\nNew York O\nc O\n", 2),
        ("a\tB-X\nb\tc\tO\nc\tO\n", 2),
        ("1 a _ B-X\n2 b _\n3 c _ O\n", 2),
        ("\n# a\n# b\n", 2),  # every token is "#", and none has a tag
    ],
)
def test_a_line_of_other_columns_is_an_error_with_its_line(tmp_path, content, line):
    path = put(tmp_path, "a.conll", content)
    with pytest.raises(FormatError) as caught:
        read(path, "conll")
    assert caught.value.where == f"{path}:{line}"


def test_columns_by_evidence_and_stated(tmp_path):
    content = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ I-VP B-MISC\n"
    path = put(tmp_path, "a.conll", content)
    reading = read(path)
    assert rows(reading)[0][1] == [("ORG", "EU"), ("MISC", "German")]
    assert kinds(reading.problems) == ["doubtful-columns"]
    chunks = read(path, columns=(0, 2))
    assert rows(chunks)[0][1] == [("NP", "EU"), ("VP", "rejects German")]
    assert read(path, columns=(0, -1)).documents == reading.documents
    assert read(path, columns=(0, None)).documents[0].entities == ()
    for wrong in [(0, 4), (7, 3), (0, 0), (-5, 1)]:
        with pytest.raises(FormatError, match="columns from 0 to 3"):
            read(path, columns=wrong)


def test_a_site_without_entities_keeps_the_last_column(tmp_path):
    reading = read(put(tmp_path, "a.conll", "EU NNP B-NP O\nrejects VBZ B-VP O\n"))
    assert rows(reading) == [(["EU", "rejects"], [])]


def test_declared_types(tmp_path):
    path = put(tmp_path, "a.conll", TWO)
    assert read(path, types=["AE", "Drug"]).documents
    with pytest.raises(DataError, match="not declared") as caught:
        read(path, types={"Drug"})
    assert caught.value.where == f"{path}:1 [0:9]"


@each("content", ["", "\n\n", " \t\n", "\ufeff", "-DOCSTART- O\n\n"])
def test_a_file_without_a_token_is_an_error(tmp_path, content):
    path = put(tmp_path, "a.conll", content)
    with pytest.raises((DataError, FormatError)) as caught:
        read(path, "conll")
    assert str(path) in str(caught.value)


def test_wrong_paths_and_names(tmp_path):
    with pytest.raises(MissingDataError, match=r"no\.conll"):
        read(tmp_path / "no.conll", "conll")
    with pytest.raises(MissingDataError):
        read(tmp_path, "conll")
    path = put(tmp_path, "a.conll", TWO)
    for wrong in ({"format": "xml"}, {"scheme": "iob"}, {"encoding": "utf-9"}):
        with pytest.raises(SettingsError):
            read(path, **wrong)


def test_encodings(tmp_path):
    french = TWO.replace("fever", "fièvre")
    path = put(tmp_path, "a.conll", french.encode("latin-1"))
    with pytest.raises(FormatError) as caught:
        read(path)
    assert caught.value.where == f"{path}:6"
    assert f"byte offset {french.index('è')}" in caught.value.what
    assert "windows-1252" in str(caught.value.fix)
    assert rows(read(path, encoding="windows-1252"))[1][1] == [("AE", "fièvre")]
    mixed = french.encode() + "\nà\tO\n".encode("latin-1")
    with pytest.raises(FormatError, match="mixed"):
        read(put(tmp_path, "b.conll", mixed))
    for name in ("utf-16", "utf-32", "utf-8-sig"):
        assert rows(read(put(tmp_path, "c.conll", french.encode(name))))[1][1] == [("AE", "fièvre")]
    with pytest.raises(FormatError, match="NUL"):
        read(put(tmp_path, "d.conll", TWO.encode("utf-16-le")))
    with pytest.raises(FormatError, match="NUL") as caught:
        read(put(tmp_path, "d.conll", "a\tO\nb\0\tO\n"))
    assert str(caught.value.where).endswith(":2")


def test_gzip(tmp_path):
    packed = gzip.compress(TWO.encode())
    assert rows(read(put(tmp_path, "a.conll.gz", packed))) == EXPECTED
    with pytest.raises(FormatError, match="gzip"):
        read(put(tmp_path, "b.conll.gz", packed[:-9]))


def test_a_folder_of_files(tmp_path):
    put(tmp_path, "data/b.conll", TWO)
    put(tmp_path, "data/a.conll", "x\tO\n")
    put(tmp_path, "data/README.md", "words")
    assert [doc.id for doc in read(tmp_path / "data").documents] == ["a:1", "b:1", "b:5"]


def test_a_sentence_of_fifty_thousand_tokens(tmp_path):
    content = "".join(f"w{n}\t{'BI'[n % 2]}-X\n" for n in range(50_000))
    started = time.process_time()
    reading = read(put(tmp_path, "a.conll", content))
    assert len(reading.documents[0].entities) == 25_000
    assert time.process_time() - started < 5


@each("line", ["# " + "a" * 200_000, "# " + "a = " * 50_000, "# a" + " " * 200_000])
def test_a_long_comment_takes_linear_time(tmp_path, line):
    started = time.process_time()
    assert rows(read(put(tmp_path, "a.conll", f"{line}\n{TWO}"))) == EXPECTED
    assert time.process_time() - started < 5


# --- writing ------------------------------------------------------------------------------


@each("token", ["[]", "{}", "[{", "{", "[{}]", "[{}", '{"a'])
def test_a_bracket_that_is_a_token_does_not_make_it_json(tmp_path, token):
    reading = read(put(tmp_path, "a.conll", f"{token}\tO\n\n"))
    assert [doc.text for doc in reading.documents] == [token]


@given(
    st.lists(tokenised(), min_size=1, max_size=3),
    st.sampled_from(["iob1", "iob2", "iobes", "bilou"]),
)
def test_what_is_written_is_read_again(tmp_path_factory, documents, scheme):
    path = tmp_path_factory.mktemp("conll") / "a.conll"
    documents = [
        Document(f"d{n}", doc.text, doc.entities, sentences=doc.sentences)
        for n, doc in enumerate(documents)
    ]
    assert write(documents, path, "conll", scheme=scheme) == []
    reading = read(path)
    assert not {"malformed-tag", "empty-token"} & set(kinds(reading.problems))

    def content(docs):
        return [
            (doc.text, doc.sentences, {(e.type, e.fragments) for e in doc.entities}) for doc in docs
        ]

    assert content(reading.documents) == content(documents)
    if any(len(doc.sentences) > 1 for doc in documents):
        assert [doc.id for doc in reading.documents] == [doc.id for doc in documents]


def test_attributes_are_comments(tmp_path):
    path = put(tmp_path, "a.conll", TWO)
    documents = [
        Document(d.id, d.text, d.entities, sentences=d.sentences, attributes=(("domain", "x y"),))
        for d in read(path).documents
    ]
    assert write(documents, path, "conll") == []
    assert [doc.attributes for doc in read(path).documents] == [(("domain", "x y"),)] * 2


def test_what_the_columns_cannot_hold_is_named(tmp_path):
    text = "chest pain  today"
    entities = (
        Entity("T1", "P", ((0, 10),), confidence=0.5),
        Entity("T2", "A", ((0, 5),), concepts=("C1",)),
        Entity("T3", "X y", ((12, 17),)),
        Entity("T4", "Z", ((0, 5), (12, 17))),
    )
    document = Document("d", text, entities, (Relation("R1", "at", "T1", "T2"),))
    problems = write([document, Document("e", " ")], tmp_path / "a.conll", "conll")
    assert sorted(kinds(problems)) == [
        "attributes-unheld",
        "confidences-unheld",
        "discontinuous",
        "empty-document",
        "nested",
        "relations-unheld",
        "type-changed",
        "white-space-unheld",
    ]
    assert (tmp_path / "a.conll").read_text() == "chest\tB-P\npain\tI-P\ntoday\tB-X_y\n\n"


def test_tokens_that_would_break_the_columns(tmp_path):
    text, sentences = joined([["a\tb", "-DOCSTART-", "\ufeff", "c\nd"]])
    problems = write([Document("d", text, sentences=sentences)], tmp_path / "a.conll", "conll")
    assert kinds(problems) == ["token-changed"] * 4
    reading = read(tmp_path / "a.conll")
    assert rows(reading) == [(["a b", "\ufffd-DOCSTART-", "\ufffd", "c d"], [])]


def test_io_says_that_neighbours_melt(tmp_path):
    document = read(put(tmp_path, "a.conll", "a\tB-X\nb\tB-X\n")).documents[0]
    problems = write([document], tmp_path / "b.conll", "conll", scheme="io")
    assert kinds(problems) == ["neighbours-joined"]
