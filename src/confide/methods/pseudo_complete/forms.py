"""The forms of the three kinds of models, how the sites agree on one, and what makes models of it.

What leaves a site at the start: names of the entity types that it annotates, its number of
training sentences and a digest of its public encoder or BART; of the tagger kind the keyed
vocabulary (confide.methods.vocabulary). What never does: text, annotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from confide.data.corpora import locate
from confide.errors import ConfideError, DataError, GuardError, SettingsError
from confide.federation.agreement import Parted, alike
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import check_mark, check_names
from confide.federation.messages import carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.learning.adversaries import AdversarialModeller
from confide.learning.bart_files import PretrainedBart, load_bart
from confide.learning.crf_modelling import CrfModeller
from confide.learning.encoder import FrozenEncoder
from confide.learning.lightner import LightnerForm, LightnerModeller
from confide.learning.modelling import EntityModeller
from confide.learning.tokens import TokenForm, TokenModeller
from confide.methods.context import NONE, encoder_of, find_encoder
from confide.methods.relation_form import with_encoder
from confide.methods.taggers import (
    TaggerMemory,
    tag_set,
    tagger_sizes,
    vocabulary_at,
    vocabulary_for,
)
from confide.methods.vocabulary import training_examples
from confide.settings import Settings as RunSettings

Modeller = EntityModeller[Any, Any]


@dataclass(frozen=True)
class Counting:
    """What a site keeps besides the form. S training sentences, or windows of long ones."""

    instance_weights_S: NDArray[np.float32] = carries("how much each training sentence counts")
    weighed: int = carries("the last round in which they were brought up to date")


@dataclass(frozen=True)
class TokenShape:
    """The form of an encoder that tags words."""

    types: list[str] = carries("names of all entity types")
    tag_scheme: str = carries("scheme of the tags: iobes or iob2")
    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files")
    dropout: float = carries("share of features dropped in training")
    longest: int = carries("word pieces that are read at once")


@dataclass(frozen=True)
class BartShape:
    """The form of a LightNER."""

    types: list[str] = carries("names of all entity types, by which they are written")
    bart: str = carries("the BART's name in the settings of the run")
    digest: str = carries("digest of its files")
    prompts: int = carries("number of prompts, N_q")
    hidden: int = carries("width of the projections of the prompts, h")
    where: str = carries("which self-attention has prompts: both or decoder")
    tune: str = carries("what is trained: prompts, all or lora")
    rank: int = carries("of the updates of lora")
    constrained: bool = carries("whether only well-formed entities are written")
    dropout: float = carries("share of features dropped in training")
    longest: int = carries("word pieces that are read at once")
    adversary: str = carries("what it is trained against: none, dann, fada or fade")
    told_apart: list[str] = carries("names of the sites that the adversary tells apart")


@dataclass(frozen=True)
class TokenMemory(TokenShape, Counting):
    """What a site keeps where an encoder tags."""


@dataclass(frozen=True)
class BartMemory(BartShape, Counting):
    """What a site keeps where LightNER writes."""


@dataclass(frozen=True)
class TaggedMemory(TaggerMemory, Counting):
    """What a site keeps where the tagger tags: its form, and the common vocabulary."""


Shape = TokenShape | BartShape | TaggerMemory
Memory = TokenMemory | BartMemory | TaggedMemory


@dataclass(frozen=True)
class DescribeTypes:
    """Say which types you annotate, and find the encoder or BART, if one is named."""

    kind: str = carries("the kind of model: tagger, encoder or lightner")
    encoder: str = carries("name of the encoder or BART in the settings of the run; empty: none")


@dataclass(frozen=True)
class TypesDescribed:
    """What a site annotates, and with what it would train."""

    types: list[str] = carries("names of the entity types that the site annotates (not text)")
    sentences: int = carries("number of its training sentences")
    digest: str = carries("digest of the files of its encoder or BART; empty: none is named")


def describe_types(
    site: Site, memory: object, ask: DescribeTypes, turn: Turn
) -> tuple[TypesDescribed, object]:
    """Look the encoder up, and what is annotated in the training text."""
    digest = ""
    if ask.kind == "encoder":
        digest = encoder_of(site, ask.encoder).digest
    elif ask.kind == "lightner":
        digest = bart_of(site, ask.encoder).digest
    count = len(training_examples(site))
    if not count:
        raise Refusal("no-training-text")
    return TypesDescribed(sorted(own_types(site)), count, digest), memory


def check_described(ask: object, reply: TypesDescribed) -> None:
    """Raise GuardError where no site can be like that."""
    if reply.sentences < 1:
        raise GuardError("sentences is not a count")
    check_mark("digest", reply.digest)
    check_names("types", reply.types)


DESCRIBE_TYPES = Step.of(describe_types, check=check_described)


def own_types(site: Site) -> frozenset[str]:
    """T_k: what the site annotates: what it says so, or what occurs in its training text.

    Raises Refusal where something occurs that it says it does not annotate.
    """
    if "own types" not in site.cache:
        seen = {span[2] for example in training_examples(site) for span in example.spans}
        if site.knows and not seen <= set(site.knows):
            raise Refusal("tag-outside-set")
        site.cache["own types"] = frozenset(site.knows or seen)
    found: frozenset[str] = site.cache["own types"]
    return found


def agree_on_types(
    run: RunSettings, federation: Federation, *, name: str, digest: str
) -> tuple[list[str], dict[str, TypesDescribed]]:
    """T: the union of what the sites annotate, or what the settings declare; and their replies.

    A site with another encoder than the server, or with a type that is not declared, is left out.
    Raises FederationError and DataError where too few are left, DataError where nobody annotates a
    type.
    """
    ask = DescribeTypes(run.model.kind, name)
    replies: dict[str, TypesDescribed] = federation.ask(DESCRIBE_TYPES, ask, round=0)
    digests = {site: reply.digest for site, reply in replies.items()}
    same = with_encoder(federation, DESCRIBE_TYPES, digests, ours=digest, name=run.model.kind)
    replies = {site: replies[site] for site in same}
    declared = list(run.data.types)
    if declared:
        replies = _of_these_types(declared, federation, replies)
    seen = {kind for reply in replies.values() for kind in reply.types}
    if not seen:
        raise DataError(
            "no site has a single annotated entity in its training text",
            fix="check the tag maps and formats with `confide data check`",
        )
    return declared or sorted(seen), replies


def _of_these_types(
    declared: list[str], federation: Federation, replies: dict[str, TypesDescribed]
) -> dict[str, TypesDescribed]:
    """The replies of the sites that annotate nothing else; the others are left out.

    Raises DataError where they are too few, or where nobody annotates one of the types.
    """

    def error(what: str) -> DataError:
        seen = {kind for reply in replies.values() for kind in reply.types}
        return DataError(
            f"{what}: data.types are not the types of the sites",
            expected=", ".join(sorted(declared)),
            got=", ".join(sorted(seen)) or "no type",
            fix="map the names in the sites' `tags`, or mend data.types",
        )

    def strange(parted: Parted) -> DataError:
        seen = {kind for site in parted.odd for kind in replies[site].types}
        return error(f"a site annotates {min(seen - set(declared))!r}")

    fits = {site: set(reply.types) <= set(declared) for site, reply in replies.items()}
    why = "it annotates a type that data.types does not name"
    same = alike(federation, fits, step=DESCRIBE_TYPES, why=why, error=strange, ours=True)
    unknown = sorted(set(declared) - {kind for site in same for kind in replies[site].types})
    if unknown:
        raise error(f"nobody annotates {unknown[0]!r}")
    return {site: replies[site] for site in same}


def token_shape(run: RunSettings, types: Sequence[str], digest: str) -> TokenShape:
    """The form of the settings' encoder that tags."""
    return TokenShape(
        types=list(types),
        tag_scheme=run.model.tag_scheme,
        encoder=run.classifier.encoder,
        digest=digest,
        dropout=run.classifier.dropout,
        longest=run.classifier.longest,
    )


