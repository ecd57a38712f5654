"""The ADE corpus: which place a mention means, sentences in order, nothing twice."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import each
from confide.errors import ConfideError, DataError, FormatError, MissingDataError, SettingsError
from confide.text.checking import check, convert
from confide.text.formats import detect, group_corpora, read, write
from confide.text.tagging import flat_spans
from text.generated import kinds, put

# Abstract 77, which we do not have: "77\n\nAspirin rash.\n\nRash after aspirin; aspirin was ...".
EFFECTS = """77|Rash after aspirin; aspirin was stopped.|Rash|19|23|aspirin|39|46
77|Aspirin rash.|rash|12|16|Aspirin|4|11
9|Lithium intoxication with lithium (a|b).|Lithium intoxication|50|70|lithium|76|83
9|Lithium intoxication with lithium (a|b).|Lithium intoxication|50|70|Lithium|50|57
"""
DOSES = "77|Rash after aspirin; aspirin was stopped.|stopped|51|58|aspirin|39|46\n"
NEGATIVES = """9 NEG No rash.
5 NEG A case report.
9 NEG No NEG fever.
9 NEG No rash.
9 NEG Lithium intoxication with lithium (a|b).
"""


@pytest.fixture
def folder(tmp_path):
    put(tmp_path, "ade/DRUG-AE.rel", EFFECTS)
    put(tmp_path, "ade/DRUG-DOSE.rel", DOSES)
    put(tmp_path, "ade/ADE-NEG.txt", NEGATIVES)
    put(tmp_path, "ade/README.txt", "The corpus.")
    return tmp_path / "ade"


def marks(document):
    return [(entity.type, entity.start, document.surface(entity)) for entity in document.entities]


def test_the_folder(folder):
    reading = read(folder)
    first, second, third = reading.documents
    assert (reading.format, reading.details["encoding"]) == ("ade", "utf-8")
    assert [document.id for document in reading.documents] == ["77", "9", "5"]
    assert first.text == "Aspirin rash.\nRash after aspirin; aspirin was stopped."
    assert second.text == "Lithium intoxication with lithium (a|b).\nNo rash.\nNo NEG fever."
    assert third.text == "A case report."
    assert marks(first) == [
        ("Drug", 0, "Aspirin"),
        ("AE", 8, "rash"),
        ("AE", 14, "Rash"),
        ("Drug", 34, "aspirin"),  # the second one: 39 - 19 = 20 characters after the rash
        ("Dose", 46, "stopped"),
    ]
    assert [(r.id, r.type, r.head, r.tail) for r in first.relations] == [
        ("R1", "adverse-effect", "T1", "T2"),
        ("R2", "adverse-effect", "T4", "T3"),
        ("R3", "dose", "T4", "T5"),
    ]
    assert first.source == f"{folder / 'DRUG-AE.rel'}:1"
    assert [(p.kind, p.where, p.lost) for p in reading.problems] == [
        ("duplicate-sentence", f"{folder / 'ADE-NEG.txt'}:4", False),
        ("negative-and-positive", f"{folder / 'ADE-NEG.txt'}:5", False),
    ]


def test_each_sentence_stays_one_with_its_tokens(tmp_path):
    sentence = "He saw Dr. A. Then a rash.  It went."
    put(tmp_path, "ADE-NEG.txt", f"1 NEG {sentence}\n1 NEG No more.\n")
    (document,) = read(tmp_path).documents
    one, two = document.sentences
    assert (one.start, one.end, two.start) == (0, len(sentence), len(sentence) + 1)
    assert document.token_texts(two) == ("No", "more", ".")
    assert "".join(document.token_texts(one)) == sentence.replace(" ", "")


def test_overlapping_spans_stay_in_the_document(folder):
    document = read(folder).documents[1]
    assert marks(document) == [
        ("Drug", 0, "Lithium"),
        ("AE", 0, "Lithium intoxication"),
        ("Drug", 26, "lithium"),
    ]
    spans, problems = flat_spans(document)
    assert (spans[0], kinds(problems)) == ([(0, 2, "AE"), (3, 4, "Drug")], ["nested"])


def test_without_the_negatives(folder):
    reading = read(folder, "ade-positive")
    assert (reading.format, reading.problems) == ("ade-positive", [])
    assert [len(document.sentences) for document in reading.documents] == [2, 1]
    alone = read(folder / "DRUG-AE.rel")
    assert (alone.documents, alone.format) == (reading.documents, "ade")


def test_no_sentence_can_be_read_twice(folder):
    with pytest.raises(DataError, match=r"DRUG-AE\.rel beside it.*read the folder"):
        read(folder / "DRUG-DOSE.rel")
    reading = read(folder / "ADE-NEG.txt")
    assert [document.id for document in reading.documents] == ["9", "5"]
    assert "abstracts-divided" in kinds(reading.problems)
    put(folder, "DRUG-AE.rel.gz", gzip.compress(EFFECTS.encode()))
    with pytest.raises(DataError, match=r"DRUG-AE\.rel twice"):
        read(folder)


def test_the_doses_by_themselves_and_gzip(tmp_path):
    path = put(tmp_path, "drug-dose.rel.gz", gzip.compress(DOSES.encode()))
    for reading in (read(path), read(tmp_path)):
        (document,) = reading.documents
        assert [e.type for e in document.entities] == ["Drug", "Dose"]
        assert kinds(reading.problems) == []


@each(
    ("rows", "expected", "problems"),
    [
        # nothing tells which of two
        (["a b a b|a|10|11|b|12|13"], "a0 b2", ["ambiguous-mention"] * 2),
        # a third mention does
        (["a b a b c|a|14|15|b|16|17", "a b a b c|c|18|19|b|16|17"], "a4 b6 c8", []),
        # two against one; the one stands at one place, or the nearest
        (["a b c|a|10|11|b|12|13", "a b c|c|30|31|b|12|13"], "a0 b2 c4", ["offset-mismatch"]),
        (["a c b c|a|10|11|b|14|15", "a c b c|c|15|16|b|14|15"], "a0 b4 c6", ["ambiguous-mention"]),
        (["a b|a|10|12|b|12|13"], "a0 b2", ["offset-mismatch"]),
        (["a b|z|10|11|b|12|13"], "b2", ["not-in-sentence", "dangling-relation"]),
        (["a b|y|10|11|z|12|13"], "", ["not-in-sentence"] * 2 + ["dangling-relation"]),
        (["a b|a|10|11|b|12|13"] * 2, "a0 b2", ["duplicate-relation"]),
    ],
)
def test_offsets_that_tell_less_or_contradict(tmp_path, rows, expected, problems):
    path = put(tmp_path, "DRUG-AE.rel", "\n".join(f"1|{row}" for row in rows))
    reading = read(path)
    (document,) = reading.documents
    assert " ".join(f"{surface}{start}" for _, start, surface in marks(document)) == expected
    assert kinds(reading.problems) == problems
    assert all(problem.where.startswith(f"{path}:") for problem in reading.problems)
    lost = {"not-in-sentence", "dangling-relation"}
    assert all(problem.lost == (problem.kind in lost) for problem in reading.problems)


@each(
    ("name", "content", "line"),
    [
        ("DRUG-AE.rel", EFFECTS + "1|a b|a|1|2|b\n", 5),
        ("DRUG-AE.rel", "1|a b|a|one|2|b|3|4\n", 1),
        ("DRUG-AE.rel", "1|a b||1|2|b|3|4\n", 1),
        ("DRUG-DOSE.rel", "1 NEG A rash.\n", 1),
        ("ADE-NEG.txt", "\n1 NEG A rash.\n1 A rash.\n", 3),
        ("ADE-NEG.txt", "1 NEG  \n", 1),
    ],
)
def test_lines_of_another_form(tmp_path, name, content, line):
    path = put(tmp_path, name, content)
    with pytest.raises(FormatError) as caught:
        read(path, "ade")
    assert caught.value.where == f"{path}:{line}"


def test_files_that_are_not_there_empty_or_of_another_name(tmp_path, folder):
    with pytest.raises(MissingDataError):
        read(tmp_path / "none", "ade")
    with pytest.raises(MissingDataError, match="no file of the ADE corpus"):
        read(put(tmp_path, "other/a.txt", "a").parent, "ade")
    with pytest.raises(MissingDataError, match=r"expected DRUG-AE\.rel or DRUG-DOSE\.rel$"):
        read(folder / "ADE-NEG.txt", "ade-positive")
    with pytest.raises(DataError, match="empty"):
        read(put(tmp_path, "empty/ADE-NEG.txt", "\n\n"), "ade")
    renamed = put(tmp_path, "relations.txt", EFFECTS)
    assert detect(renamed) == "ade"
    with pytest.raises(FormatError, match="which file of the ADE corpus"):
        read(renamed)


def test_undeclared_types(folder):
    with pytest.raises(DataError, match="not declared") as caught:
        read(folder, types=["AE", "Drug"])
    assert caught.value.where.startswith(f"{folder / 'DRUG-AE.rel'}:")


def test_detection(folder, tmp_path):
    assert {detect(folder), *map(detect, folder.glob("[DA]*"))} == {"ade"}
    assert group_corpora([folder]) == {"ade": {"train": [folder], "dev": [], "test": []}}
    lines = "".join(f"{n} NEG A sentence of some length.\n" for n in range(20_000))
    assert detect(put(tmp_path, "long.txt", lines)) == "ade"
    assert detect(put(tmp_path, "a.conll", "7 NEG B-X\nb O I-X\n")) == "conll"
    assert detect(put(tmp_path, "b.txt", "7 NEG one.\nAnd more of it.")) == "text"
    put(folder, "more.jsonl", '{"text": "a"}')
    with pytest.raises(FormatError, match="several formats"):
        read(folder)


def test_it_is_only_read(folder, tmp_path):
    with pytest.raises(SettingsError, match=r"only read.*conll or text"):
        write([], tmp_path / "x", "ade")
    with pytest.raises(SettingsError, match="only read"):
        convert(folder, "ade-positive", tmp_path / "x")
    assert convert(folder, "jsonl", tmp_path / "x.jsonl").paths == [tmp_path / "x.jsonl"]
    content = [(d.text, d.entities, d.relations, d.sentences) for d in read(folder).documents]
    again = read(tmp_path / "x.jsonl").documents
    assert [(d.text, d.entities, d.relations, d.sentences) for d in again] == content


def test_check_counts(folder):
    report = check(folder)
    assert report.counts["documents"] == 3
    assert (report.counts["entities"], report.counts["relations"]) == (8, 5)
    assert report.details[str(folder)].startswith("ADE corpus, files DRUG-AE.rel, DRUG-DOSE.rel")


# --- fuzz ---------------------------------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "ab", "a b", "aa", "a|b", "", " ", "é", "\u2028", "😀"])
NUMBERS = st.one_of(st.integers(0, 30).map(str), st.sampled_from(["", "-1", "x", "9" * 20]))
ROWS = st.tuples(st.sampled_from("12"), WORDS, WORDS, NUMBERS, NUMBERS, WORDS, NUMBERS, NUMBERS)
RELATIONS = st.lists(ROWS.map("|".join) | WORDS, max_size=6).map("\n".join)
SENTENCES = st.lists(st.tuples(st.sampled_from("123"), WORDS).map(" NEG ".join) | WORDS, max_size=6)


@settings(max_examples=60)
@given(RELATIONS, st.none() | RELATIONS, st.none() | SENTENCES.map("\n".join))
def test_anything(tmp_path_factory, effects, doses, negatives):
    folder = tmp_path_factory.mktemp("fuzz")
    put(folder, "DRUG-AE.rel", effects)
    if doses is not None:
        put(folder, "DRUG-DOSE.rel", doses)
    if negatives is not None:
        put(folder, "ADE-NEG.txt", negatives)
    for path in (folder, *folder.iterdir()):
        survives(path)


@st.composite
def abstracts(draw):
    """An abstract of small alphabet, and rows with the right offsets."""
    sentence = draw(st.text("ab ", min_size=4, max_size=14).filter(str.strip))
    begin = draw(st.integers(0, 50))
    spans = [
        sorted(draw(st.sets(st.integers(0, len(sentence)), min_size=2, max_size=2)))
        for _ in range(6)
    ]
    spans = [(a, b) for a, b in spans if sentence[a:b].strip()]
    columns = [f"{sentence[a:b]}|{begin + a}|{begin + b}" for a, b in spans]
    rows = [
        f"1|{sentence}|{effect}|{drug}"
        for effect, drug in zip(columns[::2], columns[1::2], strict=False)
    ]
    return rows, {("AE", *span) for span in spans[: 2 * len(rows) : 2]} | {
        ("Drug", *span) for span in spans[1 : 2 * len(rows) : 2]
    }


@settings(max_examples=60)
@given(abstracts())
def test_right_offsets_are_found_or_named(tmp_path_factory, drawn):
    rows, expected = drawn
    if not rows:
        return
    path = put(tmp_path_factory.mktemp("right"), "DRUG-AE.rel", "\n".join(rows))
    reading = read(path)
    found = {(e.type, e.start, e.end) for e in reading.documents[0].entities}
    named = set(kinds(reading.problems)) - {"duplicate-relation"}
    assert (found == expected and not named) or named == {"ambiguous-mention"}


def survives(path):
    """Read; only our own errors may come, and what is read hangs together."""
    for format in ("ade", "ade-positive", None):
        try:
            reading = read(path, format)
        except ConfideError as error:
            assert str(error)
            continue
        for document in reading.documents:
            names = {entity.id for entity in document.entities}
            assert all({r.head, r.tail} <= names for r in document.relations)
            assert all(document.surface(entity) for entity in document.entities)
            flat_spans(document)
