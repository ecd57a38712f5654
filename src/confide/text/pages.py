"""Files of word processors: pages, not plain text. They are named, and never decoded as text."""

from __future__ import annotations

from confide.errors import FormatError

_ZIP = b"PK\x03\x04"
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
    if found is None and raw.startswith(_ZIP):
        found = next((what for name, what in _INSIDE.items() if name in raw), None)
    if found is not None:
        what, tool = found
        raise FormatError(
            f"{what} holds pages, not plain text",
            expected="plain text, or annotated text in one of confide's formats",
            where=where,
            fix=f"save its text as a .txt file with {tool}, and name that",
        )
