"""The BART that learns to restore noised text, as a kind: `task = "text"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from confide.errors import RunError, SettingsError
from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.steps import Step, Tables
from confide.kinds.context import with_encoder
from confide.kinds.protocol import Agreed
from confide.kinds.releases import Holders
from confide.kinds.text.desk import (
    TextModel,
    TextScored,
    TextTables,
    check_text_scored,
    text_counts_of,
)
from confide.kinds.text.form import DESCRIBE_BASE, DescribeBase, TextForm, find_base
from confide.kinds.tuned import check_no_encoder
from confide.settings import Settings as RunSettings
from confide.tasks import TaskName
from confide.text.document import Document, Problem


class TextKind:
    """The kind: it needs text only, no annotation, and reads the pieces of a public encoder."""

    name: ClassVar[str] = "text"
    task: ClassVar[TaskName] = "text"
    keyed: ClassVar[bool] = False
    released_as: ClassVar[str] = "config.json"
    release_tells: ClassVar[str] = (
        "a BART; whoever has it can make it write, and it may have memorised the sites' sentences"
    )
    weighs: ClassVar[bool] = True
    Form: ClassVar[type] = TextForm
    Scored: ClassVar[type] = TextScored
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE_BASE,)
    drawn: ClassVar[Mapping[str, str]] = {"train": "train_text"}

    tables: ClassVar[Tables] = TextTables()

    check_scored = staticmethod(check_text_scored)
    counts = staticmethod(text_counts_of)

    def labels(self, form: TextForm) -> list[str]:
        """None: pieces are counted all alike."""
        return []

    def vectors(self, run: RunSettings) -> str | None:
        """None: this kind has no word table."""
        return None

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """Nothing: no entity is learnt."""
        return []

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError unless the optimiser is AdamW, and `[encoder]` is left alone."""
        check_no_encoder(run, "a BART made from an encoder (`denoising.train`)")
        if run.training.optimiser != "adamw":
            raise SettingsError(
                "a BART is trained with AdamW only",
                expected='training.optimiser = "adamw"',
                got=repr(run.training.optimiser),
            )

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        return run.denoising.model_dump()

    def asked(self, run: RunSettings) -> dict[str, dict[str, object]]:
        """What the settings make of the asks of the kind's own steps."""
        return {DESCRIBE_BASE.name: {"encoder": run.denoising.encoder}}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Check that all sites have the server's encoder. Raises FederationError."""
        own = run.denoising
        _, digest = find_base(own.encoder)
        replies = federation.ask(DESCRIBE_BASE, DescribeBase(own.encoder), round=0)
        digests = {site: reply.digest for site, reply in replies.items()}
        same = with_encoder(federation, DESCRIBE_BASE, digests, ours=digest)
        return Agreed(TextForm(digest=digest, **self.settled(run)), same)

    def release(self, form: TextForm, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write the BART as transformers reads it. Raises DataError if it cannot be written."""
        form.extractor(weights, key=None).write(out)

    def released(self, file: Path) -> TextModel:
        """Always raises RunError: the released folder is used like any other BART."""
        raise RunError(
            "a BART annotates nothing by itself",
            where=str(file.parent),
            fix="name its folder as lightner.bart",
        )
