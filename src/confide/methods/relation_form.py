"""The form of a relation classifier, and how the sites agree on it.

What leaves a site: which public encoder it has (a digest of that encoder's files, the same at all
sites), the names of its relations and entity types, and between which types its relations are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confide.data.relations import NO_RELATION, Rules, type_pairs
from confide.errors import FederationError, GuardError
from confide.federation.agreement import Parted, alike
from confide.federation.federation import Federation
from confide.federation.guards import check_mark, check_names
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.encoder import FrozenEncoder
from confide.learning.relations import RelationForm, RelationModeller
from confide.methods.context import WIDEST, encoder_of, find_encoder
from confide.settings import Settings as RunSettings
from confide.text.document import Document

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
class RelationMemory:
    """What a site keeps: the form of the classifier, and which pairs are looked at.

    `relations` are its classes: the first one is `NO_RELATION`, wherever there are such pairs.
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
) -> RelationMemory:
    """The form that all sites can use, with what the public set knows besides.

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
    return _form(run, relations, pairs=run.pairs.types or pairs, types=types, digest=server.digest)


def with_encoder(
    federation: Federation,
    step: Step,
    digests: Mapping[str, str],
    *,
    ours: str,
    name: str = "encoder",
) -> list[str]:
    """The sites that have the server's encoder (`ours`), by the digests of theirs.

    The others are left out. Raises FederationError where too few have it.
    """

    def error(parted: Parted) -> FederationError:
        return FederationError(
            f"the sites do not have the server's {name}: {', '.join(parted.odd)} has another one",
            fix="give every site the same files, and name them with `context` in its table",
        )

    why = f"its {name} is not the server's"
    return alike(federation, digests, step=step, why=why, error=error, ours=ours)


def check_relations_known(relations: Collection[str]) -> None:
    """Raise FederationError where nobody has a relation."""
    if not relations:
        raise FederationError(
            "no site has a single relation in its training text",
            fix="look at the files with `confide data check`, and at the names in `relations`",
        )


def _form(
    run: RunSettings, relations: set[str], *, pairs: Any, types: set[str], digest: str
) -> RelationMemory:
    own, rules = run.classifier, run.pairs
    return RelationMemory(
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


def rules_of(memory: RelationMemory) -> Rules:
    """Which pairs of entities are looked at."""
    return Rules(
        types=frozenset(memory.pairs),
        direction=memory.direction,  # type: ignore[arg-type]
        max_sentences=None if memory.max_sentences == ANY else memory.max_sentences,
        max_tokens=None if memory.max_tokens == ANY else memory.max_tokens,
    )


def modeller_of(memory: RelationMemory, encoder: FrozenEncoder) -> RelationModeller:
    """What makes classifiers of this form."""
    form = RelationForm(
        relations=tuple(memory.relations),
        types=tuple(memory.types),
        blind=memory.blind,
        pool=memory.pool,  # type: ignore[arg-type]
        dropout=memory.dropout,
        longest=memory.longest,
    )
    return RelationModeller(encoder, form)
