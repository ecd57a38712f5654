"""Opening trained models: runs at their selected rounds, releases, and chains; making releases.

A run recognises entities, or finds relations (with bags, facts) between given entities. Rules
without a run give entities their assertions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import TypeAdapter

from confide.errors import DataError, KeyFileError, LockedKeyError, RunError, SettingsError
from confide.federation.keys import read_key
from confide.federation.messages import Arrays
from confide.federation.site import Site
from confide.files import MOST_JSON, decode_json, file_text, write_of_run
from confide.kinds import KINDS, RELEASED
from confide.kinds.protocol import Holders, Kind, ModelSpec, read_release, released, write_release
from confide.methods import method_of
from confide.methods.method import Pair
from confide.runs.folder import HeldFolder, RunFolder, kept_at_home
from confide.runs.status import so_far
from confide.scoring.calibration import AS_IS, COLDEST, HOTTEST, MOST_OFFSET, Calibrator
from confide.settings import Settings, SiteTable, SplitTable, common_splitting
from confide.tasks import TASKS, Task, TaskName
from confide.text.context import ContextRules
from confide.text.document import PAIR, Document
from confide.text.segment import AUTO, Splitting, WordsCut, into_sentences
from confide.training.batches import only
from confide.training.devices import in_int8

if TYPE_CHECKING:
    from confide.kinds import Extractor
    from confide.kinds.bags.site import BagExtractor
    from confide.kinds.entities import EntityExtractor
    from confide.kinds.relations.site import RelationExtractor
    from confide.runs.sites import Gathered

# --- A release
#
# A copy of a model that needs no run and no key, made by an explicit act of a site.
#
# A run's model knows its words by keyed digest only. A site that holds the key can recognise the
# words of its own training text and pass on a copy that needs no key. That copy reveals which
# words occur in the text, which is why it takes an explicit act. A model that reads the word
# pieces of a public encoder has no word list; its copy needs the encoder's files instead. The
# kind decides which of the two a copy is and what is in it.


CALIBRATION = "calibration.json"
"""The calibrator of a release's confidences."""
READING = "reading.json"
"""A release's rules for sentences and tokens, where they are not the plain ones."""


def release(
    run: Path | str, *, out: Path | str, site: str | None = None, key: Path | str | None = None
) -> Path:
    """Write the model of a run to the folder `out`, so that it can be used without the run.

    A relation model consists of its weights and the names of relations and types. A tagger, or a
    bag model that reads words, also gets the words of `site` (or of all sites) in the clear; `key`
    is the sites' shared key file, by default the one that the run's settings name. Words and
    characters that occur at no such site cannot be named: their rows are left out, and the copy
    reads them as unknown. Beside the model lie its card (`confide.runs.card`) and, where that is
    not the plain way, how the settings cut text: the copy cuts it into sentences and tokens as the
    run does.

    Raises RunError, KeyFileError, DataError.
    """
    from confide.runs.card import Copied, write_card
    from confide.runs.sites import gather

    folder, out = RunFolder(run), Path(out)
    settings = folder.settings()
    for file in RELEASED:
        if (out / file).exists():
            raise RunError(
                "there is already a release in this folder",
                where=str(out / file),
                fix="choose another folder with --out",
            )
    method = method_of(settings)
    form, weights = method.model(*folder.trained(method, site))
    kept = kept_at_home(folder, site)
    weights = weights if kept is None else kept.weights
    calibrator = folder.calibrator(site) if kept is None else kept.calibrator

    def find() -> Sequence[Site]:
        gathered = gather(settings, folder.sites, key_file=folder.key_file(settings))
        return [spec for spec in gathered.specs if site in (None, spec.name)]

    own = next((table for table in settings.site if table.name == site), None)
    splitting = common_splitting(settings, settings.split or own)
    tells = method.kind.release.tells
    told = Copied(folder.path, site, tells, at_home=kept is not None, calibrator=calibrator)
    beside, fresh = [out / CALIBRATION, out / READING], not out.exists()
    try:  # the model comes last: with it, and not before, this is a release
        write_of_run(out / CALIBRATION, json.dumps(calibrator._asdict()).encode())
        if splitting != Splitting():
            write_of_run(out / READING, json.dumps(asdict(splitting)).encode())
        beside.append(write_card(out, told))
        holders = Holders(find, Path(key) if key else None, _apart(settings))
        write_release(method.kind, form, weights, out=out, holders=holders)
    except BaseException:
        for path in beside:
            path.unlink(missing_ok=True)
        if fresh:
            with suppress(OSError):
                out.rmdir()
        raise
    return out


