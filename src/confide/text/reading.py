"""The common parts of all formats: options, readings, choice of annotator, limits of a format."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from confide.errors import DataError, FormatError, SettingsError
from confide.text.document import Document, Entity, Problem, Relation, Span
from confide.text.segment import AUTO

# --- Several annotators of one document -----------------------------------------------------------
#
# A rule says which annotation is read.
#
# The rules are "first" (the first in the file), "majority" (the entities and relations that more
# than half of a document's annotators have, with the same type and the same characters), and an
# annotator's name (documents that this one did not annotate are left out).

FIRST, MAJORITY = "first", "majority"
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Version:
    """One annotator's version of a document; `annotator` is empty where a file does not say."""

    annotator: str
    document: Document


@dataclass(frozen=True, slots=True)
class ChosenVersions:
    """The documents to read, how they were chosen, and the versions of those that had several."""

    documents: list[Document]
    details: dict[str, str]
    versions: list[Version]


def choose_versions(
    versions: Sequence[Version], rule: str | None, *, where: str, problems: list[Problem]
) -> ChosenVersions:
    """One document for each text that was annotated, by the rule; None: the first.

    Versions are of one document if they have the same id and the same text, but different
    annotators. What other annotators said is lost if no rule was stated; what a stated rule leaves
    out is named, but not lost.
    """
    if not any(version.annotator for version in versions):
        return ChosenVersions([version.document for version in versions], {}, [])
    groups: dict[tuple[object, ...], list[Version]] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    for number, version in enumerate(versions):
        own = version.annotator, version.document.id, version.document.text
        seen[own] += 1
        key = (*own[1:], seen[own]) if version.annotator else (number,)
        groups.setdefault(key, []).append(version)
    several = [one for group in groups.values() if len(group) > 1 for one in group]
    if rule in (None, FIRST):
        chosen = [group[0].document for group in groups.values()]
        _say_others(groups, stated=rule is not None, where=where, problems=problems)
    elif rule == MAJORITY:
        chosen = [_majority(group, problems) for group in groups.values()]
    else:
        chosen = _by_name(groups, str(rule), where=where, problems=problems)
    details = {}
    names = Counter(version.annotator for version in versions if version.annotator)
    if several or len(names) > 1:
        counted = ", ".join(f"{name} ({count})" for name, count in names.most_common())
        details["annotators"] = f"{rule or FIRST} of {counted or 'several, without names'}"
    return ChosenVersions(chosen, details, several)


def _say_others(
    groups: Mapping[tuple[object, ...], Sequence[Version]],
    *,
    stated: bool,
    where: str,
    problems: list[Problem],
) -> None:
    others = [version for group in groups.values() for version in group[1:]]
    if not others:
        return
    names = Counter(version.annotator or "without a name" for version in others)
    said = ", ".join(f"{name} ({count})" for name, count in names.most_common())
    what = f"{len(others)} annotations of documents that another one annotated first: {said}"
    if not stated:
        what += "; state whose to read: first, majority or a name"
    problems.append(Problem("annotators-ignored", where, what, lost=not stated))


def _by_name(
    groups: Mapping[tuple[object, ...], Sequence[Version]],
    name: str,
    *,
    where: str,
    problems: list[Problem],
) -> list[Document]:
    """The documents of one annotator, and those of files that name nobody."""
    chosen, missing = [], 0
    for group in groups.values():
        own = [one for one in group if one.annotator in (name, "")]
        chosen += [one.document for one in own[:1]]
        missing += not own
    if missing:
        known = sorted({one.annotator for group in groups.values() for one in group} - {""})
        what = (
            f"{missing} documents that {name} did not annotate; those who did: {', '.join(known)}"
        )
        problems.append(Problem("annotator-missing", where, what, lost=True))
    return chosen


def _majority(group: Sequence[Version], problems: list[Problem]) -> Document:
    """A document with what more than half of its annotators have."""
    first = group[0].document
    if len(group) == 1:
        return first
    entities = _shared([{_mention(e): e for e in one.document.entities} for one in group])
    ids = {_mention(entity): f"T{number}" for number, entity in enumerate(entities, 1)}
    linked = []
    for one in group:
        mentions = {entity.id: _mention(entity) for entity in one.document.entities}
        linked.append(
            {
                (r.type, mentions.get(r.head), mentions.get(r.tail)): r
                for r in one.document.relations
            }
        )
    relations: list[Relation] = []
    for relation, (_, head, tail) in _keyed(linked):
        if head in ids and tail in ids:
            name = f"R{len(relations) + 1}"
            relations.append(replace(relation, id=name, head=ids[head], tail=ids[tail]))
    said = {_mention(entity) for one in group for entity in one.document.entities}
    if len(said) > len(entities):
        what = f"{len(said) - len(entities)} entities that no majority of {len(group)} has"
        where = first.source or first.id
        problems.append(Problem("annotators-disagree", where, what))
    return replace(
        first,
        entities=tuple(replace(entity, id=ids[_mention(entity)]) for entity in entities),
        relations=tuple(relations),
    )


