"""i2b2's XML of 2012 and 2014, and its relatives such as MEDDOCAN: a TEXT, and TAGS beside it.

A tag with a start and an end is an entity, one with `fromID` and `toID` a relation. The type of an
entity is its TYPE (2014) or type (2012), or the tag's name; other attributes are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from confide.errors import FormatError
from confide.text.document import Document, Problem
from confide.text.files import write_text
from confide.text.formats.base import Options, Reading, file_name, shown, whole
from confide.text.formats.draft import Draft
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.markup import Element, parse
from confide.text.formats.records import clean
from confide.text.formats.xmi_write import NOT_IN_XML

_HEAD = 1 << 20
_KNOWN = frozenset(("id", "start", "end", "text", "TYPE", "fromID", "toID", "fromText", "toText"))
_LINKS = {"TLINK": "type", "LINK": "TYPE"}
_KEEPS = Keeps(relations=True, said=True)


def is_i2b2_xml(raw: bytes) -> bool:
    """Whether the bytes of an XML file have a TEXT and TAGS."""
    head = raw[:_HEAD]
    return b"<TEXT>" in head and (b"<TAGS" in raw)


def read(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as the file.

    Raises:
        FormatError: there is no TEXT, or a tag points nowhere because it has no numbers.
        DataError: a type was not declared.
    """
    root, encoding = parse(path, options.encoding)
    held = root.find("TEXT")
    tags = root.find("TAGS")
    if held is None or tags is None:
        raise FormatError("not i2b2's XML", expected="<TEXT> and <TAGS>", where=str(path))
    problems: list[Problem] = []
    text = clean(held.text or "")
    if len(held):
        what = "elements inside the text are not read"
        problems.append(Problem("key-ignored", str(path), what, lost=True))
    name = path.name.partition(".")[0] or path.name
    draft = Draft(name, text, str(path), options, problems)
    links: list[Element] = []
    bare = 0
    for tag in tags:
        if "fromID" in tag.attrib and "toID" in tag.attrib:
            links.append(tag)
        elif "start" in tag.attrib and "end" in tag.attrib:
            _entity(draft, tag)
        else:
            bare += 1
    if bare:
        draft.note("tags-without-place", f"{bare} tags about the whole document are not read")
    for tag in links:
        key = _LINKS.get(tag.tag, "type")
        kind = clean(tag.get(key, "").strip() or tag.tag)
        ends = clean(tag.get("fromID", "")), clean(tag.get("toID", ""))
        draft.relation(kind, *ends, attributes=_said(tag, key))
    return Reading([draft.document()], problems, "i2b2-xml", {"encoding": encoding})


def _said(tag: Element, named: str) -> tuple[tuple[str, str], ...]:
    """The attributes of a tag that are no place and not its type."""
    return tuple(
        (clean(key), clean(value))
        for key, value in tag.attrib.items()
        if key not in (*_KNOWN, named) and value
    )


def _entity(draft: Draft, tag: Element) -> None:
    named = next((key for key in ("TYPE", "type") if tag.get(key, "").strip()), "")
    kind = clean(tag.get(named, "").strip() or tag.tag)
    start, end = (whole(tag.get(key)) for key in ("start", "end"))
    if start is None or end is None:
        raise FormatError(
            "a tag's start and end",
            expected="whole numbers",
            got=shown(f"{tag.get('start')} {tag.get('end')}"),
            where=draft.where,
        )
    said = _said(tag, named)
    if tag.tag not in ("TAG", kind):
        said = (("tag", clean(tag.tag)), *said)
    draft.entity(
        kind,
        [(start, end)],
        given=clean(tag.get("id", "")),
        surface=tag.get("text"),
        attributes=said,
    )


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a folder of files like those of 2014: TAG with a TYPE, and LINK; `scheme` is not used.

    A character that XML cannot hold is written as U+FFFD, and reported. Raises DataError if the
    files cannot be written.
    """
    cut, problems = cut_down(documents, _KEEPS, path)
    taken: set[str] = set()
    for document in cut:
        name = file_name(document.id, taken)
        text = NOT_IN_XML.sub("\ufffd", document.text)
        if text != document.text:
            what = "characters that XML cannot hold are written as U+FFFD"
            where = document.source or document.id
            problems.append(Problem("character-changed", where, what))
        write_text(path / f"{name}.xml", "\n".join(_lines(document, text)) + "\n")
    return problems


def _lines(document: Document, text: str) -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield "<deIdi2b2>"
    held = escape(text, {"\r": "&#13;"})
    yield f"<TEXT>{held}</TEXT>"
    yield "<TAGS>"
    for entity in document.entities:
        surface = text[entity.start : entity.end]
        pairs = [("id", entity.id), ("start", str(entity.start)), ("end", str(entity.end))]
        pairs += [("text", surface), ("TYPE", entity.type)]
        yield _tag("TAG", [*pairs, *entity.attributes])
    for relation in document.relations:
        pairs = [("id", relation.id), ("fromID", relation.head), ("toID", relation.tail)]
        yield _tag("LINK", [*pairs, ("TYPE", relation.type), *relation.attributes])
    yield "</TAGS>"
    yield "</deIdi2b2>"


def _tag(name: str, pairs: Sequence[tuple[str, str]]) -> str:
    """An element; an attribute that is there already, or whose name XML does not allow, is left."""
    said: dict[str, str] = {}
    for key, value in pairs:
        if key.replace("_", "a").isalnum() and key[0].isalpha() and key.isascii():
            said.setdefault(key, NOT_IN_XML.sub("\ufffd", value))
    inside = "".join(f" {key}={quoteattr(value)}" for key, value in said.items())
    return f"<{name}{inside}/>"
