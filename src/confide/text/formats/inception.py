"""The formats of INCEpTION and WebAnno: UIMA CAS as XMI, and WebAnno TSV 3."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from xml.sax.saxutils import quoteattr

from confide.errors import DataError, FormatError
from confide.text import files, reading
from confide.text.document import Document, Entity, Sentence, Span
from confide.text.places import Utf16
from confide.text.reading import Draft, Format, Options, Output, Reading, Source, Supports
from confide.text.rows import clean, quoted, whole_numbers
from confide.text.segment import segmented

# --- Layers of annotation, and the names of their items -------------------------------------------

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
    given = {name: value for name, value in features.items() if value.strip()}
    key = next((key for key in _VALUES if key in given), "")
    concepts = tuple(given[key] for key in _CONCEPTS if key in given)
    others = tuple(pair for pair in given.items() if pair[0] not in (key, *_CONCEPTS))
    return given[key].strip() if key else short(layer), concepts, others


# --- Reading XMI ----------------------------------------------------------------------------------
#
# As INCEpTION, WebAnno and cTAKES write it; no type system is needed.
#
# Every annotation with a begin and an end is an entity, unless it belongs to the text's analysis. A
# relation is an item with a Governor and a Dependent, or a link with a role from one annotation to
# another. A TypeSystem.xml beside the file says which features are numbers and not references;
# without one, a number that is the id of an annotation is a reference. Offsets count UTF-16 units.

_ROOTS = ("xmi:XMI", "XMI")
_ID = "{http://www.omg.org/XMI}id"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_NOTHING = frozenset(("begin", "end", "sofa"))
_NEVER = _NOTHING | {"value", "label", "identifier"}
TYPES = "TypeSystem.xml"
_VALUE = "uima.cas."
_NO_VALUES = ("FSArray", "FSList", "TOP", "AnnotationBase", "Sofa", "NonEmptyFSList")
_SEGMENTATION = "de.tudarmstadt.ukp.dkpro.core.api.segmentation.type."
_ENDS = (("Governor", "Dependent"), ("source", "target"), ("arg1", "arg2"))
_QUIET = ("uima.cas", "uima.tcas", "uima.noNamespace")


@dataclass(frozen=True, slots=True)
class _Item:
    """An element: the name of its layer, its features, and its characters if it has any."""

    layer: str
    features: dict[str, str]
    span: Span | None

    def two_ends(self) -> tuple[str, str] | None:
        """The ids of the two items that a relation links."""
        for head, tail in _ENDS:
            if head in self.features and tail in self.features:
                return self.features[head], self.features[tail]
        return None


class _Cas:
    """A file: its text, and its items by their ids."""

    def __init__(
        self,
        root: files.Element,
        source: Source,
        *,
        values: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        if _name(root) != "XMI":
            where = str(source.path)
            raise FormatError("not XMI", expected="<xmi:XMI>", got=root.tag[:60], where=where)
        texts = [
            (one.get(_ID, ""), one.get("sofaString", ""))
            for one in root
            if _name(one) == "Sofa" and "sofaString" in one.attrib
        ]
        if not texts:
            raise FormatError(
                "XMI without a text", expected="a Sofa with a sofaString", where=str(source.path)
            )
        self.source = source
        self.sofa, text = next((one for one in texts if one[1]), texts[0])
        self.text = clean(text)
        self._values = values
        self.ignored: Counter[str] = Counter()
        units = Utf16(self.text)
        self.items: dict[str, _Item] = {}
        for number, one in enumerate(root):
            space, _, name = one.tag.removeprefix("{").rpartition("}")
            space = space.removeprefix("http:///").removesuffix(".ecore").replace("/", ".")
            layer = f"{space}.{name}" if space else name  # webanno.custom.Drug
            if layer.startswith("uima.cas.") and name in ("Sofa", "View", "NULL"):
                continue
            features = {key: clean(value) for key, value in one.attrib.items() if key[:1] != "{"}
            lists: dict[str, list[str]] = {}  # of strings and of references are elements
            for child in one:
                lists.setdefault(child.tag, [features.get(child.tag, "")]).append(child.text or "")
            for key, said in lists.items():
                features[key] = " ".join(filter(None, map(str.strip, said)))
            span = None
            if "begin" in features and "end" in features:
                span = self._span(layer, features, units)
                if span is None:
                    continue
            self.items[one.get(_ID, f"#{number}")] = _Item(layer, features, span)

    def _span(self, layer: str, features: dict[str, str], units: Utf16) -> Span | None:
        """The characters of an item; None, and a problem, if they are not in the text."""
        where = str(self.source.path)
        if features.get("sofa", self.sofa) != self.sofa:
            what = f"{short(layer)} is on another view of the text"
            self.source.problems.lost("view-ignored", where, what)
            return None
        ends = [features["begin"], features["end"]]
        numbers = whole_numbers(ends)
        if numbers is None:
            raise FormatError("begin and end", expected="whole numbers", where=where)
        start, end = map(units.character, numbers)
        if 0 <= start <= end:
            return start, end
        if not is_linguistic(layer):
            what = f"{short(layer)} {'-'.join(ends)} points nowhere"
            self.source.problems.lost("beyond-text", where, what)
        return None

    def refers(self, item: _Item, key: str) -> list[str]:
        """The ids of links and annotations that a feature refers to; empty for a value."""
        ids = item.features[key].split()
        if key in _NEVER or (item.layer, key) in self._values or not ids:
            return []
        found = [self.items.get(one) for one in ids]
        return ids if all(one and not is_linguistic(one.layer) for one in found) else []


def _name(element: files.Element) -> str:
    return element.tag.rpartition("}")[2]


def _features_with_values(path: Path) -> frozenset[tuple[str, str]]:
    """The features, by layer, that a type system beside a file says are no references."""
    file = path.with_name(TYPES)
    if not files.exists(file):
        return frozenset()
    root, _ = files.parse_xml(file, None)
    found: set[tuple[str, str]] = set()
    for kind in (one for one in root.iter() if _name(one) == "typeDescription"):
        layer = next(((one.text or "").strip() for one in kind if _name(one) == "name"), "")
        for feature in (one for one in kind.iter() if _name(one) == "featureDescription"):
            said = {_name(one): (one.text or "").strip() for one in feature}
            value = said.get("rangeTypeName", "").removeprefix(_VALUE)
            if value != said.get("rangeTypeName") and value not in _NO_VALUES:
                found.add((layer, said.get("name", "")))
    return frozenset(found)


def _read_xmi(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as its DocumentMetaData says, or as the file.

    Raises:
        FormatError: it is not XMI, or has no text.
    """
    root, encoding = files.parse_xml(path, options.encoding)
    source = Source(path, options, encoding=encoding)
    cas = _Cas(root, source, values=_features_with_values(path))
    about = (one.features for one in cas.items.values() if short(one.layer) == "DocumentMetaData")
    data = next(about, {})
    name = clean((data.get("documentId") or data.get("documentTitle") or "").strip())
    name = name or path.name.partition(".")[0] or path.name
    draft = Draft(source, name, cas.text, str(path), sentences=_sentences(cas))
    for key, item in cas.items.items():
        if item.span is None or item.two_ends() is not None:
            continue
        if is_linguistic(item.layer):
            if not item.layer.startswith((_SEGMENTATION, *_QUIET)) and "metadata" not in item.layer:
                cas.ignored[short(item.layer)] += 1
            continue
        plain = {
            name: value
            for name, value in item.features.items()
            if name not in _NOTHING and not cas.refers(item, name)
        }
        kind, concepts, attributes = name_of_item(item.layer, plain)
        draft.entity(kind, [item.span], given=key, concepts=concepts, attributes=attributes)
    _add_relations(cas, draft)
    if cas.ignored:
        layers = ", ".join(f"{layer} {count}" for layer, count in cas.ignored.most_common(8))
        draft.note("layer-ignored", f"layers of the text's analysis are not read: {layers}")
    return Reading([draft.document()], source.problems, "xmi", {"encoding": encoding})


