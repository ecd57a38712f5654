"""The kinds of models, one folder each, and an explicit dict of them."""

from __future__ import annotations

from confide.kinds.bags.site import BagKind
from confide.kinds.encoder import EncoderKind
from confide.kinds.lightner.site import LightnerKind
from confide.kinds.linear import LinearKind
from confide.kinds.protocol import Kind
from confide.kinds.relations.site import RelationKind
from confide.kinds.spans import SpanKind
from confide.kinds.tagger.site import PublicTaggerKind, TaggerKind

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        TaggerKind(),
        EncoderKind(),
        LightnerKind(),
        SpanKind(),
        LinearKind(),
        RelationKind(),
        BagKind(),
    )
}
"""The kinds by name, in the order of the documentation."""

ON_PUBLIC: dict[str, Kind] = KINDS | {"tagger": PublicTaggerKind()}
"""The kinds as they are under a method that gives all sites a public set."""
