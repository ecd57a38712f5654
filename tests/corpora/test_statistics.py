import json
from dataclasses import replace

import pytest

from cases import each
from confide.corpora.statistics import count_documents, stats
from confide.text.document import Document, Entity, Relation, pair_attributes
from confide.text.formats import write
from confide.text.segment import segmented


def document(text, *spans, id="d"):
    entities = tuple(
        Entity(f"T{n}", type_, tuple(zip(places[::2], places[1::2], strict=True)))
        for n, (type_, *places) in enumerate(spans)
    )
    return segmented(Document(id, text, entities))


def test_counts_by_hand():
    found = count_documents(
        [
            document("Severe chest pain today.", ("Sign", 0, 17), id="a"),
            document("No pain. No fever.", ("Sign", 3, 7), ("Sign", 12, 17), id="b"),
            document("No pain. Aspirin helped.", ("Drug", 9, 16), id="c"),
        ]
    )
    assert (found.documents, found.sentences, found.tokens) == (3, 5, 17)
    assert found.entities == {"Drug": 1, "Sign": 3}
    assert found.lengths == {1: 3, 3: 1}
    assert (found.nested, found.overlapping, found.discontinuous) == (0, 0, 0)
    assert found.sentences_with_entities == 4
    assert found.repeated == 1
    assert found.distinct_tokens == len(
        {"Severe", "chest", "pain", "today", ".", "No", "fever", "Aspirin", "helped"}
    )


@each(
    ("spans", "nested", "overlapping", "discontinuous"),
    [
        ([("A", 0, 4), ("A", 5, 8)], 0, 0, 0),
        ([("A", 0, 8), ("A", 5, 8)], 1, 0, 0),
        ([("A", 0, 8), ("B", 0, 8)], 2, 0, 0),
        ([("A", 0, 6), ("A", 4, 8)], 0, 2, 0),
        ([("A", 0, 8), ("B", 2, 6), ("C", 4, 8)], 2, 0, 0),
        ([("A", 0, 2, 6, 8)], 0, 0, 1),
        ([("A", 0, 2, 6, 8), ("B", 3, 5)], 0, 0, 1),
        ([("A", 0, 2, 6, 8), ("B", 0, 8)], 1, 0, 1),
        ([("A", 0, 2, 6, 8), ("B", 1, 5)], 0, 2, 1),
    ],
)
def test_shapes(spans, nested, overlapping, discontinuous):
    found = count_documents([document("abcdefgh ijk", *spans)])
    assert (found.nested, found.overlapping) == (nested, overlapping)
    assert found.discontinuous == discontinuous


def test_the_length_of_a_discontinuous_mention_leaves_its_gap_out():
    found = count_documents([document("pain in left and right arm", ("A", 0, 12, 23, 26))])
    assert found.lengths == {4: 1}


class TestFiles:
    @pytest.fixture
    def paths(self, tmp_path):
        same = document("No pain today", ("Sign", 3, 7))
        write([same, document("Rash seen", ("Sign", 0, 4))], tmp_path / "a.conll", "conll")
        write([same, same, document("rash gone")], tmp_path / "b.conll", "conll")
        return [tmp_path / "a.conll", tmp_path / "b.conll"]

    def test_files_total_and_what_they_share(self, paths):
        found = stats(paths)
        one, other = map(str, paths)
        assert [found.files[path].sentences for path in (one, other)] == [2, 3]
        assert found.total.sentences == 5
        assert found.shared == {(one, other): 1}
        assert (found.files[one].repeated, found.files[other].repeated) == (0, 1)
        assert found.total.repeated == 2
        assert found.vocabulary == {"words": 7, "lower_case": 6}

    def test_json(self, paths):
        plain = json.loads(json.dumps(stats(paths).to_json()))
        assert plain["total"]["entities"] == {"Sign": 4}
        assert plain["shared"] == [{"files": [str(path) for path in paths], "sentences": 1}]

    def test_relations_by_type(self, tmp_path):
        entities = (Entity("T1", "A", ((0, 1),)), Entity("T2", "B", ((2, 3),)))
        links = tuple(Relation(f"R{n}", kind, "T1", "T2") for n, kind in enumerate("yxy"))
        write([Document("d", "a b", entities, links)], tmp_path / "a.jsonl", "jsonl")
        assert stats(tmp_path / "a.jsonl").total.relations == {"x": 1, "y": 2}

    def test_one_path_is_enough(self, paths):
        assert stats(str(paths[0])).shared == {}


@pytest.mark.data
@pytest.mark.slow
def test_published_counts(corpora):
    """What SOURCE files and papers say of these corpora."""
    found = stats(
        [f"$CONFIDE_DATA/bc5cdr_ner/{part}.tsv" for part in ("train", "devel", "test")],
        format="conll",
    )
    sentences = [part.sentences for part in found.files.values()]
    assert sentences == [4560, 4581, 4797]
    chemicals = [part.entities["Chemical"] for part in found.files.values()]
    diseases = [part.entities["Disease"] for part in found.files.values()]
    assert (chemicals, diseases) == ([5203, 5347, 5385], [4182, 4246, 4424])


def test_pairs_are_counted_where_there_are_relations():
    spans = (("X", 0, 2), ("X", 3, 7), ("X", 8, 13), ("X", 15, 19))
    plain = document("No pain today. Well again.", *spans)
    assert count_documents([plain]).pairs == 0
    links = (Relation("R1", "to", "T0", "T1"), Relation("R2", "to", "T0", "T3"))
    found = count_documents([replace(plain, relations=links)])
    assert (found.relations, found.pairs) == ({"to": 2}, 3)
    stated = replace(plain, attributes=pair_attributes([("T0", "T3"), ("T1", "T0")]))
    assert count_documents([stated, plain]).pairs == 2 + 3


@pytest.mark.data
@pytest.mark.parametrize(
    ("path", "pairs", "related"),
    [("gad_re/2/train.tsv", 4797, 2521), ("euadr_re/4/test.tsv", 35, 26)],
)
def test_pairs_of_published_corpora(corpora, path, pairs, related):
    found = stats(corpora / path).total
    assert (found.pairs, found.relations) == (pairs, {"related": related})
