"""Files of the user's: written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from cases import each
from confide.errors import DataError
from confide.files import write_atomically, write_whole
from confide.text.files import write_parts, write_text


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut-off file was left, which looked like a shorter corpus."""
    path = tmp_path / "x.jsonl"
    path.write_text("before")

    def full(file: IO[bytes], data: bytes) -> None:
        file.write(b"aft")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("confide.files._write", full)
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


def parts_and_whole(path: Path, parts: Iterator[bytes]) -> None:
    write_atomically(path, *parts)


@each("write", [write_whole, parts_and_whole])
def test_two_that_write_one_path_leave_what_one_of_them_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., None]
) -> None:
    """They share the name of the unfinished file: one renamed what the other still wrote."""
    path, real = tmp_path / "found.jsonl", Path.replace
    other = threading.Thread(target=write, args=(path, iter([b"short"])))

    def parts() -> Iterator[bytes]:
        yield b"the first half, "
        yield b"the second half"

    def replace(fresh: Path, to: Path) -> Path:
        if not other.ident:  # the first is written and not yet in its place
            other.start()
            other.join(0.3)
        return real(fresh, to)

    monkeypatch.setattr(Path, "replace", replace)
    write(path, parts())
    other.join()
    assert path.read_bytes() == b"short"  # the second waited, and came after
    assert [file.name for file in tmp_path.iterdir()] == ["found.jsonl"]


def test_an_unfinished_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "x.jsonl"
    elsewhere.write_text("mine")
    (tmp_path / ".x.jsonl.new").symlink_to(elsewhere)
    with pytest.raises(DataError, match="cannot be written"):
        write_text(path, "theirs")
    assert elsewhere.read_text() == "mine"
