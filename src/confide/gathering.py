"""From settings to sites: reading every site's files, dealing one corpus to sites, holding out.

In process all sites are gathered on one machine; a real site gathers only itself.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from confide.data.corpora import locate
from confide.data.examples import examples_from
from confide.data.masking import masked
from confide.data.partitions import partition
from confide.errors import DataError, SettingsError
from confide.federation.guards import Guards
from confide.federation.inprocess import SiteSpec
from confide.learning.seeds import derive_seed
from confide.settings import Settings, SiteTable, SplitTable
from confide.text.document import Document, Problem
from confide.text.formats import read
from confide.text.retag import check_types, retag
from confide.text.segment import segmented

PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class Gathered:
    """Sites as specs, what did not fit, and a fingerprint of all text and annotations."""

    specs: tuple[SiteSpec, ...]
    problems: dict[str, list[Problem]]
    fingerprint: str

    def facts(self) -> dict[str, Any]:
        """Counts per site, for result.json. No text."""
        return {
            "fingerprint": self.fingerprint,
            "sites": {spec.name: _facts(spec, self.problems[spec.name]) for spec in self.specs},
        }


def gather(settings: Settings, folder: Path, *, key_file: Path | None) -> Gathered:
    """Read the data of all sites. `folder` is where each site's own folder lies.

    Raises SettingsError, MissingDataError, FormatError, DataError.
    """
    if not settings.site and settings.split is None:
        raise SettingsError("the settings name no text; give [[site]] tables, or one [split] table")
    problems: dict[str, list[Problem]] = {}
    dealt = _dealt(settings, problems) if settings.split else _read_sites(settings, problems)
    held = {name: _held_out(parts, settings, name) for name, parts in dealt.items()}
    trained = {name: _shared(train, settings, name) for name, (train, _, _) in held.items()}
    if settings.data.mask_common:
        seed = derive_seed(settings.seed, "mask")
        trained = masked(trained, settings.data.mask_common, seed=seed)
    specs = []
    for name, (_, dev, test) in held.items():
        train = trained[name]
        if not any(document.text.strip() for document in train):
            raise DataError(
                f"site {name} has no training text",
                fix="check its `train` files with `confide data check`",
            )
        own = next((site for site in settings.site if site.name == name), None)
        vectors = (own.vectors if own else None) or settings.model.vectors
        specs.append(
            SiteSpec(
                name=name,
                train=train,
                dev=dev,
                test=test,
                folder=folder / name,
                key_file=Path(own.key) if own and own.key else key_file,
                vectors=locate(vectors) if vectors else None,
                context=own.context if own else None,
                tag_scheme=own.tag_scheme if own else None,
                guards=Guards(**settings.guards.model_dump()),
            )
        )
    specs.sort(key=lambda spec: spec.name)
    return Gathered(tuple(specs), {s.name: problems.get(s.name, []) for s in specs}, _print(specs))


def pooled(gathered: Gathered, folder: Path) -> SiteSpec:
    """One site that holds the text of all: a reference, and only possible where text may move."""
    specs = gathered.specs
    return SiteSpec(
        name="pooled",
        train=[document for spec in specs for document in spec.train],
        dev=[document for spec in specs for document in spec.dev],
        test=[document for spec in specs for document in spec.test],
        folder=folder / "pooled",
        key_file=specs[0].key_file,
        vectors=specs[0].vectors,
        context=specs[0].context,
        guards=specs[0].guards,
    )


def _read_sites(
    settings: Settings, problems: dict[str, list[Problem]]
) -> dict[str, dict[str, list[Document]]]:
    sites = {}
    for site in settings.site:
        found: list[Problem] = []
        sites[site.name] = _read(site, settings, found)
        problems[site.name] = found
    return sites


def _dealt(
    settings: Settings, problems: dict[str, list[Problem]]
) -> dict[str, dict[str, list[Document]]]:
    """One corpus, each part dealt by itself to the same sites."""
    split = settings.split
    assert split is not None
    sites: dict[str, dict[str, list[Document]]] = {}
    found: list[Problem] = []
    for part, documents in _read(split, settings, found).items():
        if not documents:
            continue
        shares = partition(
            documents,
            split.sites,
            by=split.by,
            seed=split.seed,
            alpha=split.alpha,
        )
        for name, share in shares.items():
            sites.setdefault(name, {p: [] for p in PARTS})[part] = share
    for name in sites:
        problems[name] = found
        found = []
    return sites


def _read(
    table: SiteTable | SplitTable, settings: Settings, problems: list[Problem]
) -> dict[str, list[Document]]:
    """Each part's documents under their common tag names; what did not fit is added."""
    own, data = table if isinstance(table, SiteTable) else None, settings.data
    parts: dict[str, list[Document]] = {}
    for part in PARTS:
        parts[part] = []
        for path in getattr(table, part):
            reading = read(
                locate(path),
                (own and own.format) or data.format,
                scheme=(own and own.scheme) or data.scheme,
                encoding=(own and own.encoding) or data.encoding,
            )
            parts[part] += reading.documents
            problems += reading.problems
    renamed, changed = retag([one for documents in parts.values() for one in documents], table.tags)
    if data.types:
        check_types(renamed, data.types)
    problems += changed
    left = iter(renamed)
    return {part: list(islice(left, len(documents))) for part, documents in parts.items()}