def _apart(settings: Settings) -> int:
    """Count the sites that annotate only some of the types, according to the settings.

    At least 1 if the method is for such sites.
    """
    known = sum(bool(table.annotates) for table in settings.site)
    return max(known, int(method_of(settings).apart))


def _kind_of(folder: Path) -> Kind | None:
    """The kind of a release."""
    held = (kind for file, kind in RELEASED.items() if (Path(folder) / file).is_file())
    return next((KINDS[kind] for kind in held), None)


def release_task(folder: Path) -> TaskName | None:
    """The task of a release; None if the folder holds none."""
    kind = _kind_of(folder)
    return kind.task if kind else None


def release_tells(folder: Path) -> str:
    """Say what a release reveals to whoever has it."""
    kind = _kind_of(folder)
    return kind.release.tells if kind else ""


def released_calibrator(folder: Path) -> Calibrator:
    """Read the calibrator of a release; the identity if there is none. Raises RunError."""
    file = Path(folder) / CALIBRATION
    if not file.is_file():
        return AS_IS
    try:
        found = decode_json(file_text(file, MOST_JSON))
        finds = int(found.get("finds", -1))
        made = Calibrator(float(found["temperature"]), float(found["offset"]), finds)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        made = Calibrator(math.nan)
    if not made.is_sound:
        raise RunError(
            "the calibration of this release cannot be read",
            where=str(file),
            expected=f'{{"temperature": {COLDEST:g} to {HOTTEST:g}, "offset": -{MOST_OFFSET:g} to'
            f" {MOST_OFFSET:g}}}",
            fix="delete the file to have the model's own confidences",
        )
    return made


def released_splitting(folder: Path) -> Splitting:
    """Read a release's splitting; as text tells if it says nothing. Raises RunError."""
    file = Path(folder) / READING
    if not file.is_file():
        return Splitting()
    try:
        return TypeAdapter(Splitting).validate_json(file_text(file, MOST_JSON))
    except (OSError, ValueError, SettingsError):
        raise RunError(
            "how this release cuts text into sentences cannot be read",
            where=str(file),
            expected='{"language": "es", "sentences": "rules", "abbreviations": ["Urb."]}',
            fix="delete the file to let the text tell its language",
        ) from None


def load_release(folder: Path) -> Extractor:
    """The extractor of a release. Raises MessageError if the file is damaged.

    A model with a frozen encoder needs that encoder here too; one that reads an encoder's pieces
    needs the files of the encoder that it was made from.
    """
    kind = _kind_of(folder)
    assert kind is not None
    found: Extractor = read_release(kind, Path(folder))
    return found


Runs = Path | str | Sequence[Path | str]
"""A run or a release; or a chain, one for entities, one for relations, `CONTEXT`, in any order.

A chain is a list, or one path with a + in between. A folder whose name contains a + wins.
"""
ATTRIBUTES = "attributes"
"""Stands in place of a task for a model that gives entities an attribute (`[pairs].attribute`)."""
CONTEXT = "context"
"""Stands in a chain for ConText's rules (`text.context`); a folder of that name wins."""


