"""The form of a BART that is made from a public encoder and learns to restore noised text.

What leaves a site at the start: which public encoder it has (a digest of that encoder's files, the
same at all sites), and how many training sentences it has.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from confide.data.corpus.corpora import locate
from confide.errors import FederationError
from confide.federation.failures import Refusal
from confide.federation.guards import check_mark
from confide.federation.messages import Arrays, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds.context import found_at
from confide.kinds.protocol import desk_at
from confide.learning.bart_making import base_digest
from confide.learning.denoising import Denoiser, Denoising
from confide.learning.encoder_files import find_folder
from confide.learning.texts import MadeBart, made_bart
from confide.learning.weights import load

if TYPE_CHECKING:
    from confide.kinds.text.desk import TextModel, TextSiteModel


@dataclass(frozen=True)
class TextForm:
    """What the BART is made from, how it is trained, and how text is noised."""

    encoder: str = carries("the encoder's name in the settings of the run")
    digest: str = carries("digest of the encoder's files", rule="varies")
    decoder_layers: int = carries("number of the BART's decoder layers")
    train: str = carries("what is trained: decoder or all")
    longest: int = carries("longest passage, in word pieces")
    sampled: int = carries("rows of the table sampled for a step's loss; 0: all")
    measured: int = carries("most pieces of held-out text that are measured; 0: all")
    masked: float = carries("share of words that are masked")
    mean_span: float = carries("mean length of a masked span, in words")
    permuted: float = carries("share of passages whose sentences are shuffled")
    dropout: float = carries("share of features dropped in training")

    @property
    def part(self) -> Literal["decoder", "all"]:
        """The part that is trained."""
        return "all" if self.train == "all" else "decoder"

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The trained weights of the BART made from the encoder, the same everywhere.

        Raises Refusal at a site that has no such encoder.
        """
        folder, _ = find_base(self.encoder) if site is None else base_of(site, self.encoder)
        made = made_bart(folder, decoder_layers=self.decoder_layers)
        return Denoiser(made.model, Denoising(train=self.part)).trained()

    def tables(self) -> Sequence[str]:
        """None: word pieces are public, not a vocabulary that the sites agreed on."""
        return ()

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """None: no row stands for a word."""
        return {}

    def at(self, site: Site) -> TextSiteModel:
        """The desk of this form at a site."""
        from confide.kinds.text.desk import TextSiteModel  # which imports this module

        desk: Any = desk_at(site, self, cast(Any, TextSiteModel))
        return cast(TextSiteModel, desk)

    def bart(self, site: Site) -> MadeBart:
        """The process's one BART of this form. Raises Refusal if the site's encoder differs."""
        folder, digest = base_of(site, self.encoder)
        if digest != self.digest:
            raise Refusal("other-encoder")
        layers, dropout = self.decoder_layers, self.dropout
        return site.once(
            "made bart",
            digest,
            layers,
            dropout,
            make=lambda: made_bart(folder, decoder_layers=layers, dropout=dropout),
        )

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> TextModel:
        """The trained BART, which annotates nothing; `encoder` is the folder of its encoder.

        Raises FederationError if the files differ, and what `find_base` raises.
        """
        from confide.kinds.text.desk import TextModel  # which imports this module

        folder, digest = find_base(encoder or self.encoder)
        if digest != self.digest:
            raise FederationError(
                "this is not the encoder that the BART was made from",
                where=str(folder),
                fix="name the folder of the same files",
            )
        made = made_bart(folder, decoder_layers=self.decoder_layers, dropout=self.dropout)
        load(made.model, weights)
        return TextModel(made, self)


@dataclass(frozen=True)
class DescribeBase:
    """Find the encoder that the BART is made from."""

    encoder: str = carries("the encoder's name in the settings of the run")


@dataclass(frozen=True)
class BaseDescribed:
    """Equal at sites that have the same encoder."""

    digest: str = carries("digest of the encoder's public files", rule="open")


def describe_base(
    site: Site, memory: object, ask: DescribeBase, turn: Turn
) -> tuple[BaseDescribed, object]:
    """Find the site's own copy of the encoder."""
    return BaseDescribed(base_of(site, ask.encoder)[1]), memory


def check_base(ask: object, reply: BaseDescribed) -> None:
    """Raise GuardError if the digest is malformed."""
    check_mark("digest", reply.digest)


DESCRIBE_BASE = Step.of(describe_base, check=check_base)


def find_base(place: str) -> tuple[Path, str]:
    """The folder of an encoder of BERT's form, and the digest of its files.

    Raises what `find_folder` and `base_digest` raise.
    """
    folder = find_folder(str(locate(place)) if place.startswith("$") else place)
    return folder, base_digest(folder)


def base_of(site: Site, name: str) -> tuple[Path, str]:
    """The site's own encoder, found once. Raises Refusal if it is unusable."""
    return found_at(site, name, shelf="bases", find=find_base)
