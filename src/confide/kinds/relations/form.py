"""The form of a relation classifier, and how the sites agree on it.

What leaves a site: which public encoder it has (a digest of that encoder's files, the same at all
sites), the names of its relations and entity types, and between which types its relations are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from confide.data.batches.relations import NO_RELATION, Rules, type_pairs
from confide.errors import FederationError, GuardError
from confide.federation.federation import Federation
from confide.federation.guards import check_mark, check_names
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import WIDEST, encoder_of, find_encoder, with_encoder
from confide.kinds.protocol import desk_at
from confide.learning.encoder import FrozenEncoder
from confide.learning.relations import RelationForm as Made
from confide.learning.relations import RelationModeller
from confide.learning.weights import arrays
from confide.settings import Settings as RunSettings
from confide.text.document import Document

if TYPE_CHECKING:
    from confide.kinds.relations.desk import RelationDesk
    from confide.kinds.relations.extractor import RelationExtractor

ANY = -1
"""How a message says of a limit that there is none."""


@dataclass(frozen=True)
class DescribeRelations:
    """Find the encoder, and say which relations you annotate."""

    encoder: str = carries("the encoder's name in the settings of the run")


@dataclass(frozen=True)
class RelationsDescribed:
    """What the common classifier must know."""

    encoder: str = carries("digest of the encoder's files, the same at all who have it")
    dim: int = carries("numbers of its state of a piece")
    relations: list[str] = carries("names of the relations of the training text (not text)")
    pairs: list[tuple[str, str]] = carries("types of the entities that they are between")
    types: list[str] = carries("names of the entity types (not text)")


@dataclass(frozen=True)
class PairForm:
    """What finds relations between pairs of entities, and which pairs are looked at.

    `relations` are the classes: the first one is `NO_RELATION`, wherever there are such pairs.
    """

    relations: list[str] = carries("names of the classes")
    types: list[str] = carries("entity types that have marks of their own; none: all have the same")
    known_types: list[str] = carries("entity types of the training text")
    pairs: list[tuple[str, str]] = carries("types of entities between which relations are sought")
    direction: str = carries("directed or undirected")
    max_sentences: int = carries("ends of sentences between the two; -1: any")
    max_tokens: int = carries("tokens between the two; -1: any")
    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files")
    blind: bool = carries("whether entities are replaced by their types")
    pool: str = carries("what stands for an entity: sum or start")
    dropout: float = carries("share of features dropped in training")
    longest: int = carries("word pieces that are read of an example")


@dataclass(frozen=True)
class RelationForm(PairForm):
    """The form of a relation classifier."""

    private: ClassVar[Sequence[str]] = ("relation",)
    head: ClassVar[str] = "relation"
    word_table: ClassVar[str] = ""
    slope: ClassVar[str] = "relation.weight"

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own classifier; `types`: with the relations of its text only."""
        if not types:
            return self
        found = {relation.type for document in site.train for relation in document.relations}
        return replace(self, relations=[NO_RELATION, *sorted(found - {NO_RELATION})])

    @property
    def classes(self) -> int:
        """Relations; none is the first."""
        return len(self.relations)

    def first(self, seed: int) -> Arrays:
        """Encoder, rows for the marks and a linear layer: all of it is trained."""
        return arrays(modeller_of(self, find_encoder(self.encoder)).initial(seed))

    def parameters(self, first: Arrays) -> int:
        """Numbers of the whole classifier: all of it is trained."""
        return sum(array.size for array in first.values())

    def tables(self) -> Sequence[str]:
        """None: pieces are not a common vocabulary of the sites."""
        return ()

    def at(self, site: Site) -> RelationDesk:
        """The desk of this form at a site."""
        from confide.kinds.relations.desk import RelationDesk  # it needs this form

        return desk_at(site, self, RelationDesk)

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> RelationExtractor:
        """What a trained classifier is. Raises FederationError, and what `find_encoder` raises."""
        from confide.kinds.relations.extractor import extractor_of  # it needs this form

        return extractor_of(self, weights, encoder=encoder)


