"""Real corpora, read with the counts that their SOURCE.md states ($CONFIDE_DATA)."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from cases import each
from confide.text.checking import check
from confide.text.formats import read, write
from confide.text.tagging import SCHEMES

pytestmark = pytest.mark.data

USUAL = ("train.tsv", "devel.tsv", "test.tsv")
PSYTAR = ("train.txt", "dev.txt", "test.txt")
WNUT = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
MULTICONER = ("en_train.conll", "en_dev.conll")
UNER = ("en_ewt-ud-dev.iob2", "en_ewt-ud-test.iob2")
CONLL = [
    # folder, files, sentences, entities
    ("bc5cdr_ner", USUAL, (4560, 4581, 4797), (9385, 9593, 9809)),
    ("ncbi_disease_ner", USUAL, (5424, 923, 940), (5134, 787, 960)),
    ("wnut17", WNUT, (3394, 1009, 1287), (1975, 836, 1079)),
    ("multiconer1_en", MULTICONER, (15300, 800), (23553, 1230)),
    ("uner_ewt", UNER, (2001, 2077), (966, 1088)),
    ("psytar/all", PSYTAR, (3850, 550, 1191), (3535, 431, 1077)),
    ("anatem_ner", USUAL, (5861, 2118, 3830), (6946, 2139, 4616)),
    ("jnlpba_ner", USUAL, (14690, 3856, 3856), (32178, 8575, 6241)),
    ("bc2gm_ner", USUAL, (12574, 2519, 5038), (15197, 3061, 6325)),
    ("linnaeus_ner", USUAL, (11935, 4078, 7142), (2119, 711, 1433)),
    ("bionlp13cg_ner", USUAL, (3033, 1003, 1906), (10826, 3616, 6881)),
]
CROSSNER = {
    # domain: sentences, entities in all, types
    "politics": ((200, 541, 651), 8995, 9),
    "science": ((200, 450, 543), 6702, 17),
    "music": ((100, 380, 465), 6663, 13),
    "literature": ((100, 400, 416), 4937, 12),
    "ai": ((100, 350, 431), 3890, 14),
}


def counted(reading):
    sentences = sum(len(document.sentences) for document in reading.documents)
    return sentences, sum(len(document.entities) for document in reading.documents)


@pytest.mark.parametrize(
    ("folder", "files", "sentences", "entities"),
    [
        pytest.param(*one, marks=[pytest.mark.slow] * (number > 2))
        for number, one in enumerate(CONLL)
    ],
)
def test_conll(corpora, folder, files, sentences, entities):
    for file, *expected in zip(files, sentences, entities, strict=True):
        reading = read(corpora / folder / file)
        assert (reading.format, reading.details["scheme"]) == ("conll", "iob2")
        assert counted(reading) == tuple(expected), file
        known = {"byte-order-mark"} if file == "emerging.dev.conll" else set()
        assert {problem.kind for problem in reading.problems} == known


def test_the_token_that_ends_in_a_byte_order_mark(corpora):
    reading = read(corpora / "wnut17" / "emerging.dev.conll")
    assert [problem.kind for problem in reading.problems] == ["byte-order-mark"]
    assert not any("\ufeff" in document.text for document in reading.documents)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["train.tsv", "devel.tsv", "test.tsv"])
def test_the_same_corpus_in_iobes(corpora, file):
    folder = corpora / "ncbi_disease_ner"
    iob2, iobes = read(folder / file), read(folder / "iobes" / file)
    assert (iob2.details["scheme"], iobes.details["scheme"]) == ("iob2", "iobes")
    assert iobes.problems == []

    def content(reading):
        return [(doc.text, doc.sentences, doc.entities) for doc in reading.documents]

    assert content(iobes) == content(iob2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "io"])
def test_every_scheme_round_trips_a_corpus(corpora, scheme, tmp_path):
    documents = read(corpora / "ncbi_disease_ner" / "devel.tsv").documents
    assert write(documents, tmp_path / "a.conll", "conll", scheme=scheme) == []
    again = read(tmp_path / "a.conll")
    assert again.details["scheme"] == scheme
    assert [d.entities for d in again.documents] == [d.entities for d in documents]


@pytest.mark.parametrize(
    "domain", [pytest.param(d, marks=[pytest.mark.slow] * (d != "ai")) for d in CROSSNER]
)
def test_crossner(corpora, domain):
    sentences, entities, types = CROSSNER[domain]
    readings = [read(corpora / "crossner" / domain / f"{p}.txt") for p in ("train", "dev", "test")]
    assert tuple(counted(reading)[0] for reading in readings) == sentences
    assert sum(counted(reading)[1] for reading in readings) == entities
    names = {e.type for reading in readings for d in reading.documents for e in d.entities}
    assert len(names) == types


def test_types_and_marks(corpora):
    wnut = Counter(
        entity.type
        for file in WNUT
        for document in read(corpora / "wnut17" / file).documents
        for entity in document.entities
    )
    assert wnut == {"person": 1559, "location": 772, "group": 468, "creative-work": 387,
                    "product": 383, "corporation": 321}  # fmt: skip
    uner = read(corpora / "uner_ewt" / "en_ewt-ud-dev.iob2").documents
    assert len(uner) == 318
    assert uner[0].id == "answers-20070404104007AAY1Chs_ans"
    bare = read(corpora / "jnlpba_ner" / "test.tsv", bare_type="gene")
    assert {e.type for d in bare.documents for e in d.entities} == {"gene"}
    multiconer = read(corpora / "multiconer1_en" / "en_dev.conll").documents
    assert ("domain", "dev") in multiconer[0].attributes


@each(
    ("part", "chemicals", "diseases", "relations"),
    [("Training", 5203, 4182, 1038), ("Development", 5347, 4244, 1012), ("Test", 5385, 4424, 1066)],
)
def test_cdr(corpora, part, chemicals, diseases, relations):
    reading = read(corpora / "bc5cdr_cid" / f"CDR_{part}Set.PubTator.txt.gz")
    types = Counter(e.type for d in reading.documents for e in d.entities)
    assert (reading.format, reading.problems, len(reading.documents)) == ("pubtator", [], 500)
    assert types == {"Chemical": chemicals, "Disease": diseases}
    assert sum(len(document.relations) for document in reading.documents) == relations


@each(
    ("part", "documents", "entities", "relations"),
    [("Train", 400, 13351, 4178), ("Dev", 100, 3533, 1162), ("Test", 100, 3535, 1163)],
)
def test_biored(corpora, part, documents, entities, relations, tmp_path):
    reading = read(corpora / "biored" / f"{part}.PubTator")
    assert (reading.problems, len(reading.documents)) == ([], documents)
    assert counted(reading)[1] == entities
    found = [relation for document in reading.documents for relation in document.relations]
    assert len(found) == relations
    assert all(dict(relation.attributes)["novelty"] in ("Novel", "No") for relation in found)
    assert write(reading.documents, tmp_path / "a.pubtator", "pubtator") == []
    again = read(tmp_path / "a.pubtator").documents
    assert [(d.text, d.entities, d.relations) for d in again] == [
        (d.text, d.entities, d.relations) for d in reading.documents
    ]


@each(
    ("format", "documents", "sentences"),
    [("ade", 2972, 4272 + 16688), ("ade-positive", 1644, 4272)],
)
def test_ade(corpora, format, documents, sentences):
    reading = read(corpora / "ade_corpus_v2", format)
    assert len(reading.documents) == len({d.id for d in reading.documents}) == documents
    assert counted(reading) == (sentences, 5063 + 5776 + 230)
    entities = Counter(e.type for d in reading.documents for e in d.entities)
    relations = Counter(r.type for d in reading.documents for r in d.relations)
    assert entities == {"Drug": 5063, "AE": 5776, "Dose": 230}
    assert relations == {"adverse-effect": 6821, "dose": 279}
    negative = 7 if format == "ade" else 0  # every offset of the .rel files fits: no other problem
    assert Counter(p.kind for p in reading.problems) == Counter({"duplicate-sentence": negative})


@pytest.mark.slow
def test_ade_is_the_same_from_the_file_of_effects(corpora):
    folder = corpora / "ade_corpus_v2"
    positive = read(folder, "ade-positive").documents
    assert read(folder / "DRUG-AE.rel").documents == positive
    assert len({(d.id, d.text[s.start : s.end]) for d in positive for s in d.sentences}) == 4272
    spans = check(folder, format="ade-positive")
    assert (spans.counts["trainable"], spans.kinds["nested"]) == (10948, 121)


def test_ade_offsets_choose_between_places(corpora):
    """Where a mention's string stands several times in its sentence, by hand from the corpus."""
    documents = {d.id: d for d in read(corpora / "ade_corpus_v2", "ade-positive").documents}
    found = 0
    for document in documents.values():
        for sentence in document.sentences:
            text = document.text[sentence.start : sentence.end]
            inside = [e for e in document.entities if sentence.start <= e.start < sentence.end]
            found += any(text.count(document.surface(entity)) > 1 for entity in inside)
    assert found > 300
    insulin = documents["10452772"]
    assert [insulin.text[e.start - 8 : e.end] for e in insulin.entities if e.type == "Dose"] == [
        "insulin 4 times per day"
    ]


