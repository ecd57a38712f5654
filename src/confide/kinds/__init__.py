"""The kinds of models, one folder each, and an explicit dict of them."""

from __future__ import annotations

from confide.kinds.bags.site import BagExtractor, BagKind
from confide.kinds.encoder import TokenKind
from confide.kinds.entities import EntityExtractor
from confide.kinds.lightner.site import LightnerKind
from confide.kinds.linear import LinearKind
from confide.kinds.protocol import Kind
from confide.kinds.relations.site import RelationExtractor, RelationKind
from confide.kinds.spans import SpanKind
from confide.kinds.tagger.site import TaggerKind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        TaggerKind(),
        TokenKind(),
        LightnerKind(),
        SpanKind(),
        LinearKind(),
        RelationKind(),
        BagKind(),
    )
}
"""The kinds by name, in the order of the documentation."""

Extractor = EntityExtractor | RelationExtractor | BagExtractor
"""A trained model that annotates, made by a form's `extractor`."""
