"""Files inside archives: read as they lie there, and nothing is written or followed."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import ConfideError, FormatError, MissingDataError
from confide.text import files
from confide.text.files import archive_member, exists, files_below, is_folder, read_bytes
from confide.text.formats import read
from confide.text.published.catalogue import VARIABLE, locate

XML = (
    '<document id="d1"><sentence id="d1.s0" text="Aspirin rash">'
    '<entity id="e0" charOffset="0-6" type="drug" text="Aspirin"/></sentence></document>'
)
FILES = {
    "corpus/Train/A/1.xml": XML.encode(),
    "corpus/Train/B/2.xml": XML.replace("d1", "d2").encode(),
    "corpus/Train/B/.DS_Store": b"\0",
    "corpus/Test/3.xml": XML.replace("d1", "d3").encode(),
    "pairs.tsv": b"@GENE$ and @DISEASE$ .\t1\nno @GENE$ or @DISEASE$ .\t0\n",
}


def zipped(folder: Path, files: dict[str, bytes], name: str = "a.zip") -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("corpus/Empty/", b"")
        for member, raw in files.items():
            archive.writestr(member, raw)
    return folder / f"{name}!"


def tarred(folder: Path, files: dict[str, bytes], name: str = "a.tar.gz") -> Path:
    with tarfile.open(folder / name, "w:gz") as archive:
        for member, raw in files.items():
            item = tarfile.TarInfo(member)
            item.size = len(raw)
            archive.addfile(item, io.BytesIO(raw))
    return folder / f"{name}!"


@pytest.fixture(params=[zipped, tarred])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    found: Path = request.param(tmp_path, FILES)
    return found


def test_a_file_and_a_folder(packed: Path) -> None:
    assert read_bytes(packed / "corpus" / "Test" / "3.xml") == FILES["corpus/Test/3.xml"]
    whole = read(packed / "corpus" / "Train")
    assert (whole.format, [document.id for document in whole.documents]) == ("ddi", ["d1", "d2"])
    assert whole.documents[0].source == str(packed / "corpus" / "Train" / "A" / "1.xml")
    assert [d.id for d in read(packed, "ddi").documents] == ["d3", "d1", "d2"]
    pairs = read(packed / "pairs.tsv")
    assert (pairs.format, len(pairs.documents)) == ("biobert", 2)
    assert pairs.documents[1].source == f"{packed / 'pairs.tsv'}:2"


def test_what_is_there(packed: Path) -> None:
    assert is_folder(packed / "corpus") and is_folder(packed)
    assert not is_folder(packed / "pairs.tsv") and not is_folder(packed / "nothing")
    assert exists(packed / "corpus" / "Train") and exists(packed / "pairs.tsv")
    assert not exists(packed / "corpus" / "Trai")
    below = {str(path.relative_to(packed)) for path in files_below(packed / "corpus" / "Train")}
    assert below == {name for name in FILES if name.startswith("corpus/Train/")}
    assert list(files_below(packed.parent)) == []


def test_nothing_is_written(packed: Path) -> None:
    before = sorted(packed.parent.rglob("*"))
    read(packed / "corpus" / "Train")
    assert sorted(packed.parent.rglob("*")) == before


def test_what_is_not_there_is_named(packed: Path) -> None:
    with pytest.raises(MissingDataError, match=r"no such file in the archive.*after the !"):
        read_bytes(packed / "corpus" / "4.xml")
    with pytest.raises(FormatError, match="a folder in an archive"):
        read_bytes(packed / "corpus")
    with pytest.raises(MissingDataError, match="no such archive"):
        read_bytes(packed.parent / "b.zip!" / "a")
    with pytest.raises(FormatError, match=r"what is in it: a\.(zip|tar\.gz)! .*!/folder/file"):
        read(packed.with_name(packed.name.rstrip("!")))


def test_under_the_folder_of_corpora(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(packed.parent))
    assert locate(f"${VARIABLE}/{packed.name}/corpus/Train") == packed / "corpus" / "Train"
    with pytest.raises(MissingDataError, match="does not lie under"):
        locate(f"${VARIABLE}/{packed.name}/corpus/Dev")


def test_a_changed_archive_is_read_again(tmp_path: Path) -> None:
    packed = zipped(tmp_path, {"a": b"1"})
    assert read_bytes(packed / "a") == b"1"
    zipped(tmp_path, {"a": b"22"})
    assert read_bytes(packed / "a") == b"22"


def test_a_folder_on_disk_goes_before_an_archive_of_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "a.zip!"
    folder.mkdir()
    (folder / "x").write_bytes(b"disk")
    assert archive_member(folder / "x") is not None
    assert read_bytes(folder / "x") == b"disk"
    assert is_folder(folder) and exists(folder / "x")


@each("make", [zipped, tarred])
@each("name", ["../out", "/etc/out", "a/../../out"])
def test_names_that_lead_out_are_no_files(tmp_path: Path, make: object, name: str) -> None:
    assert callable(make)
    packed = make(tmp_path, {name: b"evil", "in": b"good"})
    assert [path.name for path in files_below(packed)] == ["in"]


def test_links_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("soft", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE)):
            item = tarfile.TarInfo(name)
            item.type, item.linkname = kind, str(tmp_path / "secret")
            archive.addfile(item)
    assert list(files_below(tmp_path / "a.tar!")) == []


@each("make", [zipped, tarred])
def test_a_bomb_is_not_unpacked(
    tmp_path: Path, make: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(make)
    monkeypatch.setattr(files, "MOST_UNPACKED", 1 << 20)
    packed = make(tmp_path, {"small": b"x", "zeros": bytes(3 << 20), "more": bytes(3 << 20)})
    with pytest.raises(FormatError, match=r"holds more than 1 MiB.*unpack it yourself"):
        read_bytes(packed / "small")


def test_a_password(tmp_path: Path) -> None:
    packed = zipped(tmp_path, {"a": b"x"})
    path = tmp_path / "a.zip"
    raw = bytearray(path.read_bytes())
    for head, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.rindex(head) + place] |= 1
    path.write_bytes(raw)
    with pytest.raises(FormatError, match=r"cannot be unpacked.*password"):
        read_bytes(packed / "a")


@pytest.mark.parametrize("make", [zipped, tarred])
@given(data=st.data())
def test_damage_is_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, make: object, data: st.DataObject
) -> None:
    assert callable(make)
    packed = make(tmp_path_factory.mktemp("damage"), FILES)
    path = packed.with_name(packed.name.rstrip("!"))
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    try:
        read(packed / "corpus" / "Train")
    except ConfideError as error:
        assert str(path) in (error.where or "")