def bart_shape(
    run: RunSettings, types: Sequence[str], digest: str, *, adversary: str, sites: Sequence[str]
) -> BartShape:
    """The form of the settings' LightNER; with an adversary, one that tells these sites apart."""
    own: dict[str, Any] = run.lightner.model_dump()
    return BartShape(
        **own,
        types=list(types),
        digest=digest,
        adversary=adversary,
        told_apart=[] if adversary == NONE else sorted(sites),
    )


# --- what makes models of a form ------------------------------------------------------------------


@dataclass
class Desk:
    """What the sites of one process share: what makes models of one form, and one model."""

    modeller: Modeller

    @cached_property
    def model(self) -> nn.Module:
        """The one model of this form in this process."""
        return self.modeller.initial(0)


def desk_of(site: Site, memory: Memory) -> Desk:
    """That of the site's process. Raises Refusal where its encoder or key is not the common one."""
    desks: dict[Any, Desk] = site.scratch.setdefault("entity desks", {})
    if isinstance(memory, TokenShape):
        encoder = encoder_of(site, memory.encoder)
        _check_digest(encoder.digest, memory)
        place: Any = (encoder.folder, repr(token_form(memory)))
        if place not in desks:
            desks[place] = Desk(TokenModeller(encoder, token_form(memory)))
    elif isinstance(memory, BartShape):
        bart = bart_of(site, memory.bart)
        _check_digest(bart.digest, memory)
        place = (bart.folder, repr(lightner_form(memory)), memory.adversary, *memory.told_apart)
        if place not in desks:
            desks[place] = Desk(lightner_modeller(bart, memory))
    else:
        place = (tagger_sizes(memory), tag_set(memory), site.key(), memory.check)
        if place not in desks:
            desks[place] = Desk(crf_modeller(memory, vocabulary_at(site, memory)))
    return desks[place]


