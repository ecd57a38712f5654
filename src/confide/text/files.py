"""Files of a user as bytes, text or XML: unpacked under a limit, decoded strictly, named if odd."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple
from xml.etree import ElementTree

from confide import errors, files
from confide.errors import ConfideError, DataError, FormatError, MissingDataError, SettingsError

# --- The limit on unpacking -----------------------------------------------------------------------
#
# One for gzip, zip, tar and workbooks alike.
#
# It is enforced while unpacking, so that a small file that holds a huge one costs neither memory
# nor time: at most `MOST_UNPACKED` in all and, beyond `FREE` bytes, at most `MOST_TIMES` the packed
# size. Text packs to about a seventh of its size, tables of tags to a fifth.

MOST_UNPACKED = 1 << 29
"""The most bytes that a packed file, or all files of an archive together, may hold."""
MOST_TIMES = 32
"""The largest content of a packed file, in multiples of its own size."""
FREE = 1 << 22
"""Up to this many bytes, any ratio is fine."""
GZIP = b"\x1f\x8b"
ZIP = b"PK\x03\x04"
"""The first bytes of every zip archive, a workbook among them."""
BROKEN = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, MemoryError, OverflowError)
"""The errors that unpacking libraries raise for damaged files."""
Stream = IO[bytes] | io.BufferedIOBase
_STREAMS: dict[bytes, tuple[str, Callable[[IO[bytes]], Stream]]] = {
    GZIP: ("gzip", lambda file: gzip.GzipFile(fileobj=file)),
    b"BZh": ("bzip2", bz2.BZ2File),
    b"\xfd7zXZ\0": ("xz", lzma.LZMAFile),
}
_CHUNK = 1 << 20


class Meter:
    """Counts what one packed file yields over all its parts; `packed` is its own size."""

    def __init__(self, where: str, packed: int) -> None:
        self._where = where
        self._most = min(MOST_UNPACKED, max(FREE, MOST_TIMES * packed))
        self._packed = packed
        self._left = self._most

    def read(self, stream: Stream) -> bytes:
        """All bytes of a stream. Raises FormatError at the limit."""
        pieces: list[bytes] = []
        while raw := stream.read(min(_CHUNK, self._left + 1)):
            self._left -= len(raw)
            if self._left < 0:
                raise FormatError(
                    f"the packed file of {self._packed:,} bytes holds more than"
                    f" {files.size_in_words(self._most)}",
                    expected=f"at most {MOST_TIMES} times its own size,"
                    f" or {files.size_in_words(FREE)} where that is more,"
                    f" and {files.size_in_words(MOST_UNPACKED)} in all",
                    where=self._where,
                    fix="if it is text of yours, unpack it yourself and name what is in it",
                )
            pieces.append(raw)
        return b"".join(pieces)


def unpack(raw: bytes, where: str, *, only: bytes | None = None) -> bytes:
    """The unpacked bytes of a gzip, bzip2 or xz file; the bytes of any other file as they are.

    `only` restricts unpacking to files that begin with these bytes.

    Raises:
        FormatError: the file is damaged, or holds more than the limit.
    """
    mark = next((mark for mark in _STREAMS if raw.startswith(mark)), None)
    if mark is None or only not in (None, mark):
        return raw
    name, opens = _STREAMS[mark]
    try:
        with opens(io.BytesIO(raw)) as stream:
            return Meter(where, len(raw)).read(stream)
    except BROKEN as error:
        raise FormatError(f"the {name} file is damaged ({error})", where=where) from error


# --- Files inside an archive, named like `corpus.zip!/folder/file` --------------------------------
#
# Read into memory, never unpacked.
#
# The name of a zip or tar file (`.zip`, `.tar`, `.tar.gz`, `.tgz`) is followed by an exclamation
# mark and the path inside. Only plain files count; names that lead out of the archive are ignored.

MARK = "!"
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_PACKED = 1 << 30
"""The largest archive, in bytes."""
_DIGITS = re.compile(rb"[0-9]++")
_LONGEST_NUMBER = 64
_BROKEN = (
    *BROKEN,
    zipfile.BadZipFile,
    tarfile.TarError,
    RuntimeError,  # a zip file with a password
    NotImplementedError,  # a way of packing that nobody here knows
    RecursionError,
)


def archive_member(path: Path) -> tuple[Path, PurePosixPath] | None:
    """The archive that a path leads into, and the path inside it; None if it leads into none.

    >>> archive, way = archive_member(Path("ddi/corpus.zip!/Train/a.xml"))
    >>> archive.as_posix(), str(way)
    ('ddi/corpus.zip', 'Train/a.xml')
    """
    for place, part in enumerate(path.parts):
        if part.endswith(MARK) and part[:-1].lower().endswith(SUFFIXES):
            archive = Path(*path.parts[:place], part[:-1])
            return archive, PurePosixPath(*path.parts[place + 1 :])
    return None


def _on_disk(path: Path) -> bool:
    """Return whether the path exists; a name too long for a file does not."""
    try:
        return path.exists()
    except OSError:
        return False


def must_be_a_path(path: Path) -> None:
    """Raise DataError for a path that the system refuses, such as a name too long or a link loop.

    A path to nothing is fine.
    """
    with errors.os_errors_as(
        DataError, "the path cannot be used", where=errors.printable(path), fix="check the path"
    ):
        path.exists()


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, on disk or in an archive."""
    place = archive_member(path)
    if place is None or _on_disk(path):
        return _on_disk(path) and path.is_dir()
    archive, way = place
    return any(way in file.parents for file in _files(archive))


