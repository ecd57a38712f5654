"""Distant labels, against an independent count of what stands together in each sentence."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from confide import api
from confide.cli.verbs import app
from confide.corpora.distant import knowledge_of, label, read_knowledge, triples_of, write_triples
from confide.errors import DataError, SettingsError
from confide.text.document import NO_RELATION, Document, Entity, stated_pairs
from confide.text.formats import read, write
from text.generated import put

KB = knowledge_of([("C1", "causes", "D1"), ("C1", "treats", "D1"), ("C2", "causes", "D1")])


def document(text, id="d", **options):
    """A document whose words like c1 and d2 are a drug and an effect of that identifier."""
    entities = tuple(
        Entity(
            f"T{number}",
            "Drug" if match[0][0] in "cC" else "Effect",
            (match.span(),),
            concepts=(match[0].upper(),),
        )
        for number, match in enumerate(re.finditer(r"\b[cCdD]\d\b", text), 1)
    )
    return Document(id, text, entities, **options)


def lines(labelled):
    """Head, tail, relation and text of every labelled sentence."""
    found = []
    for one in labelled.documents:
        head, tail = one.entities
        kind = one.relations[0].type if one.relations else NO_RELATION
        found.append((head.concepts[0], kind, tail.concepts[0], one.text))
    return found


def test_a_pair_has_every_relation_that_is_known():
    found = label([document("Aspirin c1 gave d1. But c2 met d2.", attributes=(("ward", "b"),))], KB)
    assert lines(found) == [
        ("C1", "causes", "D1", "Aspirin c1 gave d1."),
        ("C1", "treats", "D1", "Aspirin c1 gave d1."),
        ("C2", NO_RELATION, "D2", "But c2 met d2."),
    ]
    first = found.documents[0]
    assert [first.surface(entity) for entity in first.entities] == ["c1", "d1"]
    assert stated_pairs(first) == [("T1", "T2")]
    assert {("ward", "b"), ("file", "d")} < set(first.attributes)
    assert [one.id for one in found.documents] == ["d:1", "d:2", "d:3"]
    assert found.relations == {"causes": 1, "treats": 1, NO_RELATION: 1}
    assert found.counts == {
        "documents": 1, "mentions": 4, "unidentified": 0, "ambiguous_forms": 0,
        "ambiguous_mentions": 0, "pairs": 1, "several": 1, "repeated": 0, "triples": 2, "known": 3,
        "unmentioned": 0, "apart": 1, "na_pairs": 1, "na_left": 0, "na_types": 2,
    }  # fmt: skip


def test_both_directions_are_pairs_of_their_own():
    kb = knowledge_of([("C1", "before", "C2"), ("C2", "after", "C1")])
    assert lines(label([document("c2 and c1.")], kb)) == [
        ("C2", "after", "C1", "c2 and c1."),
        ("C1", "before", "C2", "c2 and c1."),
    ]
    one_way = label([document("c2 and c1.")], knowledge_of([("C1", "before", "C2")]))
    assert [line[:3] for line in lines(one_way)] == [
        ("C2", NO_RELATION, "C1"),
        ("C1", "before", "C2"),
    ]


def test_the_nearest_mentions_stand_for_a_pair():
    found = label([document("c2, at first, and so on d1 c2.")], KB)
    (one,) = found.documents
    assert [entity.start for entity in one.entities] == [27, 24]
    assert found.counts["repeated"] == 1


def test_pairs_of_other_sentences():
    text = "Now c1 is here. Then d1 came. And c2 went."
    assert lines(label([document(text)], KB)) == []
    near = lines(label([document(text)], KB, max_sentences=1))
    assert [line[:3] for line in near] == [
        ("C1", "causes", "D1"),
        ("C1", "treats", "D1"),
        ("C2", "causes", "D1"),
    ]
    assert near[0][3] == "Now c1 is here. Then d1 came."


def test_types_of_the_text_and_of_the_knowledge_base(tmp_path):
    one = document("c1 and d1 and c3.")
    every = label([one], KB)
    assert {line[:3] for line in lines(every)} == {
        ("C1", "causes", "D1"),
        ("C1", "treats", "D1"),
        ("C3", NO_RELATION, "D1"),
    }
    none = label([one], KB, types=("Effect", "Drug"))
    assert {line[1] for line in lines(none)} == {NO_RELATION}
    typed = read_knowledge(put(tmp_path, "kb.tsv", "C1\tr\tD1\tdrug\tgene\nC3\tr\tD1\tDRUG\t\n"))
    assert [line[:3] for line in lines(label([one], typed))] == [
        ("C1", NO_RELATION, "D1"),
        ("C3", "r", "D1"),
    ]


def test_mentions_of_several_identifiers():
    words = Document(
        "d",
        "aspirin rash",
        (
            Entity("T1", "Drug", ((0, 7),), concepts=("C9", "C1")),
            Entity("T2", "Effect", ((8, 12),), concepts=("D9", "D1")),
        ),
    )
    assert [line[:3] for line in lines(label([words], KB))] == [
        ("C1", "causes", "D1"),
        ("C1", "treats", "D1"),
    ]
    nothing = label([words], knowledge_of([("C7", "r", "D7")]), types=("Drug", "Effect"))
    assert [line[:3] for line in lines(nothing)] == [("C9", NO_RELATION, "D9")]
    counts = nothing.counts
    assert (counts["ambiguous_forms"], counts["ambiguous_mentions"]) == (2, 2)
    assert (counts["unmentioned"], counts["apart"]) == (1, 0)
    same = Document("d", "c1 c1", document("c1 c1").entities)
    assert label([same], KB).documents == []  # one thing, twice


def test_by_words():
    kb = knowledge_of([("C1", "causes", "d1")], by="letters")
    found = label([document("c1 and D1 or c9.")], kb)
    assert lines(found) == [
        ("C1", "causes", "D1", "c1 and D1 or c9."),
        ("C9", NO_RELATION, "D1", "c1 and D1 or c9."),
    ]


class TestDraw:
    DOCUMENTS = tuple(
        document(f"c1 and d1. So c{n} or d{m}.", f"d{n}{m}") for n in range(2, 10) for m in range(9)
    )

    def pairs(self, documents, **options):
        return {line[:3] for line in lines(label(documents, KB, **options))}

    def test_a_share_of_pairs(self):
        every = self.pairs(self.DOCUMENTS)
        half = self.pairs(self.DOCUMENTS, na=0.5)
        other = self.pairs(self.DOCUMENTS, na=0.5, seed=2)
        without = {line for line in every if line[1] == NO_RELATION}
        assert len(without) == 71
        assert {line for line in half if line[1] != NO_RELATION} == every - without
        assert 22 <= len(half & without) <= 49
        assert half != other
        found = label(self.DOCUMENTS, KB, na=0.5).counts
        assert found["na_pairs"] + found["na_left"] == 71
        assert not self.pairs(self.DOCUMENTS, na=0.0) & without

    @given(st.integers(1, 71))
    def test_sites_agree(self, cut):
        both = self.pairs(self.DOCUMENTS, na=0.3)
        parts = (self.DOCUMENTS[:cut], self.DOCUMENTS[cut:])
        assert set().union(*(self.pairs(part, na=0.3) for part in parts)) == both

    def test_smaller_shares_are_parts_of_larger_ones(self):
        assert self.pairs(self.DOCUMENTS, na=0.2) < self.pairs(self.DOCUMENTS, na=0.6)


def test_a_bag_of_thousands_of_sentences():
    documents = [document("c2 gave d1.", f"d{n}") for n in range(4_000)]
    found = label(documents, KB)
    assert found.relations == {"causes": 4_000}
    assert (found.counts["pairs"], found.counts["triples"]) == (1, 1)


def test_what_cannot_be_is_refused():
    with pytest.raises(SettingsError, match="share"):
        label([document("c1 d1")], KB, na=1.5)
    with pytest.raises(SettingsError):
        label([document("c1 d1")], KB, max_sentences=-1)
    with pytest.raises(DataError, match="no entity"):
        label([Document("d", "x")], KB)
    bare = Document("d", "x y", (Entity("T1", "X", ((0, 1),)),))
    with pytest.raises(DataError, match="identifier"):
        label([bare], KB)


class TestCommand:
    def test_files_to_bags(self, tmp_path):
        notes, out = tmp_path / "notes.jsonl", tmp_path / "bags.jsonl"
        write([document("Then c1 gave d1. But c2 met d2.")], notes, "jsonl")
        write_triples([("C1", "causes", "D1"), ("D1", "r", "D1")], tmp_path / "kb.tsv")
        words = ["data", "label", str(notes), "--kb", str(tmp_path / "kb.tsv"), "--out", str(out)]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "triple-to-itself" in done.output and "causes" in done.output
        again = read(out)
        assert again.format == "jsonl"
        assert Counter(bool(one.relations) for one in again.documents) == {True: 1, False: 1}
        none = CliRunner().invoke(app, [*words, "--na", "0", "--types", "Drug", "Effect"])
        assert none.exit_code == 0 and len(read(out).documents) == 1
        assert CliRunner().invoke(app, [*words, "--na", "some"]).exit_code == 2

    def test_a_recogniser_marks_the_text_first(self, tmp_path, monkeypatch):
        asked = []

        def predict(run, files):
            asked.append((run, files))
            return [document("c1 gave d1.")]

        monkeypatch.setattr(api, "predict", predict)
        note = put(tmp_path, "note.txt", "c1 gave d1.")
        kb = put(tmp_path, "kb.tsv", "c1\tcauses\td1\n")
        out = tmp_path / "bags.jsonl"
        words = ["data", "label", str(note), "--kb", str(kb), "--out", str(out)]
        run = CliRunner().invoke(app, [*words, "--by", "letters", "--recogniser", "runs/ner"])
        assert run.exit_code == 0, run.output
        assert [str(one) for one in (asked[0][0], *asked[0][1])] == ["runs/ner", str(note)]
        (one,) = read(out).documents
        assert one.relations[0].type == "causes"


@pytest.mark.data
@pytest.mark.slow
def test_bc5cdr(corpora):
    """Training abstracts and their own relations: what a count by sentence and concept gives."""
    file = corpora / "bc5cdr_cid" / "CDR_TrainingSet.PubTator.txt.gz"
    documents = read(file).documents
    triples = triples_of(documents)
    assert len(triples) == 927
    found = label(documents, knowledge_of(triples))
    from confide.text.segment import segmented

    known = {(head, tail) for head, _, tail in triples}
    sentences = set()
    for one in map(segmented, documents):
        for sentence in one.sentences:
            inside = [
                entity
                for entity in one.entities
                if sentence.start <= entity.start and entity.end <= sentence.end
            ]
            ids = {concept for entity in inside for concept in entity.concepts}
            text = one.text[sentence.start : sentence.end]
            sentences |= {(one.id, text, *pair) for pair in known if set(pair) <= ids}
    lines_found = {
        (dict(one.attributes)["file"], one.text, *(entity.concepts[0] for entity in one.entities))
        for one in found.documents
        if one.relations
    }
    assert lines_found == sentences
    assert found.relations["CID"] == len(sentences) == 1543
    assert found.counts["triples"] == len({line[2:] for line in sentences}) == 671