@dataclass(frozen=True)
class Models:
    """Models that annotate: a recogniser of entities, an extractor of relations, or a chain.

    `attributes` gives the entities their assertions, whoever found them.
    `tags` and `relation_names` map the names in the chosen site's files to the common ones. If the
    model comes from sites that annotate different entity types, `annotated` has those of the chosen
    site; None means that every site annotates all types. `wanted` are the labels among which the
    models decide; None: all. `splitting` is how the text was cut that
    the model learnt from; `words_cut` counts the words in its entities that raw text has otherwise.
    """

    entities: EntityExtractor | None
    relations: RelationExtractor | BagExtractor | None
    tags: Mapping[str, str]
    relation_names: Mapping[str, str]
    annotated: frozenset[str] | None = None
    splitting: Splitting = field(default_factory=Splitting)
    wanted: frozenset[str] | None = None
    words_cut: WordsCut = field(default_factory=WordsCut)
    attributes: RelationExtractor | ContextRules | None = None

    @property
    def parts(self) -> tuple[Extractor | ContextRules, ...]:
        """The models, in the order in which they are applied."""
        some = (self.entities, self.attributes, self.relations)
        return tuple(one for one in some if one is not None)

    @property
    def labels(self) -> tuple[str, ...]:
        """The entity types, assertions and relations among which the models decide."""
        return tuple(name for model in self.parts for name in model.labels)

    def only(self, wanted: Sequence[str]) -> Models:
        """Restrict each model to the wanted labels if one of them is its own.

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
        found: dict[str, Any] = {"wanted": frozenset(wanted)}
        for name in ("entities", "attributes", "relations"):
            model = getattr(self, name)
            if model is not None and {*wanted} & {*model.labels}:
                found[name] = model.only(wanted)
        return replace(self, **found)

    def in_int8(self) -> Models:
        """The models with large linear layers in int8; of a chain, those that have any.

        Raises SettingsError as `training.devices.in_int8` does.
        """
        found: dict[str, Any] = {}
        refused: list[SettingsError] = []
        for name in ("entities", "attributes", "relations"):
            one = getattr(self, name)
            if one is None or isinstance(one, ContextRules):
                continue
            try:
                found[name] = replace(cast(Any, one), model=in_int8(cast(Any, one).model))
            except SettingsError as error:
                refused.append(error)
        if not found:
            raise refused[0]
        return replace(self, **found)

    def asked(self, gold: Sequence[Document]) -> list[Document]:
        """Annotated documents with only what is wanted; relations go with their entities."""
        if (wanted := self.wanted) is None:
            return list(gold)
        if self.entities is not None and (types := wanted & {*self.entities.labels}):
            gold = only(gold, types)
        if self.relations is not None and (names := wanted & {*self.relations.labels}):
            from confide.kinds.relations.site import among_relations

            gold = among_relations(gold, [], names)
        return list(gold)

    def split(self, documents: Sequence[Document]) -> list[Document]:
        """The documents, cut into sentences as those were that the model learnt from."""
        return into_sentences(documents, self.splitting)

    def found(self, documents: Sequence[Document]) -> list[Document]:
        """The documents with the entities that the recogniser finds, or else their own.

        If there is a model of assertions, the entities have those. A document that came with
        sentences and tokens keeps them, whatever the model reads. Raises DataError if there is such
        a model, but neither a recogniser nor an entity.
        """
        given = self.split(documents)
        if self.entities is not None:
            given = [
                _unpaired(replace(found, sentences=came.sentences) if came.sentences else found)
                for found, came in zip(self.entities(given), documents, strict=True)
            ]
        if self.attributes is None:
            return given
        if self.entities is None and not types_of(given):
            raise DataError(
                "there is no entity in this text, so there is nothing to say of one",
                expected="files with entities, or a model that recognises them",
                fix="put its run first: NER_RUN+context",
            )
        return self.attributes(given)

    def types(self, documents: Sequence[Document]) -> set[str]:
        """The entity types that the recogniser can find, or else those in the documents."""
        if self.entities is not None:
            return set(self.entities.types)
        return types_of(documents)


def open_models(
    run: Runs | Models,
    *,
    site: str | None = None,
    key: Path | str | None = None,
    types: Sequence[str] | None = None,
    int8: bool = False,
) -> Models:
    """Open runs at their selected rounds, or releases. Raises as `predict` does.

    A run that is not finished is opened at the best checkpoint so far, with a Note. `types` are the
    entity types and relations that are wanted; by default those that the settings say that `site`
    wants. Models that are open already stay as they are.
    """
    if isinstance(run, Models):
        return run
    paths = _paths(run)
    rules = [path for path in paths if str(path) == CONTEXT and not path.is_dir()]
    others = [path for path in paths if path not in rules]
    folders = _by_task(others) if others or not rules else {}
    entities: EntityExtractor | None = None
    relations: RelationExtractor | BagExtractor | None = None
    attributes: RelationExtractor | ContextRules | None = None
    annotated: frozenset[str] | None = None
    tables: list[SiteTable | SplitTable] = []
    splitting, words_cut = Splitting(), WordsCut()
    for part in filter(folders.__contains__, (ATTRIBUTES, *TASKS)):
        folder = folders[part]
        rest = [other for other in folders.values() if other is not folder]
        model, table, own_types = _opened(folder, site=site, key=key, others=rest)
        if model.finds == "entities":
            entities, annotated = model, own_types
            words_cut = _words_cut(folder)
        elif model.finds == "attributes":
            if rules:
                raise _two_models("give entities an attribute", rules[0], folder.path)
            attributes = model
        else:
            relations = model
        tables += [] if table is None else [table]
        if release_task(folder.path):
            splitting = released_splitting(folder.path)
        else:
            splitting = common_splitting(folder.settings(), table)
    if rules:
        attributes = ContextRules(language=splitting.language.replace(AUTO, ""))
    models = Models(
        entities,
        relations,
        tags=tables[0].tags if tables else {},
        relation_names=tables[-1].relations if tables else {},
        annotated=annotated,
        splitting=splitting,
        words_cut=words_cut,
        attributes=attributes,
    )
    if int8:
        models = models.in_int8()
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
        if (folder.is_dir() or str(folder) == CONTEXT) and (others or not rest):
            return [folder, *others]
    return []


def _by_task(paths: Sequence[Path]) -> dict[str, HeldFolder]:
    """Each model's folder by its task, or `ATTRIBUTES`. Raises RunError if two have the same."""
    found: dict[str, HeldFolder] = {}
    for path in paths:
        folder = HeldFolder(path, so_far=so_far)
        task = TASKS[release_task(path) or folder.settings().task]
        part = ATTRIBUTES if len(paths) > 1 and _has_attribute(folder, task) else task.name
        if part in found:
            does = "give entities an attribute" if part == ATTRIBUTES else task.words.does
            raise _two_models(does, found[part].path, path)
        found[part] = folder
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