def exists(path: Path) -> bool:
    """Return whether there is such a file or folder, on disk or in an archive."""
    place = archive_member(path)
    if place is None or _on_disk(path):
        return _on_disk(path)
    archive, way = place
    return archive.is_file() and (is_folder(path) or way in _files(archive))


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder in an archive; empty if the folder is not in an archive."""
    place = archive_member(folder)
    if place is None:
        return
    archive, way = place
    for file in _files(archive):
        if way in file.parents:
            yield folder.joinpath(*file.relative_to(way).parts)


def read_member(path: Path) -> bytes | None:
    """The bytes of a file in an archive; None if the path does not lead into one.

    Raises:
        MissingDataError: there is no such archive, or no such file in it.
        FormatError: this is a folder, or the archive is damaged, locked or far too large.
        DataError: the system refuses to read it.
    """
    place = archive_member(path)
    if place is None or _on_disk(path):
        return None
    archive, way = place
    held = _files(archive)
    if way in held:
        return held[way]
    if is_folder(path):
        raise FormatError("a folder in an archive, not a file", where=str(path))
    raise MissingDataError(
        "there is no such file in the archive", where=str(path), fix="check the path after the !"
    )


def _files(archive: Path) -> Mapping[PurePosixPath, bytes]:
    """Every file of an archive by its path inside."""
    try:
        stamp = archive.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such archive", where=str(archive), fix="check the path before the !"
        ) from error
    except OSError as error:
        raise DataError(f"the archive cannot be read ({error})", where=str(archive)) from error
    return _unpacked(archive, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=1)
def _unpacked(archive: Path, _modified: int, _size: int) -> Mapping[PurePosixPath, bytes]:
    """The files of an archive that has not changed since it was last read."""
    reader = zipped_files if archive.suffix.lower() == ".zip" else _tarred
    held: dict[PurePosixPath, bytes] = {}
    try:
        for name, raw in reader(files.file_bytes(archive, MOST_PACKED), str(archive)):
            way = PurePosixPath(name)
            if not way.is_absolute() and ".." not in way.parts:
                held[way] = raw
    except ConfideError:
        raise
    except (files.NotAFileError, files.TooLargeError) as error:
        raise FormatError(f"no archive, but {error.strerror}", where=str(archive)) from error
    except _BROKEN as error:
        raise FormatError(
            f"the archive cannot be unpacked ({error})",
            where=str(archive),
            fix="unpack it yourself and name what is in it",
        ) from error
    return held


class _Item(tarfile.TarInfo):
    """A file in a tar. Long runs of digits in its header could keep tarfile busy for hours."""

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        place = archive.fileobj.tell()
        head = archive.fileobj.read(self.size)
        archive.fileobj.seek(place)
        if any(len(digits) > _LONGEST_NUMBER for digits in _DIGITS.findall(head)):
            raise ValueError("a header with an impossible number")
        found: tarfile.TarInfo = super()._proc_pax(archive)  # type: ignore[misc]
        return found


def zipped_files(raw: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The files of a zip. Raises FormatError at the limit, and zipfile's own errors for damage."""
    meter = Meter(where, len(raw))
    with zipfile.ZipFile(io.BytesIO(raw)) as opened:
        for item in opened.infolist():
            if not item.is_dir():
                with opened.open(item) as stream:
                    yield item.filename, meter.read(stream)


