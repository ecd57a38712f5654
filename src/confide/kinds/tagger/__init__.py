"""The BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016) as a kind: `model.kind = "tagger"`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.steps import Step
from confide.kinds.context import DESCRIBE_ENCODER, agree_on_encoder
from confide.kinds.entities import EntityExtractor, EntityKind
from confide.kinds.protocol import Agreed
from confide.kinds.releases import Holders, write_release
from confide.kinds.tagger.form import TaggerForm, form_of
from confide.kinds.tagger.release import RELEASED_AS, in_clear, released
from confide.kinds.types import DESCRIBE_TYPES, agree_on_types
from confide.kinds.vocabulary import CHECK_KEY, COUNT_VOCABULARY, agree
from confide.settings import Settings as RunSettings
from confide.text.document import Document


class TaggerKind(EntityKind):
    """The tagger. Its words are keyed, so only holders of the sites' key can use the model."""

    name: ClassVar[str] = "tagger"
    keyed: ClassVar[bool] = True
    released_as: ClassVar[str] = RELEASED_AS
    release_tells: ClassVar[str] = "anyone who has this folder can read its word list"
    Form: ClassVar[type] = TaggerForm
    steps: ClassVar[tuple[Step, ...]] = (
        DESCRIBE_TYPES,
        CHECK_KEY,
        COUNT_VOCABULARY,
        DESCRIBE_ENCODER,
    )

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on the types, words, characters and the frozen encoder. Raises FederationError."""
        types, _ = agree_on_types(run, federation)
        agreed = agree(
            federation,
            how=run.vocabulary.how,
            types=types,
            min_count=run.vocabulary.min_count,
            min_sites=run.vocabulary.min_sites,
        )
        dim = agree_on_encoder(federation, run.model.context)
        form = form_of(run, types, agreed, dim=dim)
        return Agreed(form, sorted(agreed.sentences), agreed.sentences, agreed.types_by_site)

    def release(self, form: TaggerForm, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write the tagger with these sites' words in the clear. Raises KeyFileError."""
        write_release(out / self.released_as, in_clear(form, weights, holders))

    def released(self, file: Path) -> EntityExtractor:
        """Read a released tagger. Raises MessageError."""
        return released(file)
