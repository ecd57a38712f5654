"""Made-up text about pairs: reproducible, stated as it claims, labelled as a site would."""

from __future__ import annotations

from pathlib import Path

from cases import each
from confide.corpora.distant import read_knowledge
from confide.corpora.synthetic import (
    CAUSES,
    HABITS,
    TREATS,
    WRONG,
    bag_documents,
    grammar,
    knowledge,
    relation_documents,
    write_bags,
    write_relations,
)
from confide.text.document import Document
from confide.text.formats import read

SITES = [habit.site for habit in HABITS]


def pair_of(note: Document) -> tuple[str, str]:
    by_type = {entity.type: note.surface(entity).lower() for entity in note.entities}
    return by_type["DRUG"], by_type["COMPLAINT"]


@each("site", SITES)
def test_relations_go_from_the_one_drug_to_complaints(site: str) -> None:
    for split, count in (("train", 64), ("dev", 16), ("test", 48)):
        notes = relation_documents(site, split, sentences=64)
        assert len(notes) == count == len({note.id for note in notes})
        for note in notes:
            (drug,) = (e.id for e in note.entities if e.type == "DRUG")
            assert {e.type for e in note.entities} == {"DRUG", "COMPLAINT"}
            assert {r.head for r in note.relations} <= {drug}
            assert {r.type for r in note.relations} <= {CAUSES, TREATS}
            assert all(note.surface(e).strip() for e in note.entities)
    train = relation_documents(site, "train")
    stated = [r.type for note in train for r in note.relations]
    pairs = sum(len(note.entities) - 1 for note in train)
    assert min(stated.count(CAUSES), stated.count(TREATS)) > 0.2 * pairs
    assert 0.05 * pairs < pairs - len(stated) < 0.3 * pairs


def test_a_sentence_states_what_its_pattern_says() -> None:
    notes = {note.text: note for note in relation_documents("practice", "train")}
    said = [note for text, note in notes.items() if "read online that" in text]
    assert said and all(note.relations == () for note in said)
    good = [note for text, note in notes.items() if " much better on " in text]
    assert good and all([r.type for r in note.relations] == [TREATS] for note in good)


def test_the_same_seed_gives_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_relations(tmp_path / name / "relations", seed=seed, sentences=16)
        write_bags(tmp_path / name / "bags", seed=seed, sentences=40)
    a, b, c = ({p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*.*l")}
               for n in "abc")  # fmt: skip
    assert len(a) == 19 and a == b
    assert all(a[path] != c[path] for path in a)


def test_public_text_is_no_sites_training_text(tmp_path: Path) -> None:
    write_relations(tmp_path, sentences=32)
    public = {note.text for note in read(tmp_path / "public.jsonl").documents}
    own = {note.text for site in SITES for note in read(tmp_path / site / "train.jsonl").documents}
    assert len(public) > 50 and not public & own


def test_pairs_of_held_out_bags_are_in_no_training_text() -> None:
    pairs = {
        split: {pair_of(n) for site in SITES for n in bag_documents(site, split)}
        for split in ("train", "dev", "test")
    }
    assert all(pairs.values())
    assert not pairs["train"] & (pairs["dev"] | pairs["test"]) and not pairs["dev"] & pairs["test"]
    assert len({pair_of(n) for n in bag_documents(SITES[0], "train")} & pairs["train"]) > 50


def test_sites_label_by_the_knowledge_base_and_a_third_is_wrong(tmp_path: Path) -> None:
    write_bags(tmp_path)
    kb = read_knowledge(tmp_path / "known.tsv")
    assert len(kb) == sum(map(bool, knowledge(1).values()))
    held = {(d.lower(), c.lower()): relation for (d, c), relation in knowledge(1).items()}
    wrong = right = 0
    for site in SITES:
        for split in ("train", "test"):
            labelled = read(tmp_path / site / f"{split}.jsonl").documents
            for note in labelled:
                names = {r.type for r in note.relations} or {""}
                assert names == {held[pair_of(note)]}
        # what the sentence itself says, by the patterns of the relations
        for note in bag_documents(site, "train"):
            if " much better on " in note.text or " settled w/ " in note.text:
                wrong, right = (
                    (wrong, right + 1) if held[pair_of(note)] == TREATS else (wrong + 1, right)
                )
    assert wrong and right and wrong / (wrong + right) < 2 * WRONG


def test_held_out_sentences_say_what_the_knowledge_base_says() -> None:
    held = {(d.lower(), c.lower()): relation for (d, c), relation in knowledge(1).items()}
    notes = [n for site in SITES for n in bag_documents(site, "test", sentences=800)]
    treats = [n for n in notes if " much better on " in n.text or " settled w/ " in n.text]
    assert len(treats) > 5
    assert {held[pair_of(note)] for note in treats} == {TREATS}


def test_identifiers_are_the_same_at_every_site() -> None:
    concepts = [
        {c for n in bag_documents(site, "train") for e in n.entities for c in e.concepts}
        for site in SITES
    ]
    assert len(set.intersection(*concepts)) > 20
    assert all(":" in c and " " not in c for c in set.union(*concepts))
    assert grammar()["findings"]["everywhere"]