def _mention(entity: Entity) -> tuple[str, tuple[tuple[int, int], ...]]:
    return entity.type, entity.fragments


def _shared(versions: Sequence[Mapping[Hashable, Entity]]) -> list[Entity]:
    """The entities that more than half of the versions have, in the order of the text."""
    counts = Counter(key for version in versions for key in version)
    found: dict[Hashable, Entity] = {}
    for version in versions:
        for key, entity in version.items():
            if 2 * counts[key] > len(versions):
                found.setdefault(key, entity)
    return sorted(found.values(), key=lambda entity: (entity.start, entity.end, entity.type))


def _keyed(versions: Sequence[Mapping[Key, Relation]]) -> list[tuple[Relation, Key]]:
    """The relations that more than half of the versions have, in the order they came."""
    counts = Counter(key for version in versions for key in version)
    found: dict[Key, Relation] = {}
    for version in versions:
        for key, relation in version.items():
            if 2 * counts[key] > len(versions):
                found.setdefault(key, relation)
    return [(relation, key) for key, relation in found.items()]


# --- Options, readings and formats
#
# A reader's options, what it gives, and the description of a format.

NO_DATA = re.compile(
    r"(?i)^(readme|license|licence|source|notice|changelog|relation2id\.)|rel2id\.json$"
    r"|^(dataset_dict|dataset_infos?|state|label2id|id2label|labels?|rel_info|pid2name)\.json$"
    r"|^typesystem\.xml$|\.(md|html?|pdf|png|dtd|xsd|conf)$"
)
"""Names of files that lie beside data but are not data."""
_SLACK = 200
_UNSAFE = re.compile(r"[^\w.\-/]+")
_BROKEN, _LEFT_OUT = "broken-document", "left out: "


def is_number(text: str) -> bool:
    """Return whether this is a whole number of at most 15 digits, and nothing else."""
    return text.isascii() and text.isdigit() and len(text) < 16


def malformed(what: str, expected: str, got: object, *, where: str) -> FormatError:
    """The error for a part of a file that is not as expected; it names what came, not its value."""
    shape = "nothing" if got is None else type(got).__name__
    return FormatError(what, expected=expected, got=shape, where=where)


def whole_number(value: object) -> int | None:
    """A whole number, which a file may write as 6, 6.0 or "6"; None for anything else.

    >>> [whole_number(value) for value in (6, 6.0, "6", " 6.0", 6.5, "6.5", True, None)]
    [6, 6, 6, 6, None, None, None, None]
    """
    if isinstance(value, str):
        number, _, rest = value.strip().partition(".")
        return int(number) if is_number(number) and not rest.strip("0") else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if isinstance(value, int) or value.is_integer() else None


Columns = tuple[int | str, int | str | None]
"""The columns of the token and the tag, or of the id and the text of notes."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of reading; None or the default means that the reader finds out by itself.

    `types` are the entity types that may occur (None: any). `columns` are those of the token and
    the tag (None: the file has no tags): numbers counted from 0 or, if negative, from the end, or
    the names of columns and keys. In a table of notes they are those of the id and the text.
    `annotators` says whose annotation of a document that several annotated is read: "first",
    "majority" or a name; None reads the first, and counts the others as lost. `skip_broken`: a
    document that cannot be read is left out and named, instead of being an error.
    `language` is that of text without sentences (`text.segment`).
    """

    scheme: str | None = None
    encoding: str | None = None
    columns: Columns | None = None
    bare_type: str = "entity"
    types: frozenset[str] | None = None
    annotators: str | None = None
    skip_broken: bool = False
    language: str = AUTO

    def require(self, kind: str, where: str) -> None:
        """Check a type against the declared ones.

        Raises:
            DataError: `types` is given and `kind` is not in it.
        """
        if self.types is not None and kind not in self.types:
            raise DataError(
                "an entity type that was not declared",
                expected=" or ".join(sorted(self.types)) or "none",
                got=repr(kind),
                where=where,
                fix="declare it, or map it in the site's tags",
            )

    @contextmanager
    def document(self, problems: list[Problem], where: object) -> Iterator[None]:
        """A block that reads one document, which is left out if it is broken and that is wished.

        Raises DataError and FormatError as the block does, unless `skip_broken` is set.
        """
        try:
            yield
        except (DataError, FormatError) as error:
            self.skip(error, problems, where)

    def skip(self, error: DataError | FormatError, problems: list[Problem], where: object) -> None:
        """Leave out a document that is broken, if that is wished, or else raise its error again."""
        if not self.skip_broken:
            raise error
        problems.append(Problem(_BROKEN, str(where), f"{_LEFT_OUT}{error}", lost=True))