def _add_relations(cas: _Cas, draft: Draft) -> None:
    """Items with two ends, and links with a role that an entity holds."""
    for name, item in cas.items.items():
        ends = item.two_ends()
        if ends is not None and is_linguistic(item.layer):
            cas.ignored[short(item.layer)] += 1
        elif ends is not None:
            features = {key: value for key, value in item.features.items()
                        if key not in _NOTHING and value not in ends}  # fmt: skip
            kind, _, attributes = name_of_item(item.layer, features)
            draft.relation(kind, *ends, attributes=attributes)
        elif name in draft.names:
            for key in item.features:
                for other in cas.refers(item, key):  # a link with a role, or an item itself
                    link = cas.items[other]
                    target = link.features.get("target")
                    if link.span is None and target is not None:
                        draft.relation(link.features.get("role") or key, name, target)
                    elif link.span is not None and other != name:
                        draft.relation(key, name, other)


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


# --- Writing XMI ----------------------------------------------------------------------------------
#
# One file for each document, with the type system that INCEpTION needs beside.

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SPACES = {
    "cas": "uima/cas",
    "tcas": "uima/tcas",
    "meta": "de/tudarmstadt/ukp/dkpro/core/api/metadata/type",
    "seg": "de/tudarmstadt/ukp/dkpro/core/api/segmentation/type",
    "ner": "de/tudarmstadt/ukp/dkpro/core/api/ner/type",
    "custom": "webanno/custom",
}


