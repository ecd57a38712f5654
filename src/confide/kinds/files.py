"""Forms whose models are made of public files, of which every site has a copy of its own.

The files are an encoder's or a BART's; a form holds their name and their digest, so that every
place can see that it has the same ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from confide.errors import FederationError
from confide.federation.failures import Refusal
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.kinds.context import encoder_of, find_encoder
from confide.kinds.entities import EntityExtractor, extractor_with
from confide.kinds.protocol import SharedModel
from confide.kinds.types import types_in_text
from confide.learning.encoder import FrozenEncoder
from confide.learning.trainer import EntityTrainer
from confide.learning.weights import trained


class MadeOfFiles(ABC):
    """A form of a model that is made of public files and reads their word pieces."""

    word_table: ClassVar[str] = ""

    types: list[str]
    digest: str

    @property
    @abstractmethod
    def files(self) -> str:
        """The files' name in the settings of the run."""

    @abstractmethod
    def found(self, place: str) -> Any:
        """The files of this name or folder. Raises ConfideError if they cannot be used."""

    @abstractmethod
    def found_at(self, site: Site) -> Any:
        """The site's copy. Raises Refusal if it is unusable."""

    @abstractmethod
    def trainer(self, files: Any) -> EntityTrainer:
        """The trainer of this form."""

    def tables(self) -> Sequence[str]:
        """None: word pieces are public, not a vocabulary that the sites agreed on."""
        return ()

    def row_names(self) -> Mapping[str, Sequence[Hashable]]:
        """None: no row stands for a word."""
        return {}

    def own(self, site: Site, private: Sequence[str], *, types: bool) -> Self:
        """The form of the site's own model; with `types`, of the types of its text only."""
        return replace(self, types=types_in_text(site)) if types else self  # type: ignore[type-var]

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """The weights of all that is trained. Raises Refusal at a site without the same files."""
        made = self.trainer(self.found(self.files)) if site is None else self.bench(site).trainer
        return trained(made.initial(seed))

    def parameters(self, first: Arrays) -> int:
        """The number of trained parameters."""
        return sum(array.size for array in first.values())

    def bench(self, site: Site) -> SharedModel:
        """The process's bench. Raises Refusal if the site's files are not those of the form."""
        files = self.found_at(site)
        if files.digest != self.digest:
            raise Refusal("other-encoder")
        place = (files.folder, repr(self))
        return site.once("files", *place, make=lambda: SharedModel(self.trainer(files)))

    def extractor(
        self, weights: Arrays, *, key: bytes | None, encoder: str | None = None
    ) -> EntityExtractor:
        """The extractor of a trained one; `encoder`: where its files lie.

        Raises FederationError if they are not those of the training, and what `found` raises.
        """
        place = encoder or self.files
        files = self.found(place)
        if files.digest != self.digest:
            raise FederationError(
                "these are not the files that the model was trained with",
                got=place,
                fix="name the folder of the same files",
            )
        return extractor_with(self.trainer(files), weights)


class MadeOfEncoder(MadeOfFiles):
    """A form whose files are an encoder's."""

    encoder: str

    @property
    def files(self) -> str:
        """The encoder's name in the settings of the run."""
        return self.encoder

    def found(self, place: str) -> FrozenEncoder:
        """The encoder of this name or folder. Raises as `find_encoder`."""
        return find_encoder(place)

    def found_at(self, site: Site) -> FrozenEncoder:
        """The site's encoder. Raises Refusal if it is unusable."""
        return encoder_of(site, self.encoder)
