"""XML to a tree, safely: nothing is fetched or expanded, and errors name file and line."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from confide.errors import FormatError
from confide.text.files import decode, read_bytes
from confide.userfiles import DEEPEST, known_encoding

Element = ElementTree.Element
_DECLARED = re.compile(rb"""\s*<\?xml[^>]*\sencoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]*)["']""")
_ROOT = re.compile(rb"<([A-Za-z_][A-Za-z0-9_.:-]*)")
_HEAD = 4096


def parse(path: Path, encoding: str | None) -> tuple[Element, str]:
    """The root of an XML file (gzip is unpacked), and the encoding that it was read with.

    Without `encoding`, a byte order mark or the file's first line decides, or else it is UTF-8.

    Raises:
        FormatError: it is not well formed, not in its encoding, or declares entities of its own.
        MissingDataError, DataError: as `confide.text.files.read_bytes`.
    """
    raw = read_bytes(path)
    declared = _DECLARED.match(raw[:200])
    said = declared[1].decode("ascii") if declared else None
    if encoding is None and said is not None and known_encoding(said) is None:
        raise FormatError(
            f"the XML says that it is in the encoding {said[:40]!r}, which is not read",
            expected="utf-8, utf-16, latin-1, windows-1252 or another usual one",
            where=f"{path}:1",
            fix="write it in UTF-8, or state the encoding that it is really in",
        )
    stated = encoding or said
    text, name = decode(raw, str(path), encoding=stated)
    if "<!ENTITY" in text:
        raise FormatError(
            "the XML declares entities of its own, which are never expanded",
            where=str(path),
            fix="remove the declaration",
        )
    try:
        parser = ElementTree.XMLParser(target=_Shallow())
        parser.feed(text)
        return parser.close(), name.lower()
    except _DeepError as error:
        raise FormatError(
            f"the XML is nested deeper than {DEEPEST}", where=str(path), fix="repair the file"
        ) from error
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise FormatError(f"not XML: {error}", where=f"{path}:{line}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not XML: {error}", where=str(path)) from error


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
        if self._depth > DEEPEST:
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
    head = raw[:_HEAD].replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")
    if not head.startswith(b"<"):
        return ""
    match = _ROOT.search(head)
    return match[1].decode("ascii", "replace") if match else ""
