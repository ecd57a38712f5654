"""Opening trained models: runs at their selected rounds, releases, and chains of two.

A run recognises entities, or finds relations (with bags, facts) between given entities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from confide.data.batches.completing import only
from confide.errors import KeyFileError, LockedKeyError, RunError, SettingsError
from confide.federation.keys import read_key
from confide.kinds.relations.completing import among
from confide.kinds.trained import FindsEntities, FindsFacts, FindsRelations
from confide.methods import method_of
from confide.runs.athome import kept_at_home
from confide.runs.folder import HeldFolder, RunFolder
from confide.runs.release import (
    release_task,
    released,
    released_calibrator,
    released_splitting,
)
from confide.runs.standing import so_far
from confide.scoring.calibration import Calibrator
from confide.settings import Settings, SiteTable, SplitTable, common_splitting
from confide.tasks import TASKS
from confide.text.document import PAIR, Document
from confide.text.segment import Cut, Splitting, into_sentences

Runs = Path | str | Sequence[Path | str]
"""A run or a release; or a chain of two, one for entities and one for relations, in any order.

A chain is a list, or one path with a + in between. A folder whose name contains a + wins.
"""

Finds = FindsEntities | FindsRelations | FindsFacts


@dataclass(frozen=True)
class Models:
    """What annotates: a recogniser of entities, an extractor of relations, or both in a chain.

    `tags` and `relation_names` map the names in the chosen site's files to the common ones. If the
    model comes from sites that annotate different entity types, `annotated` has those of the chosen
    site; None means that every site annotates all types. `wanted` are the labels among which the
    models decide; None: all. `splitting` is how the text was cut that
    the model learnt from; `words_cut` counts the words in its entities that raw text has otherwise.
    """

    entities: FindsEntities | None
    relations: FindsRelations | FindsFacts | None
    tags: Mapping[str, str]
    relation_names: Mapping[str, str]
    annotated: frozenset[str] | None = None
    splitting: Splitting = field(default_factory=Splitting)
    wanted: frozenset[str] | None = None
    words_cut: Cut = field(default_factory=Cut)

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity types and relations among which the models decide."""
        return tuple(
            name
            for model in (self.entities, self.relations)
            if model is not None
            for name in model.labels
        )

    def only(self, wanted: Sequence[str]) -> Models:
        """The same models, each deciding among the wanted labels alone if one of them is its own.

        Raises SettingsError if neither model has one of the names.
        """
        wanted = [wanted] if isinstance(wanted, str) else list(wanted)
        for name in wanted or [""]:
            if name not in self.labels:
                raise SettingsError(
                    "the model does not find every wanted type",
                    expected=", ".join(self.labels) or "none: this model cannot be restricted",
                    got=repr(name),
                )
        entities, relations = self.entities, self.relations
        if entities is not None and {*wanted} & {*entities.labels}:
            entities = entities.only(wanted)
        if relations is not None and {*wanted} & {*relations.labels}:
            relations = relations.only(wanted)
        return replace(self, entities=entities, relations=relations, wanted=frozenset(wanted))

    def asked(self, gold: Sequence[Document]) -> list[Document]:
        """Annotated documents with only what is wanted; relations go with their entities."""
        if (wanted := self.wanted) is None:
            return list(gold)
        if self.entities is not None and (types := wanted & {*self.entities.labels}):
            gold = only(gold, types)
        if self.relations is not None and (names := wanted & {*self.relations.labels}):
            gold = among(gold, [], names)
        return list(gold)

    def split(self, documents: Sequence[Document]) -> list[Document]:
        """The documents, cut into sentences as those were that the model learnt from."""
        return into_sentences(documents, self.splitting)

    def found(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the entities that the recogniser finds, or else their own.

        A document that came with sentences and tokens keeps them, whatever the model reads.
        """
        given = self.split(documents)
        if self.entities is None:
            return given
        return [
            replace(_unpaired(found), sentences=came.sentences or found.sentences)
            for found, came in zip(self.entities(given), documents, strict=True)
        ]

    def types(self, documents: Sequence[Document]) -> set[str]:
        """The entity types that the recogniser can find, or else those in the documents."""
        if self.entities is not None:
            return set(self.entities.types)
        return types_of(documents)


def opened(
    run: Runs,
    *,
    site: str | None = None,
    key: Path | None = None,
    types: Sequence[str] | None = None,
) -> Models:
    """Open runs at their selected rounds, or releases. Raises as `predict` does.

    A run that is not finished is opened at the best checkpoint so far, with a Note. `types` are the
    entity types and relations that are wanted; by default those that the settings say that `site`
    wants.
    """
    folders = _by_task(_paths(run))
    entities: FindsEntities | None = None
    relations: FindsRelations | FindsFacts | None = None
    annotated: frozenset[str] | None = None
    tables: list[SiteTable | SplitTable] = []
    splitting, words_cut = Splitting(), Cut()
    for task in filter(folders.__contains__, TASKS):
        others = [folder for other, folder in folders.items() if other != task]
        model, table, own_types = _opened(folders[task], site=site, key=key, others=others)
        if model.finds == "entities":
            entities, annotated = model, own_types
            words_cut = _words_cut(folders[task])
        else:
            relations = model
        tables += [] if table is None else [table]
        if release_task(folders[task].path):
            splitting = released_splitting(folders[task].path)
        else:
            splitting = common_splitting(folders[task].settings(), table)
    models = Models(
        entities,
        relations,
        tags=tables[0].tags if tables else {},
        relation_names=tables[-1].relations if tables else {},
        annotated=annotated,
        splitting=splitting,
        words_cut=words_cut,
    )
    if types is not None:
        return models.only(types)
    usual = {name for table in tables if isinstance(table, SiteTable) for name in table.types}
    return models.only([one for one in models.labels if one in usual]) if usual else models


def _paths(run: Runs) -> list[Path]:
    """The folders that `run` means."""
    if not isinstance(run, (str, Path)):
        return [Path(one) for one in run]
    pieces = str(run).split("+")
    if len(pieces) == 1 or Path(run).is_dir() or not all(pieces):
        return [Path(run)]
    return _folders(pieces) or [Path(piece).expanduser() for piece in pieces]


def _folders(pieces: Sequence[str]) -> list[Path]:
    """Pieces joined into folders that exist, the longest names first; empty if that fails."""
    for size in range(len(pieces), 0, -1):
        folder, rest = Path("+".join(pieces[:size])).expanduser(), pieces[size:]
        others = _folders(rest) if rest else []
        if folder.is_dir() and (others or not rest):
            return [folder, *others]
    return []


def _by_task(paths: Sequence[Path]) -> dict[str, HeldFolder]:
    """Each model's folder by its task. Raises RunError if two have the same."""
    found: dict[str, HeldFolder] = {}
    for path in paths:
        folder = HeldFolder(path, so_far=so_far)
        task = TASKS[release_task(path) or folder.settings().task]
        if task.name in found:
            raise RunError(
                f"two models {task.words.does}",
                where=f"{found[task.name].path} and {path}",
                expected="one run, or NER_RUN+RE_RUN: one that recognises entities and one for"
                " the relations between them",
            )
        found[task.name] = folder
    related = [found[n] for n in TASKS if n in found and TASKS[n].learns == "relations"]
    if len(related) > 1:
        raise RunError(
            "one model finds relations and another finds facts",
            where=" and ".join(str(one.path) for one in related),
            fix="use one of them at a time",
        )
    if not found:
        raise RunError("no run is named", expected="the folder of a run or of a release")
    return found


def _opened(
    folder: HeldFolder, *, site: str | None, key: Path | None, others: Sequence[HeldFolder]
) -> tuple[Finds, SiteTable | SplitTable | None, frozenset[str] | None]:
    """The model in a folder, and the table of the settings with the names in the site's files.

    Also the entity types that this site annotates (`Models.annotated`).
    """
    if release_task(folder.path):
        calibrator = released_calibrator(folder.path)
        found = _calibrated(calibrator, cast(Finds, released(folder.path)))
        return found, None, frozenset() if found.finds == "entities" and found.apart else None
    settings = folder.settings()
    method = method_of(settings)
    if site is not None and any(_only_there(site, folder, other) for other in others):
        site = None
    state, memory = folder.trained(method, site)
    own = next((table for table in settings.site if table.name == site), None)
    secret = key or (Path(own.key) if own and own.key else folder.key_file(settings))
    try:
        secret_key = read_key(secret) if method.keyed else None
        encoder = own.context if own else None
        if (kept := kept_at_home(folder, site)) is not None:
            form, _ = method(settings).model(state, memory)
            model = form.extractor(kept.weights, key=secret_key, encoder=encoder)
        else:
            model = method(settings).extractor(state, memory, key=secret_key, encoder=encoder)
    except LockedKeyError:
        raise
    except KeyFileError as error:
        raise KeyFileError(
            f"this model knows its words by key only, and {error.what}",
            where=str(secret),
            fix="name the sites' shared key file with --key, or let a site make a copy with its"
            " words in the clear: `confide release`",
        ) from error
    calibrator = folder.calibrator(site) if kept is None else kept.calibrator
    model = _calibrated(calibrator, cast(Finds, model))
    own_types = _annotated(settings, folder, own, site)
    return model, settings.split or own, own_types


def _words_cut(folder: HeldFolder) -> Cut:
    """The words in entities of all training text, and how many of them raw text has otherwise."""
    if release_task(folder.path):
        return Cut()
    counts = [one.words_cut for one in folder.result().data.sites.values()]
    return Cut(*(sum(one.get(name, 0) for one in counts) for name in ("words", "cut")))


def _calibrated(calibrator: Calibrator, model: Finds) -> Finds:
    """The model with its confidences calibrated."""
    return cast(Finds, replace(cast(Any, model), calibrator=calibrator))


def _annotated(
    settings: Settings, folder: RunFolder, own: SiteTable | None, site: str | None
) -> frozenset[str] | None:
    """The entity types that a site annotates in training or test text; empty without a site.

    None if all sites annotate the same types.
    """
    if not method_of(settings).apart and not any(table.knows for table in settings.site):
        return None
    there = folder.result().data.sites
    seen = there[site].entities if site in there else {}
    return frozenset({*(own.knows or seen), *own.test_knows} if own else seen)


def _only_there(site: str, folder: RunFolder, other: RunFolder) -> bool:
    """Whether a site takes part in the other run and not in this one."""
    if release_task(other.path):
        return False
    here, there = (one.result().data.sites for one in (folder, other))
    return site in there and site not in here


def types_of(documents: Sequence[Document]) -> set[str]:
    """The entity types that occur in the documents."""
    return {entity.type for document in documents for entity in document.entities}


def _unpaired(document: Document) -> Document:
    """The document without the pairs that it stated between its former entities."""
    kept = tuple(one for one in document.attributes if one[0] != PAIR)
    return replace(document, attributes=kept)
