"""Documents to UIMA CAS as XMI, one file each, with the type system that INCEpTION needs beside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from confide.text.document import Document, Problem, Span
from confide.text.files import write_text
from confide.text.formats.base import file_name, unheld
from confide.text.formats.keeping import Keeps, cut_down
from confide.text.formats.layers import NAMED_ENTITY, RELATION, units_of
from confide.text.formats.xmi import TYPES
from confide.text.segment import segmented

_KEEPS = Keeps(relations=True, concepts=True, sentences=True)
NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
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


def write(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a folder: NamedEntity with value and identifier, relations as webanno.custom.Relation.

    `scheme` is not used. A character that XML cannot hold is written as U+FFFD, and reported.
    Raises DataError if the files cannot be written.
    """
    cut, problems = cut_down(documents, _KEEPS, path)
    several = sum(len(entity.concepts) > 1 for one in cut for entity in one.entities)
    taken: set[str] = set()
    for document in map(segmented, cut):
        name = file_name(document.id, taken)
        text = NOT_IN_XML.sub("\ufffd", document.text)
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
    places = dict(zip(order, units_of(text, order), strict=True))
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
    return " ".join(NOT_IN_XML.sub("\ufffd", value).split())


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
