"""Agreeing on entity types: those that each site annotates, and the union of all.

What leaves a site: names of the entity types that it annotates, its number of training sentences
and, if one is named, a digest of its public encoder or BART.
What never leaves: text, annotation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confide.errors import DataError, GuardError
from confide.federation.agreement import Parted, alike
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_mark, check_names
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import with_encoder
from confide.kinds.protocol import Agreed, shown
from confide.kinds.vocabulary import no_entity, training_examples
from confide.settings import Settings as RunSettings
from confide.text.document import Document


@dataclass(frozen=True)
class DescribeTypes:
    """Say which types you annotate, and find the encoder or BART, if one is named."""

    encoder: str = carries("the encoder's or BART's name in the settings of the run; empty: none")
    closed: bool = carries("whether the reply names no type, as the settings do", start=bool)


@dataclass(frozen=True)
class TypesDescribed:
    """What a site annotates, and the digest of its encoder or BART."""

    types: list[str] = carries(
        "names of the entity types that the site annotates (not text)", rule="open"
    )
    sentences: int = carries("number of its training sentences")
    digest: str = carries(
        "digest of the public files of its encoder or BART; empty without one", rule="open"
    )


def described(site: Site, digest: str, *, closed: bool) -> TypesDescribed:
    """The reply of a site whose public files have this digest. Raises Refusal."""
    types = [] if closed else sorted(own_types(site))
    return TypesDescribed(types, shown(site, len(training_examples(site))), digest)


def describe_types(
    site: Site, memory: object, ask: DescribeTypes, turn: Turn
) -> tuple[TypesDescribed, object]:
    """Describe the annotation of the training text."""
    return described(site, "", closed=ask.closed), memory


def check_described(ask: object, reply: TypesDescribed) -> None:
    """Raise GuardError if the reply is malformed or impossible."""
    if reply.sentences < 0:
        raise GuardError("sentences must be at least 0")
    check_mark("digest", reply.digest)
    check_names("types", reply.types)


DESCRIBE_TYPES = Step.of(describe_types, check=check_described)


def describing(answer: Callable[..., tuple[TypesDescribed, object]]) -> Step:
    """The describing step of a kind that also finds an encoder or BART."""
    return Step.of(answer, check=check_described)


def own_types(site: Site) -> frozenset[str]:
    """T_k: the types that the site says it annotates or, by default, those of its training text.

    Raises Refusal if a type occurs that the site says it does not annotate.
    """
    if "own types" not in site.cache:
        seen = {span[2] for example in training_examples(site) for span in example.spans}
        if site.knows and not seen <= set(site.knows):
            raise Refusal("tag-outside-set")
        site.cache["own types"] = frozenset(site.knows or seen)
    found: frozenset[str] = site.cache["own types"]
    return found


def types_in_text(site: Site) -> list[str]:
    """The types that occur in the site's training text, sorted."""
    return sorted({span[2] for one in training_examples(site) for span in one.spans})


def agree_on_types(
    run: RunSettings,
    federation: Federation,
    *,
    step: Step = DESCRIBE_TYPES,
    name: str = "",
    digest: str = "",
    public: Sequence[Document] = (),
    called: str = "",
) -> tuple[list[str], dict[str, TypesDescribed]]:
    """T, the union of the sites' types or the declared ones, and the sites' replies.

    An annotated public set adds its types to the union. `digest` is that of the server's files of
    this `name`; errors call them `called`.

    A site whose encoder is not the server's, or that annotates an undeclared type, is left out.
    Raises FederationError or DataError if too few are left, and DataError if no site annotates a
    type.
    """
    closed = run.privacy is not None
    replies: dict[str, TypesDescribed] = federation.ask(step, DescribeTypes(name, closed), round=0)
    digests = {site: reply.digest for site, reply in replies.items()}
    same = with_encoder(federation, step, digests, ours=digest, name=called or run.model.kind)
    replies = {site: replies[site] for site in same}
    declared = list(run.data.types)
    if declared:
        replies = _of_these_types(declared, federation, replies, step=step)
    seen = {kind for reply in replies.values() for kind in reply.types}
    if not seen and not closed:
        raise no_entity()
    seen |= {entity.type for document in public for entity in document.entities}
    return declared or sorted(seen), replies


def asked_of_types(run: RunSettings, name: str = "") -> dict[str, object]:
    """What the settings make of the ask that describes the sites' types and files of this name."""
    return vars(DescribeTypes(name, run.privacy is not None))


def agreed(form: object, replies: Mapping[str, TypesDescribed]) -> Agreed:
    """A form that the sites of these replies agreed on."""
    return Agreed(
        form,
        sorted(replies),
        {site: reply.sentences for site, reply in replies.items()},
        {site: reply.types for site, reply in replies.items()},
    )


def _of_these_types(
    declared: list[str],
    federation: Federation,
    replies: dict[str, TypesDescribed],
    *,
    step: Step,
) -> dict[str, TypesDescribed]:
    """The replies of the sites that annotate only these types; the others are left out.

    Raises DataError if too few are left.
    """

    def strange(parted: Parted) -> DataError:
        seen = {kind for reply in replies.values() for kind in reply.types}
        odd = {kind for site in parted.odd for kind in replies[site].types} - set(declared)
        return DataError(
            f"a site annotates {min(odd)!r}, which data.types does not name",
            expected=", ".join(sorted(declared)),
            got=", ".join(sorted(seen)) or "no type",
            fix="map the names in the sites' `tags`, or correct data.types",
        )

    fits = {site: set(reply.types) <= set(declared) for site, reply in replies.items()}
    why = "it annotates a type that data.types does not name"
    same = alike(federation, fits, step=step, why=why, error=strange, ours=True)
    return {site: replies[site] for site in same}
