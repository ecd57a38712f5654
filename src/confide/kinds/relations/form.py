"""The form of a relation classifier, and how the sites agree on it.

What leaves a site: which public encoder it has (a digest of that encoder's files, the same at all
sites), the names of its relations and entity types, and which types its relations link.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from confide.data.batches.relations import NO_RELATION, Rules, type_pairs
from confide.errors import FederationError, GuardError
from confide.federation.federation import Federation
from confide.federation.guards import check_mark, check_names
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import WIDEST, encoder_of, find_encoder, with_encoder
from confide.kinds.protocol import SiteModel, desk_at
from confide.kinds.tuned import TUNING, tuning_of
from confide.learning.encoder import FrozenEncoder
from confide.learning.relations import RelationForm as Made
from confide.learning.relations import RelationTrainer
from confide.learning.tuning import Tuning
from confide.learning.weights import trained
from confide.settings import Settings as RunSettings
from confide.text.document import Document

if TYPE_CHECKING:
    from confide.kinds.relations.extractor import RelationExtractor

CLASS_ROWS = ("relation.weight", "relation.bias")
"""The arrays with a row for each relation."""
ANY = -1
"""Stands in messages for no limit."""


@dataclass(frozen=True)
class DescribeRelations:
    """Find the encoder, and describe your annotation of relations."""

    encoder: str = carries("the encoder's name in the settings of the run")
    closed: bool = carries("whether the reply names nothing, as the settings do", start=bool)


@dataclass(frozen=True)
class RelationsDescribed:
    """What the common classifier must know of a site."""

    encoder: str = carries("digest of the encoder's public files", rule="open")
    dim: int = carries("width of the encoder's states", rule="open")
    relations: list[str] = carries(
        "names of the relations of the training text (not text)", rule="open"
    )
    pairs: list[tuple[str, str]] = carries(
        "pairs of entity types that the relations link", rule="open"
    )
    types: list[str] = carries("names of the entity types (not text)", rule="open")


@dataclass(frozen=True)
class PairForm:
    """The form of a model that finds relations between pairs of entities.

    `relations` are the classes, `NO_RELATION` first. The other fields say which pairs are
    candidates and how the model reads them.
    """

    relations: list[str] = carries(
        "names of the relations; the first stands for none", rule="varies"
    )
    types: list[str] = carries(
        "entity types with marks of their own; empty: all share one", rule="varies"
    )
    known_types: list[str] = carries("entity types of the training text", rule="varies")
    pairs: list[tuple[str, str]] = carries(
        "pairs of entity types that may be related", rule="varies"
    )
    direction: str = carries("directed or undirected")
    max_sentences: int = carries("most sentence ends between the two entities; -1: any")
    max_tokens: int = carries("most tokens between the two entities; -1: any")
    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files", rule="varies")
    blind: bool = carries("whether entities are replaced by their types")
    pool: str = carries("what stands for an entity: sum, start or max; or cls for both")
    dropout: float = carries("share of features dropped in training")
    longest: int = carries("longest example, in word pieces")
    tuning: str = carries(TUNING, added=True)


@dataclass(frozen=True)
class RelationForm(PairForm):
    """The form of a relation classifier."""

    private: ClassVar[Sequence[str]] = ("relation",)
    head: ClassVar[str] = "relation"
    word_table: ClassVar[str] = ""
    slope: ClassVar[str] = "relation.weight"

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own classifier; with `types`, of its own relations only."""
        if not types:
            return self
        found = {relation.type for document in site.train for relation in document.relations}
        return replace(self, relations=[NO_RELATION, *sorted(found - {NO_RELATION})])

    @property
    def classes(self) -> int:
        """The number of classes; the first is no relation."""
        return len(self.relations)

    @property
    def class_names(self) -> Sequence[str]:
        """The relations."""
        return self.relations

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of what is trained of the encoder, of the marks and of a linear layer.

        Raises Refusal at a site that has no such encoder.
        """
        name = self.encoder
        encoder = find_encoder(name) if site is None else encoder_of(site, name)
        return trained(trainer_of(self, encoder).initial(seed))

    def parameters(self, first: Arrays) -> int:
        """The number of trained parameters."""
        return sum(array.size for array in first.values())

    def tables(self) -> Sequence[str]:
        """The last layer: a row for each relation. Word pieces are public, so no site lacks one."""
        return CLASS_ROWS

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """None: no row stands for a word."""
        return {}

    def at(self, site: Site) -> SiteModel:
        """The desk of this form at a site."""
        from confide.kinds.relations.desk import RelationSiteModel  # which imports this module

        return desk_at(site, self, RelationSiteModel)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> RelationExtractor:
        """The extractor of a trained classifier. Raises FederationError; and as `find_encoder`."""
        from confide.kinds.relations.extractor import extractor_of  # which imports this module

        return extractor_of(self, weights, encoder=encoder)


def describe_relations(
    site: Site, memory: object, ask: DescribeRelations, turn: Turn
) -> tuple[RelationsDescribed, object]:
    """Find the encoder, and describe the annotation of the training text."""
    encoder = encoder_of(site, ask.encoder)
    said = annotation_of(() if ask.closed else site.train)
    return RelationsDescribed(encoder.digest, encoder.dim, **said), memory


def annotation_of(documents: Sequence[Document]) -> dict[str, list[Any]]:
    """The relations of documents, the pairs of types that these link, and all entity types."""
    relations = {relation.type for document in documents for relation in document.relations}
    types = {entity.type for document in documents for entity in document.entities}
    return {
        "relations": sorted(relations - {NO_RELATION}),
        "pairs": sorted(type_pairs(documents)),
        "types": sorted(types),
    }


def check_relations(ask: object, reply: RelationsDescribed) -> None:
    """Raise GuardError if the reply is malformed or impossible."""
    if not 1 <= reply.dim <= WIDEST:
        raise GuardError("dim is out of range")
    check_annotation(reply)


class Described(Protocol):
    """A site's reply that describes its annotation of relations."""

    @property
    def encoder(self) -> str: ...  # noqa: D102
    @property
    def relations(self) -> list[str]: ...  # noqa: D102
    @property
    def types(self) -> list[str]: ...  # noqa: D102
    @property
    def pairs(self) -> list[tuple[str, str]]: ...  # noqa: D102


