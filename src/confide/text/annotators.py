"""Several annotators of one document: which annotation is read, by a rule.

The rules are "first" (the first in the file), "majority" (the entities and relations that more than
half of a document's annotators have, with the same type and the same characters), and an
annotator's name (documents that this one did not annotate are left out).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from confide.text.document import Document, Entity, Problem, Relation

FIRST, MAJORITY = "first", "majority"
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Version:
    """What one annotator made of a document; `annotator` is empty where a file does not say."""

    annotator: str
    document: Document


@dataclass(frozen=True, slots=True)
class Settled:
    """The documents to read, how they were chosen, and the versions of those that had several."""

    documents: list[Document]
    details: dict[str, str]
    versions: list[Version]


def settled(
    versions: Sequence[Version], rule: str | None, *, where: str, problems: list[Problem]
) -> Settled:
    """One document for each text that was annotated, by the rule; None: the first.

    Versions are of one document if they have the same id and the same text, but different
    annotators. What other annotators said is lost if no rule was stated; what a stated rule leaves
    out is named, but not lost.
    """
    if not any(version.annotator for version in versions):
        return Settled([version.document for version in versions], {}, [])
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
    return Settled(chosen, details, several)


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
