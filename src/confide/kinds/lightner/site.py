"""LightNER: prompts on a public BART that writes entities one by one (Chen et al., COLING 2022).

What leaves a site at the start: names of the entity types that it annotates, its number of training
sentences, and a digest of its public BART. The form holds no word, so there is no key.

With an adversary (Wang et al. 2023, App. A) the model also learns states that do not tell the sites
apart. The form then names these sites, and each trains under its own number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from confide.errors import FederationError, SettingsError, printable
from confide.federation.failures import Refusal
from confide.federation.federation import Federation, Parted, alike
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step
from confide.kinds import agreement
from confide.kinds.entities import EntityKind, EntitySiteModel, MadeOfFiles
from confide.kinds.lightner.adversaries import AdversarialTrainer, reversal_at
from confide.kinds.lightner.adversaries import Kind as Adversary
from confide.kinds.lightner.model import (
    LightnerTrainer,
    PretrainedBart,
    label_parts,
    labels_of,
    load_bart,
)
from confide.kinds.protocol import (
    Agreed,
    ModelSpec,
    Release,
    SiteModel,
    TrainConfig,
    cached_site_model,
)
from confide.settings import Settings as RunSettings
from confide.text.document import Document
from confide.text.published.catalogue import locate
from confide.training.trainer import EntityTrainer


@dataclass(frozen=True)
class LightnerSpec(MadeOfFiles):
    """The form of a LightNER."""

    private: ClassVar[Sequence[str]] = ("prompts",)
    slope: ClassVar[str] = "prompts.q_QD"

    types: list[str] = carries(
        "names of all entity types, by which the model writes them", rule="varies"
    )
    bart: str = carries("the BART's name in the settings of the run", start=str)
    digest: str = carries("digest of the BART's files", rule="varies", start=str)
    prompts: int = carries("number of prompts, N_q; 0: there is no q", start=lambda: 10)
    hidden: int = carries("width of the projections of the prompts, h", start=lambda: 400)
    where: str = carries("which self-attention has prompts: both or decoder", start=lambda: "both")
    tune: str = carries("what is trained: prompts, all or lora", start=lambda: "prompts")
    rank: int = carries("rank of the updates of lora", start=lambda: 8)
    constrained: bool = carries(
        "whether decoding allows only well-formed entities", start=lambda: True
    )
    dropout: float = carries("share of features dropped in training", start=lambda: 0.1)
    longest: int = carries("longest window, in word pieces", start=lambda: 512)
    adversary: str = carries("the adversary: none, dann, fada or fade", start=lambda: "none")
    reversal: float = carries(
        "how much of the adversary's gradient reaches the model at the end", start=lambda: 1.0
    )
    rises: int = carries("rounds over which that share grows; 0 without an adversary", start=int)
    told_apart: list[str] = carries(
        "names of the sites that the adversary tells apart", rule="varies", start=list
    )

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        own = run.lightner.model_dump()
        own |= {"where": own.pop("prompts_in"), "longest": own.pop("max_length")}
        return own | {"rises": 0 if run.lightner.adversary == agreement.NONE else run.rounds}

    @property
    def files(self) -> str:
        """The BART's name in the settings of the run."""
        return self.bart

    def found(self, place: str) -> PretrainedBart:
        """The BART of this name or folder. Raises as `find_bart`."""
        return find_bart(place)

    def found_at(self, site: Site) -> PretrainedBart:
        """The site's BART. Raises Refusal if it is unusable."""
        return bart_of(site, self.bart)

    def parameters(self, first: Arrays) -> int:
        """The number of parameters of the whole model, frozen ones included."""
        model = self.trainer(find_bart(self.bart)).initial(0)
        return sum(p.numel() for p in model.parameters())

    def at(self, site: Site) -> SiteModel:
        """The site model of this form."""
        return cached_site_model(site, self, LightnerSiteModel)

    def trainer(self, files: PretrainedBart) -> EntityTrainer:
        """The trainer of this form, with its adversary if there is one."""
        if self.adversary == agreement.NONE:
            return LightnerTrainer(files, self)
        kind = cast(Adversary, self.adversary)
        return AdversarialTrainer(files, self, kind, sites=len(self.told_apart))


