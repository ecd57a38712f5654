"""The DDI corpus (2013): drugs in sentences, and for every pair of them whether they interact.

One XML file is one document. Offsets (`charOffset`) count from the start of their sentence, their
end is inclusive, and a discontinuous drug has several, ``a-b;c-d``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.archives import files_below, inside, is_folder
from confide.text.document import Document, Entity, Problem, Relation, Span
from confide.text.formats.base import (
    Options,
    Reading,
    free_id,
    merged_fragments,
    reads,
    shown,
    shown_at,
)
from confide.text.formats.markup import Element, parse
from confide.text.formats.sentences import Joined, joined
from confide.text.pairs import pair_attributes

ROOT = "document"
_OFFSETS = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)


@dataclass(slots=True)
class _Draft:
    """A document in the making; `borders` has where each sentence's text begins and ends."""

    where: str
    whole: Joined
    borders: list[Span]
    entities: dict[str, Entity] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    tried: dict[str, int] = field(default_factory=dict)


def read(path: Path, options: Options) -> Reading:
    """Read one file, or all ``.xml`` files below a folder, which may be in an archive.

    Sentences stay as they are in the file, separated by newlines. A pair that interacts is a
    relation from its e1 to its e2, with the pair's type. If the file lists all pairs of drugs of a
    sentence, the document asks about all of them, otherwise about those listed. An interaction
    without a type is left out, both as a relation and as a pair, and reported
    ("relation-without-type").

    Raises:
        MissingDataError: there is no such file, or the folder holds none.
        FormatError: a file is not XML or not of the corpus.
        DataError: an entity type was not declared.
    """
    files = xml_files(path) if is_folder(path) else [path]
    if not files:
        raise MissingDataError("the folder holds no .xml file", where=str(path))
    problems: list[Problem] = []
    documents = []
    encoding = ""
    for file in files:
        root, encoding = parse(file, options.encoding)
        documents.append(_document(root, file, options, problems))
    return Reading(documents, problems, "ddi", {"files": str(len(files)), "encoding": encoding})


def xml_files(folder: Path) -> list[Path]:
    """The XML files of a folder and of the folders in it, in the order of their names."""
    try:
        packed = inside(folder) is not None and not folder.exists()
        return sorted(
            file
            for file in (files_below(folder) if packed else folder.rglob("*"))
            if file.suffix.lower() == ".xml"
            and not file.name.startswith(".")
            and (packed or file.is_file())
        )
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error


def _document(root: Element, path: Path, options: Options, problems: list[Problem]) -> Document:
    if root.tag != ROOT or root.find("passage") is not None:
        raise FormatError(
            "not a document of the DDI corpus",
            expected="<document> with <sentence> in it",
            got=f"<{shown(root.tag)}>",
            where=str(path),
        )
    sentences = root.findall("sentence")
    texts = [sentence.get("text", "") for sentence in sentences]
    whole = joined(texts)
    lengths = zip(whole.starts, texts, strict=True)
    draft = _Draft(str(path), whole, [(start, start + len(text)) for start, text in lengths])
    complete = True
    for number, sentence in enumerate(sentences):
        where = f"{path}#{sentence.get('id', f's{number}')}"
        names = dict(_entities(draft, number, sentence, (where, options, problems)))
        stated = set(_pairs(draft, names, sentence, (where, problems)))
        different = {tuple(sorted(pair)) for pair in stated}
        complete = complete and all(head != tail for head, tail in stated)
        complete = complete and 2 * len(different) == len(names) * (len(names) - 1)
    return Document(
        "_".join(root.get("id", path.stem).split()) or path.stem,
        whole.text,
        entities=tuple(draft.entities.values()),
        relations=tuple(draft.relations),
        sentences=whole.sentences,
        attributes=() if complete else pair_attributes(draft.pairs),
        source=str(path),
    )


def _entities(
    draft: _Draft, number: int, sentence: Element, context: tuple[str, Options, list[Problem]]
) -> Iterator[tuple[str, str]]:
    """Add a sentence's entities, and map the ids in the file to the new ones."""
    where, options, problems = context
    start, end = draft.borders[number]
    text = draft.whole.text[start:end]
    for item in sentence.findall("entity"):
        kind, given = item.get("type", ""), item.get("id", "")
        if not kind or not given.strip():
            raise FormatError("an entity without id or type", expected="both", where=where)
        options.require(kind, where)
        name = "_".join(given.split())
        if name in draft.entities:
            problems.append(Problem("duplicate-id", where, f"another entity is called {name}"))
            name = free_id(name, draft.entities, draft.tried)
        spans = _spans(item.get("charOffset", ""), where)
        if any(not low < high <= len(text) for low, high in spans):
            what = (
                f"{kind} {given} {item.get('charOffset')} points nowhere in {len(text)} characters"
            )
            slug = "empty-span" if any(low >= high for low, high in spans) else "beyond-text"
            problems.append(Problem(slug, where, what, lost=True))
            continue
        fragments = merged_fragments(spans)
        if len(fragments) != len(spans):
            what = f"fragments of {kind} {given} touch or overlap: made one"
            problems.append(Problem("fragments-merged", where, what))
        surface = item.get("text")
        if surface is not None and not reads(text, spans, surface):
            what = f"{kind} {given} is {shown(surface)} but {shown_at(text, spans)} in the text"
            problems.append(Problem("text-mismatch", where, what))
        moved = tuple((low + start, high + start) for low, high in fragments)
        draft.entities[name] = Entity(name, kind, moved)
        yield given, name


def _spans(offsets: str, where: str) -> list[Span]:
    """Half-open fragments from offsets whose end is inclusive."""
    matches = [_OFFSETS.fullmatch(part.strip()) for part in offsets.split(";")]
    if not all(matches):
        raise FormatError(
            "offsets of an entity", expected="a-b, or a-b;c-d", got=shown(offsets), where=where
        )
    return [(int(match[1]), int(match[2]) + 1) for match in matches if match]


def _pairs(
    draft: _Draft,
    names: dict[str, str],
    sentence: Element,
    context: tuple[str, list[Problem]],
) -> Iterator[tuple[str, str]]:
    """Add a sentence's relations, and every pair that it asks about."""
    where, problems = context
    for item in sentence.findall("pair"):
        ends = item.get("e1", ""), item.get("e2", "")
        kind, answer = item.get("type", ""), item.get("ddi", "").lower()
        if answer not in ("true", "false"):
            raise FormatError(
                "a pair that does not say whether it interacts",
                expected='ddi="true" or ddi="false"',
                got=shown(answer),
                where=where,
            )
        if ends[0] not in names or ends[1] not in names:
            what = f"pair {item.get('id')}: no {' or '.join(ends)} in the sentence"
            problems.append(Problem("dangling-relation", where, what, lost=True))
            continue
        if answer == "true" and not kind:
            what = f"pair {item.get('id')} interacts, but how is not said: the pair is left out"
            problems.append(Problem("relation-without-type", where, what, lost=True))
            continue
        head, tail = names[ends[0]], names[ends[1]]
        draft.pairs.append((head, tail))
        if answer == "true":
            name = f"R{len(draft.relations) + 1}"
            draft.relations.append(Relation(name, kind, head, tail))
        yield head, tail
