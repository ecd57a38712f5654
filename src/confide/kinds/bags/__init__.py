"""The bag ranker as a kind, whose reader is a PCNN or an encoder: `task = "bags"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from confide.federation.federation import Federation
from confide.federation.steps import Step
from confide.kinds.bags.form import COUNT_BAGS, BagForm, agree_on_bags
from confide.kinds.evaluation import BagsScored, bag_counts_of, check_bags_scored
from confide.kinds.protocol import Agreed
from confide.kinds.vocabulary import CHECK_KEY
from confide.scoring.bags import BagCounts
from confide.settings import Settings as RunSettings
from confide.settings import Task
from confide.text.document import Document


class BagKind:
    """The kind: its triples are keyed, and so are its words where a PCNN reads."""

    name: ClassVar[str] = "bags"
    task: ClassVar[Task] = "bags"
    keyed: ClassVar[bool] = True
    weighs: ClassVar[bool] = True
    Form: ClassVar[type] = BagForm
    Scored: ClassVar[type] = BagsScored
    steps: ClassVar[tuple[Step, ...]] = (CHECK_KEY, COUNT_BAGS)
    drawn: ClassVar[Mapping[str, str]] = {"train": "train_bags"}

    def check(self, run: RunSettings) -> None:
        """Every setting can be trained with."""

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on words or encoder, on relations and pairs. Raises FederationError."""
        form, sites = agree_on_bags(run, federation, denoise=run.bags.denoise)
        return Agreed(form, sites)

    def check_scored(self, ask: object, reply: BagsScored) -> None:
        """Raise GuardError where counts contradict themselves."""
        check_bags_scored(ask, reply)

    def counts(self, reply: BagsScored) -> BagCounts:
        """The counts in a reply."""
        return bag_counts_of(reply)
