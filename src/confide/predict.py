"""Using a trained model: annotate documents, or score the model on annotated ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from confide.data.corpora import locate
from confide.errors import DataError, KeyFileError
from confide.federation.keys import read_key
from confide.methods import method_named
from confide.release import is_release, released
from confide.runfolder import RunFolder
from confide.scoring import count_entities, scores
from confide.scoring.counts import Mode
from confide.settings import Settings
from confide.text.document import Document
from confide.text.formats import read
from confide.text.retag import retag

STANDARD_INPUT = "-"


class Extractor(Protocol):
    """Reads documents and returns them annotated."""

    def __call__(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with what the model finds, a confidence on each entity."""
        ...


def predict(
    run: Path,
    sources: Sequence[str | Path],
    *,
    site: str | None = None,
    format: str | None = None,
    key: Path | None = None,
) -> list[Document]:
    """Annotate files, or standard input (`-`), with the model of a run or of a release.

    Args:
        run: the folder of a run, or a folder that `release` wrote.
        sources: raw text, or any format that confide reads; annotations in it are left out.
        site: whose model, where every site has its own (`alone`).
        format: the format of the sources; by default found out from each.
        key: the sites' shared key file; by default the one that the run's settings name.

    Raises:
        KeyFileError: the model's vocabulary is keyed and the key is not there, or another.
        MissingDataError, FormatError: a source cannot be read.
        RunError: the folder holds no model.
    """
    extract = extractor(run, site=site, key=key)
    return extract(_documents(sources, format=format))


def evaluate(
    run: Path,
    data: Sequence[str | Path],
    *,
    site: str | None = None,
    format: str | None = None,
    scheme: str | None = None,
    key: Path | None = None,
    mode: Mode = "default",
) -> dict[str, Any]:
    """Score the model of a run on annotated files; the form is that of `scoring.scores`.

    The tag map of `site`, where its settings have one, is applied to the files. Raises as
    `predict` does, and DataError where the files hold no entity.
    """
    extract = extractor(run, site=site, key=key)
    tags = {} if is_release(run) else _tags(RunFolder(run).settings(), site)
    gold, _ = retag(_documents(data, format=format, scheme=scheme), tags)
    if not any(document.entities for document in gold):
        raise DataError(
            "there is nothing to score against: no entity is annotated in these files",
            fix="look at them with `confide data check`",
        )
    return scores(count_entities(gold, extract(gold), mode=mode))


def extractor(run: Path, *, site: str | None = None, key: Path | None = None) -> Extractor:
    """The model of a run at its selected round, or of a release."""
    if is_release(run):
        return released(run)
    folder = RunFolder(run)
    settings = folder.settings()
    method = method_named(settings.trained_by)
    state, memory = folder.trained(method, site)
    own = next((table for table in settings.site if table.name == site), None)
    path = key or (Path(own.key) if own and own.key else folder.key_file(settings))
    try:
        extract: Extractor = method(settings).extractor(
            state, memory, key=read_key(path), encoder=own.context if own else None
        )
    except KeyFileError as error:
        raise KeyFileError(
            f"the words of this model are keyed, and {error.what}",
            where=str(path),
            fix="name the key file that the sites share with --key, or let a site make a copy"
            " with its words in the clear: `confide release`",
        ) from error
    return extract


def _tags(settings: Settings, site: str | None) -> dict[str, str]:
    if settings.split is not None:
        return settings.split.tags
    return next((table.tags for table in settings.site if table.name == site), {})


def _documents(
    sources: Sequence[str | Path], *, format: str | None, scheme: str | None = None
) -> list[Document]:
    documents: list[Document] = []
    for source in sources:
        if str(source) == STANDARD_INPUT:
            documents.append(Document("stdin", sys.stdin.read(), source="stdin"))
            continue
        documents += read(locate(source), format, scheme=scheme).documents
    if not documents:
        raise DataError("there is no document to read", expected="at least one file, or -")
    seen: dict[str, int] = {}
    unique = []
    for document in documents:
        count = seen[document.id] = seen.get(document.id, 0) + 1
        unique.append(document if count == 1 else replace(document, id=f"{document.id}#{count}"))
    return unique
