"""Relation corpora, read with the counts that their SOURCE.md states ($CONFIDE_DATA)."""

from __future__ import annotations

from collections import Counter

import pytest

from confide.kinds.relations.batches import Rules, candidates
from confide.text.document import stated_pairs
from confide.text.formats import group_corpora, read

pytestmark = pytest.mark.data


def relations(reading):
    return Counter(
        relation.type for document in reading.documents for relation in document.relations
    )


def fold_sizes(corpora, corpus, usual, others):
    """All folds of a cross-validation: rows of train and test, positives, distinct texts."""
    texts = set()
    for fold in range(1, 11):
        train = read(corpora / corpus / str(fold) / "train.tsv")
        test = read(corpora / corpus / str(fold) / "test.tsv")
        assert (train.format, test.format) == ("biobert", "biobert")
        assert (train.details["header"], test.details["header"]) == ("no", "yes")
        assert train.problems + test.problems == []
        documents = [*train.documents, *test.documents]
        assert (len(train.documents), len(test.documents)) == others.get(fold, usual)
        assert all(stated_pairs(document) == [("T1", "T2")] for document in documents)
        assert {frozenset(e.type for e in document.entities) for document in documents} == {
            frozenset(("GENE", "DISEASE"))
        }
        yield len(documents), sum(relations(train).values()) + sum(relations(test).values())
        texts |= {document.text for document in documents}
    yield len(texts), 0


@pytest.mark.slow
def test_gad(corpora):
    *folds, (distinct, _) = fold_sizes(
        corpora, "gad_re", (4797, 533), {1: (4796, 534), 10: (4798, 532)}
    )
    assert set(folds) == {(5330, 2801)}
    assert distinct == 5122


def test_euadr(corpora):
    *folds, (distinct, _) = fold_sizes(
        corpora, "euadr_re", (320, 35), {1: (318, 37), 2: (318, 37), 3: (319, 36)}
    )
    assert set(folds) == {(355, 262)}
    assert distinct == 355


def test_chemprot(corpora):
    readings = {p: read(corpora / "chemprot_re" / f"{p}.txt") for p in ("train", "dev", "test")}
    sizes = {part: len(reading.documents) for part, reading in readings.items()}
    assert sizes == {"train": 4169, "dev": 2427, "test": 3469}
    assert all(r.format == "chemprot" and r.problems == [] for r in readings.values())
    found = {part: relations(reading) for part, reading in readings.items()}
    assert len(sum(found.values(), Counter())) == 13
    assert "AGONIST-INHIBITOR" not in found["dev"]
    assert "SUBSTRATE_PRODUCT-OF" not in found["test"]
    for document in (document for reading in readings.values() for document in reading.documents):
        first, second = document.entities
        assert first.end <= second.start
        assert not {"<<", "[[", "]]"} & set(document.text.split())


@pytest.mark.slow
def test_ddi(corpora):
    root = corpora / "ddi2013" / "DDICorpus-2013.zip!" / "DDICorpus"
    train, test = (
        {name: read(root / part / name) for name in ("DrugBank", "MedLine")}
        for part in ("Train", "Test/Test for DDI Extraction task")
    )
    whole = read(root / "Train")
    assert whole.format == "ddi"
    assert relations(whole) == {"effect": 1687, "mechanism": 1319, "advise": 826, "int": 188}
    assert sum(len(document.entities) for document in whole.documents) == 14765
    assert Counter(problem.kind for problem in whole.problems) == {
        "text-mismatch": 4, "relation-without-type": 1,
    }  # fmt: skip
    sentences = [sum(len(d.sentences) for d in train[n].documents) for n in ("DrugBank", "MedLine")]
    assert sentences == [5675 - 71, 1301]  # 71 sentences of DrugBank are empty
    found = relations(test["DrugBank"]) + relations(test["MedLine"])
    assert found == {"effect": 360, "mechanism": 302, "advise": 221, "int": 96}
    assert [sum(len(d.sentences) for d in r.documents) for r in test.values()] == [973, 326]
    pairs = {part: stated(readings) for part, readings in (("train", train), ("test", test))}
    assert pairs == {
        "train": 27792 - 1,
        "test": 5716,
    }  # one of train interacts, but how is not said
    ner = read(root / "Test" / "Test for DrugNER task")
    everything = [
        entity
        for reading in (whole, *test.values(), ner)
        for document in reading.documents
        for entity in document.entities
    ]
    assert sum(len(entity.fragments) > 1 for entity in everything) == 49
    assert {entity.type for entity in everything} == {"drug", "brand", "group", "drug_n"}
    assert set(group_corpora([root / "Train" / name for name in train])) == {"DrugBank", "MedLine"}


