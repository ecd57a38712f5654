"""UIMA CAS as XMI, as INCEpTION, WebAnno and cTAKES write it; no type system is needed.

Every annotation with a begin and an end is an entity, unless it belongs to the text's analysis. A
relation is an item with a Governor and a Dependent, or a link with a role from one annotation to
another. A TypeSystem.xml beside the file says which features are numbers and not references;
without one, a number that is the id of an annotation is a reference. Offsets count UTF-16 units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import FormatError
from confide.text.archives import exists
from confide.text.document import Problem, Sentence, Span
from confide.text.formats.base import Options, Reading, whole
from confide.text.formats.draft import Draft
from confide.text.formats.layers import Units, called, is_linguistic, short
from confide.text.formats.markup import Element, parse
from confide.text.formats.records import clean

ROOTS = ("xmi:XMI", "XMI")
_ID = "{http://www.omg.org/XMI}id"
_NOTHING = frozenset(("begin", "end", "sofa"))
_NEVER = _NOTHING | {"value", "label", "identifier"}
TYPES = "TypeSystem.xml"
_VALUE = "uima.cas."
_NO_VALUES = ("FSArray", "FSList", "TOP", "AnnotationBase", "Sofa", "NonEmptyFSList")
_CORE = "de.tudarmstadt.ukp.dkpro.core.api.segmentation.type."
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


def read(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as its DocumentMetaData says, or as the file.

    Raises:
        FormatError: it is not XMI, or has no text.
        DataError: a type was not declared.
    """
    root, encoding = parse(path, options.encoding)
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
    begin, behind = map(whole, ends)
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
    root, _ = parse(file, None)
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
            if not item.layer.startswith((_CORE, *_QUIET)) and "metadata" not in item.layer:
                cas.ignored[short(item.layer)] += 1
            continue
        kind, concepts, attributes = called(item.layer, _plain(item, cas))
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
            kind, _, attributes = called(item.layer, features)
            draft.relation(kind, *ends, attributes=attributes)
        elif name in draft.names:
            for key in item.features:
                for kind, head, tail in _links(cas, name, key):
                    draft.relation(kind, head, tail)


def _links(cas: _Cas, host: str, key: str) -> Iterator[tuple[str, str, str]]:
    """What a feature links an entity to: by links with roles, or by an item itself."""
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
        kind = item.layer.removeprefix(_CORE)
        if kind in spans and item.layer.startswith(_CORE) and item.span is not None:
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
