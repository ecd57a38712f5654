"""Deal a corpus on disk to sites, one file or folder each: `confide data split`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confide.data.corpus.corpora import locate
from confide.data.corpus.facts import count_relations, kinds_of
from confide.data.corpus.partitions import ALPHA, By, Classes, group_of, partition
from confide.errors import DataError, SettingsError
from confide.text.document import Document, stated_pairs
from confide.text.files import write_text
from confide.text.formats import Reading, format_named, read, write
from confide.userfiles import Tree

SCHEMA = 1
DESCRIPTION = "split.json"


@dataclass(frozen=True, slots=True)
class SiteShare:
    """What one site got. `groups` are its files or domains, if these were dealt."""

    path: str
    documents: int
    sentences: int
    entities: dict[str, int]
    groups: tuple[str, ...] = ()
    relations: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SplitReport:
    """How a corpus was dealt, as in the `split.json` beside the sites' files.

    `classes` is what dirichlet skewed: relations if most documents state their pairs, otherwise
    entities. `problems` counts, by kind, what reader and writer could not hold or had to change.
    """

    by: str
    seed: int
    alpha: float | None
    format: str
    sources: tuple[str, ...]
    sites: dict[str, SiteShare]
    problems: dict[str, int]
    classes: Classes | None = None

    def to_json(self) -> Tree:
        """The report as plain values."""
        return {"schema": SCHEMA, **asdict(self)}


def split(
    paths: str | Path | Sequence[str | Path],
    sites: int,
    *,
    by: By = "iid",
    seed: int = 1,
    alpha: float | None = None,
    out: str | Path,
    format: str | None = None,
    to: str | None = None,
) -> SplitReport:
    """Read files, deal their documents to sites (see `partitions`), write one file or folder each.

    `format` is the format of the files (None: detect it), `to` the one to write (None: the same).

    Raises:
        DataError: as `partition` does; or there is no document, or a site's file already exists.
        SettingsError: the files have several formats and `to` does not choose one.
    """
    readings = read_all(paths, format=format)
    documents = [document for reading in readings.values() for document in reading.documents]
    kind = format_named(to or _one_format(readings))
    asked = sum(stated_pairs(document) is not None for document in documents)
    classes: Classes = "relations" if 2 * asked > len(documents) else "entities"
    dealt = partition(documents, sites, by=by, seed=seed, alpha=alpha, classes=classes)
    folder = Path(out)
    _must_be_free([folder / DESCRIPTION, *(folder / (name + kind.suffix) for name in dealt)])
    problems = [problem for reading in readings.values() for problem in reading.problems]
    shares = {}
    for name, part in dealt.items():
        problems += write(part, folder / (name + kind.suffix), kind.name)
        shares[name] = _share(part, name + kind.suffix, by)
    report = SplitReport(
        by=by,
        seed=seed,
        alpha=ALPHA.get(by) if alpha is None else alpha,
        format=kind.name,
        sources=tuple(readings),
        sites=shares,
        problems=kinds_of(problems),
        classes=classes if by == "dirichlet" else None,
    )
    text = json.dumps(report.to_json(), indent=2, ensure_ascii=False)
    write_text(folder / DESCRIPTION, text + "\n")
    return report


def read_all(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    scheme: str | None = None,
) -> dict[str, Reading]:
    """Read each path (`$CONFIDE_DATA` is expanded); by path, as it was given.

    Raises DataError if there is no path or no document, and what the readers raise.
    """
    given = [paths] if isinstance(paths, (str, Path)) else paths
    readings = {str(path): read(locate(path), format, scheme=scheme) for path in given}
    if not any(reading.documents for reading in readings.values()):
        raise DataError(
            "there is no document", expected="at least one", got=", ".join(readings) or "no file"
        )
    return readings


def _one_format(readings: dict[str, Reading]) -> str:
    formats = sorted({reading.format for reading in readings.values()})
    if len(formats) > 1:
        raise SettingsError(
            "the files have several formats", got=", ".join(formats), fix="say which one to write"
        )
    return formats[0]


def _must_be_free(paths: Sequence[Path]) -> None:
    taken = next((path for path in paths if path.exists()), None)
    if taken is not None:
        raise DataError(
            "there is something already",
            where=str(taken),
            fix="give another folder, or remove what is there",
        )


def _share(documents: Sequence[Document], path: str, by: By) -> SiteShare:
    types = Counter(entity.type for document in documents for entity in document.entities)
    groups: set[str] = set()
    if by in ("file", "domain"):
        groups = {group_of(document, by) for document in documents}
    return SiteShare(
        path=path,
        documents=len(documents),
        sentences=sum(len(document.sentences) for document in documents),
        entities=dict(sorted(types.items())),
        groups=tuple(sorted(groups)),
        relations=count_relations(documents),
    )
