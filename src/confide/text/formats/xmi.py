"""UIMA CAS as XMI, as INCEpTION, WebAnno and cTAKES write it; no type system is needed.

Every annotation with a begin and an end is an entity, unless it belongs to the text's analysis. A
relation is an item with a Governor and a Dependent, or a link with a role from one annotation to
another. A TypeSystem.xml beside the file says which features are numbers and not references;
without one, a number that is the id of an annotation is a reference. Offsets count UTF-16 units.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

from confide.errors import FormatError
from confide.text.document import Document, Problem, Sentence, Span
from confide.text.draft import Draft
from confide.text.files import Element, exists, parse_xml, write_text
from confide.text.reading import (
    Options,
    Reading,
    Supports,
    clean,
    file_name,
    reduce_to,
    unheld,
    whole_number,
)
from confide.text.segment import segmented

# --- Annotation layers of WebAnno and INCEpTION ---------------------------------------------------
#
# The layers that hold annotation, and the names of their items.

NAMED_ENTITY = "de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity"
RELATION = "webanno.custom.Relation"
_ANALYSIS = (
    "de.tudarmstadt.ukp.dkpro.core.api.metadata",
    "de.tudarmstadt.ukp.dkpro.core.api.segmentation",
    "de.tudarmstadt.ukp.dkpro.core.api.lexmorph",
    "de.tudarmstadt.ukp.dkpro.core.api.syntax",
    "de.tudarmstadt.ukp.dkpro.core.api.transform",
    "de.tudarmstadt.ukp.clarin",
    "uima.",
    "org.dkpro.core.api.xml",
)
_VALUES = ("value", "label", "type", "category", "class", "entityType", "semanticType", "role")
_CONCEPTS = ("identifier", "entityID", "concept", "conceptID", "cui")


def is_linguistic(name: str) -> bool:
    """True if a layer is part of the text's analysis (tokens, words' classes), not annotation."""
    return name.startswith(_ANALYSIS)


def short(name: str) -> str:
    """The last part of a layer's name.

    >>> short("webanno.custom.Drug")
    'Drug'
    """
    return name.rpartition(".")[2] or name


def name_of_item(
    layer: str, features: Mapping[str, str]
) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The type of an item, its concepts, and its other features as attributes.

    The type is the value of the first feature that usually holds it, or else the layer's name.

    >>> name_of_item("webanno.custom.Drug", {"identifier": "C1", "dose": "5"})
    ('Drug', ('C1',), (('dose', '5'),))
    """
    key = next((key for key in _VALUES if features.get(key, "").strip()), "")
    concepts = [features[key] for key in _CONCEPTS if features.get(key, "").strip()]
    others = tuple(
        (name, value)
        for name, value in features.items()
        if name not in (key, *_CONCEPTS) and value.strip()
    )
    return features[key].strip() if key else short(layer), tuple(concepts), others


class Units:
    """Offsets in UTF-16 units, as Java counts, to characters; None for one that is not there."""

    def __init__(self, text: str) -> None:
        self._places: list[int] | None = None
        self._length = len(text)
        if not text.isascii() and max(text) > "\uffff":
            places: list[int] = []
            for number, character in enumerate(text):
                places += [number] * (1 + (character > "\uffff"))
            self._places = [*places, len(text)]

    def __call__(self, offset: int) -> int | None:
        """The character that begins at an offset, or that it lies in."""
        most = self._length + 1 if self._places is None else len(self._places)
        if not 0 <= offset < most:
            return None
        return offset if self._places is None else self._places[offset]


def utf16_offsets(text: str, offsets: Sequence[int]) -> list[int]:
    r"""Ascending offsets in characters as UTF-16 units.

    >>> utf16_offsets("a\U0001f600b", [0, 1, 2, 3])
    [0, 1, 3, 4]
    """
    found: list[int] = []
    last = units = 0
    for offset in offsets:
        part = text[last:offset]
        units += len(part) + (0 if part.isascii() else sum(c > "\uffff" for c in part))
        last = offset
        found.append(units)
    return found


ROOTS = ("xmi:XMI", "XMI")
_ID = "{http://www.omg.org/XMI}id"
_NOTHING = frozenset(("begin", "end", "sofa"))
_NEVER = _NOTHING | {"value", "label", "identifier"}
TYPES = "TypeSystem.xml"
_VALUE = "uima.cas."
_NO_VALUES = ("FSArray", "FSList", "TOP", "AnnotationBase", "Sofa", "NonEmptyFSList")
_SEGMENTATION = "de.tudarmstadt.ukp.dkpro.core.api.segmentation.type."
_ENDS = (("Governor", "Dependent"), ("source", "target"), ("arg1", "arg2"))
_QUIET = ("uima.cas", "uima.tcas", "uima.noNamespace")


