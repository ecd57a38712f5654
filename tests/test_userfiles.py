"""Files of the user's: written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from confide.errors import DataError
from confide.text.files import write_text
from confide.userfiles import write_whole


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut-off file was left, which looked like a shorter corpus."""
    path = tmp_path / "x.jsonl"
    path.write_text("before")

    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DataError, match="No space left"):
        write_text(path, "after and more")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]


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
