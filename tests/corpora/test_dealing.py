import json
from dataclasses import replace

import pytest

from confide.corpora.dealing import split
from confide.errors import DataError, MissingDataError, SettingsError
from confide.text.document import Document, Entity
from confide.text.formats import read, write

WORDS = ["fever", "cough", "ibuprofen", "none", "rash", "aspirin"]


def corpus(size=12, source=""):
    """Sentences of two words, the first an entity in two of three."""
    documents = []
    for n in range(size):
        text = f"{WORDS[n % 6]} today{n}"
        type_ = ("Sign", "Drug", None)[n % 3]
        entities = (Entity("T1", type_, ((0, len(WORDS[n % 6])),)),) if type_ else ()
        documents.append(Document(f"d{n}", text, entities, source=source))
    return documents


@pytest.fixture
def conll(tmp_path):
    path = tmp_path / "notes.conll"
    write(corpus(), path, "conll")
    return path


def test_every_site_gets_a_file_and_the_deal_is_written_down(conll, tmp_path):
    report = split(conll, 3, by="iid", seed=5, out=tmp_path / "sites")
    assert sorted(p.name for p in (tmp_path / "sites").iterdir()) == [
        "site-01.conll", "site-02.conll", "site-03.conll", "split.json"
    ]  # fmt: skip
    written = json.loads((tmp_path / "sites" / "split.json").read_text())
    assert written == json.loads(json.dumps(report.to_json()))
    assert (written["schema"], written["by"], written["seed"]) == (1, "iid", 5)
    assert written["sources"] == [str(conll)]
    assert [share["documents"] for share in written["sites"].values()] == [4, 4, 4]
    assert report.sites["site-01"].path == "site-01.conll"


@pytest.mark.parametrize("to", ["conll", "jsonl", "doccano", "pubtator", "brat"])
def test_nothing_is_lost_on_the_way(conll, tmp_path, to):
    report = split(conll, 3, out=tmp_path / "sites", to=to)
    assert report.format == to
    before = read(conll).documents
    after = [
        document
        for share in report.sites.values()
        for document in read(tmp_path / "sites" / share.path, to).documents
    ]
    assert sorted(words(d) for d in after) == sorted(words(d) for d in before)
    for share in report.sites.values():
        part = read(tmp_path / "sites" / share.path, to).documents
        assert sum(len(d.entities) for d in part) == sum(share.entities.values())


def words(document):
    found = [(e.type, document.surface(e)) for e in document.entities]
    return document.text.split(), found


def test_the_same_seed_writes_the_same_bytes(conll, tmp_path):
    for out in ("a", "b"):
        split(conll, 4, by="dirichlet", seed=9, alpha=0.3, out=tmp_path / out)
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_by_file(tmp_path):
    for name in ("north", "south"):
        write(corpus(5), tmp_path / f"{name}.conll", "conll")
    paths = [tmp_path / "south.conll", tmp_path / "north.conll"]
    report = split(paths, 2, by="file", out=tmp_path / "sites")
    assert [share.groups for share in report.sites.values()] == [
        (str(tmp_path / "north.conll"),),
        (str(tmp_path / "south.conll"),),
    ]


def test_by_an_attribute(tmp_path):
    whole = [replace(d, attributes=(("ward", "ba"[n % 2]),)) for n, d in enumerate(corpus(6))]
    write(whole, tmp_path / "notes.jsonl", "jsonl")
    how = {"by": "attribute=ward", "out": tmp_path / "sites"}
    report = split(tmp_path / "notes.jsonl", 2, **how)
    assert [share.groups for share in report.sites.values()] == [("a",), ("b",)]
    assert (report.by, report.attribute) == ("attribute", "ward")


def test_by_types(conll, tmp_path):
    report = split(conll, 2, by="types", alpha=1, out=tmp_path / "sites")
    assert sorted(list(share.entities) for share in report.sites.values()) == [["Drug"], ["Sign"]]
    assert (report.alpha, report.classes) == (1, "entities")


@pytest.mark.parametrize("way", ["ward", "attribute", "attribute=", "iid=2", ""])
def test_an_unknown_way_is_refused(conll, tmp_path, way):
    with pytest.raises(DataError, match=r"unknown way.*attribute=NAME"):
        split(conll, 2, by=way, out=tmp_path / "sites")


def test_the_default_alpha_is_written_down(conll, tmp_path):
    assert split(conll, 2, by="dirichlet", out=tmp_path / "a").alpha == 0.5
    assert split(conll, 2, by="quantity", out=tmp_path / "b").alpha == 1.0
    assert split(conll, 2, by="iid", out=tmp_path / "c").alpha is None


def test_what_a_format_cannot_hold_is_counted(tmp_path):
    nested = Document(
        "d", "sick sinus", (Entity("1", "A", ((0, 10),)), Entity("2", "B", ((5, 10),)))
    )
    write([nested, *corpus(3)], tmp_path / "a.jsonl", "jsonl")
    report = split(tmp_path / "a.jsonl", 2, out=tmp_path / "sites", to="conll")
    assert sum(report.problems.values()) >= 1


def test_pairs_are_dealt_by_relation(tmp_path):
    lines = [f"{n} @GENE$ and @DISEASE$ .\t{n % 2}" for n in range(200)]
    (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
    report = split(
        tmp_path / "a.tsv", 4, by="dirichlet", alpha=0.05, out=tmp_path / "s", to="jsonl"
    )
    assert report.classes == "relations"
    related = [share.relations.get("related", 0) for share in report.sites.values()]
    assert sum(related) == 100
    sizes = [share.documents for share in report.sites.values()]
    assert max(map(abs, (r / n - 0.5 for r, n in zip(related, sizes, strict=True)))) > 0.4
    iid = split(tmp_path / "a.tsv", 4, out=tmp_path / "t", to="jsonl")
    assert iid.classes is None


def test_documents_with_entities_are_dealt_by_entity(conll, tmp_path):
    assert split(conll, 2, by="dirichlet", out=tmp_path / "a").classes == "entities"


class TestBadInput:
    def test_nothing_is_overwritten(self, conll, tmp_path):
        split(conll, 2, out=tmp_path / "sites")
        with pytest.raises(DataError, match="there is something already"):
            split(conll, 2, out=tmp_path / "sites")

    def test_nothing_is_written_where_the_deal_fails(self, conll, tmp_path):
        with pytest.raises(DataError, match="fewer documents than sites"):
            split(conll, 99, out=tmp_path / "sites")
        assert not (tmp_path / "sites").exists()

    def test_several_formats_need_one_to_write(self, conll, tmp_path):
        write(corpus(), tmp_path / "b.jsonl", "jsonl")
        with pytest.raises(SettingsError, match="say which one to write"):
            split([conll, tmp_path / "b.jsonl"], 2, out=tmp_path / "sites")
        split([conll, tmp_path / "b.jsonl"], 2, out=tmp_path / "sites", to="jsonl")

    def test_an_unknown_format_to_write(self, conll, tmp_path):
        with pytest.raises(SettingsError, match="'docx'"):
            split(conll, 2, out=tmp_path / "sites", to="docx")

    def test_no_file(self, tmp_path):
        with pytest.raises(MissingDataError):
            split(tmp_path / "none.conll", 2, out=tmp_path / "sites")
        with pytest.raises(DataError, match="got no file"):
            split([], 2, out=tmp_path / "sites")