def _write_xmi(documents: Sequence[Document], out: Output) -> None:
    """Write a folder: NamedEntity with value and identifier, relations as webanno.custom.Relation.

    A character that XML cannot hold is written as U+FFFD, and reported. Raises DataError if the
    files cannot be written.
    """
    for document in map(segmented, documents):
        path = out.file_for(document)
        text = _NOT_IN_XML.sub("\ufffd", document.text)
        if text != document.text:
            what = "characters that XML cannot hold are written as U+FFFD"
            out.problems.note("character-changed", document.where, what)
        lines = "\n".join(_xmi_lines(document, text))
        files.write_text(path.with_name(f"{path.name}.xmi"), f"{lines}\n")
    types = resources.files("confide.text.formats").joinpath(TYPES).read_text("utf-8")
    files.write_text(out.path / TYPES, types)


def _xmi_lines(document: Document, text: str) -> Iterator[str]:
    units = Utf16(text).of
    spaces = " ".join(f'xmlns:{key}="http:///{value}.ecore"' for key, value in _SPACES.items())
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f'<xmi:XMI xmlns:xmi="http://www.omg.org/XMI" {spaces} xmi:version="2.0">'
    yield '<cas:NULL xmi:id="0"/>'
    numbers: list[int] = []

    def item(name: str, span: Span, features: Mapping[str, str]) -> str:
        numbers.append(len(numbers) + 2)
        said = "".join(f" {key}={quoteattr(_xml_safe(value))}" for key, value in features.items())
        begin, end = (units[offset] for offset in span)
        return f'<{name} xmi:id="{numbers[-1]}" sofa="1" begin="{begin}" end="{end}"{said}/>'

    named = {"language": "x-unspecified", "documentTitle": document.id, "documentId": document.id}
    yield item("meta:DocumentMetaData", (0, len(text)), named)
    for sentence in document.sentences:
        yield item("seg:Sentence", (sentence.start, sentence.end), {})
        for token in sentence.tokens:
            yield item("seg:Token", token, {})
    ids: dict[str, str] = {}
    spans: dict[str, Span] = {}
    for entity in document.entities:
        features = {"value": entity.type}
        if entity.concepts:
            features["identifier"] = entity.concepts[0]
        spans[entity.id] = entity.start, entity.end
        yield item("ner:NamedEntity", spans[entity.id], features)
        ids[entity.id] = str(numbers[-1])
    for relation in document.relations:
        features = {"Dependent": ids[relation.tail], "Governor": ids[relation.head]}
        span = spans[relation.tail]
        yield item("custom:Relation", span, {**features, "label": relation.type})
    breaks = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}
    yield (
        f'<cas:Sofa xmi:id="1" sofaNum="1" sofaID="_InitialView" mimeType="text"'
        f" sofaString={quoteattr(text, breaks)}/>"
    )
    members = " ".join(map(str, numbers))
    yield f'<cas:View sofa="1" members="{members}"/>'
    yield "</xmi:XMI>"


def _xml_safe(value: str) -> str:
    return " ".join(_NOT_IN_XML.sub("\ufffd", value).split())