def _two_models(does: str, one: Path, other: Path) -> RunError:
    return RunError(
        f"two models {does}",
        where=f"{one} and {other}",
        expected="one run, or NER_RUN+RE_RUN: one that recognises entities and one for"
        " the relations between them",
    )


def _has_attribute(folder: HeldFolder, task: Task) -> bool:
    """Return whether the model in a folder gives entities an attribute."""
    kind = _kind_of(folder.path)
    if task.kind != "relations":
        return False
    if kind is None:
        return folder.settings().pairs.attribute != ""
    return bool(released(kind, folder.path).attribute)


def _opened(
    folder: HeldFolder, *, site: str | None, key: Path | str | None, others: Sequence[HeldFolder]
) -> tuple[Extractor, SiteTable | SplitTable | None, frozenset[str] | None]:
    """The model in a folder, and the table of the settings with the names in the site's files.

    Also the entity types that this site annotates (`Models.annotated`).
    """
    if release_task(folder.path):
        calibrator = released_calibrator(folder.path)
        found = _calibrated(calibrator, load_release(folder.path))
        return found, None, frozenset() if found.finds == "entities" and found.apart else None
    settings = folder.settings()
    method = method_of(settings)
    if site is not None and any(_only_there(site, folder, other) for other in others):
        site = None
    state, memory = folder.trained(method, site)
    own = next((table for table in settings.site if table.name == site), None)
    secret = Path(key or (own and own.key) or folder.key_file(settings))
    try:
        secret_key = read_key(secret) if method.keyed else None
        encoder = own.context if own else None
        if (kept := kept_at_home(folder, site)) is not None:
            form, _ = method.model(state, memory)
            model = form.extractor(kept.weights, key=secret_key, encoder=encoder)
        else:
            model = method.extractor(state, memory, key=secret_key, encoder=encoder)
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
    model = _calibrated(calibrator, model)
    own_types = _annotated(settings, folder, own, site)
    return model, settings.split or own, own_types


