"""Bags from settings to sites: held out and dealt by pair, kept apart, counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide.corpora.dealing import pairs_of
from confide.errors import DataError
from confide.runs.sites import Gathered, gather, pooled
from confide.settings import parse
from confide.text.document import Document, Entity, Relation, pair_attributes
from confide.text.formats import write


def sentence(number: int, pair: int, *, file: str = "") -> Document:
    head, tail = f"gene{pair}", f"sign{pair}"
    text = f"{head} number {number} meets {tail} ."
    entities = (
        Entity("h", "Gene", ((0, len(head)),), concepts=(f"G:{pair}",)),
        Entity("t", "Sign", ((text.index(tail), len(text) - 2),), concepts=(f"P:{pair}",)),
    )
    relations = (Relation("r", "causes", "h", "t"),) if pair % 2 else ()
    attributes = pair_attributes([("h", "t")]) + ((("file", file),) if file else ())
    return Document(f"d{number}", text, entities, relations, attributes=attributes)


def corpus(pairs: int = 30, each: int = 4, files: int = 0, first: int = 0) -> list[Document]:
    numbers = range(first, first + pairs * each)
    return [sentence(n, n % pairs, file=f"f{n % files}" if files else "") for n in numbers]


def gathered(folder: Path, **tables: Any) -> Gathered:
    split = tables.pop("split")
    for part in ("train", "dev", "test"):
        if part in split:
            path = folder / f"{part}.jsonl"
            write(split[part], path, "jsonl")
            split[part] = str(path)
    settings = parse({"task": "bags", "method": "lazy-mil", "split": split, **tables})
    return gather(settings, folder / "sites", key_file=None)


def pairs(found: Gathered, part: str) -> list[set[Any]]:
    return [set(pairs_of(getattr(spec, part))) for spec in found.specs]


def test_held_out_pairs_are_in_no_training_text_and_at_one_site(tmp_path: Path) -> None:
    split = {"sites": 5, "train": corpus(), "holdout_from": "corpus"}
    found = gathered(tmp_path, split=split)
    train, dev, test = (pairs(found, part) for part in ("train", "dev", "test"))
    assert (len(set.union(*dev)), len(set.union(*test))) == (3, 6)
    for held in (dev, test):
        assert sum(map(len, held)) == len(set.union(*held))
        assert not set.union(*held) & set.union(*train)
    assert sum(map(len, train)) > len(set.union(*train)) == 21
    assert sum(len(getattr(s, p)) for s in found.specs for p in ("train", "dev", "test")) == 120
    facts = found.facts()["sites"]["site-01"]
    assert facts["pairs"] == {part: len(pairs(found, part)[0]) for part in ("train", "dev", "test")}
    assert sum(facts["relations"].values()) > 0
    assert "apart" not in found.facts()
    whole = pooled(found, tmp_path)
    assert set(pairs_of(whole.test)) == set.union(*test)


def test_training_bags_can_be_dealt_whole_too(tmp_path: Path) -> None:
    split = {"sites": 5, "train": corpus(), "holdout_from": "corpus", "by": "pair"}
    train = pairs(gathered(tmp_path, split=split), "train")
    assert sum(map(len, train)) == len(set.union(*train)) == 21


def test_a_site_holds_out_whole_pairs_of_its_own(tmp_path: Path) -> None:
    found = gathered(tmp_path, split={"sites": 3, "train": corpus()})
    for train, dev, test in zip(*(pairs(found, p) for p in ("train", "dev", "test")), strict=True):
        assert test and not (train & dev or train & test or dev & test)


def test_what_is_held_out_does_not_hang_on_the_number_of_sites(tmp_path: Path) -> None:
    held = [
        set.union(*pairs(gathered(tmp_path, split=split), "test"))
        for sites in (2, 6)
        for split in [{"sites": sites, "train": corpus(), "holdout_from": "corpus"}]
    ]
    assert held[0] == held[1]


def test_named_test_files_keep_their_pairs_unless_apart(tmp_path: Path) -> None:
    test = corpus(5, 2, first=200)
    split = {"sites": 2, "train": corpus(), "test": test, "holdout_from": "corpus"}
    shared = gathered(tmp_path, split=dict(split))
    assert set.union(*pairs(shared, "test")) & set.union(*pairs(shared, "train"))
    found = gathered(tmp_path, split=split | {"disjoint_by": "pair"})
    assert not set.union(*pairs(found, "test")) & set.union(*pairs(found, "train"))
    assert found.facts()["apart"] == {"by": "pair", "left_out": 4 * 5}


def test_named_development_files_are_kept_apart_too(tmp_path: Path) -> None:
    dev, test = corpus(5, 2, first=200), corpus(9, 1, first=300)
    split = {"sites": 2, "train": corpus(), "dev": dev, "test": test, "disjoint_by": "pair"}
    assert gathered(tmp_path, split=split).facts()["apart"]["left_out"] == 4 * 9


@each("hold_out", ["corpus", "site"])
def test_no_file_is_in_training_and_in_test_text(tmp_path: Path, hold_out: str) -> None:
    split = {
        "sites": 2,
        "train": corpus(40, 3, files=90),
        "holdout_from": hold_out,
        "disjoint_by": "file",
    }
    found = gathered(tmp_path, split=split)

    def files(*parts: str) -> set[str]:
        held = (d for spec in found.specs for part in parts for d in getattr(spec, part))
        return {dict(document.attributes)["file"] for document in held}

    assert files("test") and not files("train") & files("test")
    left = sum(len(getattr(s, p)) for s in found.specs for p in ("train", "dev", "test"))
    assert 0 < found.facts()["apart"]["left_out"] == 120 - left


def test_bags_without_any_relation_are_refused(tmp_path: Path) -> None:
    train = [sentence(n, 2 * n) for n in range(8)]
    with pytest.raises(DataError, match=r'no training document has a relation.*task = "bags"'):
        gathered(tmp_path, split={"sites": 2, "train": train})


def test_vectors_are_those_of_the_reader(tmp_path: Path) -> None:
    split = {"sites": 2, "train": corpus(), "holdout_from": "corpus"}
    vectors = tmp_path / "v.txt"
    vectors.write_text("a 1 2\n")
    found = gathered(
        tmp_path, split=split, pcnn={"vectors": str(vectors)}, model={"vectors": "other.txt"}
    )
    assert {spec.vectors for spec in found.specs} == {vectors}