def no_document(path: Path, problems: Sequence[Problem], otherwise: str) -> DataError:
    """The error for a file without a document; it says why the first was left out, if one was."""
    broken = next((one.what for one in problems if one.kind == _BROKEN), None)
    left = f"no document is left: {(broken or '').removeprefix(_LEFT_OUT)}"
    return DataError(otherwise if broken is None else left, where=str(path))


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a file: documents, problems, the format, and how it was read.

    `versions` are what each annotator made of the documents that several annotated.
    """

    documents: list[Document]
    problems: list[Problem] = field(default_factory=list)
    format: str = ""
    details: dict[str, str] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: its name in settings, what it is, its file ending, a reader and a writer.

    `read(path, options)` gives a `Reading`; `write(documents, path, scheme)` gives the problems and
    is None if the format is read-only. `suffix` is empty if the format is a folder. `whole`: the
    reader takes a whole folder, not file by file. `by_annotator`: a file is one annotator's version
    of a document, and where it lies says whose and of which.
    """

    name: str
    title: str
    suffix: str
    read: Callable[[Path, Options], Reading]
    write: Callable[[Sequence[Document], Path, str], list[Problem]] | None
    whole: bool = False
    by_annotator: bool = False


@lru_cache(maxsize=4096)
def entity_id(number: int) -> str:
    """The id of an entity that a file gives none: T1, T2, ...; the same string for all documents.

    >>> entity_id(3)
    'T3'
    """
    return f"T{number}"


def place(document: Document, start: int, end: int) -> str:
    """The place of a stretch of a document, for a problem: ``source [start:end]``."""
    return f"{document.source or document.id} [{start}:{end}]"


