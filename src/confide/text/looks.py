"""What bytes that are no annotated text look like, and what to do with them, in words."""

from __future__ import annotations

import io
import re
import zipfile
from typing import NamedTuple

_HEAD, _FEW = 4096, 32


class Looks(NamedTuple):
    """What a file looks like ("a PNG image"), and what its owner can do about it."""

    what: str
    fix: str


_UNPACK = "unpack it and name what is in it"
_IMAGE = "name the text itself; confide reads no images"
_MARKS: tuple[tuple[bytes, Looks], ...] = (
    (b"PAR1", Looks("a parquet file", "state the format: datasets")),
    (b"ARROW1", Looks("an Arrow file", "state the format: datasets")),
    (b"\xff\xff\xff\xff", Looks("an Arrow stream", "state the format: datasets")),
    (b"\x89PNG", Looks("a PNG image", _IMAGE)),
    (b"\xff\xd8\xff", Looks("a JPEG image", _IMAGE)),
    (b"GIF8", Looks("a GIF image", _IMAGE)),
    (b"II*\0", Looks("a TIFF image", _IMAGE)),
    (b"MM\0*", Looks("a TIFF image", _IMAGE)),
    (b"SQLite format 3\0", Looks("an SQLite database", "export the table of notes as CSV")),
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


def looks_like(raw: bytes) -> Looks | None:
    """What bytes look like that are not text; None where nothing is known of them."""
    for mark, looks in _MARKS:
        if raw.startswith(mark):
            return looks
    if raw[128:132] == b"DICM":
        return Looks("a DICOM image", _IMAGE)
    if raw[257:262] == b"ustar":
        return Looks("a tar archive", _UNPACK)
    if raw.startswith(b"PK\x03\x04"):
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
_FHIR_XML = re.compile(r'xmlns="http://hl7\.org/fhir"')


def text_looks_like(text: str) -> Looks:
    """What the beginning of a text looks like that has no format that is known."""
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
    cut = next((mark for mark in ("\t", ";", ",") if first.count(mark) > 0), None)
    if cut is not None and start.count("\n") > 1:
        columns = [cell.strip(' "') for cell in first.split(cut)]
        return Looks(
            f"a table with the columns {', '.join(columns[:8])[:120]}",
            "state its columns: those of the id and the text of notes (format notes), or of the "
            "token and the tag (format conll), by name or counted from 0",
        )
    return Looks("running text", "call it .txt, or state the format: text")
