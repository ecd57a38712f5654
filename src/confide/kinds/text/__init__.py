"""The BART that learns to write noised text again, as a kind: `task = "text"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from confide.errors import SettingsError
from confide.federation.federation import Federation
from confide.federation.steps import Step
from confide.kinds.context import with_encoder
from confide.kinds.protocol import Agreed
from confide.kinds.text.desk import TextScored, check_text_scored, text_counts_of
from confide.kinds.text.form import DESCRIBE_BASE, DescribeBase, TextForm, find_base
from confide.scoring.texts import TextCounts
from confide.settings import Settings as RunSettings
from confide.settings import Task
from confide.text.document import Document


class TextKind:
    """The kind: text only, no annotation; it reads the pieces of a public encoder."""

    name: ClassVar[str] = "text"
    task: ClassVar[Task] = "text"
    keyed: ClassVar[bool] = False
    weighs: ClassVar[bool] = True
    Form: ClassVar[type] = TextForm
    Scored: ClassVar[type] = TextScored
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE_BASE,)
    drawn: ClassVar[Mapping[str, str]] = {"train": "train_text"}

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError where another optimiser is asked for."""
        if run.training.optimiser != "adamw":
            raise SettingsError(
                "a BART is trained by AdamW alone",
                expected='training.optimiser = "adamw"',
                got=repr(run.training.optimiser),
            )

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Make sure that all sites have the server's encoder. Raises FederationError."""
        own = run.denoising
        _, digest = find_base(own.encoder)
        replies = federation.ask(DESCRIBE_BASE, DescribeBase(own.encoder), round=0)
        digests = {site: reply.digest for site, reply in replies.items()}
        same = with_encoder(federation, DESCRIBE_BASE, digests, ours=digest)
        return Agreed(TextForm(digest=digest, **own.model_dump()), same)

    def check_scored(self, ask: object, reply: TextScored) -> None:
        """Raise GuardError where counts contradict themselves."""
        check_text_scored(ask, reply)

    def counts(self, reply: TextScored) -> TextCounts:
        """The counts in a reply."""
        return text_counts_of(reply)
