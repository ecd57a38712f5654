"""Corrections: kept at once, whatever happens; read back, and exported in any format."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from io import BytesIO
from zipfile import ZipFile

import pytest

from cases import each
from confide import api
from confide.errors import DataError, FormatError, GuardError
from confide.serve.correcting import (
    EXPORTS,
    Corrections,
    export_corrections,
    sentence_place,
    without_replaced,
)
from confide.text.document import Document, Entity, Relation

ONE = Document(
    "d.s1",
    "Rash after drug1.",
    (Entity("a", "ADE", ((0, 4),)), Entity("b", "DRUG", ((11, 16),))),
    (Relation("R1", "causes", "b", "a"),),
)


def test_what_is_saved_is_read_again(tmp_path) -> None:
    kept = Corrections(tmp_path / "kept")
    assert kept.annotators() == [] and not kept.folder.exists()
    assert kept.save("ann", ONE) == 1
    again = Corrections(tmp_path / "kept")
    found = again.by_annotator("ann")["d.s1"]
    assert (found.text, found.entities, found.relations) == (ONE.text, ONE.entities, ONE.relations)
    assert dict(found.attributes)["annotator"] == "ann"
    assert again.annotators() == ["ann"]


def test_only_the_owner_can_read_them(tmp_path) -> None:
    Corrections(tmp_path / "kept").save("ann", ONE)
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "kept/ann.jsonl").stat().st_mode) == 0o600


def test_the_last_correction_of_a_sentence_counts(tmp_path) -> None:
    kept = Corrections(tmp_path)
    kept.save("ann", ONE)
    assert kept.save("ann", Document("d.s1", ONE.text)) == 1
    assert Corrections(tmp_path).by_annotator("ann")["d.s1"].entities == ()


@each("cut", [1, 10, 60])
def test_a_torn_last_line_is_left_out(tmp_path, cut: int) -> None:
    kept = Corrections(tmp_path)
    kept.save("ann", ONE)
    kept.save("ann", Document("d.s2", "Second."))
    file = tmp_path / "ann.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    again = Corrections(tmp_path)
    there = {"d.s1", "d.s2"} if cut == 1 else {"d.s1"}
    assert set(again.by_annotator("ann")) == there
    again.save("ann", Document("d.s3", "Third."))
    assert set(Corrections(tmp_path).by_annotator("ann")) == there | {"d.s3"}
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_file_torn_in_its_first_line(tmp_path) -> None:
    (tmp_path / "ann.jsonl").write_bytes(b'{"id": "x", "te')
    assert Corrections(tmp_path).by_annotator("ann") == {}


def test_a_damaged_line_in_the_middle_is_said(tmp_path) -> None:
    (tmp_path / "ann.jsonl").write_bytes(b"{torn\n" + b'{"id": "x", "text": "a"}\n')
    with pytest.raises(FormatError):
        Corrections(tmp_path).by_annotator("ann")


def test_a_name_cannot_leave_the_folder(tmp_path) -> None:
    for name in ("../ann", "", ".", "a/b", "a\0", "x" * 200):
        with pytest.raises(GuardError):
            Corrections(tmp_path / "kept").save(name, ONE)
    outside = tmp_path / "outside"
    outside.write_text("")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/ann.jsonl").symlink_to(outside)
    with pytest.raises(GuardError):
        Corrections(tmp_path / "kept").save("ann", ONE)
    assert outside.read_text() == ""


def test_a_full_disk_keeps_the_file_as_it_was(tmp_path, monkeypatch) -> None:
    kept = Corrections(tmp_path)
    kept.save("ann", ONE)
    before = (tmp_path / "ann.jsonl").read_bytes()
    whole = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: whole(handle, data[:7]))
    with pytest.raises(DataError):
        kept.save("ann", Document("d.s2", "Second."))
    monkeypatch.undo()
    assert (tmp_path / "ann.jsonl").read_bytes() == before
    assert set(kept.by_annotator("ann")) == {"d.s1"}


KILLED = """
import sys
from pathlib import Path
from confide.serve.correcting import Corrections
from confide.text.document import Document
kept = Corrections(Path(sys.argv[1]))
for n in range(100_000):
    kept.save("ann", Document(f"d.s{n}", f"Sentence {n}. " * 20))
    print(n, flush=True)