def _words_cut(folder: HeldFolder) -> WordsCut:
    """The words in entities of all training text, and how many of them raw text has otherwise."""
    if release_task(folder.path):
        return WordsCut()
    counts = [one.words_cut for one in folder.result().data.sites.values()]
    return WordsCut(*(sum(one.get(name, 0) for one in counts) for name in ("words", "cut")))


def _calibrated(calibrator: Calibrator, model: Extractor) -> Extractor:
    """The model with its confidences calibrated."""
    return cast("Extractor", replace(cast(Any, model), calibrator=calibrator))


def _annotated(
    settings: Settings, folder: RunFolder, own: SiteTable | None, site: str | None
) -> frozenset[str] | None:
    """The entity types that a site annotates in training or test text; empty without a site.

    None if all sites annotate the same types.
    """
    if not method_of(settings).apart and not any(table.annotates for table in settings.site):
        return None
    there = folder.result().data.sites
    seen = there[site].entities if site in there else {}
    return frozenset({*(own.annotates or seen), *own.test_annotates} if own else seen)


def _only_there(site: str, folder: RunFolder, other: RunFolder) -> bool:
    """Return whether a site takes part in the other run and not in this one."""
    if release_task(other.path):
        return False
    here, there = (one.result().data.sites for one in (folder, other))
    return site in there and site not in here


# --- A finished run with its text


@dataclass(frozen=True)
class LocalRun:
    """A run with the text of its sites that is here: of all, or at a real site its own."""

    folder: RunFolder
    settings: Settings
    method: Pair
    gathered: Gathered

    @classmethod
    def of(cls, folder: RunFolder, key: Path | str | None) -> Self:
        """Open a run; `key` is the sites' shared key file. Raises RunError and as `gather` does."""
        from confide.runs.sites import gather

        settings = folder.settings()
        key_file = Path(key or folder.key_file(settings))
        gathered = gather(settings, folder.sites, key_file=key_file)
        return cls(folder, settings, method_of(settings), gathered)

    def specs(self, site: str | None) -> list[Site]:
        """The site of this name, or all of them. Raises RunError if there is none."""
        every = self.gathered.specs
        specs = [spec for spec in every if site in (None, spec.name)]
        if not specs:
            known = ", ".join(spec.name for spec in every)
            raise RunError(
                f"the run has no site {site!r}", where=str(self.folder.path), expected=known
            )
        return specs

    def model_of(self, spec: Site) -> tuple[ModelSpec, Arrays]:
        """The model that a site ended with. Raises RunError, CheckpointError."""
        personal = self.method.personal or "" not in self.folder.result().best_rounds
        trained = self.folder.trained(self.method, spec.name if personal else None)
        return self.method.model(*trained)


def types_of(documents: Sequence[Document]) -> set[str]:
    """The entity types that occur in the documents."""
    return {entity.type for document in documents for entity in document.entities}


def _unpaired(document: Document) -> Document:
    """The document without the pairs that it stated between its former entities."""
    kept = tuple(one for one in document.attributes if one[0] != PAIR)
    return replace(document, attributes=kept) if kept != document.attributes else document
