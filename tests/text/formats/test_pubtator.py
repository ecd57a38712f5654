"""PubTator: offsets over title and abstract, concepts, relations, and round trips."""

from __future__ import annotations

import gzip
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import DataError, FormatError
from confide.text.document import Document, Entity, Relation
from confide.text.formats import read, write
from text.generated import NAMES, TEXTS, any_documents, put

TWO = """12|t|Aspirin and pain.
12|a|Aspirin helps | breast and ovarian cancer.
12\t0\t7\tAspirin\tChemical\tD001
12\t18\t25\tAspirin\tChemical\tD001,D009
12\t34\t59\tbreast and ovarian cancer\tDisease\tD1|D2\tbreast cancer|ovarian cancer
12\t12\t16\tpain\tDisease\t-1
12\tCID\tD001\tD1
12\tTreats\tD009\tD2\tNovel

13|t|A title
"""


def test_mentions_concepts_and_relations(tmp_path):
    path = put(tmp_path, "a.txt", TWO)
    reading = read(path)
    first, second = reading.documents
    assert (reading.format, reading.problems) == ("pubtator", [])
    assert first.text == "Aspirin and pain.\nAspirin helps | breast and ovarian cancer."
    assert (second.id, second.text, second.source) == ("13", "A title", f"{path}:10")
    assert [(e.type, first.surface(e), e.concepts) for e in first.entities] == [
        ("Chemical", "Aspirin", ("D001",)),
        ("Chemical", "Aspirin", ("D001", "D009")),
        ("Disease", "breast and ovarian cancer", ("D1", "D2")),
        ("Disease", "pain", ()),
    ]
    assert first.relations == (
        Relation("R1", "CID", "D001", "D1", level="concept"),
        Relation("R2", "Treats", "D009", "D2", "concept", attributes=(("novelty", "Novel"),)),
    )


def test_gzip_and_what_was_read_is_written_again(tmp_path):
    path = put(tmp_path, "a.gz", gzip.compress(TWO.encode()))
    documents = read(path).documents
    assert write(documents, tmp_path / "b.pubtator", "pubtator") == []
    assert (tmp_path / "b.pubtator").read_text().strip() == TWO.strip()


TITLES = TEXTS.map(lambda text: re.sub(r"[\r\n\t]", " ", text))
BODIES = st.one_of(TITLES, st.tuples(TITLES, TITLES).map("\n".join)).filter(
    lambda text: not text.startswith("\ufeff")
)


@st.composite
def holdable(draw):
    """A document that PubTator can hold."""
    base = draw(any_documents(texts=BODIES))
    entities = tuple(
        Entity(f"T{n}", e.type, ((e.start, e.end),), None, e.concepts)
        for n, e in enumerate(base.entities, 1)
    )
    ends = draw(st.lists(st.tuples(NAMES, NAMES, NAMES), max_size=2))
    relations = tuple(
        Relation(f"R{n}", kind, head, tail, level="concept")
        for n, (kind, head, tail) in enumerate(ends, 1)
    )
    return Document(draw(NAMES), base.text, entities, relations)


@given(st.lists(holdable(), min_size=1, max_size=3))
def test_round_trip(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("pubtator") / "a.pubtator"
    assert write(documents, path, "pubtator") == []
    reading = read(path, "pubtator")
    assert reading.problems == []

    def content(docs):
        return [(d.id, d.text, d.entities, d.relations) for d in docs]

    assert content(reading.documents) == content(documents)


@each(
    ("line", "kind", "lost"),
    [
        ("12\t0\t99\tAspirin\tChemical\tD001", "beyond-text", True),
        ("12\t5\t5\t\tChemical\tD001", "empty-span", True),
        ("12\t0\t7\tAspirine\tChemical\tD001", "text-mismatch", False),
    ],
)
def test_offsets_that_do_not_fit_are_named(tmp_path, line, kind, lost):
    path = put(tmp_path, "a.txt", f"12|t|Aspirin and pain.\n{line}\n")
    (problem,) = read(path).problems
    assert (problem.kind, problem.lost, problem.where) == (kind, lost, f"{path}:2")


@each(
    ("lines", "line"),
    [
        ("12|t|x\n13\t0\t1\tx\tA\t1", 2),
        ("12|t|x\n13|a|y", 2),
        ("12|t|x\n12|a|y\n12|a|z", 3),
        ("12|t|x\n12\tfoo", 2),
        ("12|t|x\n12\t0\t1\tx\t\t1", 2),
        ("12|t|x\n\n12\t0\t1\tx\tA\t1", 3),
    ],
)
def test_lines_that_are_no_pubtator_are_errors_with_their_line(tmp_path, lines, line):
    path = put(tmp_path, "a.txt", lines)
    with pytest.raises(FormatError) as caught:
        read(path)
    assert caught.value.where == f"{path}:{line}"


def test_empty_and_undeclared(tmp_path):
    with pytest.raises(DataError, match="empty"):
        read(put(tmp_path, "a.txt", "\n\n"), "pubtator")
    path = put(tmp_path, "b.txt", TWO)
    with pytest.raises(DataError, match="not declared") as caught:
        read(path, types=["Chemical"])
    assert caught.value.where == f"{path}:1 [34:59]"


def test_what_pubtator_cannot_hold_is_named(tmp_path):
    entities = (
        Entity("T1", "A", ((0, 3),), confidence=0.5, concepts=("C1",)),
        Entity("T2", "A", ((4, 7),), concepts=("C2",), attributes=(("negated", "yes"),)),
        Entity("T3", "A", ((0, 3), (4, 7))),
    )
    relations = (Relation("R1", "to", "T1", "T2"), Relation("R2", "to", "T1", "T3"))
    document = Document("a b", "one\ntwo\nsix", entities, relations, attributes=(("k", "v"),))
    problems = write([document], tmp_path / "a.pubtator", "pubtator")
    assert sorted((problem.kind, problem.lost) for problem in problems) == [
        ("attributes-unheld", True),
        ("confidences-unheld", True),
        ("discontinuous", True),
        ("document-attributes-unheld", True),
        ("id-changed", False),
        ("line-ends-changed", False),
        ("relation-of-mentions", False),
        ("relation-unheld", True),
    ]
    again = read(tmp_path / "a.pubtator").documents[0]
    assert (again.text, len(again.entities)) == ("one\ntwo six", 2)
    assert again.relations == (Relation("R1", "to", "C1", "C2", level="concept"),)
