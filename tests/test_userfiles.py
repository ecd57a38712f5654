"""Files of the user's: written whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from confide.errors import DataError
from confide.text.files import write_parts, write_text
from confide.userfiles import write_whole


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut-off file was left, which looked like a shorter corpus."""
    path = tmp_path / "x.jsonl"
    path.write_text("before")

    def full(path: Path, data: bytes) -> None:
        path.write_bytes(b"aft")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("confide.userfiles._write", full)
    with pytest.raises(DataError, match="No space left"):
        write_text(path, "after and more")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]


def test_parts_that_cannot_be_made_leave_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("before")

    def parts() -> Iterator[str]:
        yield "after"
        raise DataError("broken")

    with pytest.raises(DataError, match="broken"):
        write_parts(path, parts())
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]
    write_parts(path, ("é", "", "\n"))
    assert path.read_bytes() == "é\n".encode()


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("before")
    real.chmod(0o600)
    link.symlink_to(real)
    write_whole(link, b"after")
    assert link.is_symlink() and real.read_bytes() == b"after"
    assert stat.S_IMODE(real.stat().st_mode) == 0o600


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "new" / "file", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new" / "file").stat().st_mode) == 0o640


def test_what_is_no_file_is_written_as_it_is() -> None:
    write_whole(Path("/dev/null"), b"x")
    assert Path("/dev/null").is_char_device()