@pytest.mark.slow
def test_psytar_workbook(corpora):
    reading = read(corpora / "psytar" / "PsyTAR_dataset.xlsx")
    empty = [problem for problem in reading.problems if problem.kind == "empty-sentence"]
    assert len(reading.documents) == 891
    assert sum(len(d.sentences) for d in reading.documents) + len(empty) == 6009
    entities = Counter(e.type for d in reading.documents for e in d.entities)
    assert entities == {"ADR": 4779, "SSI": 1212, "DI": 787, "WD": 579}
    unplaced, repeated = Counter(), Counter()
    for problem in reading.problems:
        kind = problem.where.rpartition("#")[2].partition("_")[0]
        unplaced[kind] += problem.kind == "mention-not-found"
        repeated[kind] += problem.kind == "duplicate-mention"
    assert (unplaced.total(), repeated.total()) == (56, 2)
    whole = {"ADR": 4813, "SSI": 1219, "DI": 793, "WD": 590}
    assert {kind: entities[kind] + unplaced[kind] + repeated[kind] for kind in whole} == whole
    assert reading.details["mentions"] == (
        "6,659 as written, 183 but for case and punctuation, 25 inside a word, 412 in pieces, "
        "80 misspelt, 56 not placed"
    )
    drugs = Counter(dict(d.attributes)["domain"] for d in reading.documents)
    assert drugs == {"cymbalta": 231, "effexorxr": 228, "lexapro": 219, "zoloft": 213}


def test_a_flat_tagger_can_learn_nearly_all_of_an_abstract_corpus(corpora):
    report = check(corpora / "bc5cdr_cid" / "CDR_DevelopmentSet.PubTator.txt.gz")
    lost = Counter(problem.kind for problem in report.problems if problem.lost)
    assert report.counts["trainable"] + sum(lost.values()) == report.counts["entities"]
    assert report.counts["trainable"] > 0.99 * report.counts["entities"]
    assert lost["crosses-sentence"] < 20


def test_fifteen_thousand_sentences_are_read_quickly(corpora):
    started = time.process_time()
    read(corpora / "multiconer1_en" / "en_train.conll")
    assert time.process_time() - started < 6  # 1.3 s on an idle core
