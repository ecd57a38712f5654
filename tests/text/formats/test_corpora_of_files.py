"""Which files belong together, told by their names."""

from __future__ import annotations

import pytest

from cases import each
from confide.errors import MissingDataError
from confide.text.formats import group_corpora
from text.generated import put

CONLL = "a\tB-X\n"


def names(folder, *given):
    """Corpora as {name: {part: [file names]}}, empty parts left out."""
    found = group_corpora([folder / name for name in given] or [folder])
    return {
        corpus: {part: [file.name for file in files] for part, files in parts.items() if files}
        for corpus, parts in found.items()
    }


@each(
    ("files", "expected"),
    [
        (["a.tsv"], {"a": {"train": ["a.tsv"]}}),
        (["north.tsv", "south.tsv"], {n: {"train": [f"{n}.tsv"]} for n in ("north", "south")}),
        (
            ["CDR_DevelopmentSet.txt.gz", "CDR_TestSet.txt.gz", "CDR_TrainingSet.txt.gz"],
            {
                "CDR": {
                    "train": ["CDR_TrainingSet.txt.gz"],
                    "dev": ["CDR_DevelopmentSet.txt.gz"],
                    "test": ["CDR_TestSet.txt.gz"],
                }
            },
        ),
        (
            ["emerging.dev.conll", "emerging.test.annotated", "wnut17train.conll"],
            {
                "wnut17": {
                    "train": ["wnut17train.conll"],
                    "dev": ["emerging.dev.conll"],
                    "test": ["emerging.test.annotated"],
                }
            },
        ),
        (
            ["a-train.x", "a-valid.x", "b-train.x", "b.test.x"],
            {
                "a": {"train": ["a-train.x"], "dev": ["a-valid.x"]},
                "b": {"train": ["b-train.x"], "test": ["b.test.x"]},
            },
        ),
        (
            ["ewt-ud-dev.iob2", "ewt-ud-test.iob2"],
            {"ewt-ud": {"train": ["ewt-ud-dev.iob2"], "test": ["ewt-ud-test.iob2"]}},
        ),
        (["only_test.x"], {"only": {"train": ["only_test.x"]}}),
        (["contest.x", "valid8.x"], {"contest": {"train": ["contest.x"], "dev": ["valid8.x"]}}),
        (["train.x", "README.md", ".hidden"], {"data": {"train": ["train.x"]}}),
    ],
)
def test_parts_by_name(tmp_path, files, expected):
    for file in files:
        put(tmp_path, f"data/{file}", CONLL)
    found = names(tmp_path / "data")
    assert found == expected
    assert list(found) == list(expected)


def test_folders_are_corpora_and_brat_folders_are_files(tmp_path):
    for site in ("north", "south"):
        put(tmp_path, f"sites/{site}/train.conll", CONLL)
        put(tmp_path, f"sites/{site}/test.conll", CONLL)
    put(tmp_path, "sites/README.md", "x")
    put(tmp_path, "sites/east/train/a.ann", "")
    put(tmp_path, "sites/east/test/a.ann", "")
    put(tmp_path, "sites/west/a.ann", "")
    assert names(tmp_path / "sites") == {
        "east": {"train": ["train"], "test": ["test"]},
        "north": {"train": ["train.conll"], "test": ["test.conll"]},
        "south": {"train": ["train.conll"], "test": ["test.conll"]},
        "west": {"train": ["west"]},
    }


def test_folders_named_train_and_dev_hold_the_parts_of_one_corpus(tmp_path):
    """They were two sites: train/ and dev/ each trained a model."""
    for file in ("d/train/a.conll", "d/dev/b.conll", "d/test/c.conll"):
        put(tmp_path, file, CONLL)
    expected = {"d": {"train": ["a.conll"], "dev": ["b.conll"], "test": ["c.conll"]}}
    assert names(tmp_path, "d") == names(tmp_path, "d/train", "d/dev", "d/test") == expected
    assert names(tmp_path, "d/train/a.conll", "d/dev/b.conll") == {
        "d": {"train": ["a.conll"], "dev": ["b.conll"]}
    }


def test_files_of_the_same_names_in_train_and_dev_are_a_corpus_each(tmp_path):
    for part in ("train", "dev"):
        for site in ("north", "south"):
            put(tmp_path, f"{part}/{site}.conll", CONLL)
    assert names(tmp_path) == {
        site: {"train": [f"{site}.conll"], "dev": [f"{site}.conll"]} for site in ("north", "south")
    }


def test_a_folder_train_by_itself_says_nothing(tmp_path):
    for file in ("train/north.conll", "train/south.conll", "data/dev/east.conll"):
        put(tmp_path, file, CONLL)
    assert set(names(tmp_path)) == {"north", "south", "east"}


def test_names_are_distinct_and_plain(tmp_path):
    for file in ("a/x.conll", "b/x.conll", "ü ß/….conll", "b/x.tsv"):
        put(tmp_path, file, CONLL)
    found = names(tmp_path, "a/x.conll", "b/x.conll", "ü ß/….conll", "b/x.conll")
    assert list(found) == ["a-x", "b-x", "site"]


def test_an_empty_folder(tmp_path):
    with pytest.raises(MissingDataError):
        group_corpora([tmp_path])
    assert group_corpora([]) == {}