def stated(readings):
    """The pairs that are asked about: those of one sentence, but for those that are left out."""
    documents = [document for reading in readings.values() for document in reading.documents]
    return len(candidates(documents, Rules(direction="undirected")).examples)


def test_semeval(corpora):
    archive = corpora / "semeval2010_task8" / "SemEval2010_task8_all_data.tar.gz!"
    folder = archive / "SemEval2010_task8_all_data"
    train = read(folder / "SemEval2010_task8_training" / "TRAIN_FILE.TXT")
    test = read(folder / "SemEval2010_task8_testing_keys" / "TEST_FILE_FULL.TXT")
    for reading, size, other in ((train, 8000, 1410), (test, 2717, 454)):
        found = relations(reading)
        assert (reading.format, reading.problems) == ("semeval", [])
        assert (len(reading.documents), size - sum(found.values())) == (size, other)
        assert len(found) == 18
        assert found["Entity-Destination(e2,e1)"] == 1
    bare = read(folder / "SemEval2010_task8_testing" / "TEST_FILE.txt")
    assert [d.text for d in bare.documents] == [d.text for d in test.documents]
    assert [problem.kind for problem in bare.problems] == ["no-label"]


def test_bioc_and_pubtator_of_biored_are_the_same(corpora):
    bioc = read(corpora / "biored" / "Test.BioC.XML")
    pubtator = read(corpora / "biored" / "Test.PubTator")
    assert (bioc.format, bioc.problems, len(bioc.documents)) == ("bioc", [], 100)
    assert sum(relations(bioc).values()) == 1163

    def content(document):
        links = [(r.type, r.head, r.tail, r.level, r.attributes) for r in document.relations]
        mentions = [(e.type, e.fragments, e.concepts) for e in document.entities]
        return document.id, document.text, mentions, links

    assert list(map(content, bioc.documents)) == list(map(content, pubtator.documents))


def bags(reading):
    return {
        tuple(entity.concepts[0] for entity in document.entities)
        for document in reading.documents
        if len(document.entities) == 2
    }


def test_gids(corpora):
    dev, test = (read(corpora / "gids" / f"{part}.tsv") for part in ("dev", "test"))
    assert (dev.format, test.format) == ("nyt10", "nyt10")
    assert (len(dev.documents), len(test.documents)) == (1864, 5663)
    kinds = Counter(problem.kind for problem in (*dev.problems, *test.problems) if problem.lost)
    assert kinds == {"mention-not-found": 8}  # a name that is not in the text: "St", "A", Perugia
    (off,) = (problem for problem in dev.problems if problem.kind == "not-in-map")
    assert "education/degree (290 lines)" in off.what and off.what.endswith("degrees")
    found = {name.rsplit("/", 1)[-1]: count for name, count in relations(test).items()}
    lost = [one for one in test.documents if stated_pairs(one) == []]
    assert len(lost) == 7  # three of institution, four of NA
    assert found == {
        "institution": 1362,
        "place_of_birth": 1032,
        "place_of_death": 1016,
        "degree": 894,
    }
    assert (len(bags(dev)), len(bags(test))) == (1081, 3246)
    assert not bags(dev) & bags(test)


def test_pgr(corpora):
    folder = corpora / "pgr" / "10_12_2018_corpus"
    train, test = (read(folder / f"{part}.tsv") for part in ("train", "test"))
    assert (train.format, train.details["curated"], test.details["curated"]) == ("pgr", "no", "yes")
    assert (len(train.documents), len(test.documents)) == (4083, 219)
    assert relations(train) == {"gene-phenotype": 1443}
    assert relations(test) == {"gene-phenotype": 152}
    assert test.problems == []
    assert Counter(problem.kind for problem in train.problems) == {
        "offset-mismatch": 2,
        "mention-not-found": 2,  # one gene, "AA", is not in its sentence
    }
    files = [
        [dict(document.attributes)["file"] for document in reading.documents]
        for reading in (train, test)
    ]
    assert (len(set(files[0])), len(set(files[1]) & set(files[0]))) == (1113, 185)
    kept = [
        document
        for document, file in zip(train.documents, files[0], strict=True)
        if file not in set(files[1])
    ]
    assert (len(kept), sum(bool(document.relations) for document in kept)) == (3003, 1114)
    assert not any("&lt;" in document.text for document in (*train.documents, *test.documents))
    assert len(bags(train)) == 2454  # and that of the gene which is not there
