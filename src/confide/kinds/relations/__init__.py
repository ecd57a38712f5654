"""The relation classifier as a kind: `task = "re"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from confide.federation.federation import Federation
from confide.federation.messages import Arrays
from confide.federation.steps import Step, Tables
from confide.kinds.evaluation import (
    RelationsScored,
    check_relations_scored,
    relation_counts_of,
)
from confide.kinds.protocol import Agreed
from confide.kinds.relations.extractor import RelationExtractor
from confide.kinds.relations.form import (
    DESCRIBE_RELATIONS,
    RelationForm,
    agree_on_relations,
    settled_pairs,
)
from confide.kinds.relations.public import PublicExamples, RelationStudent, public_of
from confide.kinds.relations.release import copied, released
from confide.kinds.releases import Holders, write_release
from confide.kinds.tallies import RelationTables
from confide.settings import Settings as RunSettings
from confide.tasks import TaskName
from confide.text.document import Document, Problem


class RelationKind:
    """The relation classifier; it reads the pieces of a public encoder, so it needs no key."""

    name: ClassVar[str] = "relations"
    task: ClassVar[TaskName] = "re"
    keyed: ClassVar[bool] = False
    released_as: ClassVar[str] = "relations.safetensors"
    release_tells: ClassVar[str] = "names and weights; it needs its encoder's files but no key"
    weighs: ClassVar[bool] = True
    Form: ClassVar[type] = RelationForm
    Scored: ClassVar[type] = RelationsScored
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE_RELATIONS,)
    drawn: ClassVar[Mapping[str, str]] = {
        "train": "train_relations",
        "train_alone": "train_relations_alone",
    }

    Public: ClassVar[type] = PublicExamples

    tables: ClassVar[Tables] = RelationTables()

    check_scored = staticmethod(check_relations_scored)
    counts = staticmethod(relation_counts_of)

    def public(
        self, form: RelationForm, documents: Sequence[Document]
    ) -> tuple[PublicExamples, list[str]]:
        """The examples of a public set, and their labels. Raises SettingsError if none."""
        return public_of(form, documents)

    def student(self) -> RelationStudent:
        """A fresh student: the server's own classifier."""
        return RelationStudent()

    def labels(self, form: RelationForm) -> list[str]:
        """The names by which answers are counted."""
        return list(form.relations)

    def vectors(self, run: RunSettings) -> str | None:
        """None: this kind has no word table."""
        return None

    def left_out(self, documents: Sequence[Document]) -> list[Problem]:
        """Nothing: no entity is learnt."""
        return []

    def check(self, run: RunSettings) -> None:
        """Nothing to refuse: every setting works."""

    def settled(self, run: RunSettings) -> dict[str, Any]:
        """The values of the form that the settings alone decide."""
        return settled_pairs(run, encoder=True, pool=run.classifier.pool)

    def asked(self, run: RunSettings) -> dict[str, dict[str, object]]:
        """What the settings make of the asks of the kind's own steps."""
        own = {"encoder": run.classifier.encoder, "closed": run.privacy is not None}
        return {DESCRIBE_RELATIONS.name: own}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] = ()
    ) -> Agreed:
        """Agree on the encoder, the relations and the pairs. Raises FederationError."""
        form, relations = agree_on_relations(run, federation, public=public)
        return Agreed(form, sorted(relations), types=relations)

    def release(self, form: RelationForm, weights: Arrays, out: Path, *, holders: Holders) -> None:
        """Write the classifier with its weights."""
        write_release(out / self.released_as, copied(form, weights))

    def released(self, file: Path) -> RelationExtractor:
        """Read a released classifier. Raises MessageError."""
        return released(file)
