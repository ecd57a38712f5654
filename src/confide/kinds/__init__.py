"""The kinds of models, one folder each, and an explicit dict of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from confide.ondemand import OnDemand

if TYPE_CHECKING:
    from confide.kinds.bags.site import BagExtractor
    from confide.kinds.entities import EntityExtractor
    from confide.kinds.protocol import Kind
    from confide.kinds.relations.site import RelationExtractor

    Extractor: TypeAlias = EntityExtractor | RelationExtractor | BagExtractor
    """A trained model that annotates, made by a form's `extractor`."""

KINDS: OnDemand[Kind] = OnDemand(
    {
        "tagger": "confide.kinds.tagger.site:TaggerKind",
        "encoder": "confide.kinds.encoder:TokenKind",
        "lightner": "confide.kinds.lightner.site:LightnerKind",
        "spans": "confide.kinds.spans:SpanKind",
        "linear": "confide.kinds.linear:LinearKind",
        "relations": "confide.kinds.relations.site:RelationKind",
        "bags": "confide.kinds.bags.site:BagKind",
    },
    lambda kind: kind(),
)
"""The kinds by name, in the order of the documentation; each is imported when it is asked for."""

RELEASED = {
    "model.safetensors": "tagger",
    "tokens.safetensors": "encoder",
    "lightner.safetensors": "lightner",
    "spans.safetensors": "spans",
    "linear.safetensors": "linear",
    "relations.safetensors": "relations",
    "bags.safetensors": "bags",
}
"""The file by which a release is known, and its kind (`Release.file`)."""
