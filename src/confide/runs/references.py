"""The sites of the references: all text in one place, or the public set alone."""

from __future__ import annotations

from pathlib import Path

from confide.errors import SettingsError
from confide.federation.inprocess import SiteSpec
from confide.runs.gathering import Gathered
from confide.text.document import Document


def pooled(gathered: Gathered, folder: Path) -> SiteSpec:
    """One site with the text of all, which is only possible where text may move.

    It also trains on the public set, if that is labelled.
    """
    train = [document for spec in gathered.specs for document in spec.train]
    train += gathered.public if gathered.labelled else ()
    return _everybody("pooled", train, gathered, folder)


def public_only(gathered: Gathered, folder: Path) -> SiteSpec:
    """One site that trains on the public set alone and is tested on everybody's text.

    Raises SettingsError if there is no labelled public set.
    """
    if not gathered.public or not gathered.labelled:
        what = "not labelled" if gathered.public else "no public set"
        raise SettingsError(
            "public-only has nothing to learn from",
            expected="an annotated public set",
            got=what,
            fix="name files or a share of the corpus in [public]",
        )
    return _everybody("public-only", list(gathered.public), gathered, folder)


def _everybody(name: str, train: list[Document], gathered: Gathered, folder: Path) -> SiteSpec:
    specs = gathered.specs
    return SiteSpec(
        name=name,
        train=train,
        dev=[document for spec in specs for document in spec.dev],
        test=[document for spec in specs for document in spec.test],
        folder=folder / name,
        key_file=specs[0].key_file,
        vectors=specs[0].vectors,
        context=specs[0].context,
        guards=specs[0].guards,
    )
