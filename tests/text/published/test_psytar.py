"""The PsyTAR workbook: reviews, sentences in order, mentions in their sentences."""

from __future__ import annotations

import io
import sys
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import Workbook

from confide.corpora.dealing import partition
from confide.errors import ConfideError, DataError, FormatError, MissingDataError, SettingsError
from confide.text.checking import check, convert
from confide.text.formats import detect, read, write
from confide.text.tagging import flat_spans
from text.generated import kinds, put

KEYS = ["drug_id", "sentence_index", "sentences"]
LABELLED = [
    ["zoloft.1", 2, "It helped my anxiety."],
    ["zoloft.1", 1, "Muscle and joint pain. No sleep."],
    ["EffexorXR.7", 1, "None"],
]
MENTIONS = {
    "ADR": [["zoloft.1", 1, "Muscle and joint pain. No sleep.", "Muscle pain", None, "no sleep"]],
    "SSI": [["zoloft.1", 2, "It helped my anxiety.", "anxiety"]],
    "DI": [["zoloft.1", 2, "It helped my anxiety.", "anxeity"]],
}


def book(labelled=LABELLED, mentions=MENTIONS, keys=KEYS):
    """The bytes of a workbook; the sheets have more columns than we read, in another order."""
    whole = Workbook()
    sheet = whole.active
    sheet.title = "Sentence_Labeling"
    sheet.append(["id", *keys, "ADR"])
    for number, row in enumerate(labelled, 1):
        sheet.append([number, *row, 1])
    for type in ("ADR", "WD", "SSI", "DI"):
        sheet = whole.create_sheet(f"{type}_Identified")
        sheet.append(["id", *KEYS, *(f"{type}{number}" for number in range(1, 5))])
        for row in mentions.get(type, []):
            sheet.append([None, *row])
    whole.create_sheet("read_me").append(["Tabs"])
    buffer = io.BytesIO()
    whole.save(buffer)
    return buffer.getvalue()


def marks(document):
    return [(entity.type, document.surface(entity)) for entity in document.entities]


def test_reviews_sentences_and_mentions(tmp_path):
    path = put(tmp_path, "p.xlsx", book())
    reading = read(path)
    first, second = reading.documents
    assert (reading.format, first.id, second.id) == ("psytar", "zoloft.1", "EffexorXR.7")
    assert first.text == "Muscle and joint pain. No sleep.\nIt helped my anxiety."
    assert [(s.start, s.end) for s in first.sentences] == [(0, 32), (33, 54)]
    assert marks(first) == [
        ("ADR", "Muscle pain"),
        ("ADR", "No sleep"),
        ("DI", "anxiety"),
        ("SSI", "anxiety"),
    ]
    assert first.entities[0].fragments == ((0, 6), (17, 21))
    assert second.attributes == (("domain", "effexorxr"), ("drug", "effexorxr"))
    assert first.source == f"{path}#Sentence_Labeling:2"
    assert [(p.kind, p.where, p.lost) for p in reading.problems] == [
        ("text-mismatch", f"{path}#DI_Identified:2", False)
    ]
    assert reading.details["mentions"] == (
        "1 as written, 1 but for case and punctuation, 1 in pieces, 1 misspelt"
    )


def test_a_flat_tagger_keeps_the_indication(tmp_path):
    document = read(put(tmp_path, "p.xlsx", book())).documents[0]
    spans, problems = flat_spans(document)
    assert spans == [[(5, 7, "ADR")], [(3, 4, "DI")]]
    assert kinds(problems) == ["discontinuous", "nested"]


def test_drugs_are_domains(tmp_path):
    documents = read(put(tmp_path, "p.xlsx", book())).documents
    dealt = partition(documents, 2, by="domain")
    assert [[document.id for document in share] for share in dealt.values()] == [
        ["EffexorXR.7"],
        ["zoloft.1"],
    ]


def test_what_is_not_placed_is_named(tmp_path):
    labelled = [["a.1", 1, "Some pain."], ["a.1", 1.0, "Other pain, pain."], ["a.2", 1, "  "]]
    mentions = {
        "ADR": [
            ["a.1", 1, "Other pain, pain.", "pain", "rash"],
            ["a.1", 9, "Else.", "pain"],
            ["b.1", 1, "Else.", "pain"],
        ],
        "WD": [["a.1", 1, "Unlike both", "pain", "pain"], ["a.2", 1, " ", None]],
        "SSI": [["a.1", "x", "Some pain.", "pain"]],
    }
    path = put(tmp_path, "p.xlsx", book([*labelled, [None, None, None]], mentions))
    reading = read(path)
    first, second = reading.documents
    assert (first.text, second.text) == ("Some pain.\nOther pain, pain.", "")
    assert [(e.type, e.start) for e in first.entities] == [("WD", 5), ("ADR", 17)]
    assert [(p.kind, p.where.rpartition("#")[2], p.lost) for p in reading.problems] == [
        ("duplicate-index", "Sentence_Labeling:3", False),
        ("empty-sentence", "Sentence_Labeling:4", False),
        ("ambiguous-mention", "ADR_Identified:2", False),
        ("mention-not-found", "ADR_Identified:2", True),
        ("mention-not-found", "ADR_Identified:3", True),
        ("mention-not-found", "ADR_Identified:4", True),
        ("duplicate-mention", "WD_Identified:2", False),
        ("row-without-key", "SSI_Identified:2", True),
    ]
    assert reading.details["mentions"] == "3 as written, 3 not placed"