class LightnerSiteModel(EntitySiteModel):
    """A LightNER at a site: an adversary needs the site's number."""

    def trained_by(self, config: TrainConfig) -> EntityTrainer:
        """The trainer with the settings of `config`."""
        trainer: EntityTrainer = self.trainer
        form: LightnerSpec = self.form
        if not isinstance(trainer, AdversarialTrainer):
            return trainer
        if self.site.name not in form.told_apart:
            raise Refusal("bad-ask")
        own = form.told_apart.index(self.site.name)
        progress = (config.round - 1) / max(1, form.rises)
        return replace(trainer, site=own, reversal=reversal_at(progress, most=form.reversal))


def bart_of(site: Site, name: str) -> PretrainedBart:
    """The site's BART. Raises Refusal if it is unusable."""
    return agreement.found_at(site, name, shelf="barts", find=find_bart)


def find_bart(place: str) -> PretrainedBart:
    """The BART of this name or folder, which may begin with `$CONFIDE_DATA`.

    Raises SettingsError if none is named, and what `load_bart` raises.
    """
    if not place:
        raise SettingsError(
            "LightNER needs a BART, and the settings name none",
            expected="lightner.bart: a folder, or a name on the hub",
            fix="for a small one of your own, see benchmarks/papers/tags/small_bart.py",
        )
    return load_bart(str(locate(place)) if place.startswith("$") else place)


DESCRIBE = agreement.describing(bart_of, types=agreement.own_types)


class LightnerKind(EntityKind):
    """The kind `model.kind = "lightner"`."""

    name: ClassVar[str] = "lightner"
    Spec: ClassVar[type[ModelSpec]] = LightnerSpec
    release: ClassVar[Release] = Release(
        "lightner.safetensors",
        "ReleasedBart",
        "names and weights; it needs its BART's files but no key",
    )
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE,)

    def check(self, run: RunSettings, *, public: bool) -> None:
        """Raise SettingsError if `[encoder]` is to tune it: `lightner.tune` does that."""
        agreement.check_no_encoder(run, "a LightNER")

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the asks of the kind's own steps, from the settings."""
        return {DESCRIBE.name: agreement.asked_of_types(run, run.lightner.bart)}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> Agreed:
        """Agree on the types; all sites need the server's BART. Raises FederationError."""
        bart = find_bart(run.lightner.bart)
        digest = bart.digest
        types, replies = agreement.agree_on_types(
            run, federation, step=DESCRIBE, name=run.lightner.bart, digest=digest
        )
        if not run.data.types:
            replies = _told_apart(bart, federation, replies)
            types = sorted({name for reply in replies.values() for name in reply.types})
        told_apart = [] if run.lightner.adversary == agreement.NONE else sorted(replies)
        settled = LightnerSpec.settled(run, public=False)
        form = LightnerSpec(types=types, digest=digest, told_apart=told_apart, **settled)
        return agreement.agreed(form, replies)


def _told_apart(
    bart: PretrainedBart, federation: Federation, replies: Mapping[str, agreement.TypesDescribed]
) -> dict[str, agreement.TypesDescribed]:
    """The replies of sites whose types the model can tell from each other and from other sites'.

    Of names with the same pieces, the one that most sites use stays; the others' sites are left
    out, and if no name is used most, all of theirs. Raises FederationError if too few are left.
    """
    used = Counter(name for reply in replies.values() for name in reply.types)
    names = sorted(used)
    by_parts = defaultdict(list)
    for name, label in zip(names, labels_of(bart, names), strict=True):
        by_parts[label_parts(label)].append(name)
    clear = set()
    for parts, alikes in by_parts.items():
        most = max(used[name] for name in alikes)
        first = [name for name in alikes if used[name] == most]
        clear |= {first[0]} if parts and len(first) == 1 else set()

    def unclear(parted: Parted) -> FederationError:
        odd = sorted({name for site in parted.differing for name in replies[site].types} - clear)
        return FederationError(
            "the names of some entity types have no word, or the same pieces as another, so the"
            f" model cannot tell them apart: {', '.join(parted.differing)} annotates such types",
            got=", ".join(printable(repr(name), 40) for name in odd[:3]),
            fix="map them to other names in the sites' `tags`",
        )

    said = {site: set(reply.types) <= clear for site, reply in replies.items()}
    why = "it annotates a type whose name the model cannot tell from another's"
    same = alike(federation, said, step=DESCRIBE, why=why, error=unclear, ours=True)
    return {site: replies[site] for site in same}