"""


def test_kill_9_loses_nothing_that_was_answered(tmp_path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said = [process.stdout.readline() for _ in range(30)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    numbers = {int(line) for line in said if line.endswith("\n")}
    found = {int(id.removeprefix("d.s")) for id in Corrections(tmp_path).by_annotator("ann")}
    assert len(numbers) >= 30 and numbers <= found


@each("format", EXPORTS)
def test_every_format_is_exported(tmp_path, format: str) -> None:
    raw, suffix = export_corrections([ONE], format)
    assert raw
    path = tmp_path / f"file{suffix}"
    if suffix == ".zip":
        path = tmp_path / "folder"
        ZipFile(BytesIO(raw)).extractall(path)
    else:
        path.write_bytes(raw)
    if format in ("conll", "brat", "jsonl", "doccano", "pubtator"):
        (found,) = api.read(path, None if format == "doccano" else format).documents
        assert {(one.type, found.surface(one)) for one in found.entities} == {
            ("ADE", "Rash"),
            ("DRUG", "drug1"),
        }


def test_a_sentence_is_saved_with_its_place(tmp_path) -> None:
    kept = Corrections(tmp_path)
    kept.save("ann", ONE, of="d", at=17)
    kept.save("ann", Document("e", "Whole."))
    again = Corrections(tmp_path).by_annotator("ann")
    assert sentence_place(again["d.s1"]) == ("d", 17) and sentence_place(again["e"]) is None


@each("at", ["", "-1", "x", "1.5", "9" * 5000, "²"])
def test_a_place_that_is_none_is_none(at: str) -> None:
    assert sentence_place(Document("d.s1", "a", attributes=(("of", "d"), ("at", at)))) is None


def test_a_whole_text_replaces_its_sentences(tmp_path) -> None:
    kept = Corrections(tmp_path)
    kept.save("ann", ONE, of="d", at=0)
    kept.save("ann", Document("f.s1", "Other."), of="f", at=0)
    assert list(without_replaced(kept.by_annotator("ann"))) == ["d.s1", "f.s1"]
    kept.save("ann", Document("d", "Rash after drug1. Gone."))
    assert list(without_replaced(kept.by_annotator("ann"))) == ["f.s1", "d"]


@each("format", ["jsonl", "brat", "doccano", "pubtator"])
def test_a_part_of_a_word_is_exported(tmp_path, format: str) -> None:
    part = Document("d", "Took drug1stopped.", (Entity("a", "DRUG", ((5, 10),)),))
    raw, suffix = export_corrections([part], format)
    (tmp_path / f"f{suffix}").write_bytes(raw)
    place = tmp_path / f"f{suffix}"
    if suffix == ".zip":
        ZipFile(place).extractall(tmp_path / "brat")
        place = tmp_path / "brat"
    (found,) = api.read(place).documents
    assert [(one.start, one.end, one.type) for one in found.entities] == [(5, 10, "DRUG")]


# --- several servers over one folder ----------------------------------------------------------


def test_what_another_server_saves_is_seen_and_exported(tmp_path) -> None:
    """Each sees what the other saved, also of the same annotator, and counts it."""
    one, other = Corrections(tmp_path / "kept"), Corrections(tmp_path / "kept")
    one.save("ann", Document("1", "One."))
    assert set(other.by_annotator("ann")) == {"1"}
    assert other.save("ann", Document("2", "Two.")) == 2
    assert set(one.by_annotator("ann")) == {"1", "2"}
    assert one.save("ann", Document("3", "Three.")) == 3
    other.save("ann", Document("1", "One."))
    assert set(one.by_annotator("ann")) == set(other.by_annotator("ann")) == {"1", "2", "3"}


def test_a_file_that_is_put_there_or_removed_meanwhile(tmp_path) -> None:
    kept = Corrections(tmp_path / "kept")
    kept.save("ann", Document("1", "One."))
    (kept.folder / "bob.jsonl").write_bytes((kept.folder / "ann.jsonl").read_bytes())
    assert set(kept.by_annotator("bob")) == {"1"}
    (kept.folder / "ann.jsonl").unlink()
    assert kept.by_annotator("ann") == {} and kept.save("ann", Document("2", "Two.")) == 1
    assert set(kept.by_annotator("ann")) == {"2"}


SAVES = """
import sys
from pathlib import Path
from confide.serve.correcting import Corrections
from confide.text.document import Document
kept, name = Corrections(Path(sys.argv[1])), sys.argv[2]
for n in range(60):
    kept.save("ann", Document(f"{name}{n}", "Sentence. " * 3000))
"""


@pytest.mark.slow
def test_servers_that_save_at_once_lose_nothing(tmp_path) -> None:
    """Neither takes the line that the other is writing for one that a crash tore."""
    commands = [[sys.executable, "-c", SAVES, str(tmp_path), name] for name in "abc"]
    processes = [subprocess.Popen(command) for command in commands]
    kept = Corrections(tmp_path)
    while any(one.poll() is None for one in processes):
        kept.by_annotator("ann")
    assert [one.returncode for one in processes] == [0, 0, 0]
    assert set(kept.by_annotator("ann")) == {f"{name}{n}" for name in "abc" for n in range(60)}
