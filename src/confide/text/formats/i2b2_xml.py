"""i2b2's XML of 2012 and 2014, and its relatives such as MEDDOCAN: a TEXT, and TAGS beside it.

A tag with a start and an end is an entity, one with `fromID` and `toID` a relation. The type of an
entity is its TYPE (2014) or type (2012), or the tag's name; other attributes are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from confide.errors import FormatError
from confide.text.document import Document, Entity, Problem, Relation
from confide.text.files import write_text
from confide.text.formats.base import Options, Reading, file_name, is_number, reads, shown, shown_at
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.markup import Element, parse
from confide.text.formats.records import clean
from confide.text.formats.xmi_write import NOT_IN_XML

_HEAD = 1 << 20
_KNOWN = frozenset(("id", "start", "end", "text", "TYPE", "fromID", "toID", "fromText", "toText"))
_LINKS = {"TLINK": "type", "LINK": "TYPE"}
_SHIFTS = (0, -1, 1)
_KEEPS = Keeps(relations=True, said=True)


def is_i2b2_xml(raw: bytes) -> bool:
    """Whether the bytes of an XML file have a TEXT and TAGS."""
    head = raw[:_HEAD]
    return b"<TEXT>" in head and (b"<TAGS" in raw)


def read(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as the file.

    If the tags' own texts fit better one character to the left or the right, or with line ends as
    two characters, they are read there, which is reported.

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
    text, shift = _fitting(text, list(tags), str(path), problems)
    entities: dict[str, Entity] = {}
    links: list[Element] = []
    bare = 0
    for tag in tags:
        if "fromID" in tag.attrib and "toID" in tag.attrib:
            links.append(tag)
        elif "start" in tag.attrib and "end" in tag.attrib:
            entity = _entity(tag, text, shift, str(path), problems=problems)
            if entity is not None:
                options.require(entity.type, str(path))
                name = tag.get("id") or f"#{len(entities)}"
                entities[name if name not in entities else f"#{len(entities)}"] = entity
        else:
            bare += 1
    if bare:
        what = f"{bare} tags about the whole document are not read"
        problems.append(Problem("tags-without-place", str(path), what, lost=True))
    named = list(entities.values())
    renamed = {key: f"T{number}" for number, key in enumerate(entities, 1)}
    document = Document(
        path.name.partition(".")[0] or path.name,
        text,
        tuple(_called(entity, f"T{number}") for number, entity in enumerate(named, 1)),
        tuple(_relations(links, renamed, str(path), problems)),
        source=str(path),
    )
    return Reading([document], problems, "i2b2-xml", {"encoding": encoding})


def _called(entity: Entity, name: str) -> Entity:
    return Entity(name, entity.type, entity.fragments, attributes=entity.attributes)


def _fitting(
    text: str, tags: Sequence[Element], where: str, problems: list[Problem]
) -> tuple[str, int]:
    """The text and the shift of all offsets with which most tags' texts are the text there."""
    ways = [(text, shift) for shift in _SHIFTS]
    if "\n" in text and "\r" not in text:
        ways.append((text.replace("\n", "\r\n"), 0))
    held = [tag for tag in tags if tag.get("text") and "start" in tag.attrib][:2000]
    counts = [sum(not _fits(tag, one, shift) for tag in held) for one, shift in ways]
    best = counts.index(min(counts))
    if best:
        said = f"offsets counted from {-ways[best][1]}" if best < len(_SHIFTS) else (
            "line ends counted as two characters"
        )  # fmt: skip
        problems.append(Problem("offsets-counted", where, said))
    return ways[best]


def _fits(tag: Element, text: str, shift: int) -> bool:
    ends = [tag.get(key, "") for key in ("start", "end")]
    if not all(map(is_number, ends)):
        return False
    start, end = (int(one) + shift for one in ends)
    return 0 <= start < end and reads(text, [(start, end)], tag.get("text", ""))


def _entity(
    tag: Element, text: str, shift: int, where: str, *, problems: list[Problem]
) -> Entity | None:
    named = next((key for key in ("TYPE", "type") if tag.get(key, "").strip()), "")
    kind = clean(tag.get(named, "").strip() or tag.tag)
    ends = [tag.get(key, "") for key in ("start", "end")]
    if not all(map(is_number, ends)):
        raise FormatError(
            "a tag's start and end",
            expected="whole numbers",
            got=shown(" ".join(ends)),
            where=where,
        )
    start, end = (int(one) + shift for one in ends)
    if not 0 <= start < end <= len(text):
        slug = "empty-span" if start >= end else "beyond-text"
        what = f"{kind} {start}-{end} points nowhere in {len(text)} characters"
        problems.append(Problem(slug, where, what, lost=True))
        return None
    surface = tag.get("text", "")
    if surface and not reads(text, [(start, end)], surface):
        what = f"{kind} is {shown(surface)} but {shown_at(text, [(start, end)])} in the text"
        problems.append(Problem("text-mismatch", where, what))
    said = [
        (clean(key), clean(value))
        for key, value in tag.attrib.items()
        if key not in (*_KNOWN, named) and value
    ]
    if tag.tag not in ("TAG", kind):
        said.insert(0, ("tag", clean(tag.tag)))
    return Entity("", kind, ((start, end),), attributes=tuple(said))


def _relations(
    links: Sequence[Element], names: dict[str, str], where: str, problems: list[Problem]
) -> Iterator[Relation]:
    number = 0
    for tag in links:
        key = _LINKS.get(tag.tag, "type")
        kind = clean(tag.get(key, "").strip() or tag.tag)
        ends = names.get(tag.get("fromID", "")), names.get(tag.get("toID", ""))
        if ends[0] is None or ends[1] is None:
            what = f"{kind} from {tag.get('fromID')} to {tag.get('toID')}: no such tag"
            problems.append(Problem("dangling-relation", where, clean(what), lost=True))
            continue
        number += 1
        said = tuple(
            (clean(name), clean(value))
            for name, value in tag.attrib.items()
            if name not in (*_KNOWN, key) and value
        )
        yield Relation(f"R{number}", kind, ends[0], ends[1], attributes=said)


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