def check_annotation(reply: Described) -> None:
    """Raise GuardError if the encoder's digest, or a name of a relation or type, is malformed."""
    check_mark("encoder", reply.encoder)
    check_names("relations", reply.relations)
    check_names("types", reply.types)
    check_names("pairs", {name for pair in reply.pairs for name in pair})


DESCRIBE_RELATIONS = Step.of(describe_relations, check=check_relations)


def agree_on_relations(
    run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
) -> tuple[RelationForm, dict[str, list[str]]]:
    """The form that all sites can use, and the relations of each site.

    A public set adds its own relations, types and pairs. Raises FederationError if too few sites
    have the server's encoder, or if no site annotates a relation.
    """
    server = find_encoder(run.classifier.encoder)
    ask = DescribeRelations(run.classifier.encoder, run.privacy is not None)
    replies = federation.ask(DESCRIBE_RELATIONS, ask, round=0)
    digests = {site: reply.encoder for site, reply in replies.items()}
    same = with_encoder(federation, DESCRIBE_RELATIONS, digests, ours=server.digest)
    replies = {site: replies[site] for site in same}
    form = RelationForm(
        **pair_form(
            run, replies.values(), digest=server.digest, pool=run.classifier.pool, public=public
        )
    )
    return form, {site: replies[site].relations for site in same}


def pair_form(
    run: RunSettings,
    replies: Collection[Described],
    *,
    digest: str,
    pool: str,
    public: Sequence[Document] = (),
) -> dict[str, Any]:
    """The values of a `PairForm` on which these sites agree; `digest` is empty without an encoder.

    Raises FederationError if no site has a relation.
    """
    said = annotation_of(public)
    for reply in replies:
        for name, values in said.items():
            values += getattr(reply, name)
    if run.privacy is not None:  # nothing is named by the sites
        said["relations"] += run.data.relations
        said["types"] += run.data.types
    relations, types = sorted({*said["relations"]} - {NO_RELATION}), sorted({*said["types"]})
    if not relations:
        raise FederationError(
            "no site has a relation in its training text",
            fix="look at the files with `confide data check`, and at the names in `relations`",
        )
    form = PairForm(
        relations=[NO_RELATION, *relations],
        types=types if digest and run.classifier.typed else [],
        known_types=types,
        pairs=sorted(run.pairs.types or {(head, tail) for head, tail in said["pairs"]}),
        digest=digest,
        **settled_pairs(run, encoder=bool(digest), pool=pool),
    )
    return vars(form)


def settled_pairs(run: RunSettings, *, encoder: bool, pool: str) -> dict[str, Any]:
    """The values of a `PairForm` that the settings alone decide; with or without an encoder."""
    own, rules = run.classifier if encoder else run.pcnn, run.pairs
    return {
        "direction": rules.direction,
        "max_sentences": _limit(rules.max_sentences),
        "max_tokens": _limit(rules.max_tokens),
        "encoder": run.classifier.encoder if encoder else "",
        "blind": encoder and run.classifier.blind,
        "pool": pool,
        "dropout": own.dropout,
        "longest": own.longest,
        "tuning": str(tuning_of(run)) if encoder else "",
    }


def _limit(number: float) -> int:
    """A limit of the settings as messages encode it: `ANY` for infinity."""
    return ANY if number == float("inf") else int(number)


def rules_of(memory: PairForm) -> Rules:
    """Which pairs of entities are candidates."""
    return Rules(
        types=frozenset(memory.pairs),
        direction=memory.direction,  # type: ignore[arg-type]
        max_sentences=None if memory.max_sentences == ANY else memory.max_sentences,
        max_tokens=None if memory.max_tokens == ANY else memory.max_tokens,
    )


def trainer_of(memory: RelationForm, encoder: FrozenEncoder) -> RelationTrainer:
    """The trainer of this form."""
    form = Made(
        relations=tuple(memory.relations),
        types=tuple(memory.types),
        blind=memory.blind,
        pool=memory.pool,  # type: ignore[arg-type]
        dropout=memory.dropout,
        longest=memory.longest,
        tuning=Tuning.of(memory.tuning),
    )
    return RelationTrainer(encoder, form)
