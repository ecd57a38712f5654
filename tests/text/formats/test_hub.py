"""Rows of tokens and tags, against Hugging Face's own `datasets`."""

from __future__ import annotations

import json
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")

from cases import each
from confide.errors import DataError, FormatError, SettingsError
from confide.text.document import Document, Entity
from confide.text.formats import detect, read, write
from text.formats import published
from text.formats.samples import laid, mentions
from text.generated import kinds, put

NOTE = Document("n", "Rash  after\tvarelozil.\nNo pain.", (
    Entity("T1", "ADE", ((0, 4),)), Entity("T2", "DRUG", ((12, 21),)),
    Entity("T3", "ADE", ((26, 30),)),
))  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def theirs():
    """A dataset that confide has not made."""
    names = ["O", "B-X", "I-X"]
    features = datasets.Features({
        "id": datasets.Value("string"), "words": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(datasets.ClassLabel(names=names)),
        "pos": datasets.List(datasets.Value("string")),
    })  # fmt: skip
    rows = [{"id": "1", "words": ["New", "York", "won"], "ner_tags": [1, 2, 0], "pos": ["a"] * 3},
            {"id": "2", "words": [], "ner_tags": [], "pos": []}]  # fmt: skip
    return datasets.Dataset.from_list(rows, features=features)


@each("form", ["parquet", "folder", "dict", "arrow"])
def test_what_datasets_wrote_is_read_with_its_names(tmp_path, form):
    data, path = theirs(), tmp_path / f"a.{form}"
    if form == "parquet":
        data.to_parquet(path)
    elif form == "dict":
        datasets.DatasetDict({"train": data, "test": data}).save_to_disk(path)
    else:
        data.save_to_disk(path)
    if form == "arrow":
        path = next(path.glob("*.arrow"))
        assert read(path).documents
    reading = read(path)
    assert (detect(path), reading.format, reading.details["scheme"]) == ("datasets",) * 2 + (
        "iob2",
    )
    assert [mentions(one) for one in reading.documents] == [[("X", "New York")]] * (
        2 if form == "dict" else 1
    )
    assert set(kinds(reading.problems)) == {"key-ignored", "empty-document"}
    assert not any(problem.lost for problem in reading.problems)


@each("name", ["a.parquet", "folder", "a.jsonl", "a.csv"])
def test_what_we_write_comes_back_and_opens_there(tmp_path, name):
    path = tmp_path / name
    assert kinds(write([NOTE], path, "datasets")) == []
    reading = read(path)
    assert [one.text for one in reading.documents] == ["Rash  after\tvarelozil.", "No pain."]
    assert [mentions(one) for one in reading.documents] == [
        [("ADE", "Rash"), ("DRUG", "varelozil")], [("ADE", "pain")],
    ]  # fmt: skip
    if name == "folder":
        opened = datasets.load_from_disk(str(path))
    elif name == "a.parquet":
        opened = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "c"))
    else:
        return
    assert opened.features["ner_tags"].feature.names == ["O", "B-ADE", "I-ADE", "B-DRUG", "I-DRUG"]
    assert opened[0]["ner_tags"] == [1, 0, 3, 0]


def test_numbers_are_named_by_a_card_or_a_map_beside_the_file(tmp_path):
    path = laid(tmp_path / "card", "train.csv", published.HF_CSV, README__md=published.HF_CARD)
    assert [mentions(one) for one in read(path).documents] == [
        [("ORG", "EU"), ("MISC", "German")], [("PER", "Peter Blackburn")],
    ]  # fmt: skip
    for number, names in enumerate(({"O": 0, "B-X": 1}, {"0": "O", "1": "B-X"})):
        row = json.dumps({"tokens": ["a", "b"], "tags": [0, 1]})
        beside = {"label2id__json": json.dumps(names)}
        path = laid(tmp_path / str(number), "a.json", row, **beside)
        assert mentions(read(path).documents[0]) == [("X", "b")]
        put(tmp_path / str(number), "a.json", row.replace("1", "2"))
        with pytest.raises(FormatError, match="expected from 0 to 1; got 2"):
            read(path)
    with pytest.raises(DataError, match="the tags are numbers, and nothing names them"):
        read(put(tmp_path, "bare.json", json.dumps({"tokens": ["a"], "ner_tags": [3]})))


def test_columns_by_name(tmp_path):
    from confide.text.formats import Options

    row = json.dumps({"form": ["a", "b"], "type": ["B-X", "O"], "other": ["c", "d"]})
    path = put(tmp_path, "a.json", row)
    assert mentions(read(path, "datasets", columns=("form", "type")).documents[0]) == [("X", "a")]
    assert read(path, "datasets", columns=("form", None)).documents[0].entities == ()
    assert mentions(read(path, "datasets", options=Options(columns=(0, 1))).documents[0])
    with pytest.raises(FormatError, match="state the columns"):
        read(path, "datasets")


@each(("row", "said"), [
    ({"tokens": ["a"], "ner_tags": ["O", "O"]}, "expected 1 tags; got 2"),
    ({"tokens": ["a"], "ner_tags": [None]}, "a tag"),
    ({"tokens": "a", "ner_tags": ["O"]}, "a list of strings"),
    ({"tokens": ["a", 1], "ner_tags": ["O", "O"]}, "a list of strings"),
])  # fmt: skip
def test_rows_of_another_form(tmp_path, row, said):
    with pytest.raises((DataError, FormatError), match=said):
        read(put(tmp_path, "a.json", json.dumps(row)))


def test_a_list_that_numpy_cut_is_refused(tmp_path):
    table = "tokens,ner_tags\n\"['a' 'b' ... 'c']\",\"[0 1 ... 2]\"\n"
    with pytest.raises(FormatError, match="a list whose middle was left out"):
        read(put(tmp_path, "a.csv", table), "datasets")


def test_offsets_that_do_not_fit_are_not_believed(tmp_path):
    row = {"text": "ab  c", "tokens": ["ab", "c"], "ner_tags": ["B-X", "O"]}
    good, other = [[0, 2], [4, 5]], [[0, 2], [3, 5]]
    for offsets in (good, other, good[:1], [*good, [5, 5]], "x", 5, None):
        path = put(tmp_path, "a.json", json.dumps({**row, "offsets": offsets}))
        (document,) = read(path).documents
        assert document.text == ("ab  c" if offsets is good else "ab c")
        (sentence,) = document.sentences
        assert (sentence.start, sentence.end) == (0, len(document.text))


def test_a_small_file_that_holds_a_huge_one(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": pa.array(["x" * 1000] * 150_000).dictionary_encode()})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(FormatError, match="holds more than"):
        read(tmp_path / "a.parquet")


def test_a_saved_split_reads_no_file_outside_its_folder(tmp_path):
    theirs().save_to_disk(tmp_path / "x")
    state = json.dumps({"_data_files": [{"filename": "../secret.arrow"}]})
    put(tmp_path, "x/state.json", state)
    with pytest.raises(FormatError, match="a saved dataset without files"):
        read(tmp_path / "x")


def test_without_pyarrow(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SettingsError, match=r"pyarrow.*pip install 'confide\[datasets\]'"):
        read(put(tmp_path, "a.parquet", b"PAR1" + bytes(50)))
