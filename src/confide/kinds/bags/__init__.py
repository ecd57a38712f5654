"""The bag ranker as a kind, whose reader is a PCNN or an encoder: `task = "bags"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.steps import Step, Tables
from confide.kinds.bags.extractor import BagExtractor
from confide.kinds.bags.form import (
    COUNT_BAG_BUCKETS,
    COUNT_BAGS,
    BagForm,
    agree_on_bags,
    asked_of_bags,
    asked_of_buckets,
    settled_bags,
)
from confide.kinds.bags.release import in_clear, released
from confide.kinds.evaluation import BagsScored, bag_counts_of, check_bags_scored
from confide.kinds.protocol import Agreed
from confide.kinds.releases import Holders, write_release
from confide.kinds.tallies import BagTables
from confide.kinds.tuned import check_no_encoder
from confide.kinds.vocabulary import CHECK_KEY
from confide.settings import Settings as RunSettings
from confide.tasks import TaskName
from confide.text.document import Document, Problem


class BagKind:
    """The bag ranker. Its triples are keyed, and so are its words if a PCNN reads them."""

    name: ClassVar[str] = "bags"
    task: ClassVar[TaskName] = "bags"
    keyed: ClassVar[bool] = True
    released_as: ClassVar[str] = "bags.safetensors"
    release_tells: ClassVar[str] = "anyone who has this folder can read its word list"
    weighs: ClassVar[bool] = True
    Form: ClassVar[type] = BagForm
    Scored: ClassVar[type] = BagsScored
    steps: ClassVar[tuple[Step, ...]] = (CHECK_KEY, COUNT_BAGS, COUNT_BAG_BUCKETS)
    drawn: ClassVar[Mapping[str, str]] = {"train": "train_bags"}

    tables: ClassVar[Tables] = BagTables()

    check_scored = staticmethod(check_bags_scored)
    counts = staticmethod(bag_counts_of)

    def labels(self, form: BagForm) -> list[str]:
        """The names by which answers are counted."""
        return list(form.relations)

    def vectors(self, run: RunSettings) -> str | None:
        """The file of word vectors that all sites start from; None if an encoder reads."""
        return run.pcnn.vectors

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """Nothing: no entity is learnt."""
        return []

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError if an encoder is to be tuned and none reads."""
        if run.bags.reader != "encoder":
            check_no_encoder(run, f"bags.reader = {run.bags.reader!r}")

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        return settled_bags(run, denoise=run.bags.denoise)

    def asked(self, run: RunSettings) -> dict[str, dict[str, object]]:
        """What the settings make of the asks of the kind's own steps."""
        return {
            COUNT_BAGS.name: vars(asked_of_bags(run)),
            COUNT_BAG_BUCKETS.name: vars(asked_of_buckets(run)),
        }

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on words or encoder, relations and pairs. Raises FederationError."""
        form, sites = agree_on_bags(run, federation, denoise=run.bags.denoise)
        return Agreed(form, sites)

    def release(self, form: BagForm, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write the model; if it reads words, with these sites' words in the clear."""
        write_release(out / self.released_as, in_clear(form, weights, holders))

    def released(self, file: Path) -> BagExtractor:
        """Read a released bag model. Raises MessageError."""
        return released(file)
