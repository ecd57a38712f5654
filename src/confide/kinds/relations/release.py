"""A released relation classifier: it needs its encoder's files, and no key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confide.federation.messages import Arrays, carries, decode_file
from confide.kinds.relations.extractor import RelationExtractor
from confide.kinds.relations.form import RelationForm
from confide.kinds.releases import shape_of


@dataclass(frozen=True)
class ReleasedRelations(RelationForm):
    """A released classifier: it reads the pieces of a public encoder, so it needs no key."""

    weights: Arrays = carries("weights of the classifier, including its encoder")


def copied(form: RelationForm, weights: Arrays) -> ReleasedRelations:
    """The message of a release."""
    return ReleasedRelations(**shape_of(form, RelationForm), weights=dict(weights))


def released(file: Path) -> RelationExtractor:
    """The extractor of a released classifier. Raises MessageError."""
    made = decode_file(ReleasedRelations, file.read_bytes())
    return made.extractor(made.weights, key=None)