@dataclass(slots=True)
class _Item:
    """An element: the name of its layer, its features, and its characters if it has any."""

    layer: str
    features: dict[str, str]
    span: Span | None


@dataclass(slots=True)
class _Cas:
    """A file: its text, and its items by their ids."""

    where: str
    text: str
    items: dict[str, _Item]
    problems: list[Problem]
    values: frozenset[tuple[str, str]] = frozenset()
    ignored: Counter[str] = field(default_factory=Counter)

    def refers(self, item: _Item, key: str) -> list[str]:
        """The ids of links and annotations that a feature refers to; empty for a value."""
        ids = item.features[key].split()
        if key in _NEVER or (item.layer, key) in self.values or not ids:
            return []
        found = [self.items.get(one) for one in ids]
        whole = all(one and not is_linguistic(one.layer) for one in found)
        return ids if whole else []

    def lost(self, kind: str, what: str) -> None:
        """Write down a loss."""
        self.problems.append(Problem(kind, self.where, what, lost=True))


def read_xmi(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as its DocumentMetaData says, or as the file.

    Raises:
        FormatError: it is not XMI, or has no text.
        DataError: a type was not declared.
    """
    root, encoding = parse_xml(path, options.encoding)
    if short(root.tag.replace("}", ".")) != "XMI":
        raise FormatError("not XMI", expected="<xmi:XMI>", got=root.tag[:60], where=str(path))
    problems: list[Problem] = []
    cas = _opened(root, path, problems)
    name = next(
        (item.features.get("documentId") or item.features.get("documentTitle") or ""
         for item in cas.items.values() if short(item.layer) == "DocumentMetaData"), "",
    )  # fmt: skip
    called = clean(name.strip()) or path.name.partition(".")[0] or path.name
    draft = Draft(called, cas.text, str(path), options, problems, _sentences(cas))
    _add_entities(cas, draft)
    _add_relations(cas, draft)
    if cas.ignored:
        layers = ", ".join(f"{layer} {count}" for layer, count in cas.ignored.most_common(8))
        what = f"layers of the text's analysis are not read: {layers}"
        problems.append(Problem("layer-ignored", str(path), what))
    return Reading([draft.document()], problems, "xmi", {"encoding": encoding})


def _opened(root: Element, path: Path, problems: list[Problem]) -> _Cas:
    texts = [
        (one.get(_ID, ""), one.get("sofaString", ""))
        for one in root
        if short(one.tag.replace("}", ".")) == "Sofa" and "sofaString" in one.attrib
    ]
    held = next((one for one in texts if one[1]), texts[0] if texts else None)
    if held is None:
        raise FormatError(
            "XMI without a text", expected="a Sofa with a sofaString", where=str(path)
        )
    sofa, text = held[0], clean(held[1])
    cas = _Cas(str(path), text, {}, problems, _values(path))
    units = Units(text)
    for number, one in enumerate(root):
        layer = _layer(one.tag)
        if layer.startswith("uima.cas.") and short(layer) in ("Sofa", "View", "NULL"):
            continue
        features = {key: clean(value) for key, value in one.attrib.items() if key[:1] != "{"}
        for child in one:  # lists of strings and of references are elements
            features[child.tag] = f"{features.get(child.tag, '')} {child.text or ''}".strip()
        span = None
        if "begin" in features and "end" in features:
            if features.get("sofa", sofa) != sofa:
                cas.lost("view-ignored", f"{short(layer)} is on another view of the text")
                continue
            span = _span(features, units, cas, layer)
            if span is None:
                continue
        cas.items[one.get(_ID, f"#{number}")] = _Item(layer, features, span)
    return cas


def _layer(tag: str) -> str:
    """The name of a type: ``{http:///webanno/custom.ecore}Drug`` is webanno.custom.Drug."""
    space, _, name = tag.removeprefix("{").rpartition("}")
    space = space.removeprefix("http:///").removesuffix(".ecore").replace("/", ".")
    return f"{space}.{name}" if space else name


def _span(features: dict[str, str], units: Units, cas: _Cas, layer: str) -> Span | None:
    ends = [features[key] for key in ("begin", "end")]
    begin, behind = map(whole_number, ends)
    if begin is None or behind is None:
        raise FormatError("begin and end", expected="whole numbers", where=cas.where)
    start, end = units(begin), units(behind)
    if start is None or end is None or start > end:
        if not is_linguistic(layer):
            cas.lost("beyond-text", f"{short(layer)} {'-'.join(ends)} points nowhere")
        return None
    return start, end


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _values(path: Path) -> frozenset[tuple[str, str]]:
    """The features, by layer, that a type system beside a file says are no references."""
    file = path.with_name(TYPES)
    if not exists(file):
        return frozenset()
    root, _ = parse_xml(file, None)
    found: set[tuple[str, str]] = set()
    for kind in (one for one in root.iter() if _name(one) == "typeDescription"):
        layer = next(((one.text or "").strip() for one in kind if _name(one) == "name"), "")
        for feature in (one for one in kind.iter() if _name(one) == "featureDescription"):
            said = {_name(one): (one.text or "").strip() for one in feature}
            value = said.get("rangeTypeName", "").removeprefix(_VALUE)
            if value != said.get("rangeTypeName") and value not in _NO_VALUES:
                found.add((layer, said.get("name", "")))
    return frozenset(found)


def _plain(item: _Item, cas: _Cas) -> dict[str, str]:
    """The features that refer to no link and no annotation."""
    return {
        key: value
        for key, value in item.features.items()
        if key not in _NOTHING and not cas.refers(item, key)
    }


def _add_entities(cas: _Cas, draft: Draft) -> None:
    """The entities by the ids of their items."""
    for name, item in cas.items.items():
        if item.span is None or _two_ends(item) is not None:
            continue
        if is_linguistic(item.layer):
            if not item.layer.startswith((_SEGMENTATION, *_QUIET)) and "metadata" not in item.layer:
                cas.ignored[short(item.layer)] += 1
            continue
        kind, concepts, attributes = name_of_item(item.layer, _plain(item, cas))
        draft.entity(kind, [item.span], given=name, concepts=concepts, attributes=attributes)


def _two_ends(item: _Item) -> tuple[str, str] | None:
    for head, tail in _ENDS:
        if head in item.features and tail in item.features:
            return item.features[head], item.features[tail]
    return None


def _add_relations(cas: _Cas, draft: Draft) -> None:
    """Items with two ends, and links with a role that an entity holds."""
    for name, item in cas.items.items():
        ends = _two_ends(item)
        if ends is not None and is_linguistic(item.layer):
            cas.ignored[short(item.layer)] += 1
        elif ends is not None:
            features = {key: value for key, value in item.features.items()
                        if key not in _NOTHING and value not in ends}  # fmt: skip
            kind, _, attributes = name_of_item(item.layer, features)
            draft.relation(kind, *ends, attributes=attributes)
        elif name in draft.names:
            for key in item.features:
                for kind, head, tail in _links(cas, name, key):
                    draft.relation(kind, head, tail)


def _links(cas: _Cas, host: str, key: str) -> Iterator[tuple[str, str, str]]:
    """Iterate over a feature's links of an entity: by links with roles, or by an item itself."""
    for one in cas.refers(cas.items[host], key):
        item = cas.items[one]
        target = item.features.get("target")
        if item.span is None and target is not None:
            yield item.features.get("role") or key, host, target
        elif item.span is not None and one != host:
            yield key, host, one


def _sentences(cas: _Cas) -> tuple[Sentence, ...]:
    """The sentences with their tokens; none if the file has no tokens, or they overlap."""
    spans: dict[str, list[Span]] = {"Sentence": [], "Token": []}
    for item in cas.items.values():
        kind = item.layer.removeprefix(_SEGMENTATION)
        if kind in spans and item.layer.startswith(_SEGMENTATION) and item.span is not None:
            spans[kind].append(item.span)
    tokens = sorted(span for span in spans["Token"] if cas.text[slice(*span)].strip())
    borders = [offset for token in tokens for offset in token]
    cuts = sorted(spans["Sentence"])
    if not cuts or borders != sorted(borders) or any(a == b for a, b in tokens):
        return ()
    sentences: list[Sentence] = []
    place = last = 0
    for start, end in cuts:
        own: list[Span] = []
        while place < len(tokens) and tokens[place][0] < end:
            if tokens[place][0] >= max(start, last) and tokens[place][1] <= end:
                own.append(tokens[place])
            place += 1
        if own:
            sentences.append(Sentence(own[0][0], own[-1][1], tuple(own)))
            last = own[-1][1]
    covered = sum(len(sentence.tokens) for sentence in sentences)
    return tuple(sentences) if covered == len(tokens) else ()


# --- Writing XMI
#
# UIMA CAS, one file for each document, with the type system that INCEpTION needs beside.

_KEEPS = Supports(relations=True, concepts=True, sentences=True)
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CORE = "de.tudarmstadt.ukp.dkpro.core.api."
_SPACES = {
    "cas": "uima/cas",
    "tcas": "uima/tcas",
    "meta": "de/tudarmstadt/ukp/dkpro/core/api/metadata/type",
    "seg": "de/tudarmstadt/ukp/dkpro/core/api/segmentation/type",
    "ner": "de/tudarmstadt/ukp/dkpro/core/api/ner/type",
    "custom": "webanno/custom",
}
_STRING, _ANNOTATION = "uima.cas.String", "uima.tcas.Annotation"
_TYPES: dict[str, tuple[str, dict[str, str]]] = {
    f"{_CORE}metadata.type.DocumentMetaData": (
        "uima.tcas.DocumentAnnotation",
        {"documentTitle": _STRING, "documentId": _STRING},
    ),
    f"{_CORE}segmentation.type.Sentence": (_ANNOTATION, {}),
    f"{_CORE}segmentation.type.Token": (_ANNOTATION, {}),
    NAMED_ENTITY: (_ANNOTATION, {"value": _STRING, "identifier": _STRING}),
    RELATION: (
        _ANNOTATION,
        {"Dependent": NAMED_ENTITY, "Governor": NAMED_ENTITY, "label": _STRING},
    ),
}


def write_xmi(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a folder: NamedEntity with value and identifier, relations as webanno.custom.Relation.

    `scheme` is not used. A character that XML cannot hold is written as U+FFFD, and reported.
    Raises DataError if the files cannot be written.
    """
    cut, problems = reduce_to(documents, _KEEPS, path)
    several = sum(len(entity.concepts) > 1 for one in cut for entity in one.entities)
    taken: set[str] = set()
    for document in map(segmented, cut):
        name = file_name(document.id, taken)
        text = _NOT_IN_XML.sub("\ufffd", document.text)
        if text != document.text:
            what = "characters that XML cannot hold are written as U+FFFD"
            where = document.source or document.id
            problems.append(Problem("character-changed", where, what))
        write_text(path / f"{name}.xmi", "\n".join(_lines(document, text)) + "\n")
    write_text(path / TYPES, "\n".join(_type_system()) + "\n")
    what = "entities have several concepts: the first is written"
    return [*problems, *unheld(path, what, several, kind="concepts-unheld")]


def _lines(document: Document, text: str) -> Iterator[str]:
    borders = {0, len(text)}
    for sentence in document.sentences:
        borders |= {sentence.start, sentence.end}
        borders |= {offset for token in sentence.tokens for offset in token}
    borders |= {offset for entity in document.entities for offset in (entity.start, entity.end)}
    order = sorted(borders)
    places = dict(zip(order, utf16_offsets(text, order), strict=True))
    spaces = " ".join(f'xmlns:{key}="http:///{value}.ecore"' for key, value in _SPACES.items())
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<xmi:XMI xmlns:xmi="http://www.omg.org/XMI" {spaces} xmi:version="2.0">'
    yield '<cas:NULL xmi:id="0"/>'
    numbers: list[int] = []

    def item(name: str, span: Span, features: Mapping[str, str]) -> str:
        start, end = span
        numbers.append(len(numbers) + 2)
        said = "".join(f" {key}={quoteattr(_safe(value))}" for key, value in features.items())
        return (
            f'<{name} xmi:id="{numbers[-1]}" sofa="1" begin="{places[start]}"'
            f' end="{places[end]}"{said}/>'
        )

    named = {"language": "x-unspecified", "documentTitle": document.id, "documentId": document.id}
    yield item("meta:DocumentMetaData", (0, len(text)), named)
    for sentence in document.sentences:
        yield item("seg:Sentence", (sentence.start, sentence.end), {})
        for start, end in sentence.tokens:
            yield item("seg:Token", (start, end), {})
    ids: dict[str, str] = {}
    for entity in document.entities:
        features = {"value": entity.type}
        if entity.concepts:
            features["identifier"] = entity.concepts[0]
        yield item("ner:NamedEntity", (entity.start, entity.end), features)
        ids[entity.id] = str(numbers[-1])
    spans = {entity.id: (entity.start, entity.end) for entity in document.entities}
    for relation in document.relations:
        features = {"Dependent": ids[relation.tail], "Governor": ids[relation.head]}
        span = spans[relation.tail]
        yield item("custom:Relation", span, {**features, "label": relation.type})
    yield (
        f'<cas:Sofa xmi:id="1" sofaNum="1" sofaID="_InitialView" mimeType="text"'
        f" sofaString={quoteattr(text, _BREAKS)}/>"
    )
    members = " ".join(map(str, numbers))
    yield f'<cas:View sofa="1" members="{members}"/>'
    yield "</xmi:XMI>"


_BREAKS = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


def _safe(value: str) -> str:
    return " ".join(_NOT_IN_XML.sub("\ufffd", value).split())


def _type_system() -> Iterator[str]:
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield '<typeSystemDescription xmlns="http://uima.apache.org/resourceSpecifier"><types>'
    for name, (above, features) in _TYPES.items():
        yield f"<typeDescription><name>{name}</name><description/>"
        yield f"<supertypeName>{above}</supertypeName><features>"
        for feature, range_ in features.items():
            yield (
                f"<featureDescription><name>{feature}</name><description/>"
                f"<rangeTypeName>{range_}</rangeTypeName></featureDescription>"
            )
        yield "</features></typeDescription>"
    yield "</types></typeSystemDescription>"
