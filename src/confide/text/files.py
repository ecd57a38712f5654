"""Bytes of a user's file to text, strictly: errors name the offset and the line."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError, SettingsError
from confide.text.archives import read_member
from confide.text.looks import looks_like
from confide.text.pages import must_be_no_pages
from confide.text.unpacking import GZIP, unpacked
from confide.userfiles import (
    ENCODINGS,
    NotAFileError,
    TooLargeError,
    bytes_of,
    known_encoding,
    write_whole,
)

MOST_BYTES = 1 << 31
"""The largest text file, in bytes."""
LONGEST_LINE = 1 << 24
"""The longest line, in characters; a line is held in memory with all its parts."""
LONGEST_JSON = 1 << 27
"""The longest line of JSON, in characters: some tools write a whole collection on one line."""

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
        FormatError: this is a folder, a named pipe or a device; or the file is larger than
            `MOST_BYTES`, damaged gzip, gzip that unpacks to far too much, in an archive that
            cannot be read, or a PDF or a document of a word processor.
        DataError: the system refuses to read it.
    """
    try:
        member = read_member(path)
        raw = bytes_of(path, MOST_BYTES) if member is None else member
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such file", where=str(path), fix="check the path"
        ) from error
    except NotAFileError as error:
        raise FormatError(
            f"{error.strerror}", where=str(path), fix="name a file, or copy what it gives into one"
        ) from error
    except TooLargeError as error:
        raise FormatError(
            f"the file is {error.strerror}", where=str(path), fix="divide it into several files"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be read ({error})", where=str(path)) from error
    raw = unpacked(raw, str(path), only=GZIP)
    must_be_no_pages(raw, str(path))
    return raw


def read_text(
    path: Path, encoding: str | None = None, *, longest: int = LONGEST_LINE
) -> tuple[str, str]:
    """The text of a file and the encoding it was read with; line ends stay as they are.

    Without `encoding`, a byte order mark decides, or else it is UTF-8. The mark is removed.

    Raises:
        FormatError: a byte does not fit the encoding (the error names its offset and line, and an
            encoding that would fit), there is a NUL character, or a line has more than `longest`
            characters.
        SettingsError: the encoding is unknown, or not among those that confide reads.
    """
    text, name = decode(read_bytes(path), str(path), encoding=encoding)
    _must_have_lines(text, str(path), longest)
    return text, name


def _must_have_lines(text: str, where: str, longest: int) -> None:
    """Raise FormatError for a line of more than `longest` characters."""
    end, start = "\n" if "\n" in text else "\r", 0
    while len(text) - start > longest:
        found = text.rfind(end, start, start + longest + 1)
        if found < 0:
            raise FormatError(
                f"a line of more than {longest:,} characters",
                expected="lines that are short enough to be held whole",
                where=f"{where}:{text.count(end, 0, start) + 1}",
                fix="break the line where the format allows it, or repair the file",
            )
        start = found + 1


def decode(raw: bytes, where: str, *, encoding: str | None = None) -> tuple[str, str]:
    """`read_text` for bytes that are already in memory; `where` names them in errors."""
    marked = next((name for mark, name in _MARKS if raw.startswith(mark)), "utf-8")
    name = encoding or marked
    must_be_known(encoding)
    try:
        text = raw.decode(name)
        if not name.startswith("utf-8"):  # it cannot have given half of a character
            text.encode("utf-8")
    except UnicodeDecodeError as error:
        raise _undecodable(raw, where, name, error.start) from error
    except (UnicodeError, ValueError) as error:
        raise FormatError(f"the file is not {name}: {error}", where=where) from error
    text = text.removeprefix("\ufeff")
    position = text.find("\0")
    if position >= 0:
        must_look_like_text(raw, where)
        raise FormatError(
            "a NUL character: a binary file, or UTF-16 without a byte order mark",
            where=f"{where}:{text.count(chr(10), 0, position) + 1}",
            expected="text",
            fix='state the encoding (encoding = "utf-16-le") or remove the character',
        )
    return text, "utf-8" if name == "utf-8-sig" else name


def must_look_like_text(raw: bytes, where: str) -> None:
    """Raise FormatError for bytes that are known to be something else, with what to do."""
    looks = looks_like(raw)
    if looks is not None:
        raise FormatError(
            f"this is {looks.what}, not text",
            expected="annotated text in one of confide's formats, or raw text",
            where=where,
            fix=looks.fix,
        )


def must_be_known(encoding: str | None) -> None:
    """Raise SettingsError if an encoding is stated that confide does not read."""
    if encoding is not None and known_encoding(encoding) is None:
        raise SettingsError(
            "the encoding is not known",
            got=repr(encoding[:40]),
            expected="utf-8, windows-1252, latin-1 or another of " + ", ".join(sorted(ENCODINGS)),
        )


def _undecodable(raw: bytes, where: str, name: str, offset: int) -> FormatError:
    """The error for bytes that are not in their encoding, with a remedy if one is known."""
    must_look_like_text(raw, where)
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
        f"the text is not {name.removesuffix('-sig')}, first at byte offset {offset}",
        where=f"{where}:{line}",
        fix=fix,
    )


def likely_encoding(raw: bytes) -> str | None:
    """The single-byte encoding that fits bytes; none if they are UTF-8, marked, or mixed."""
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


def with_plain_ends(text: str) -> str:
    """A text whose lines end with LF; so far they end with LF or CR LF, or else with CR."""
    if "\r" not in text:
        return text
    if "\n" not in text:
        return text.replace("\r", "\n")
    return text.replace("\r\n", "\n")


def lines_of(text: str) -> list[str]:
    """The lines of a text, split at LF and CR LF only (at CR if there is no LF).

    `str.splitlines` would also split at U+2028, U+0085 and form feeds, which tokens may hold.
    """
    return with_plain_ends(text).split("\n")


def each_line(text: str) -> Iterator[str]:
    """The lines of a text with plain ends, one by one, so that they are not all held at once."""
    start, end = 0, text.find("\n")
    while end >= 0:
        yield text[start:end]
        start = end + 1
        end = text.find("\n", start)
    yield text[start:] if start else text


def write_text(path: Path, text: str) -> None:
    """Write UTF-8, keeping line ends, and make missing folders; the whole file or none of it.

    Raises:
        DataError: the system refuses to write there.
    """
    write_parts(path, (text,))


def write_parts(path: Path, parts: Iterable[str]) -> None:
    """`write_text` for a text in parts, which are made as they are written and not held.

    Raises:
        DataError: as `write_text` does; and whatever making the parts raises.
    """
    raw = (part.encode("utf-8", errors="replace") for part in parts)
    try:
        write_whole(path, raw)
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be written ({error})", where=str(path)) from error