def merge_fragments(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in ascending order; those that touch or overlap are merged."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def same_surface(text: str, spans: Sequence[Span], surface: str) -> bool:
    """Return whether fragments of a text equal a surface, apart from white space.

    A stretch that is far longer than the surface cannot equal it and is not read, so that a
    thousand mentions of a whole text take no longer than the text.
    """
    if sum(end - start for start, end in spans) > 2 * len(surface) + _SLACK:
        return False
    return " ".join(text[start:end] for start, end in spans).split() == surface.split()


def quoted_at(text: str, spans: Sequence[Span]) -> str:
    """A short quotation from fragments of a text, for its owner."""
    return quoted(" ".join(text[start : min(end, start + _SLACK)] for start, end in spans[:_SLACK]))


def free_id(name: str, taken: Container[str], tried: dict[str, int]) -> str:
    """`name`, or the first of name-2, name-3, ... that is not taken.

    `tried`, one dict for all names of a document, remembers the last number of each name, so that
    many equal names take no longer than different ones.
    """
    wanted, number = name, tried.get(name, 1)
    while wanted in taken:
        number += 1
        wanted = f"{name}-{number}"
    tried[name] = number
    return wanted


def quoted(text: str, limit: int = 40) -> str:
    """A short quotation from a text, for its owner."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def mend_surrogates(text: str, where: str, problems: list[Problem]) -> str:
    """Text with every lone surrogate read as one U+FFFD, which is reported."""
    try:
        text.encode("utf-8")
        return text
    except UnicodeEncodeError:
        pass
    what = "half of a character in the text; read as U+FFFD"
    problems.append(Problem("lone-surrogate", where, what))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def unheld(path: Path, what: str, number: int, *, kind: str) -> list[Problem]:
    """One problem for a number of things that a format cannot hold; none for zero."""
    return [Problem(kind, str(path), f"{number} {what}", lost=True)] if number else []


def file_name(name: str, taken: set[str]) -> str:
    """A path in a folder, made from a document's id, that no other document has; it is taken then.

    >>> taken = set()
    >>> file_name("a b/../c", taken), file_name("A_B/c", taken)
    ('a_b/c', 'A_B/c-2')
    """
    parts = [part.strip(".") for part in _UNSAFE.sub("_", name).split("/")]
    plain = "/".join(part[:100] for part in parts if part) or "document"
    names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
    free = next(name for name in names if name.lower() not in taken)
    taken.add(free.lower())
    return free


def clean(text: str) -> str:
    """Text without lone surrogates, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# --- Limits of a format ---------------------------------------------------------------------------
#
# Stated once; documents are cut down to it with every loss named.


@dataclass(frozen=True, slots=True)
class Supports:
    """The parts of a document that a format can hold besides its text and entities of one stretch.

    `fragments`: entities of several stretches. `relations`: links between two written mentions.
    `concept_relations`: links between concepts. `said`: attributes of entities and relations.
    `attributes`: those of the document. `sentences`: its sentences and tokens.
    """

    fragments: bool = False
    relations: bool = False
    concept_relations: bool = False
    confidences: bool = False
    concepts: bool = False
    said: bool = False
    attributes: bool = False
    sentences: bool = False


def reduce_to(
    documents: Sequence[Document], keeps: Supports, path: Path
) -> tuple[list[Document], list[Problem]]:
    """The documents with what a format can hold, and a problem for everything else."""
    problems: list[Problem] = []
    cut = [_cut(document, keeps, problems) for document in documents]
    return cut, [*problems, *_counted(documents, keeps, path)]


def _cut(document: Document, keeps: Supports, problems: list[Problem]) -> Document:
    entities = []
    for entity in document.entities:
        if len(entity.fragments) > 1 and not keeps.fragments:
            what = f"{entity.type} {entity.id} has {len(entity.fragments)} fragments"
            where = place(document, entity.start, entity.end)
            problems.append(Problem("discontinuous", where, what, lost=True))
        else:
            entities.append(_entity(entity, keeps))
    known = {entity.id for entity in entities}
    relations = []
    for relation in document.relations if keeps.relations or keeps.concept_relations else ():
        concept = relation.level == "concept"
        linked = {relation.head, relation.tail} <= known
        if keeps.concept_relations if concept else keeps.relations and linked:
            relations.append(_relation(relation, keeps))
            continue
        what = f"{relation.type} {relation.id} does not link two written mentions"
        where = document.source or document.id
        problems.append(Problem("relation-unheld", where, what, lost=True))
    return replace(
        document,
        entities=tuple(entities),
        relations=tuple(relations),
        sentences=document.sentences if keeps.sentences else (),
        attributes=document.attributes if keeps.attributes else (),
    )


def _entity(entity: Entity, keeps: Supports) -> Entity:
    return replace(
        entity,
        confidence=entity.confidence if keeps.confidences else None,
        concepts=entity.concepts if keeps.concepts else (),
        attributes=entity.attributes if keeps.said else (),
    )


def _relation(relation: Relation, keeps: Supports) -> Relation:
    return replace(
        relation,
        confidence=relation.confidence if keeps.confidences else None,
        attributes=relation.attributes if keeps.said else (),
    )


def _counted(documents: Sequence[Document], keeps: Supports, path: Path) -> list[Problem]:
    """A problem for each sort of thing that goes from all documents."""
    entities = [entity for document in documents for entity in document.entities]
    relations = [relation for document in documents for relation in document.relations]
    counts = {}
    if not keeps.confidences:
        sure = sum(one.confidence is not None for one in entities)
        sure += sum(one.confidence is not None for one in relations)
        counts["confidences-unheld"] = sure, "confidences of entities or relations"
    said = 0
    if not keeps.said:
        said += sum(bool(one.attributes) for one in entities)
        said += sum(bool(one.attributes) for one in relations)
    if not keeps.concepts:
        said += sum(bool(one.concepts) for one in entities if keeps.said or not one.attributes)
    counts["attributes-unheld"] = said, "entities or relations lose concepts or attributes"
    if not (keeps.relations or keeps.concept_relations):
        counts["relations-unheld"] = len(relations), "relations: the format has none"
    if not keeps.attributes:
        described = sum(bool(document.attributes) for document in documents)
        counts["document-attributes-unheld"] = described, "documents lose attributes"
    if not keeps.sentences:
        cut = sum(bool(document.sentences) for document in documents)
        counts["segmentation-unheld"] = cut, "documents lose sentences and tokens"
    return [
        problem
        for kind, (count, what) in counts.items()
        for problem in unheld(path, what, count, kind=kind)
    ]


# --- Libraries that only some formats need --------------------------------------------------------
#
# Imported when used, and named where they are missing.


def extra(module: str, extra: str, *, where: object, what: str) -> Any:
    """A module of an optional library.

    Raises:
        SettingsError: it is not installed; the error says which extra of confide brings it.

    >>> extra("json", "none", where="a.json", what="JSON").__name__
    'json'
    """
    try:
        return import_module(module)
    except ImportError as error:
        library = module.partition(".")[0]
        raise SettingsError(
            f"{what} can be read and written only with {library}, which is not installed",
            where=str(where),
            fix=f"install confide with its extra {extra}: pip install 'confide[{extra}]'",
        ) from error


# --- Reading without the garbage collector --------------------------------------------------------
#
# It would visit every document again and again.
#
# Readers make no reference cycles, so reference counting frees everything. With a file of a hundred
# thousand tiny documents, the collector would take a third of the time.


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the collector if it is on, and turn it on again afterwards, whatever was raised.

    What was made meanwhile counts as old at once, so that the collector does not begin with a visit
    to all of it. Several may be open at once, even in several threads: the first one to end turns
    it on.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # or else the caller froze objects, which stay so
            gc.freeze()
            gc.unfreeze()
        gc.enable()