def test_workbooks_of_another_kind(tmp_path):
    other = Workbook()
    other.save(tmp_path / "other.xlsx")
    with pytest.raises(FormatError, match="no sheet Sentence_Labeling"):
        read(tmp_path / "other.xlsx")
    path = put(tmp_path, "keys.xlsx", book(keys=["drug", "sentence_index", "sentences"]))
    with pytest.raises(FormatError, match="no column drug_id") as caught:
        read(path)
    assert caught.value.where == f"{path}#Sentence_Labeling:1"
    with pytest.raises(DataError, match="no review"):
        read(put(tmp_path, "none.xlsx", book([], {})))
    with pytest.raises(FormatError, match="not a workbook"):
        read(put(tmp_path, "text.xlsx", "a\tO\n"), "psytar")
    with pytest.raises(FormatError, match="damaged"):
        read(put(tmp_path, "cut.xlsx", book()[:2000]))
    with pytest.raises(MissingDataError):
        read(tmp_path / "nowhere.xlsx")
    with pytest.raises(DataError, match="not declared"):
        read(put(tmp_path, "p.xlsx", book()), types=["ADR"])


def test_without_openpyxl(tmp_path, monkeypatch):
    path = put(tmp_path, "p.xlsx", book())
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert detect(path) == "psytar"
    with pytest.raises(SettingsError, match=r"openpyxl.*pip install 'confide\[xlsx\]'"):
        read(path)


def test_detection_folders_and_writing(tmp_path):
    path = put(tmp_path, "in/p.xlsx", book())
    assert (detect(path), detect(path.parent)) == ("psytar", "psytar")
    assert read(path.parent).documents == read(path).documents
    report = check(path)
    assert report.types == {"ADR": 2, "DI": 1, "SSI": 1}
    assert report.details[str(path)].startswith("PsyTAR workbook, mentions 1 as written")
    with pytest.raises(SettingsError, match="only read"):
        write(report.documents, tmp_path / "q.xlsx", "psytar")
    convert(path, "jsonl", tmp_path / "p.jsonl")
    again = read(tmp_path / "p.jsonl").documents
    content = [(d.id, d.text, d.entities, d.sentences, d.attributes) for d in report.documents]
    assert [(d.id, d.text, d.entities, d.sentences, d.attributes) for d in again] == content


def test_more_rows_than_a_sheet_states(tmp_path):
    """Programs that stream a sheet may write its size before they know it."""
    source = zipfile.ZipFile(io.BytesIO(book()))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.startswith("xl/worksheets/"):
                start, end = content.index(b"<dimension"), content.index(b"<sheetViews")
                content = content[:start] + b'<dimension ref="A1:B1"/>' + content[end:]
            target.writestr(name, content)
    assert read(put(tmp_path, "a.xlsx", buffer.getvalue())).documents[0].text.startswith("Muscle")


# --- fuzz ---------------------------------------------------------------------------------

CELLS = st.one_of(
    st.none(),
    st.sampled_from(["a.1", "a.2", "pain", "Pain, pain", "Some pains.", " ", "_xD800_", "=1/0"]),
    st.integers(-1, 2),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8),
)
ROWS = st.lists(st.lists(CELLS, max_size=6), max_size=5)


@settings(max_examples=15)
@given(ROWS, ROWS)
def test_any_cells(tmp_path_factory, labelled, mentions):
    content = book(labelled, {"ADR": mentions, "SSI": mentions})
    survives(put(tmp_path_factory.mktemp("fuzz"), "p.xlsx", content))


@settings(max_examples=30)
@given(st.data())
def test_bytes_that_were_changed(tmp_path_factory, data):
    content = bytearray(CONTENT)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(4, len(content)) | st.just(len(content)))
    survives(put(tmp_path_factory.mktemp("fuzz"), "p.xlsx", bytes(content[:end])))


CONTENT = book()


def survives(path):
    """Read; only our own errors may come, and every entity lies in its text."""
    try:
        reading = read(path)
    except ConfideError as error:
        assert str(error)
        return
    for document in reading.documents:
        assert all(0 <= e.start < e.end <= len(document.text) for e in document.entities)
        flat_spans(document)
    for name in ("jsonl", "brat", "conll"):
        write(reading.documents, path.parent / name, name)
