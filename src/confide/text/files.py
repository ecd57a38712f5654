"""Bytes of a user's file to text, strictly: what cannot be read is said with offset and line."""

from __future__ import annotations

import codecs
import gzip
import zlib
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError, SettingsError
from confide.text.archives import read_member

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if they are gzip. It may be in an archive: `a.zip!/file`.

    Raises:
        MissingDataError: there is no such file.
        FormatError: it is a folder, or damaged gzip, or in an archive that cannot be read.
        DataError: the system does not let us read it.
    """
    try:
        member = read_member(path)
        raw = path.read_bytes() if member is None else member
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such file", where=str(path), fix="check the path"
        ) from error
    except IsADirectoryError as error:
        raise FormatError("a folder, not a file", where=str(path)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be read ({error})", where=str(path)) from error
    if not raw.startswith(b"\x1f\x8b"):
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"the gzip file is damaged ({error})", where=str(path)) from error


def read_text(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """The text of a file and the encoding it was read with; line ends stay as they are.

    Without `encoding`: what a byte order mark says, else UTF-8. A mark at the start is removed.

    Raises:
        FormatError: a byte that the encoding does not allow (with its offset and line, and an
            encoding that would do), or a NUL character.
        SettingsError: there is no encoding of that name.
    """
    return decode(read_bytes(path), str(path), encoding=encoding)


def decode(raw: bytes, where: str, *, encoding: str | None = None) -> tuple[str, str]:
    """`read_text` for bytes that are already in memory; `where` names them in errors."""
    marked = next((name for mark, name in _MARKS if raw.startswith(mark)), "utf-8")
    name = encoding or marked
    try:
        text = raw.decode(name)
        text.encode("utf-8")
    except LookupError as error:
        raise SettingsError(
            "the encoding is not known",
            got=repr(encoding),
            expected="a name such as utf-8, windows-1252 or latin-1",
        ) from error
    except UnicodeDecodeError as error:
        raise _undecodable(raw, where, name, error.start) from error
    except (UnicodeError, ValueError) as error:
        raise FormatError(f"the file is not {name}: {error}", where=where) from error
    text = text.removeprefix("\ufeff")
    position = text.find("\0")
    if position >= 0:
        raise FormatError(
            "a NUL character: a binary file, or UTF-16 without a byte order mark",
            where=f"{where}:{text.count(chr(10), 0, position) + 1}",
            expected="text",
            fix='state the encoding (encoding = "utf-16-le") or remove the character',
        )
    return text, "utf-8" if name == "utf-8-sig" else name


def _undecodable(raw: bytes, where: str, name: str, offset: int) -> FormatError:
    """The error for bytes that are not in their encoding, with a remedy where one is known."""
    line = raw.count(b"\n", 0, offset) + 1
    fix = "state the encoding of the file"
    if name.startswith("utf-8"):
        other = likely_encoding(raw)
        if other is None:
            what = "is UTF-8 up to here: two encodings may be mixed; repair this line"
            fix = f"the file {what}, or state an encoding for the whole file"
        else:
            fix = f'state the encoding; every byte of the file is valid as encoding = "{other}"'
    return FormatError(
        f"byte {raw[offset]:#04x} at byte offset {offset} is not {name.removesuffix('-sig')}",
        where=f"{where}:{line}",
        fix=fix,
    )


def likely_encoding(raw: bytes) -> str | None:
    """The single-byte encoding that bytes may be in: none if they are UTF-8, marked, or mixed."""
    if b"\0" in raw or any(raw.startswith(mark) for mark, _ in _MARKS):
        return None
    try:
        raw.decode("utf-8")
        return None
    except UnicodeDecodeError as error:
        if not raw[: error.start].isascii():
            return None
    try:
        raw.decode("windows-1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "windows-1252"


def lines_of(text: str) -> list[str]:
    """The lines of a text, split at LF and CR LF only (at CR where there is no LF).

    `str.splitlines` would also split at U+2028, U+0085 and form feeds, which tokens may hold.
    """
    if "\n" not in text:
        text = text.replace("\r", "\n")
    return text.replace("\r\n", "\n").split("\n")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8, line ends as they are, and make the folders that are missing.

    Raises:
        DataError: the system does not let us write there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", errors="replace"))
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be written ({error})", where=str(path)) from error