def describe_relations(
    site: Site, memory: object, ask: DescribeRelations, turn: Turn
) -> tuple[RelationsDescribed, object]:
    """Look the encoder up, and what is annotated in the training text."""
    encoder = encoder_of(site, ask.encoder)
    found = {relation.type for document in site.train for relation in document.relations}
    types = {entity.type for document in site.train for entity in document.entities}
    reply = RelationsDescribed(
        encoder=encoder.digest,
        dim=encoder.dim,
        relations=sorted(found - {NO_RELATION}),
        pairs=sorted(type_pairs(site.train)),
        types=sorted(types),
    )
    return reply, memory


def check_relations(ask: object, reply: RelationsDescribed) -> None:
    """Raise GuardError where no site can be like that."""
    if not 1 <= reply.dim <= WIDEST:
        raise GuardError("the description of the encoder cannot be")
    check_annotation(reply)


def check_annotation(reply: Any) -> None:
    """Raise GuardError where encoder, relations, types or pairs are not marks and names."""
    check_mark("encoder", reply.encoder)
    check_names("relations", reply.relations)
    check_names("types", reply.types)
    check_names("pairs", {name for pair in reply.pairs for name in pair})


DESCRIBE_RELATIONS = Step.of(describe_relations, check=check_relations)


def agree_on_relations(
    run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
) -> tuple[RelationForm, dict[str, list[str]]]:
    """The form that all sites can use, with what the public set knows besides; by site what it has.

    Raises FederationError: sites have different encoders, or nobody annotates a relation.
    """
    server = find_encoder(run.classifier.encoder)
    replies = federation.ask(DESCRIBE_RELATIONS, DescribeRelations(run.classifier.encoder), round=0)
    digests = {site: reply.encoder for site, reply in replies.items()}
    same = with_encoder(federation, DESCRIBE_RELATIONS, digests, ours=server.digest)
    replies = {site: replies[site] for site in same}
    relations = {name for reply in replies.values() for name in reply.relations}
    relations |= {relation.type for document in public for relation in document.relations}
    relations -= {NO_RELATION}
    check_relations_known(relations)
    pairs = {tuple(pair) for reply in replies.values() for pair in reply.pairs}
    pairs |= type_pairs(public)
    types = {name for reply in replies.values() for name in reply.types}
    types |= {entity.type for document in public for entity in document.entities}
    form = _form(run, relations, pairs=run.pairs.types or pairs, types=types, digest=server.digest)
    return form, {site: replies[site].relations for site in same}


def check_relations_known(relations: Collection[str]) -> None:
    """Raise FederationError where nobody has a relation."""
    if not relations:
        raise FederationError(
            "no site has a single relation in its training text",
            fix="look at the files with `confide data check`, and at the names in `relations`",
        )


def _form(
    run: RunSettings, relations: set[str], *, pairs: Any, types: set[str], digest: str
) -> RelationForm:
    own, rules = run.classifier, run.pairs
    return RelationForm(
        relations=[NO_RELATION, *sorted(relations)],
        types=sorted(types) if own.typed else [],
        known_types=sorted(types),
        pairs=sorted(tuple(pair) for pair in pairs),
        direction=rules.direction,
        max_sentences=limit_of(rules.max_sentences),
        max_tokens=limit_of(rules.max_tokens),
        encoder=own.encoder,
        digest=digest,
        blind=own.blind,
        pool=own.pool,
        dropout=own.dropout,
        longest=own.longest,
    )


def limit_of(number: float) -> int:
    """A limit of the settings as a message says it."""
    return ANY if number == float("inf") else int(number)


def rules_of(memory: PairForm) -> Rules:
    """Which pairs of entities are looked at."""
    return Rules(
        types=frozenset(memory.pairs),
        direction=memory.direction,  # type: ignore[arg-type]
        max_sentences=None if memory.max_sentences == ANY else memory.max_sentences,
        max_tokens=None if memory.max_tokens == ANY else memory.max_tokens,
    )


def modeller_of(memory: RelationForm, encoder: FrozenEncoder) -> RelationModeller:
    """What makes classifiers of this form."""
    form = Made(
        relations=tuple(memory.relations),
        types=tuple(memory.types),
        blind=memory.blind,
        pool=memory.pool,  # type: ignore[arg-type]
        dropout=memory.dropout,
        longest=memory.longest,
    )
    return RelationModeller(encoder, form)