def _tarred(raw: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The files of a tar, which is unpacked first, so that what tarfile skips is counted too."""
    whole = unpack(raw, where)
    meter = Meter(where, max(len(raw), len(whole)))
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:", tarinfo=_Item) as opened:
        for item in opened:
            stream = opened.extractfile(item) if item.isreg() else None
            if stream is not None:
                with stream:
                    yield item.name, meter.read(stream)


# --- Bytes that are no annotated text -------------------------------------------------------------
#
# Their looks, and what to do with them, in words.

_HEAD, _FEW = 4096, 32


class Looks(NamedTuple):
    """The looks of a file ("a PNG image"), and advice for its owner."""

    what: str
    fix: str


_UNPACK = "unpack it and name what is in it"
_IMAGE = "name the text itself; confide reads no images"
_SQLITE = "export the table of notes as CSV, or name a file with a query of it (format omop)"
_LOOKS: tuple[tuple[bytes, Looks], ...] = (
    (b"PAR1", Looks("a parquet file", "state the format: datasets")),
    (b"ARROW1", Looks("an Arrow file", "state the format: datasets")),
    (b"\xff\xff\xff\xff", Looks("an Arrow stream", "state the format: datasets")),
    (b"\x89PNG", Looks("a PNG image", _IMAGE)),
    (b"\xff\xd8\xff", Looks("a JPEG image", _IMAGE)),
    (b"GIF8", Looks("a GIF image", _IMAGE)),
    (b"II*\0", Looks("a TIFF image", _IMAGE)),
    (b"MM\0*", Looks("a TIFF image", _IMAGE)),
    (b"SQLite format 3\0", Looks("an SQLite database", _SQLITE)),
    (b"\x89HDF\r\n", Looks("an HDF5 file", "export its texts as JSON Lines or CSV")),
    (b"\x93NUMPY", Looks("a NumPy array", "export its texts as JSON Lines or CSV")),
    (b"7z\xbc\xaf\x27\x1c", Looks("a 7-Zip archive", _UNPACK)),
    (b"Rar!\x1a\x07", Looks("a RAR archive", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", Looks("a Zstandard file", _UNPACK)),
    (b"BZh", Looks("a bzip2 file", _UNPACK)),
    (b"\xfd7zXZ\0", Looks("an xz file", _UNPACK)),
    (b"\x7fELF", Looks("a program", "name the text itself")),
    (b"MZ", Looks("a program", "name the text itself")),
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_NAMES_SHOWN = 4


def is_tar(raw: bytes) -> bool:
    """Return whether bytes are a tar archive."""
    return raw[257:262] == b"ustar"


def looks_like(raw: bytes) -> Looks | None:
    """Guess what bytes are that are not text; None where nothing is known of them."""
    for mark, looks in _LOOKS:
        if raw.startswith(mark):
            return looks
    if raw[128:132] == b"DICM":
        return Looks("a DICOM image", _IMAGE)
    if is_tar(raw):
        return Looks("a tar archive", _UNPACK)
    if raw.startswith(ZIP):
        return zip_of(raw)
    if raw.startswith(_ZLIB):
        return Looks("a spaCy DocBin, or other data packed by zlib", "state the format: docbin")
    if _PICKLE.match(raw):
        return Looks("a Python pickle", "write its documents as JSON Lines; a pickle can run code")
    head = raw[:_HEAD]
    if max(head[::2].count(0), head[1::2].count(0)) * 3 > len(head):
        return None  # text in UTF-16 without a mark
    odd = sum(byte < 32 and byte not in b"\t\n\r\f\v\x1b" for byte in head)
    if len(head) >= _FEW and odd * 10 > len(head):
        return Looks("a binary file", "name the text itself")
    return None


def zip_of(raw: bytes) -> Looks:
    """A zip archive, by what is in it."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as opened:
            names = [item.filename for item in opened.infolist()[:1000] if not item.is_dir()]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, RuntimeError):
        return Looks("a damaged zip archive", "copy it again")
    if "[Content_Types].xml" in names or any(name.startswith("xl/") for name in names):
        return Looks("a workbook", "save its sheet of texts as CSV with the columns id and text")
    endings = sorted({name.rpartition(".")[2][:20] for name in names if "." in name})
    what = " and ".join(endings[:_NAMES_SHOWN]) or "files"
    return Looks(f"a zip archive of {what}", _UNPACK)