_SUPPORTS = Supports(relations=True, concepts="one", sentences=True)
XMI = Format(
    "xmi",
    "UIMA CAS as XMI",
    "",
    _read_xmi,
    _write_xmi,
    _SUPPORTS,
    by_bytes=lambda path, raw: files.root_name(raw) in _ROOTS,
    by_annotator=True,
)


# --- A CAS that INCEpTION sends to a recommender, and its suggestions -----------------------------

_SENT = Path("the XMI")
PREDICTED = "inception_internal_predicted"


class SentCas:
    """A CAS as XMI in a string, which goes back with suggestions.

    `document` has its text, sentences and tokens. Raises FormatError if it is not XMI, or has no
    text.
    """

    def __init__(self, xmi: str) -> None:
        self._root = files.xml_root(xmi, _SENT)
        self._cas = _Cas(self._root, Source(_SENT, Options()))
        self.document = Document("sent", self._cas.text, sentences=_sentences(self._cas))

    def suggest(self, entities: Sequence[Entity], layer: str, feature: str) -> str:
        """The XMI with a suggestion for each entity of one stretch.

        A suggestion is an annotation of this layer, whose feature has the entity's type.
        """
        space, _, name = layer.rpartition(".")
        tag = f"{{http:///{(space or 'uima.noNamespace').replace('.', '/')}.ecore}}{name}"
        root, sofa, units = self._root, self._cas.sofa, Utf16(self.document.text).of
        taken = [one.get(_ID, "") for one in root]
        first = 1 + max((int(one) for one in taken if _NUMBER.fullmatch(one)), default=0)
        items = []
        for number, one in enumerate((one for one in entities if len(one.fragments) == 1), first):
            place = {"begin": str(units[one.start]), "end": str(units[one.end])}
            said = {feature: _xml_safe(one.type), PREDICTED: "true"}
            if one.confidence is not None:
                said[f"{feature}_score"] = f"{one.confidence:.4f}"
            items.append(files.Element(tag, {_ID: str(number), "sofa": sofa, **place, **said}))
        views = (one for one in root if _name(one) == "View" and one.get("sofa") == sofa)
        view = next(views, None)
        if view is None:
            view = files.Element("{http:///uima/cas.ecore}View", {"sofa": sofa})
            root.append(view)
        members = [view.get("members", ""), *(one.get(_ID, "") for one in items)]
        view.set("members", " ".join(members).strip())
        behind = list(root).index(view)  # UIMA's Java overlooks members that come after their view
        root[behind:behind] = items
        return files.xml_text(root)


# --- WebAnno TSV 3 --------------------------------------------------------------------------------
#
# A token per line, a column per feature.
#
# Span layers are entities, relation layers and slots are relations; chains are not read. Offsets
# count UTF-16 units. A unit such as ``1-2.1`` is a part of a token.

