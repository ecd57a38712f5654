"""A document as a piece of HTML: entities in colour with type and confidence, then relations.

The colours are translucent, so that they suit light and dark pages; a type is also written out.
Everything from the document is escaped.
"""

from __future__ import annotations

import zlib
from html import escape

from confide.text.document import Document, Entity

_MARK = "padding:.1em .25em;border-radius:.3em;background:hsl({hue} 75% 50% / .25)"
_LABEL = "font-size:.75em;font-weight:600;margin-left:.4em;opacity:.85"


def as_html(document: Document) -> str:
    """The document as HTML, in one element.

    >>> entity = Entity("T1", "DRUG", ((5, 9),), confidence=0.5)
    >>> "&lt;b&gt;" in as_html(Document("x", "took <b>", (entity,)))
    True
    """
    return (
        f'<div dir="auto" style="line-height:2;white-space:pre-wrap">{_marked(document)}</div>'
        f"{_relations(document)}"
    )


def _marked(document: Document) -> str:
    """The text with each entity marked; where entities overlap, the one that begins first."""
    text, pieces, at = document.text, [], 0
    spans = [(span, one) for one in document.entities for span in one.fragments]
    for (start, end), entity in sorted(spans, key=lambda pair: pair[0]):
        if start < at:
            continue
        label = _label(entity) if end == entity.end else ""
        style = _MARK.format(hue=zlib.crc32(entity.type.encode()) % 360)
        pieces += [
            escape(text[at:start]),
            f'<mark style="color:inherit;{style}" title="{escape(_title(entity))}">'
            f"{escape(text[start:end])}{label}</mark>",
        ]
        at = end
    return "".join(pieces) + escape(text[at:])


def _label(entity: Entity) -> str:
    return f'<span style="{_LABEL}">{escape(_title(entity))}</span>'


def _title(entity: Entity) -> str:
    chance = "" if entity.confidence is None else f" {100 * entity.confidence:.0f} %"
    return f"{entity.type}{chance}"


def _relations(document: Document) -> str:
    by_id = {one.id: one for one in document.entities}
    rows = [
        "<tr>"
        f"<td>{escape(document.surface(by_id[one.head]))}</td><td>{escape(one.type)}</td>"
        f"<td>{escape(document.surface(by_id[one.tail]))}</td>"
        f"<td>{'' if one.confidence is None else f'{100 * one.confidence:.0f} %'}</td></tr>"
        for one in document.relations
        if one.level == "entity"
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""