_TAG = re.compile(r"<!doctype\s+html|<html\b", re.IGNORECASE)
_KEY = re.compile(r'"((?:[^"\\]|\\.){0,60}+)"\s*+:')
_QUERY = re.compile(r"^query *= *[\"']", re.MULTILINE)
_FHIR_XML = re.compile(r'xmlns="http://hl7\.org/fhir"')


def text_looks_like(text: str) -> Looks:
    """Guess what a text is that has no known format, from its beginning."""
    start = text.lstrip("\ufeff \t\r\n")
    first = start.split("\n", 1)[0].strip()
    if _TAG.match(start):
        return Looks("a web page (HTML)", "save its text as a .txt file")
    if start.startswith("<"):
        if _FHIR_XML.search(start[:_HEAD]):
            return Looks("FHIR as XML", "export it as JSON")
        root = re.search(r"<([A-Za-z][\w:.-]{0,60})", start[:_HEAD])
        return Looks(
            f"XML with the root <{root[1]}>" if root else "XML, perhaps",
            "export it from its tool in another format, such as UIMA XMI, brat or JSON",
        )
    if start[:1] in "[{" and (keys := list(dict.fromkeys(_KEY.findall(start[:_HEAD])))):
        return Looks(
            f"JSON with the keys {', '.join(keys[:8])}",
            'give every object a "text", or "tokens" and "ner_tags", or another form of '
            "the table of formats in the documentation",
        )
    if _QUERY.search(start[:_HEAD]):
        return Looks("a query of a database", "state the format: omop")
    cut = next((mark for mark in ("\t", ";", ",") if first.count(mark) > 0), None)
    if cut is not None and start.count("\n") > 1:
        columns = [cell.strip(' "') for cell in first.split(cut)]
        return Looks(
            f"a table with the columns {', '.join(columns[:8])[:120]}",
            "state its columns: those of the id and the text of notes (format notes), or of the "
            "token and the tag (format conll), by name or counted from 0",
        )
    return Looks("running text", "call it .txt, or state the format: text")


# --- Files of word processors
#
# Pages, not plain text: they are named, and never decoded as text.

