"""The made-up corpus: deterministic, labelled, readable as files, hard in the ways it claims."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

import pytest

from cases import each
from confide.corpora.synthetic import HABITS, SPLITS, TYPES, documents, settings_text, write_corpus
from confide.errors import DataError
from confide.settings import load_settings
from confide.text.document import Document
from confide.text.formats import read

SITES = [habit.site for habit in HABITS]


def mentions(notes: list[Document], type: str) -> list[str]:
    return [note.surface(e).lower() for note in notes for e in note.entities if e.type == type]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@each("site", SITES)
def test_offsets_and_sizes_hold(site: str) -> None:
    for split, sentences in (("train", 160), ("dev", 40), ("test", 120)):
        notes = documents(site, split)
        assert sum(len(note.sentences) for note in notes) == sentences
        assert len({note.id for note in notes}) == len(notes)
        for note in notes:
            borders = {at for s in note.sentences for token in s.tokens for at in token}
            for entity in note.entities:
                assert entity.type in TYPES
                surface = note.surface(entity)
                assert surface == surface.strip() != ""
                assert {entity.start, entity.end} <= borders
            for sentence in note.sentences:
                words = "".join(note.token_texts(sentence))
                assert words == "".join(note.text[sentence.start : sentence.end].split())
                assert "{" not in words


@each("site", SITES)
def test_every_type_is_there_and_rare_enough_to_miss(site: str) -> None:
    for split in SPLITS:
        notes = documents(site, split)
        count = Counter(e.type for note in notes for e in note.entities)
        assert min(count[type] for type in TYPES) >= 10
        bare = [s for n in notes for s in n.sentences
                if not any(s.start <= e.start < s.end for e in n.entities)]  # fmt: skip
        assert len(bare) > 0.05 * sum(len(note.sentences) for note in notes)


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_corpus(tmp_path / name, seed=seed, sentences=16)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a") != contents(tmp_path / "c")


def test_splits_and_sites_are_not_copies_of_each_other() -> None:
    texts = [
        note.text
        for site in SITES
        for split in SPLITS
        for note in documents(site, split)
        if len(note.sentences) > 2
    ]
    assert len(set(texts)) == len(texts)


@each("site", SITES)
def test_what_makes_it_hard_is_there(site: str) -> None:
    own = documents(site, "train")
    everyone = [note for s in SITES for note in documents(s, "train")]
    test = documents(site, "test")
    for type in ("DRUG", "ADE", "REASON"):
        met, met_anywhere = set(mentions(own, type)), set(mentions(everyone, type))
        new = [mention for mention in mentions(test, type) if mention not in met]
        elsewhere = [mention for mention in new if mention in met_anywhere]
        assert len(new) > 0.2 * len(mentions(test, type))
        assert elsewhere, "the other sites know nothing that helps here"
    assert set(mentions(own, "ADE")) & set(mentions(own, "REASON"))
    drugs, met_anywhere = mentions(test, "DRUG"), set(mentions(everyone, "DRUG"))
    assert 0.3 < sum(drug not in met_anywhere for drug in drugs) / len(drugs) < 0.7


def test_files_hold_what_was_made(tmp_path: Path) -> None:
    write_corpus(tmp_path, sentences=40)
    for habit in HABITS:
        names = dict(zip(TYPES, habit.names, strict=True))
        for split in SPLITS:
            made = documents(habit.site, split, sentences=40)
            reading = read(tmp_path / habit.path(split))
            assert reading.format == habit.format
            assert not reading.problems
            for type, name in names.items():
                found = mentions(list(reading.documents), name)
                assert Counter(m.replace(" ", "") for m in found) == Counter(
                    m.replace(" ", "") for m in mentions(made, type)
                )


def test_the_settings_are_short_and_load(tmp_path: Path) -> None:
    settings = load_settings(write_corpus(tmp_path, sentences=16))
    assert [site.name for site in settings.site] == SITES
    for site in settings.site:
        assert all(Path(path).exists() for path in (*site.train, *site.dev, *site.test))
        assert set(site.tags.values()) in (set(), set(TYPES))
    assert settings.key is not None
    assert Path(settings.key).exists()
    assert len(settings_text().splitlines()) <= 30
    assert tomllib.loads(settings_text(seed=7))["seed"] == 7


def test_it_says_that_it_is_made_up(tmp_path: Path) -> None:
    settings = write_corpus(tmp_path, sentences=16)
    assert "SYNTHETIC" in (tmp_path / "README.txt").read_text()
    assert "SYNTHETIC" in settings.read_text()


def test_writing_again_replaces_and_nothing_else_is_touched(tmp_path: Path) -> None:
    write_corpus(tmp_path / "a", sentences=80)
    write_corpus(tmp_path / "a", sentences=16)
    write_corpus(tmp_path / "b", sentences=16)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(DataError, match="holds other files"):
        write_corpus(tmp_path / "mine")


@each(("site", "split", "sentences"), [
    ("dentist", "train", 240), ("oncology", "valid", 240), ("oncology", "train", 7),
])  # fmt: skip
def test_what_there_is_not(site: str, split: str, sentences: int) -> None:
    with pytest.raises(DataError, match="no such synthetic text"):
        documents(site, split, sentences=sentences)
