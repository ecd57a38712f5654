"""Using trained models: annotate documents, or score the models on annotated ones.

A run recognises entities, or finds relations between entities that are there. One of each make a
chain: the relations are those between the entities that the first one found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from confide.data.corpora import locate
from confide.data.entity_types import alike, as_known
from confide.data.relations import Candidates, candidates, predicted_labels
from confide.errors import DataError, KeyFileError, RunError, SettingsError
from confide.federation.keys import read_key
from confide.methods import method_of
from confide.methods.relation_extractor import RelationExtractor
from confide.methods.taggers import Extractor
from confide.release import release_task, released
from confide.runfolder import RunFolder
from confide.scoring import count_entities, count_relations, relation_scores, scores
from confide.scoring.counts import Mode
from confide.scoring.end_to_end import Fact, Mention, count_facts
from confide.settings import SiteTable, SplitTable
from confide.text.document import Document
from confide.text.formats import read
from confide.text.pairs import NO_RELATION, PAIR
from confide.text.retag import retag

STANDARD_INPUT = "-"
Runs = Path | str | Sequence[Path | str]
"""A run or a release; or one that recognises entities and one for relations, in any order.

The two are a list, or one path with a + in between; a folder whose name has a + is that folder.
"""
_FOUND_BY = {"ner": "recognise entities", "re": "find relations"}


@dataclass(frozen=True)
class Models:
    """What annotates: a recogniser of entities, an extractor of relations, or one after the other.

    `tags` and `relation_names` are the chosen site's maps of the names in its files.
    """

    entities: Extractor | None
    relations: RelationExtractor | None
    tags: Mapping[str, str]
    relation_names: Mapping[str, str]

    def found(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the entities that are found in them, or that they have."""
        if self.entities is None:
            return list(documents)
        return [_unpaired(document) for document in self.entities(documents)]

    def types(self, documents: Sequence[Document]) -> set[str]:
        """Names of the entity types that can be found, or that are in the documents."""
        if self.entities is not None:
            return set(self.entities.vocabulary["tags"].types)
        return _types(documents)


def predict(
    run: Runs,
    sources: Sequence[str | Path],
    *,
    site: str | None = None,
    format: str | None = None,
    key: Path | None = None,
    types: Mapping[str, str] | None = None,
    threshold: float = 0.0,
    say: Callable[[str], None] | None = None,
) -> list[Document]:
    """Annotate files, or standard input (`-`), with the models of runs or of releases.

    Args:
        run: a run that recognises entities, one that finds relations, or both (see `Runs`).
        sources: raw text, or any format that confide reads. A model that recognises entities leaves
            out those that are there; one for relations alone keeps them, and replaces relations.
        site: whose model, where every site has its own.
        format: the format of the sources; by default found out from each.
        key: the sites' shared key file; by default the one that the run's settings name.
        types: what entity types are called by the relation model, where names differ by more than
            case; "" leaves a type out. The documents keep their own names.
        threshold: relations with a lower confidence are left out.
        say: is told in one sentence what is not looked at.

    Raises:
        KeyFileError: the model's vocabulary is keyed and the key is not there, or another.
        MissingDataError, FormatError: a source cannot be read.
        RunError: a folder holds no model, or there are two for the same task.
        DataError: no relation can be between the types of entities that there are.
        SettingsError: `types` or `threshold` cannot be.
    """
    models = opened(run, site=site, key=key)
    _check(models, types, threshold=threshold)
    documents = _documents(sources, format=format)
    if models.relations is None:
        return models.found(documents)
    names = _names(models, documents, types)
    unknown = _unknown(names, types)
    if unknown and say is not None:
        say(
            f"the relation model knows no type {' or '.join(unknown)}:"
            " no relation of such an entity is looked for"
        )
    found = _related(models.relations, models.found(documents), names)
    return [_sure(document, threshold) for document in found]