_BEGIN = {
    b"%PDF-": ("a PDF", "pdftotext"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old Word or Excel file", "a word processor"),
    b"{\\rtf": ("a rich text (RTF) file", "a word processor"),
}
"""First bytes -> what it is, and what gives its text."""
_INSIDE = {
    b"word/document.xml": ("a Word document", "a word processor, or pandoc"),
    b"ppt/presentation.xml": ("a presentation", "pandoc"),
    b"mimetypeapplication/vnd.oasis.opendocument.text": (
        "an OpenDocument text",
        "a word processor, or pandoc",
    ),
}
"""Names in a zip archive -> the same."""


def must_be_no_pages(raw: bytes, where: str) -> None:
    """Raise FormatError for a PDF, or a document of a word processor."""
    found = next((what for mark, what in _BEGIN.items() if raw.startswith(mark)), None)
    if found is None and raw.startswith(ZIP):
        found = next((what for name, what in _INSIDE.items() if name in raw), None)
    if found is not None:
        what, tool = found
        raise FormatError(
            f"{what} holds pages, not plain text",
            expected="plain text, or annotated text in one of confide's formats",
            where=where,
            fix=f"save its text as a .txt file with {tool}, and name that",
        )


# --- Decoding of text -----------------------------------------------------------------------------
#
# Strictly: errors name the offset and the line.

MOST_BYTES = 1 << 31
"""The largest text file, in bytes."""
LONGEST_LINE = 1 << 24
"""The longest line, in characters; a line is held in memory with all its parts."""
LONGEST_JSON = 1 << 27
"""The longest line of JSON, in characters: some tools write a whole collection on one line."""

_BYTE_ORDER_MARKS = (
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
        raw = files.file_bytes(path, MOST_BYTES) if member is None else member
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingDataError(
            "there is no such file", where=str(path), fix="check the path"
        ) from error
    except files.NotAFileError as error:
        raise FormatError(
            f"{error.strerror}", where=str(path), fix="name a file, or copy what it gives into one"
        ) from error
    except files.TooLargeError as error:
        raise FormatError(
            f"the file is {error.strerror}", where=str(path), fix="divide it into several files"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be read ({error})", where=str(path)) from error
    raw = unpack(raw, str(path), only=GZIP)
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
    text, name = decode_text(read_bytes(path), str(path), encoding=encoding)
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


def decode_text(raw: bytes, where: str, *, encoding: str | None = None) -> tuple[str, str]:
    """`read_text` for bytes that are already in memory; `where` names them in errors."""
    marked = next((name for mark, name in _BYTE_ORDER_MARKS if raw.startswith(mark)), "utf-8")
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
    if encoding is not None and files.known_encoding(encoding) is None:
        raise SettingsError(
            "the encoding is not known",
            got=repr(encoding[:40]),
            expected="utf-8, windows-1252, latin-1 or another of "
            + ", ".join(sorted(files.ENCODINGS)),
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
    if b"\0" in raw or any(raw.startswith(mark) for mark, _ in _BYTE_ORDER_MARKS):
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
        files.write_whole(path, raw)
    except (OSError, ValueError) as error:
        raise DataError(f"the file cannot be written ({error})", where=str(path)) from error


# --- Parsing of XML -------------------------------------------------------------------------------
#
# Safely: nothing is fetched or expanded, and errors name file and line.

Element = ElementTree.Element
_DECLARED = re.compile(rb"""\s*<\?xml[^>]*\sencoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]*)["']""")
_ROOT = re.compile(rb"<([A-Za-z_][A-Za-z0-9_.:-]*)")
_XML_HEAD = 4096
ElementTree.register_namespace("xmi", "http://www.omg.org/XMI")  # UIMA looks for this prefix


def parse_xml(path: Path, encoding: str | None) -> tuple[Element, str]:
    """The root of an XML file (gzip is unpacked), and the encoding that it was read with.

    Without `encoding`, a byte order mark or the file's first line decides, or else it is UTF-8.

    Raises:
        FormatError: it is not well formed, not in its encoding, or declares entities of its own.
        MissingDataError, DataError: as `confide.text.files.read_bytes`.
    """
    raw = read_bytes(path)
    declared = _DECLARED.match(raw[:200])
    said = declared[1].decode("ascii") if declared else None
    if encoding is None and said is not None and files.known_encoding(said) is None:
        raise FormatError(
            f"the XML says that it is in the encoding {said[:40]!r}, which is not read",
            expected="utf-8, utf-16, latin-1, windows-1252 or another usual one",
            where=f"{path}:1",
            fix="write it in UTF-8, or state the encoding that it is really in",
        )
    stated = encoding or said
    text, name = decode_text(raw, str(path), encoding=stated)
    return xml_root(text, path), name.lower()


def xml_root(text: str, where: Path | str) -> Element:
    """The root of XML in a string.

    Raises FormatError: it is not well formed, nested too deep, or declares entities of its own.
    """
    if "<!ENTITY" in text:
        raise FormatError(
            "the XML declares entities of its own, which are never expanded",
            where=str(where),
            fix="remove the declaration",
        )
    try:
        parser = ElementTree.XMLParser(target=_Shallow())
        parser.feed(text)
        return parser.close()
    except _DeepError as error:
        raise FormatError(
            f"the XML is nested deeper than {files.DEEPEST}",
            where=str(where),
            fix="repair the file",
        ) from error
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise FormatError(f"not XML: {error}", where=f"{where}:{line}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not XML: {error}", where=str(where)) from error


def xml_text(root: Element) -> str:
    """The XML of a tree in one line."""
    return ElementTree.tostring(root, encoding="unicode")


class _DeepError(Exception):
    """An element lies inside too many others."""


class _Shallow(ElementTree.TreeBuilder):
    """Builds a tree of no more than `DEEPEST` levels."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def start(self, tag: str, attrs: dict[str, str]) -> Element:
        """The beginning of an element. Raises _DeepError."""
        self._depth += 1
        if self._depth > files.DEEPEST:
            raise _DeepError
        return super().start(tag, attrs)

    def end(self, tag: str) -> Element:
        """The end of an element."""
        self._depth -= 1
        return super().end(tag)


def root_name(raw: bytes) -> str:
    """The name of the first element of a file that looks like XML; empty otherwise.

    >>> root_name(b'<?xml version="1.0"?><!-- x --> <collection>')
    'collection'
    """
    head = raw[:_XML_HEAD].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")
    if not head.startswith(b"<"):
        return ""
    match = _ROOT.search(head)
    return match[1].decode("ascii", "replace") if match else ""
