"""Look at a user's files before training on them, map their types, and convert their format.

`check` reports every annotation that was lost or changed in reading, and every one that a flat
tagger would have to leave out. `convert` writes another format and reports what was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from confide.errors import SettingsError
from confide.text import reading, segment
from confide.text.document import Document, Problem, Problems
from confide.text.formats import Options, format_named, read, write
from confide.text.reading import Version
from confide.text.segment import Crossing, Splitting, WordsCut
from confide.text.tagging import flat_spans

# --- One tag set from several ---------------------------------------------------------------------
#
# Rename or drop types of entities and relations.

_NONE: Mapping[str, str] = MappingProxyType({})


def retag(
    documents: Sequence[Document],
    tag_map: Mapping[str, str],
    *,
    relations: Mapping[str, str] = _NONE,
) -> tuple[list[Document], list[Problem]]:
    """Rename the entity types of documents by `tag_map`; ``""`` drops a type.

    Types that are not in the map keep their names. `relations` does the same for the types of
    relations; a pair whose relation is dropped becomes one without a relation. Reported are every
    dropped relation, whether by its own type or along with an entity ("relation-dropped"), and keys
    of a map that occur nowhere ("tag-not-found", "relation-not-found": often a spelling mistake).
    """
    problems = Problems()
    changed = [_renamed(document, tag_map, relations, problems) for document in documents]
    source = documents[0].source.rpartition(":")[0] or documents[0].id if documents else ""
    seen = {entity.type for document in documents for entity in document.entities}
    for kind in sorted(tag_map.keys() - seen):
        what = f"the tag map names {kind!r}, which no entity has"
        problems.note("tag-not-found", source, what)
    seen = {relation.type for document in documents for relation in document.relations}
    for kind in sorted(relations.keys() - seen):
        what = f"the map of relations names {kind!r}, which no relation has"
        problems.note("relation-not-found", source, what)
    return changed, problems


def _renamed(
    document: Document, types: Mapping[str, str], kinds: Mapping[str, str], problems: Problems
) -> Document:
    """A document whose entities and relations have their common types."""
    named = any(one.type in types for one in document.entities)
    if not named and not any(one.type in kinds for one in document.relations):
        return document
    entities = [replace(one, type=types.get(one.type, one.type)) for one in document.entities]
    dropped = {entity.id for entity in entities if not entity.type}
    relations = []
    for one in document.relations:
        kind = kinds.get(one.type, one.type)
        if one.level == "entity" and {one.head, one.tail} & dropped:
            why = "links an entity that the tag map drops"
        elif not kind:
            why = "is of a type that the map of relations drops"
        else:
            relations.append(replace(one, type=kind))
            continue
        problems.lost("relation-dropped", document.where, f"{one.type} {one.id} {why}")
    kept = tuple(entity for entity in entities if entity.type)
    return replace(document, entities=kept, relations=tuple(relations))


IN_SENTENCES = frozenset({"conll", "table"})
"""The formats whose writers cut text into sentences."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The findings of `check`.

    Attributes:
        documents: the documents that were read, in order.
        problems: everything that was lost, changed or doubtful, in the order of the files.
        format: the format, or several joined by commas if files differ.
        details: how each file was read: "<path>" to "iob2, utf-8, ...".
        counts: "documents", "sentences", "tokens", "entities", "relations", "lost" and "changed"
            (problems), "trainable" (entities that a flat tagger can learn).
        types: entities of each type, the most frequent first.
        relations: relations of each type, the most frequent first.
        crossings: the types of which more than 1 % cross the end of a sentence.
        words_cut: the words in entities as the files cut them, and how many raw text has otherwise.
        versions: what each annotator made of the documents that several annotated.
    """

    documents: list[Document]
    problems: list[Problem]
    format: str
    details: dict[str, str]
    counts: dict[str, int]
    types: dict[str, int] = field(default_factory=dict)
    relations: dict[str, int] = field(default_factory=dict)
    crossings: dict[str, Crossing] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    words_cut: WordsCut = field(default_factory=WordsCut)

    @property
    def kinds(self) -> dict[str, int]:
        """Counts of problems by kind, the most frequent first."""
        return dict(Counter(problem.kind for problem in self.problems).most_common())

    @property
    def held_out(self) -> str:
        """Say how text is cut if a site holds some of it out because it names no files for that."""
        loose = sum(document.unmarked for document in self.documents)
        marked = len(self.documents) - loose
        blocks = f"no document marks: cut by blocks of neighbouring sentences ({loose:,} sentences)"
        whole = f"by document ({marked:,} documents)"
        return "; ".join([whole] * (marked > 0 or not loose) + [blocks] * (loose > 0))


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The output of `convert`, and what was lost on the way in and on the way out."""

    paths: list[Path]
    problems: list[Problem]