def evaluate(
    run: Runs,
    data: Sequence[str | Path],
    *,
    site: str | None = None,
    format: str | None = None,
    scheme: str | None = None,
    key: Path | None = None,
    mode: Mode = "default",
    types: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Score the models of runs on annotated files.

    Of entities the form is that of `scoring.scores`, of relations between annotated entities that
    of `scoring.relation_scores`. Of a chain it is `{"entities": ..., "relations": ...}`, both with
    "strict" and "relaxed": a relation is true only if its entities are (`scoring.end_to_end`).
    Types of entities have the relation model's names then. Where there are relations, "unknown" has
    the types that the relation model does not know.

    The maps of `site` for types and relations, where its settings have some, are applied to the
    files. `mode` is how entities are matched. Raises as `predict` does, and DataError where the
    files hold no entity, or no relation.
    """
    models = opened(run, site=site, key=key)
    _check(models, types)
    files = _documents(data, format=format, scheme=scheme)
    gold, _ = retag(files, models.tags, relations=models.relation_names)
    if models.relations is None:
        _must_hold(gold, "entity")
        return scores(count_entities(gold, models.found(gold), mode=mode))
    _must_hold(gold, "relation")
    names = _names(models, gold, types)
    predicted = _related(models.relations, models.found(gold), names)
    common = {name: alike(name, models.relations.types) or name for name in _types(gold)}
    common |= {name: known or name for name, known in names.items()}
    gold, predicted = (retag(side, common)[0] for side in (gold, predicted))
    looked = candidates(gold, models.relations.rules)
    if models.entities is None:
        labels = [example.relation for example in looked.examples]
        found = predicted_labels(looked, predicted)
        result = relation_scores(count_relations(labels, found, missed=looked.missed))
    else:
        result = {
            "entities": scores(count_entities(gold, predicted, mode=mode)),
            "relations": _end_to_end(gold, predicted, looked),
        }
    return {**result, "unknown": _unknown(names, types)}


# --- opening models ---------------------------------------------------------------------------


def opened(run: Runs, *, site: str | None = None, key: Path | None = None) -> Models:
    """The models of runs at their selected rounds, or of releases. Raises as `predict` does."""
    paths = _by_task(_paths(run))
    models: dict[str, Any] = {}
    tables: list[SiteTable | SplitTable] = []
    for task in sorted(paths):
        others = [path for other, path in paths.items() if other != task]
        models[task], table = _opened(paths[task], site=site, key=key, others=others)
        tables += [] if table is None else [table]
    return Models(
        models.get("ner"),
        models.get("re"),
        tags=tables[0].tags if tables else {},
        relation_names=tables[-1].relations if tables else {},
    )


def _paths(run: Runs) -> list[Path]:
    """The folders that are meant."""
    if not isinstance(run, (str, Path)):
        return [Path(one) for one in run]
    pieces = str(run).split("+")
    if len(pieces) == 1 or Path(run).is_dir() or not all(pieces):
        return [Path(run)]
    return _folders(pieces) or [Path(piece).expanduser() for piece in pieces]


def _folders(pieces: Sequence[str]) -> list[Path]:
    """Pieces put together to folders that exist, the longest names first; else nothing."""
    for size in range(len(pieces), 0, -1):
        folder, rest = Path("+".join(pieces[:size])).expanduser(), pieces[size:]
        others = _folders(rest) if rest else []
        if folder.is_dir() and (others or not rest):
            return [folder, *others]
    return []


def _by_task(paths: Sequence[Path]) -> dict[str, Path]:
    """Each model's folder by what it does. Raises RunError where two do the same."""
    found: dict[str, Path] = {}
    for path in paths:
        task = release_task(path) or RunFolder(path).settings().task
        if task in found:
            raise RunError(
                f"two models {_FOUND_BY[task]}",
                where=f"{found[task]} and {path}",
                expected="one run, or NER_RUN+RE_RUN: one that recognises entities, one for"
                " the relations between them",
            )
        found[task] = path
    if not found:
        raise RunError("there is no run to use", expected="the folder of a run or of a release")
    return found


def _opened(
    path: Path, *, site: str | None, key: Path | None, others: Sequence[Path]
) -> tuple[Any, SiteTable | SplitTable | None]:
    """The model in a folder, and the settings' table with the names of the chosen site's files."""
    if release_task(path):
        return released(path), None
    folder = RunFolder(path)
    settings = folder.settings()
    method = method_of(settings)
    if site is not None and any(_only_there(site, folder, other) for other in others):
        site = None
    state, memory = folder.trained(method, site)
    own = next((table for table in settings.site if table.name == site), None)
    secret = key or (Path(own.key) if own and own.key else folder.key_file(settings))
    try:
        model = method(settings).extractor(
            state,
            memory,
            key=read_key(secret) if method.keyed else None,
            encoder=own.context if own else None,
        )
    except KeyFileError as error:
        raise KeyFileError(
            f"the words of this model are keyed, and {error.what}",
            where=str(secret),
            fix="name the key file that the sites share with --key, or let a site make a copy"
            " with its words in the clear: `confide release`",
        ) from error
    return model, settings.split or own


def _only_there(site: str, folder: RunFolder, other: Path) -> bool:
    """Whether a site is one of the other run and not of this one."""
    if release_task(other):
        return False
    here, there = (one.result()["data"]["sites"] for one in (folder, RunFolder(other)))
    return site in there and site not in here


# --- types of entities, and relations between them ----------------------------------------------


def _check(models: Models, types: Mapping[str, str] | None, *, threshold: float = 0.0) -> None:
    """Raise SettingsError where an option cannot be, or has no relation model to act on."""
    if not 0 <= threshold <= 1:
        raise SettingsError(
            "a confidence is a probability", expected="from 0 to 1", got=f"{threshold:g}"
        )
    if models.relations is None and (types or threshold):
        raise SettingsError(
            f"{'--as' if types else '--threshold'} is for relations, and this run finds entities",
            fix="name a relation run behind it: NER_RUN+RE_RUN",
        )


def _types(documents: Sequence[Document]) -> set[str]:
    return {entity.type for document in documents for entity in document.entities}


def _names(
    models: Models, documents: Sequence[Document], types: Mapping[str, str] | None
) -> dict[str, str]:
    """What each type that can be found is called by the relation model; raises as `as_known`."""
    assert models.relations is not None
    found = models.types(documents)
    if not found:
        raise DataError(
            "there is no entity in these files, so there can be no relation",
            expected="files with entities, or a model that recognises them",
            fix="name its run before the relations': confide predict NER_RUN+RE_RUN FILE",
        )
    known, pairs = models.relations.types, models.relations.rules.types
    return as_known(found, known, pairs=pairs, given=types or {})


def _unknown(names: Mapping[str, str], types: Mapping[str, str] | None) -> list[str]:
    """The types that are left out, and that nobody asked to leave out."""
    return sorted(name for name, known in names.items() if not known and name not in (types or {}))


def _related(
    extract: RelationExtractor, documents: Sequence[Document], names: Mapping[str, str]
) -> list[Document]:
    """The documents with the relations between those of their entities that have a name."""
    renamed, _ = retag(documents, names)
    return [
        replace(document, relations=other.relations)
        for document, other in zip(documents, extract(renamed), strict=True)
    ]


def _sure(document: Document, threshold: float) -> Document:
    """The document without the relations that are less likely."""
    kept = (one for one in document.relations if (one.confidence or 0.0) >= threshold)
    return replace(document, relations=tuple(kept))


def _end_to_end(
    gold: Sequence[Document], predicted: Sequence[Document], looked: Candidates
) -> dict[str, Any]:
    """Strict and relaxed scores of relations between entities that were found.

    `looked` are the pairs of the gold documents that a model would look at.
    """
    pairs: list[list[tuple[str, str, str]]] = [[] for _ in gold]
    for example in looked.examples:
        if example.relation != NO_RELATION:
            pairs[example.document].append((example.relation, *example.pair))
    wanted = [_facts(document, some) for document, some in zip(gold, pairs, strict=True)]
    seen = [
        _facts(document, [(one.type, one.head, one.tail) for one in document.relations])
        for document in predicted
    ]
    found = scores(count_facts(wanted, seen, missed=looked.missed))
    return {kind: found[kind] for kind in ("strict", "relaxed")}


def _facts(document: Document, pairs: Sequence[tuple[str, str, str]]) -> list[Fact]:
    """(relation, id of the head, id of the tail) as what is compared."""
    mentions = {one.id: Mention(one.type, one.fragments) for one in document.entities}
    return [Fact(relation, mentions[head], mentions[tail]) for relation, head, tail in pairs]


# --- documents --------------------------------------------------------------------------------


def _unpaired(document: Document) -> Document:
    """The document without what it says of pairs of the entities that it had before."""
    kept = tuple(one for one in document.attributes if one[0] != PAIR)
    return replace(document, attributes=kept)


def _must_hold(documents: Sequence[Document], what: Literal["entity", "relation"]) -> None:
    """Raise DataError where nothing of the kind is annotated."""
    parts = "entities" if what == "entity" else "relations"
    if not any(getattr(document, parts) for document in documents):
        raise DataError(
            f"there is nothing to score against: no {what} is annotated in these files",
            fix="look at them with `confide data check`",
        )


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
