"""i2b2 2009: entries of medications beside notes."""

from __future__ import annotations

import pytest

from confide.errors import FormatError, MissingDataError
from confide.text.formats import Options, detect, read
from text.formats import published
from text.formats.samples import links, mentions
from text.generated import kinds, put


def test_entries(tmp_path):
    path = put(tmp_path, "entries/11995.i2b2.entries", published.ENTRIES_2009)
    put(tmp_path, "text/11995", published.NOTE_2009)
    for place in (path, tmp_path):
        reading = read(place, "i2b2-2009")
        (note,) = reading.documents
        assert (detect(path), note.id) == ("i2b2-2009", "11995")
        assert mentions(note) == [
            ("medication", "aspirin"), ("dosage", "81 mg"), ("mode", "po"), ("frequency", "daily"),
            ("reason", "chest pain"), ("medication", "other drug"),
        ]  # fmt: skip
        assert links(note)[0] == ("dosage", "aspirin", "81 mg")
        assert [e.attributes for e in note.entities if e.type == "medication"] == [
            (("listed", "narrative"),), (("listed", "list"),),
        ]  # fmt: skip
        assert reading.problems == []


def test_several_pieces_and_what_does_not_fit(tmp_path):
    line = 'm="aspirin" 2:2 2:2||f="he ... daily" 2:0 2:0,2:6 2:6||r="pain" 9:1 9:1||x="y"\n'
    put(tmp_path, "n", published.NOTE_2009)
    reading = read(put(tmp_path, "n.entries", line), "i2b2-2009")
    assert mentions(reading.documents[0])[1] == ("frequency", "He daily")
    assert kinds(reading.problems) == ["beyond-text", "key-ignored"]


def test_other_digits_are_no_place(tmp_path):
    """A field with an Arabic digit in its place made an entity without a fragment (ValueError)."""
    put(tmp_path, "n", published.NOTE_2009)
    line = 'm="aspirin" 2:2 2:2||mo="po" 2:\u0661 2:5\n'
    with pytest.raises(FormatError, match="not an entry"):
        read(put(tmp_path, "n.entries", line), "i2b2-2009")


def test_a_note_without_its_text(tmp_path):
    folder = tmp_path / "notes"  # no folder of another test lies beside it
    folder.mkdir()
    put(folder, "a.entries", published.ENTRIES_2009)
    with pytest.raises(MissingDataError, match="the text of the entries is missing"):
        read(folder / "a.entries")
    put(folder, "b.entries", published.ENTRIES_2009)
    put(folder, "b.txt", published.NOTE_2009)
    reading = read(folder, "i2b2-2009", options=Options(skip_broken=True))
    assert [one.id for one in reading.documents] == ["b"]
    assert kinds(reading.problems) == ["broken-document"]


def test_no_entry(tmp_path):
    put(tmp_path, "n", published.NOTE_2009)
    with pytest.raises(FormatError, match="not an entry"):
        read(put(tmp_path, "n.entries", 'm="a" 1:0 1:0||do=81\n'), "i2b2-2009")