def _held_out(
    parts: dict[str, list[Document]], settings: Settings, name: str
) -> tuple[list[Document], list[Document], list[Document]]:
    """A site without dev or test files holds out a share of its training documents.

    At least one document stays for training; a site of one document holds out nothing.
    """
    train, dev, test = (parts[part] for part in PARTS)
    wanted = [
        (held, share)
        for held, share, given in (
            ("test", settings.data.test_share, test),
            ("dev", settings.data.dev_share, dev),
        )
        if not given
    ]
    if not wanted:
        return train, dev, test
    order = np.random.default_rng(derive_seed(settings.seed, "hold out", name))
    shuffled = [train[place] for place in order.permutation(len(train))]
    total = len(shuffled)
    held_out: dict[str, list[Document]] = {"dev": dev, "test": test}
    for held, share in wanted:
        count = min(int(share * total + 0.5), len(shuffled) - 1)
        held_out[held], shuffled = shuffled[:count], shuffled[count:]
    return shuffled, held_out["dev"], held_out["test"]


def _shared(train: list[Document], settings: Settings, name: str) -> list[Document]:
    """The share of a site's training documents that it trains on, at least one, in their order.

    A larger share has all that a smaller one has.
    """
    share = settings.data.train_share
    if share == 1.0:
        return train
    order = np.random.default_rng(derive_seed(settings.seed, "train share", name))
    count = max(1, int(share * len(train) + 0.5))
    return [train[place] for place in sorted(order.permutation(len(train))[:count])]


def _facts(spec: SiteSpec, problems: Sequence[Problem]) -> dict[str, Any]:
    _, left_out = examples_from(spec.train)
    return {
        **{part: _sentences(getattr(spec, part)) for part in PARTS},
        "entities": dict(
            sorted(Counter(e.type for document in spec.train for e in document.entities).items())
        ),
        "problems": dict(sorted(Counter(p.kind for p in [*problems, *left_out]).items())),
    }


def _sentences(documents: Sequence[Document]) -> int:
    return sum(bool(s.tokens) for document in documents for s in segmented(document).sentences)


def _print(specs: Sequence[SiteSpec]) -> str:
    """A digest of every site's text and annotations, in order."""
    digest = hashlib.sha256()
    for spec in specs:
        for part in PARTS:
            digest.update(f"\0{spec.name}\0{part}".encode())
            for document in getattr(spec, part):
                digest.update(document.text.encode("utf-8", "surrogatepass"))
                marks = [(entity.type, entity.fragments) for entity in document.entities]
                digest.update(repr(marks).encode())
    return digest.hexdigest()
