"""PDF and documents of word processors are named, not decoded."""

from __future__ import annotations

import io
import zipfile

import pytest

from cases import each
from confide.errors import FormatError
from confide.text.checking import check
from confide.text.files import read_text
from text.generated import put


def zipped(*names: str, first: str = "") -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        if first:
            archive.writestr("mimetype", first)
        for name in names:
            archive.writestr(name, "<x/>")
    return held.getvalue()


PAGES = {
    "a.pdf": (b"%PDF-1.4\n\xe2\xe3", "a PDF"),
    "a.docx": (zipped("[Content_Types].xml", "word/document.xml"), "a Word document"),
    "a.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 512, "an old Word"),
    "a.rtf": (b"{\\rtf1 text}", "a rich text"),
    "a.odt": (
        zipped("content.xml", first="application/vnd.oasis.opendocument.text"), "an OpenDocument",
    ),
    "a.pptx": (zipped("[Content_Types].xml", "ppt/presentation.xml"), "a presentation"),
}  # fmt: skip


@each("name", PAGES)
def test_pages_are_named_with_what_to_do(tmp_path, name):
    """A PDF asked for another encoding, and a Word document for a file inside it."""
    raw, what = PAGES[name]
    path = put(tmp_path, name, raw)
    for read in (check, read_text):
        with pytest.raises(FormatError, match=rf"{what}.* holds pages.*\.txt file"):
            read(path)


def test_text_about_pages_is_text(tmp_path):
    path = put(tmp_path, "a.txt", "The PDF %PDF-1.4 and word/document.xml")
    assert read_text(path)[0].startswith("The PDF")