def _check_digest(digest: str, memory: TokenShape | BartShape) -> None:
    if digest != memory.digest:
        raise Refusal("other-encoder")


def bart_of(site: Site, name: str) -> PretrainedBart:
    """The site's BART, looked up once in a process. Raises Refusal where it cannot be used."""
    place = site.model_place(name)
    found: dict[str, PretrainedBart] = site.scratch.setdefault("barts", {})
    if place not in found:
        try:
            found[place] = find_bart(place)
        except ConfideError as error:
            raise Refusal("encoder-missing") from error
    return found[place]


def find_bart(place: str) -> PretrainedBart:
    """The BART of this name or folder, which may begin with `$CONFIDE_DATA`.

    Raises SettingsError where none is named, and what `load_bart` raises.
    """
    if not place:
        raise SettingsError(
            "LightNER needs a BART, and the settings name none",
            expected="lightner.bart: a folder, or a name on the hub",
            fix="`confide pretrain` makes a small one where there is no hub",
        )
    return load_bart(str(locate(place)) if place.startswith("$") else place)


def token_form(shape: TokenShape) -> TokenForm:
    """The same as models are made of."""
    return TokenForm(
        types=tuple(shape.types),
        tag_scheme=shape.tag_scheme,  # type: ignore[arg-type]
        dropout=shape.dropout,
        longest=shape.longest,
    )


def lightner_form(shape: BartShape) -> LightnerForm:
    """The same as models are made of."""
    return LightnerForm(
        types=tuple(shape.types),
        prompts=shape.prompts,
        hidden=shape.hidden,
        where=shape.where,  # type: ignore[arg-type]
        tune=shape.tune,  # type: ignore[arg-type]
        rank=shape.rank,
        constrained=shape.constrained,
        dropout=shape.dropout,
        longest=shape.longest,
    )


def lightner_modeller(bart: PretrainedBart, shape: BartShape) -> Modeller:
    """What makes LightNERs of this form, with their adversary, if they have one."""
    made = LightnerModeller(bart, lightner_form(shape))
    if shape.adversary == NONE:
        return made
    kind: Any = shape.adversary
    return AdversarialModeller(made, kind, sites=len(shape.told_apart))


def training_modeller(site: Site, memory: Memory, reversal: float) -> Modeller:
    """The modeller that trains at a site: an adversary is told which site it is."""
    modeller = desk_of(site, memory).modeller
    if isinstance(memory, BartShape) and isinstance(modeller, AdversarialModeller):
        if site.name not in memory.told_apart:
            raise Refusal("bad-ask")
        return replace(modeller, site=memory.told_apart.index(site.name), reversal=reversal)
    return modeller


def crf_modeller(memory: TaggerMemory, vocabulary: dict[str, Any]) -> CrfModeller:
    """What makes taggers of this form, with the vocabulary that `vocabulary_for` gives."""
    return CrfModeller(sizes=tagger_sizes(memory), **vocabulary)


def modeller_for(
    shape: Shape, *, key: bytes | None, encoder: str | None = None
) -> tuple[Modeller, str]:
    """What makes models of this form for who has a trained one, and a digest of its public files.

    `encoder` is where its encoder or BART lies, if not where the settings of the run say. Raises
    KeyFileError, and what `find_encoder` and `find_bart` raise.
    """
    if isinstance(shape, TokenShape):
        found: FrozenEncoder = find_encoder(encoder or shape.encoder)
        return TokenModeller(found, token_form(shape)), found.digest
    if isinstance(shape, BartShape):
        bart = find_bart(encoder or shape.bart)
        return lightner_modeller(bart, shape), bart.digest
    return crf_modeller(shape, vocabulary_for(shape, key)), ""


def counted_anew(shape: Any, kind: type[Any]) -> Any:
    """The memory of a site that has this form, and whose sentences all count alike."""
    own = {field.name: getattr(shape, field.name) for field in fields(type(shape))}
    return kind(**own, instance_weights_S=np.ones(0, np.float32), weighed=0)


def weighed_now(memory: Memory, weights_S: NDArray[np.float32], round: int) -> Memory:
    """The memory with instance weights of this round."""
    return replace(memory, instance_weights_S=weights_S.astype(np.float32), weighed=round)