@reading.gc_paused()
def check(
    paths: Path | str | Sequence[Path | str],
    *,
    format: str | None = None,
    options: Options | None = None,
) -> CheckReport:
    """Read files and report every annotation that does not survive intact.

    `paths` is one file or folder, or several, which are read as by `confide.text.formats.read`.
    `options.language` is that of text without sentences.

    Raises:
        ConfideError: as `read` does, for what cannot be read at all.
    """
    splitting = Splitting((options or Options()).language)
    readings = {str(path): read(path, format, options=options) for path in _paths(paths)}
    documents = [document for one in readings.values() for document in one.documents]
    language = splitting.language_for(documents)
    segmenter = splitting.segmenter(language)
    problems = Problems(problem for one in readings.values() for problem in one.problems)
    seen: dict[str, str] = {}
    for document in documents:
        if document.id in seen:
            what = f"{document.id!r} is also at {seen[document.id]}"
            problems.note("duplicate-document", document.source, what)
        seen.setdefault(document.id, document.source)
    sentences = tokens = trainable = 0
    crossing = segment.Crossings()
    for document in documents:
        ready = segment.segmented(document, segmenter)
        sentences += len(ready.sentences)
        for sentence in ready.sentences:
            tokens += len(sentence.tokens)
        if document.entities:
            spans, left_out = flat_spans(ready)
            problems.extend(left_out)
            trainable += sum(map(len, spans))
            crossing.add(ready)
    kinds = Counter(entity.type for document in documents for entity in document.entities)
    links = Counter(relation.type for document in documents for relation in document.relations)
    lost = sum(problem.lost for problem in problems)
    details = {}
    for path, one in readings.items():
        words = [format_named(one.format).title]
        if language and not all(document.sentences for document in one.documents):
            words.append(f"language {language}")
        words += [f"{key} {value}" for key, value in one.details.items() if key != "evidence"]
        details[path] = ", ".join(words)
    return CheckReport(
        documents,
        problems,
        ", ".join(sorted({one.format for one in readings.values()})),
        details,
        {
            "documents": len(documents),
            "sentences": sentences,
            "tokens": tokens,
            "entities": kinds.total(),
            "relations": links.total(),
            "trainable": trainable,
            "lost": lost,
            "changed": len(problems) - lost,
        },
        dict(kinds.most_common()),
        dict(links.most_common()),
        crossing.by_type(),
        [version for one in readings.values() for version in one.versions],
        segment.count_words_cut(documents),
    )


def _paths(paths: Path | str | Sequence[Path | str]) -> list[Path]:
    """The paths as a list. Raises MissingDataError if it is empty."""
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    if not several:
        raise SettingsError("no file was named", expected="at least one file or folder")
    return [Path(path) for path in several]


def convert(
    paths: Path | str | Sequence[Path | str],
    to: str,
    out: Path | str,
    *,
    format: str | None = None,
    to_scheme: str = "iob2",
    options: Options | None = None,
    map: Path | str | None = None,
) -> ConvertReport:
    """Write files in another format.

    Args:
        paths: a file or folder, or several.
        to: the output format, a key of `confide.text.formats.FORMATS`.
        out: for one input a file, or an existing folder; for several inputs a folder, which gets
            one file for each under its own name. brat always goes into a folder.
        format: the format of the inputs; None: detect it from the content.
        to_scheme: the tag scheme of CoNLL outputs.
        options: how to read the inputs (`confide.text.formats.Options`).
        map: the map of `fhir` or `note-nlp` (`confide.text.formats.write`).

    Returns:
        The files and folders that were written, and what was lost, changed or doubtful in
        reading and in writing.

    Raises:
        SettingsError: an output would overwrite an input or another output.
        ConfideError: as `read` and `write` do.
    """
    inputs, target = _paths(paths), Path(out)
    splitting = Splitting((options or Options()).language)
    suffix = format_named(to).suffix
    several = len(inputs) > 1 or (suffix != "" and target.is_dir())
    outputs = [target / f"{_stem(path)}{suffix}" if several else target for path in inputs]
    for number, (source, output) in enumerate(zip(inputs, outputs, strict=True)):
        if output in outputs[:number] or output.resolve() == source.resolve():
            raise SettingsError(
                "an output would overwrite an input or another output",
                got=str(output),
                fix="choose another place for the output",
            )
    problems = Problems()
    for source, output in zip(inputs, outputs, strict=True):
        found = read(source, format, options=options)
        documents = found.documents
        if to in IN_SENTENCES:
            documents = segment.into_sentences(documents, splitting)
        problems += found.problems
        problems += write(documents, output, to, scheme=to_scheme, map=map)
    return ConvertReport(outputs, problems)


def _stem(path: Path) -> str:
    """A file's name without its ending, and without `.gz` after that."""
    return Path(path.name.removesuffix(".gz")).stem