MARK = "#FORMAT=WebAnno TSV 3"
_UNIT = re.compile(r"(\d{1,9}-\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_OFFSETS = re.compile(r"(\d{1,10})-(\d{1,10})", re.ASCII)
_STACKED = re.compile(r"(?s)(.*)\[(\d{1,9})\]")
_ENDS_OF = re.compile(r"(\d{1,9}-\d{1,9}(?:\.\d{1,9})?)(?:\[(\d{1,9})(?:_(\d{1,9}))?\])?", re.ASCII)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r"}
_NONE, _UNSET = "_", "*"
_MOST_BLANKS = 100_000
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of the header: its name, its features, and the place of its first column."""

    name: str
    kind: str
    features: tuple[str, ...]
    first: int

    @property
    def slots(self) -> frozenset[int]:
        """The places of the features that are links: a role, and beside it a target."""
        roles = [n for n, feature in enumerate(self.features) if feature.startswith("ROLE_")]
        return frozenset(place for n in roles for place in (n, n + 1))


@dataclass(slots=True)
class _Span:
    """An annotation in the making: its layer, its UTF-16 units and its features."""

    layer: str
    start: int
    end: int
    features: dict[str, str]


@dataclass(slots=True)
class _Page:
    """A file: the layers, and what its lines say so far.

    `units` are the keys of annotations by their layer, token and number in a stack. `links` have
    the layer, the keys or places in `units` of head and tail, and the features.
    """

    source: Source
    layers: list[_Layer]
    tokens: list[list[tuple[int, int, str]]] = field(default_factory=list)
    spans: dict[_Key, _Span] = field(default_factory=dict)
    units: dict[_Key, _Key] = field(default_factory=dict)
    links: list[tuple[str, _Key, _Key, dict[str, str]]] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)


def _read_webanno(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as the file.

    Raises:
        FormatError: the file does not begin as WebAnno TSV 3, or a line has another form.
        DataError: there is no token.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    if not source.text.startswith(MARK):
        raise FormatError("not WebAnno TSV 3", expected=MARK, where=f"{path}:1")
    lines = files.lines_of(source.text)
    page = _Page(source, list(_layers(lines, path)))
    for number, line in enumerate(lines, 1):
        if line.startswith("#Text="):
            page.tokens.append([])
        elif line.strip() and not line.startswith("#"):
            _row(page, line.split("\t"), f"{path}:{number}")
    if not any(page.tokens):
        raise DataError("the file holds no token", where=str(path))
    text, sentences = _lay_out(page)
    units = Utf16(text)
    name = path.name.partition(".")[0] or path.name
    draft = Draft(source, name, text, str(path), sentences=sentences)
    for key, span in page.spans.items():
        kind, concepts, attributes = name_of_item(span.layer, span.features)
        fragment = units.character(span.start), units.character(span.end)
        given = "\0".join(key)
        draft.entity(kind, [fragment], given=given, concepts=concepts, attributes=attributes)
    for layer, head, tail, features in page.links:
        ends = ("\0".join(page.units.get(end, end)) for end in (head, tail))
        kind, _, attributes = name_of_item(layer, features)
        draft.relation(kind, *ends, attributes=attributes)
    quiet = sorted(short(name) for name in page.ignored if is_linguistic(name))
    if quiet:
        what = f"layers of the text's analysis are not read: {', '.join(quiet)}"
        draft.note("layer-ignored", what)
    for name in sorted(name for name in page.ignored if not is_linguistic(name)):
        draft.lost("layer-ignored", f"the chains of {short(name)} are not read")
    return Reading([draft.document()], source.problems, "webanno", {"encoding": source.encoding})


def _layers(lines: Sequence[str], path: Path) -> Iterator[_Layer]:
    """The layers of the header; the columns after id, offsets and token are theirs in order."""
    first = 3
    for number, line in enumerate(lines, 1):
        if line.startswith("#T_"):
            kind, _, rest = line[1:].partition("=")
            name, *features = rest.strip().split("|")
            if kind not in ("T_SP", "T_RL", "T_CH") or not name:
                what, wanted = "a layer of another form", "#T_SP=name|feature, #T_RL or #T_CH"
            elif not features and kind == "T_RL":
                what = "a layer of relations that does not say what they link"
                wanted = "#T_RL=name|feature|BT_layer of its ends"
            elif features and features[-1].startswith("ROLE_"):
                what = "a column of roles without one of what they lead to"
                wanted = "#T_SP=name|ROLE_slot|type of the target"
            else:
                yield _Layer(name, kind, tuple(features), first)
                first += max(1, len(features))
                continue
            where = f"{path}:{number}"
            raise FormatError(what, expected=wanted, got=quoted(line), where=where)
        if line and not line.startswith("#"):
            return


def _row(page: _Page, cells: Sequence[str], where: str) -> None:
    """A token's line, or that of a part of a token."""
    unit = _UNIT.fullmatch(cells[0])
    offsets = _OFFSETS.fullmatch(cells[1]) if len(cells) > 2 else None
    if unit is None or offsets is None:
        raise FormatError(
            "not a line of WebAnno TSV 3",
            expected="1-1 TAB 0-4 TAB token TAB features",
            got=quoted("\t".join(cells)),
            where=where,
        )
    start, end = int(offsets[1]), int(offsets[2])
    if unit[2] is None:
        if not page.tokens:
            page.tokens.append([])
        page.tokens[-1].append((start, end, _plain(cells[2])))
    for layer in page.layers:
        width = max(1, len(layer.features))
        own = list(cells[layer.first : layer.first + width])
        own += [_NONE] * (width - len(own))  # a line may end before its last columns
        if layer.kind == "T_CH" or is_linguistic(layer.name):
            if any(cell not in (_NONE, "") for cell in own):
                page.ignored.add(layer.name)
        elif layer.kind == "T_SP":
            _add_spans(page, layer, own, (cells[0], start, end))
        else:
            _add_links(page, layer, own, cells[0])


def _plain(value: str) -> str:
    """A value without its escapes."""
    return clean(_ESCAPED.sub(lambda match: _LETTERS.get(match[1], match[1]), value))


def _parts(cell: str) -> list[str]:
    """The values of a cell."""
    return re.split(r"(?<!\\)\|", cell)


def _stack(cell: str) -> list[tuple[str, str]]:
    """The values of a cell, each with its number in a stack ("" where it has none)."""
    found = []
    for part in _parts(cell) if cell else []:
        match = _STACKED.fullmatch(part)
        numbered = match is not None and not match[1].endswith("\\")
        found.append((match[1], match[2]) if match is not None and numbered else (part, ""))
    return found


def _add_spans(
    page: _Page, layer: _Layer, cells: Sequence[str], unit: tuple[str, int, int]
) -> None:
    """The annotations of one layer that touch a token; a number joins those of several tokens."""
    name, start, end = unit
    slots = layer.slots
    columns = [
        [(part, "") for part in _parts(cell)] if place in slots else _stack(cell)
        for place, cell in enumerate(cells)
    ]
    for place in range(max(map(len, columns), default=0)):
        values = [column[place] if place < len(column) else (_NONE, "") for column in columns]
        if all(value == _NONE for value, _ in values):
            continue
        number = next((number for _, number in values if number), "")
        key = layer.name, number or f"{name}/{place}", ""
        page.units[layer.name, name, number] = key
        known = page.spans.get(key)
        if known is not None:
            known.start, known.end = min(known.start, start), max(known.end, end)
            continue
        features = {
            feature: _plain(value)
            for at, (feature, (value, _)) in enumerate(zip(layer.features, values, strict=False))
            if at not in slots and value not in (_NONE, _UNSET)
        }
        page.spans[key] = _Span(layer.name, start, end, features)
        # links with roles: a column of roles, and beside it one of targets, cut by semicolons
        for at, feature in enumerate(layer.features[:-1]):
            if not feature.startswith("ROLE_"):
                continue
            base, kind = layer.features[at + 1], feature.partition(":")[2] or short(layer.name)
            roles, targets = values[at][0].split(";"), values[at + 1][0].split(";")
            for role, target in zip(roles, targets, strict=False):
                if target not in (_NONE, _UNSET, ""):
                    said = {"role": kind if role in (_NONE, _UNSET) else _plain(role)}
                    match = _ENDS_OF.fullmatch(target)
                    tail = (base, match[1], _in_stack(match[2])) if match else ("", "", "")
                    page.links.append((base, key, tail, said))


def _add_links(page: _Page, layer: _Layer, cells: Sequence[str], unit: str) -> None:
    """The relations that end at a token; the last column says where each begins."""
    base = layer.features[-1].removeprefix("BT_")
    stacks = [_stack(cell) for cell in cells[:-1]]
    sources = [part for part in cells[-1].split("|") if part not in (_NONE, "")]
    for place, source in enumerate(sources):
        values = [stack[place][0] if place < len(stack) else _NONE for stack in stacks]
        features = {
            feature: _plain(value)
            for feature, value in zip(layer.features[:-1], values, strict=False)
            if value not in (_NONE, _UNSET)
        }
        match = _ENDS_OF.fullmatch(source)
        begin, first, second = match.groups() if match else (source, None, None)
        head, tail = (base, begin, _in_stack(first)), (base, unit, _in_stack(second))
        page.links.append((layer.name, head, tail, features))


def _in_stack(number: str | None) -> str:
    """A number in a stack; 0 stands for none."""
    return "" if number in (None, "", "0") else str(number)


def _lay_out(page: _Page) -> tuple[str, tuple[Sentence, ...]]:
    """The text that the tokens make up, in which their offsets stay true, and the sentences."""
    where = str(page.source.path)
    pieces: list[str] = []
    sentences: list[Sentence] = []
    length = units = 0
    for row in page.tokens:
        own: list[Span] = []
        for start, end, token in row:
            wide = Utf16(token).of[-1]
            if start < units or end - start != wide:
                raise FormatError(
                    "tokens that do not fit their offsets",
                    expected=f"a token of {wide} from {units} on",
                    got=f"{start}-{end}",
                    where=where,
                )
            gap = start - units
            if gap > len(token) + _MOST_BLANKS:
                raise FormatError("a gap of blanks", got=f"{gap:,}", where=where)
            new_line = gap and not own and sentences
            pieces += ["\n" + " " * (gap - 1) if new_line else " " * gap, token]
            length += gap
            if token.strip():
                own.append((length, length + len(token)))
            length += len(token)
            units = end
        if own:
            sentences.append(Sentence(own[0][0], own[-1][1], tuple(own)))
    return "".join(pieces), tuple(sentences)


# --- Writing WebAnno TSV 3.3, one file each -------------------------------------------------------

_HEAD = (
    f"{MARK}.3",
    f"#T_SP={NAMED_ENTITY}|identifier|value",
    f"#T_RL={RELATION}|label|BT_{NAMED_ENTITY}",
    "",
)
_SPECIAL = re.compile(r"[\\\[\]|_;*]|->")
_BLANK = re.compile(r"[\t\n\r\0]")


def _write_webanno(documents: Sequence[Document], out: Output) -> None:
    """Write a folder of files.

    Entities are widened to tokens. White space other than blanks, and one line end between two
    sentences, is lost. Raises DataError if the files cannot be written.
    """
    respaced = 0
    for document in map(segmented, documents):
        marked = reading.tokens_of_document(document, out.problems)
        if marked is None:
            continue
        path = out.file_for(document)
        lines = "\n".join(_webanno_lines(document, marked))
        files.write_text(path.with_name(f"{path.name}.tsv"), f"{lines}\n")
        pieces: list[str] = []  # what a reader makes of the tokens and their offsets
        last = 0
        for number, sentence in enumerate(document.sentences):
            for place, (start, end) in enumerate(sentence.tokens):
                gap = " " * (start - last)
                line = number and place == 0 and gap
                pieces += ["\n" + gap[1:] if line else gap, document.text[start:end]]
                last = end
        respaced += "".join(pieces) != document.text
    out.unheld("white-space-unheld", respaced, "documents lose their white space")


def _webanno_lines(document: Document, marked: reading.TokenDocument) -> Iterator[str]:
    yield from _HEAD
    units = Utf16(document.text).of
    names = [
        f"{number}-{place}"
        for number, sentence in enumerate(document.sentences, 1)
        for place in range(1, len(sentence.tokens) + 1)
    ]
    links: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for link in marked.links:
        assert isinstance(link.head, int) and isinstance(link.tail, int)
        head, tail = marked.mentions[link.head], marked.mentions[link.tail]
        place = f"{names[head.start]}[{link.head + 1}_{link.tail + 1}]"
        links[tail.start].append((_escaped(link.type), place))
    stacks: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    for number, mention in enumerate(marked.mentions, 1):
        concept = _escaped(mention.concept) if mention.concept else _UNSET
        both = f"{concept}[{number}]", f"{_escaped(mention.type)}[{number}]"
        for token in range(mention.start, mention.end):
            stacks[token].append(both)
    numbered = iter(enumerate(names))
    for sentence in document.sentences:
        yield ""
        yield f"#Text={_BLANK.sub(' ', document.text[sentence.start : sentence.end])}"
        for start, end in sentence.tokens:
            number, name = next(numbered)
            word = _BLANK.sub(" ", document.text[start:end]).replace("\\", "\\\\")
            columns = [[cells[n] for cells in column[number]]
                       for column in (stacks, links) for n in (0, 1)]  # fmt: skip
            parts = ("|".join(column) or _NONE for column in columns)
            yield "\t".join([name, f"{units[start]}-{units[end]}", word, *parts]) + "\t"


def _escaped(value: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", _BLANK.sub(" ", value))


WEBANNO = Format(
    "webanno",
    "WebAnno TSV 3",
    "",
    _read_webanno,
    _write_webanno,
    _SUPPORTS,
    by_text=lambda sample: sample.text.startswith(MARK),
    by_annotator=True,
)
