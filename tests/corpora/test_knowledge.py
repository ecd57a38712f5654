"""A knowledge base: what is read, what is left out by name, and what is found again."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.corpora.distant import knowledge_of, letters, read_knowledge, triples_of, write_triples
from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Entity, Relation
from text.generated import put

ANY = ("Drug", "Effect")
NAMES = st.sampled_from("abcd")


def relations(kb, head, tail, types=ANY):
    return {kb.relation(number) for number in kb.between(head, tail, types)}


@given(st.lists(st.tuples(NAMES, st.sampled_from(["r", "s"]), NAMES), min_size=1))
def test_what_is_between_a_pair(triples):
    wanted = {triple for triple in triples if triple[0] != triple[2]}
    if not wanted:
        with pytest.raises(DataError, match="no triple"):
            knowledge_of(triples)
        return
    kb = knowledge_of(triples)
    assert len(kb) == len(wanted)
    for head in "abcde":
        for tail in "abcde":
            between = {r for one, r, other in wanted if (one, other) == (head, tail)}
            assert relations(kb, head, tail) == between
            assert len(kb.between(head, tail, ANY)) == len(between)
    rows = len(triples)
    kinds = [problem.kind for problem in kb.problems]
    assert kinds.count("duplicate-triple") == rows - len(wanted) - kinds.count("triple-to-itself")


@each("pack", [str.encode, lambda text: gzip.compress(text.encode())])
@each("header", ["", "Head\tRelation\tTail\n"])
def test_a_file(tmp_path, pack, header):
    path = tmp_path / "kb.tsv"
    path.write_bytes(pack(f"{header}C1\tcauses\tD1\r\n\n D1 \tof\tC1\r\n"))
    kb = read_knowledge(path)
    assert (relations(kb, "C1", "D1"), relations(kb, "D1", "C1")) == ({"causes"}, {"of"})
    assert (kb.problems, kb.typed) == ([], False)


def test_another_encoding(tmp_path):
    path = tmp_path / "kb.tsv"
    path.write_bytes("é\tr\tb\n".encode("utf-16"))
    assert relations(read_knowledge(path), "é", "b") == {"r"}
    path.write_bytes(b"a\tr\tb\n\xe9\tr\tb\n")
    with pytest.raises(FormatError) as caught:
        read_knowledge(path)
    assert caught.value.where == f"{path}:2"


def test_rows_that_are_left_out_have_names(tmp_path):
    rows = ["a\tr\tb", "a\tr\tb", "b\tr\tb", "c\tNA\tb", "a\tr\tb"]
    path = put(tmp_path, "kb.tsv", "head\trelation\ttail\n" + "\n".join(rows))
    kb = read_knowledge(path)
    assert [(p.kind, p.where, p.lost) for p in kb.problems] == [
        ("duplicate-triple", f"{path}:3", False),
        ("duplicate-triple", f"{path}:6", False),
        ("triple-to-itself", f"{path}:4", True),
        ("triple-without-relation", f"{path}:5", True),
    ]
    assert len(kb) == 1


def test_many_rows_that_are_left_out_are_counted():
    kb = knowledge_of([("a", "r", "b")] * 1000)
    assert len(kb.problems) == 101
    assert "899 more rows" in kb.problems[-1].what


def test_types(tmp_path):
    path = put(tmp_path, "kb.tsv", "a\tr\tb\tDRUG\teffect\na\ts\tb\t\tGene\n")
    kb = read_knowledge(path)
    assert relations(kb, "a", "b", ("Drug", "Effect")) == {"r"}
    assert relations(kb, "a", "b", ("Cell", "GENE")) == {"s"}
    assert relations(kb, "a", "b", ("Cell", "Effect")) == set()


def test_letters(tmp_path):
    path = put(tmp_path, "kb.tsv", "Acute  Rash\tr\tASPIRIN\nacute rash\tr\taspirin\n")
    kb = read_knowledge(path, by="letters")
    assert relations(kb, letters("ACUTE\nrash"), "aspirin") == {"r"}
    assert [problem.kind for problem in kb.problems] == ["duplicate-triple"]


@each("row", ["a\tr", "a\tr\tb\tX", "a\t\tb", "a\tr\tb\tX\tY", "a r b"])
def test_other_columns_are_an_error(tmp_path, row):
    path = put(tmp_path, "kb.tsv", f"a\tr\tb\n{row}\n")
    with pytest.raises(FormatError) as caught:
        read_knowledge(path)
    assert caught.value.where == f"{path}:2"


def test_no_file_and_no_triple(tmp_path):
    with pytest.raises(MissingDataError):
        read_knowledge(tmp_path / "kb.tsv")
    with pytest.raises(DataError, match="no triple"):
        read_knowledge(put(tmp_path, "kb.tsv", "head\trelation\ttail\n"))


def test_many_rows_take_little_memory(tmp_path):
    generator = random.Random(1)
    rows = [
        f"C{generator.randrange(9000):07}\tr{generator.randrange(9)}\tD{generator.randrange(9000):07}\n"
        for _ in range(50_000)
    ]
    path = put(tmp_path, "kb.tsv", "".join(rows))
    tracemalloc.start()
    kb = read_knowledge(path)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(kb) == len(set(rows))
    assert kept < 100 * len(rows)  # bytes a row; each name is held once


def test_triples_of_documents(tmp_path):
    entities = (
        Entity("T1", "Drug", ((0, 7),), concepts=("C1",)),
        Entity("T2", "Effect", ((8, 12),), concepts=("D1", "D2")),
        Entity("T3", "Effect", ((13, 16),)),
    )
    links = (
        Relation("R1", "causes", "C1", "D2", level="concept"),
        Relation("R2", "treats", "T1", "T2"),
        Relation("R3", "treats", "T1", "T3"),
        Relation("R4", "no-relation", "T1", "T2"),
    )
    documents = [Document("d", "Aspirin Rash flu", entities, links)] * 2
    found = triples_of(documents)
    assert found == [("C1", "causes", "D2"), ("C1", "treats", "D1")]
    assert triples_of(documents, by="letters") == [
        ("aspirin", "causes", "rash"),
        ("aspirin", "treats", "rash"),
        ("aspirin", "treats", "flu"),
    ]
    write_triples(found, tmp_path / "kb.tsv")
    assert relations(read_knowledge(tmp_path / "kb.tsv"), "C1", "D2") == {"causes"}
