"""The common parts of all formats: options, documents in the making, results, limits of a format.

A reader turns its file into calls of `Draft`. How offsets are counted, places that point nowhere,
surfaces that differ from the text, ids given twice and links to nothing are found, named and left
out in one way. A writer gets documents that hold only what its format `Supports`, and an `Output`.
"""

from __future__ import annotations

import gc
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from confide.errors import DataError, FormatError, MissingDataError, SettingsError, printable
from confide.files import Tree, file_text
from confide.text import document as internal
from confide.text import files, places, rows
from confide.text.document import Document, Entity, Problems, Relation, Sentence, Span
from confide.text.places import NOWHERE, OffsetCounting, Ruler, StatedMention
from confide.text.rows import quoted
from confide.text.segment import AUTO, lay_out_tokens, segmented, tokens_covered

NO_DATA = re.compile(
    r"(?i)^(readme|license|licence|source|notice|changelog|relation2id\.)|rel2id\.json$"
    r"|^(dataset_dict|dataset_infos?|state|label2id|id2label|labels?|rel_info|pid2name)\.json$"
    r"|^typesystem\.xml$|\.(md|html?|pdf|png|dtd|xsd|conf)$"
)
"""Names of files that lie beside data but are not data."""
_HEADS = {
    "arg1": "arg2", "subj": "obj", "subject": "object", "head": "tail", "source": "target",
    "from": "to", "e1": "e2", "entity1": "entity2", "governor": "dependent", "first": "second",
}  # fmt: skip
"""Roles, in lower case, that are a relation's head, and those of its tail."""
_QUOTED = 200  # characters of a fragment, and fragments, that a problem quotes
_UNSAFE = re.compile(r"[^\w.\-/]+")
_BROKEN, _LEFT_OUT = "broken-document", "left out: "
Pairs = tuple[tuple[str, str], ...]
Columns = tuple[int | str, int | str | None]
"""The columns of the token and the tag, or of the id and the text of notes."""


# --- Options and results --------------------------------------------------------------------------


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

    @contextmanager
    def document(self, problems: Problems, where: object) -> Iterator[None]:
        """Context manager: with `skip_broken`, a document that fails is reported and skipped.

        An error that names no place gets that of the document.
        """
        try:
            yield
        except (DataError, FormatError) as error:
            self.skip(error if error.where else error.at(str(where)), problems, where)

    def skip(self, error: DataError | FormatError, problems: Problems, where: object) -> None:
        """Report and skip a broken document, or raise its error again."""
        if not self.skip_broken:
            raise error
        problems.lost(_BROKEN, where, f"{_LEFT_OUT}{error}")


def check_types(documents: Sequence[Document], types: Collection[str]) -> None:
    """Check that no entity has a type outside `types`.

    Raises:
        DataError: a type was not declared; the error names the first one and its place.
    """
    for document in documents:
        for entity in document.entities:
            if entity.type not in types:
                raise DataError(
                    "an entity type that was not declared",
                    expected=" or ".join(sorted(types)) or "none",
                    got=repr(entity.type),
                    where=document.at(entity.start, entity.end),
                    fix="declare it, or map it in the site's tags",
                )


@dataclass(frozen=True, slots=True)
class Version:
    """One annotator's version of a document; `annotator` is empty where a file does not say."""

    annotator: str
    document: Document


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a file: documents, problems, the format, and how it was read.

    `versions` are what each annotator made of the documents that several annotated.
    """

    documents: list[Document]
    problems: Problems = field(default_factory=Problems)
    format: str = ""
    details: dict[str, str] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)


def no_document(path: Path, problems: Problems, otherwise: str) -> DataError:
    """The error for a file without a document; it says why the first was left out, if one was."""
    broken = next((one.what for one in problems if one.kind == _BROKEN), None)
    left = f"no document is left: {(broken or '').removeprefix(_LEFT_OUT)}"
    return DataError(otherwise if broken is None else left, where=str(path))


# --- Several annotators of one document -----------------------------------------------------------

FIRST, MAJORITY = "first", "majority"


def choose_versions(
    versions: Sequence[Version], rule: str | None, *, where: str, problems: Problems
) -> tuple[list[Document], dict[str, str], list[Version]]:
    """One document for each text that was annotated, by the rule; None: the first.

    The rules are "first" (the first in the file), "majority" (the entities and relations that more
    than half of a document's annotators have, with the same type and the same characters), and an
    annotator's name (documents that this one did not annotate are left out). Versions are of one
    document if they have the same id and the same text, but different annotators. What other
    annotators said is lost if no rule was stated; what a stated rule leaves out is named, but not
    lost.

    Returns:
        The documents to read, how they were chosen, and the versions of those that had several.
    """
    names = Counter(version.annotator for version in versions if version.annotator)
    if not names:
        return [version.document for version in versions], {}, []
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
        others = [version.annotator for group in groups.values() for version in group[1:]]
        if others:
            said = _counted(Counter(name or "without a name" for name in others))
            what = (
                f"{len(others)} annotations of documents that another one annotated first: {said}"
            )
            if rule is None:
                what += "; state whose to read: first, majority or a name"
            problems.note("annotators-ignored", where, what, lost=rule is None)
    elif rule == MAJORITY:
        chosen = [_majority(group, problems) for group in groups.values()]
    else:  # the documents of one annotator, and those of files that name nobody
        own_versions = [[one for one in group if one.annotator in (rule, "")]
                        for group in groups.values()]  # fmt: skip
        chosen = [found[0].document for found in own_versions if found]
        if len(chosen) < len(own_versions):
            missing, known = len(own_versions) - len(chosen), ", ".join(sorted(names))
            what = f"{missing} documents that {rule} did not annotate; those who did: {known}"
            problems.lost("annotator-missing", where, what)
    details = {}
    if several or len(names) > 1:
        details["annotators"] = f"{rule or FIRST} of {_counted(names)}"
    return chosen, details, several


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in names.most_common())


def _majority(group: Sequence[Version], problems: Problems) -> Document:
    """A document with the entities and relations that more than half of its annotators have."""
    first = group[0].document
    if len(group) == 1:
        return first
    counts: Counter[Hashable] = Counter()
    entities: dict[tuple[str, tuple[Span, ...]], Entity] = {}
    relations: dict[tuple[str, object, object], Relation] = {}
    for version in group:
        mentions = {one.id: (one.type, one.fragments) for one in version.document.entities}
        links: dict[tuple[str, object, object], Relation] = {
            (one.type, mentions.get(one.head), mentions.get(one.tail)): one
            for one in version.document.relations
        }
        counts.update({*mentions.values(), *links})
        for entity in version.document.entities:
            entities.setdefault(mentions[entity.id], entity)
        for link, relation in links.items():
            relations.setdefault(link, relation)
    common = [one for mention, one in entities.items() if 2 * counts[mention] > len(group)]
    common.sort(key=lambda entity: (entity.start, entity.end, entity.type))
    ids: dict[object, str] = {
        (entity.type, entity.fragments): entity_id(n) for n, entity in enumerate(common, 1)
    }
    shared: list[Relation] = []
    for link, relation in relations.items():
        head, tail = ids.get(link[1]), ids.get(link[2])
        if 2 * counts[link] > len(group) and head and tail:
            shared.append(replace(relation, id=f"R{len(shared) + 1}", head=head, tail=tail))
    if len(entities) > len(common):
        what = f"{len(entities) - len(common)} entities that no majority of {len(group)} has"
        problems.note("annotators-disagree", first.where, what)
    return replace(
        first,
        entities=tuple(replace(one, id=ids[one.type, one.fragments]) for one in common),
        relations=tuple(shared),
    )


# --- Small helpers of readers and writers ---------------------------------------------------------


@lru_cache(maxsize=4096)
def entity_id(number: int) -> str:
    """The id of an entity that a file gives none: T1, T2, ...; the same string for all documents.

    >>> entity_id(3)
    'T3'
    """
    return f"T{number}"


def free_id(name: str, taken: Collection[str], tried: dict[str, int]) -> str:
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


def merge_fragments(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Spans in ascending order; those that touch or overlap are merged."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return tuple(merged)


def quoted_at(text: str, spans: Sequence[Span]) -> str:
    """A short quotation from fragments of a text, for its owner."""
    parts = (text[start : min(end, start + _QUOTED)] for start, end in spans[:_QUOTED])
    return quoted(" ".join(parts))


def head_first(roles: Sequence[str], known: dict[frozenset[str], str]) -> bool:
    """Return whether the first of two roles is the head's: by their names, never by their order.

    Of roles whose names do not tell, the first that a file puts first is the head's in all of it:
    `known` remembers.

    >>> known = {}
    >>> head_first(("Arg2", "Arg1"), known)
    False
    >>> head_first(("Cause", "Effect"), known), head_first(("Effect", "Cause"), known)
    (True, False)
    """
    first, second = (role.lower() for role in roles)
    if _HEADS.get(second) == first:
        return False
    return first == second or known.setdefault(frozenset((first, second)), first) == first


def extra(module: str, extra: str, *, where: object, what: str) -> Any:
    """A module of an optional library, imported when it is used.

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


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector if it is on, and turn it on again afterwards.

    Readers make no reference cycles, so reference counting frees everything; with a file of a
    hundred thousand tiny documents, the collector would take a third of the time. What was made
    meanwhile counts as old at once, so that the collector does not begin with a visit to all of it.
    Several may be open at once, even in several threads: the first one to end turns it on.
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


# --- A document in the making ---------------------------------------------------------------------


class _Unplaced(NamedTuple):
    """A mention that has no place yet: its key, what the file calls it, and what it says of it."""

    key: str
    given: str
    kind: str
    where: str
    mention: StatedMention
    rest: tuple[float | None, tuple[str, ...], Pairs]


@dataclass(slots=True)
class Draft:
    """A document in the making.

    Attributes:
        source: the file that it is read from.
        units: how offsets may be counted, the format's own rule first (see `places.best_fit`).
        keep: whether entities keep the ids of the file; else they are T1, T2, ...
        within: the parts of the text from which the offsets of the next mentions count.
        names: the entities' ids by what the file, or `entity`, calls them.
        sure: the confidences of entities' attributes, by what `entity` calls these.
    """

    source: Source
    id: str
    text: str
    where: str
    sentences: tuple[Sentence, ...] = ()
    attributes: Pairs = ()
    units: tuple[str, ...] = (places.CHARACTERS,)
    keep: bool = False
    within: Sequence[places.TextPart] = ()
    entities: dict[str, Entity] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)
    sure: dict[str, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _unplaced: list[_Unplaced] = field(default_factory=list)
    _count: int = 0
    _tried: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))

    def lost(self, kind: str, what: str, *, where: str = "") -> None:
        """Add a problem: something that the document lacks."""
        self.source.problems.lost(kind, where or self.where, what)

    def note(self, kind: str, what: str, *, where: str = "") -> None:
        """Add a problem: something changed or doubtful."""
        self.source.problems.note(kind, where or self.where, what)

    def entity(
        self,
        kind: str,
        spans: Sequence[Span],
        *,
        given: str = "",
        surface: object = None,
        where: str = "",
        concepts: tuple[str, ...] = (),
        attributes: Pairs = (),
        confidence: float | None = None,
    ) -> str:
        """Take a mention, and give the key by which `relation` and `pair` know it.

        `spans` are its fragments as the file counts them, `given` is what the file calls it, and
        `surface` what the file says stands there; anything but a string says nothing.
        """
        self._count += 1
        key = f"\0{self._count}"
        mention = StatedMention(spans, surface if isinstance(surface, str) else "", self.within)
        rest = confidence, concepts, attributes
        self._unplaced.append(_Unplaced(key, given, kind, where or self.where, mention, rest))
        return key

    @property
    def names(self) -> Mapping[str, str]:
        """The ids of all entities that have a place, by their keys and what the file calls them."""
        self.place()
        return self._names

    def place(self) -> None:
        """Give all mentions that were taken their places, once it is known how they count."""
        if not self._unplaced:
            return
        unplaced, self._unplaced = self._unplaced, []
        ruler, doubt = places.best_fit(self.text, [one.mention for one in unplaced], self.units)
        if ruler.way != OffsetCounting(self.units[0]):
            self.note("offsets-counted", str(ruler.way))
        if doubt:
            self.lost("offsets-doubtful", f"{doubt}; read as {ruler.way.unit}")
        for one in unplaced:
            self._place(one, ruler)

    def _place(self, one: _Unplaced, ruler: Ruler) -> None:
        """Give a mention its place in the text, or report that it has none."""
        kind, given, (spans, surface, within) = one.kind, one.given, one.mention
        called = f"{kind} {given}" if given else kind
        placed = [ruler(span, within) for span in spans]
        if not placed or NOWHERE in placed:
            start, end = spans[placed.index(NOWHERE)] if placed else (0, 0)
            length = len(self.text) if len(within) != 1 else within[0].end - within[0].start
            what = f"{called} {start}-{end} points nowhere in {length} characters"
            slug = "empty-span" if start >= end and (start, end) != NOWHERE else "beyond-text"
            self.lost(slug, what, where=one.where)
            return
        fragments = merge_fragments(placed) if len(placed) > 1 else tuple(placed)
        if len(fragments) != len(placed):
            what = f"fragments of {called} touch or overlap: made one"
            self.note("fragments-merged", what, where=one.where)
        if surface and not places.same_surface(self.text, placed, surface):
            what = f"{called} is {quoted(surface)} but {quoted_at(self.text, placed)} in the text"
            self.note("text-mismatch", what, where=one.where)
        if given and given in self._names:
            self.note("duplicate-id", f"another entity is called {given}", where=one.where)
        name = entity_id(len(self.entities) + 1)
        if self.keep:  # a file that names some by their ids names the rest by their order
            name = given or entity_id(int(one.key[1:]))
        name = free_id(name, self.entities, self._tried[0])
        self._names[one.key] = name
        self._names.setdefault(given or name, name)
        self.entities[name] = Entity(name, kind, fragments, *one.rest, self.sure.get(one.key, ()))

    def relation(
        self,
        kind: str,
        head: str,
        tail: str,
        *,
        given: str = "",
        concepts: bool = False,
        where: str = "",
        attributes: Pairs = (),
        confidence: float | None = None,
    ) -> None:
        """Add a relation between two entities by their names, or between two `concepts`."""
        if not concepts:
            if head not in self.names or tail not in self._names:
                what = f"{kind} from {head} to {tail}: no such entity".replace("\0", "")
                self.lost("dangling-relation", what, where=where)
                return
            head, tail = self._names[head], self._names[tail]
        if given in self.relations:
            self.note("duplicate-id", f"another relation is called {given}", where=where)
        name = free_id(given or f"R{len(self.relations) + 1}", self.relations, self._tried[1])
        level: Literal["entity", "concept"] = "concept" if concepts else "entity"
        self.relations[name] = Relation(name, kind, head, tail, level, confidence, attributes)

    def pair(self, head: str, tail: str, label: str | None) -> None:
        """State that the document asks about this pair, and what its label says.

        Nothing is asked if one of the two has no place. A label that `is_negative` is no relation;
        None: nobody says whether there is one.
        """
        placed = {head, tail} <= self.names.keys()
        ends = f"{self._names[head]} {self._names[tail]}" if placed else ""
        self.attributes = ((internal.PAIR, ends), *self.attributes)
        if placed and label is not None and not internal.is_negative(label):
            self.relation(label, head, tail)

    def document(self) -> Document:
        """The document as it stands."""
        self.place()
        return Document(
            self.id,
            self.text,
            tuple(self.entities.values()),
            tuple(self.relations.values()),
            self.sentences,
            self.attributes,
            self.where,
        )


# --- A file that is read --------------------------------------------------------------------------


@dataclass(slots=True)
class Source:
    """A file that is read: its text, and what all its documents share.

    `encoding` is empty if it is no text. `roles`: see `head_first`. `effort` bounds the search for
    mentions that come without offsets.
    """

    path: Path
    options: Options
    text: str = ""
    encoding: str = ""
    problems: Problems = field(default_factory=Problems)
    roles: dict[frozenset[str], str] = field(default_factory=dict)
    ignored: set[str] = field(default_factory=set)
    effort: places.Effort = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the whole effort."""
        self.effort = places.Effort(str(self.path))

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Every line that is not blank: its place, a name for its document, and the line."""
        file, stem = str(self.path), self.path.stem
        for number, line in enumerate(files.lines_of(self.text), 1):
            if line and not line.isspace():
                yield f"{file}:{number}", f"{stem}:{number}", line

    def objects(self) -> Iterator[tuple[str, str, Tree]]:
        """Every JSON object of the text: its place, a name for its document, and the object.

        Raises FormatError if a line is not JSON or not an object.
        """
        for where, name, given in rows.json_values(self.text, self.path):
            with self.options.document(self.problems, where):
                row = rows.parse_json(given, where) if isinstance(given, str) else given
                if not isinstance(row, dict):
                    raise rows.malformed(
                        "not a document", 'a JSON object with "text"', row, where=where
                    )
                yield where, name, row

    def attributes(
        self, tree: Mapping[str, object], known: Collection[str], where: str, *, lost: bool = True
    ) -> Pairs:
        """The plain values of a JSON object as attributes, but for the known keys.

        Other values that are not empty are reported, a key once for the file; they are `lost`,
        unless they are no annotation.
        """
        pairs = []
        for key, value in tree.items():
            if key in known:
                continue
            if isinstance(value, str | int | float):
                pairs.append((rows.clean(str(key)), rows.clean(str(value))))
            elif isinstance(value, list | dict) and any(part != [] for part in value):
                self.ignore(key, where, lost=lost)
        return tuple(pairs)

    def note_each(self, kind: str, places: Sequence[str], what: str) -> None:
        """Report what is so at several places as one problem, at the first of them."""
        if places:
            self.problems.note(kind, places[0], f"{len(places)} {what}")

    def ignore(self, key: str, where: str, *, lost: bool = True) -> None:
        """Report a key that is not read, once for the file."""
        if key not in self.ignored:
            self.ignored.add(key)
            what = f"{quoted(str(key))} is not read, here and further on"
            self.problems.note("key-ignored", where, what, lost=lost)

    def read(
        self,
        values: Iterable[tuple[str, str, Any]],
        document: Callable[[Source, str, str, Any], Document | None],
        *,
        format: str,
        **details: str,
    ) -> Reading:
        """The documents of all values; broken ones are skipped if `skip_broken` is set.

        `values` are places, names for their documents, and what `document` makes one of.

        Raises DataError if there is none.
        """
        documents: list[Document] = []
        known = {"encoding": self.encoding} if self.encoding else {}
        for where, name, value in values:
            with self.options.document(self.problems, where):
                found = document(self, where, name, value)
                documents += [found] if found is not None else []
        if not documents:
            raise no_document(self.path, self.problems, "there is no document: the file is empty")
        return Reading(documents, self.problems, format, known | details)


def objects_reader(
    format: str, document: Callable[[Source, str, str, Tree], Document | None]
) -> Callable[[Path, Options], Reading]:
    """The reader of a format whose files are JSON objects, each of them a document."""

    def read(path: Path, options: Options) -> Reading:
        source = open_source(path, options)
        return source.read(source.objects(), document, format=format)

    return read


def open_source(path: Path, options: Options, *, longest: int = files.LONGEST_JSON) -> Source:
    """Read a file's text. Raises FormatError."""
    text, encoding = files.read_text(path, options.encoding, longest=longest)
    return Source(path, options, text, encoding)


# --- Tokens with numbered mentions and links ------------------------------------------------------
#
# Many JSON forms are that: to documents and back.


class TokenMention(NamedTuple):
    """A run of tokens of the whole document, `start` to one before `end`, and its type."""

    start: int
    end: int
    type: str
    concept: str = ""


class TokenLink(NamedTuple):
    """A relation between two mentions by their numbers, or between two concepts by their names."""

    type: str
    head: int | str
    tail: int | str
    attributes: Pairs = ()


@dataclass(slots=True)
class TokenDocument:
    """A document as such a form has it: sentences of tokens, mentions and links."""

    id: str
    where: str
    sentences: list[list[str]]
    mentions: list[TokenMention] = field(default_factory=list)
    links: list[TokenLink] = field(default_factory=list)
    attributes: Pairs = ()

    @property
    def starts(self) -> list[int]:
        """The number of the first token of each sentence."""
        starts = [0]
        for sentence in self.sentences:
            starts.append(starts[-1] + len(sentence))
        return starts[:-1]


def document_from_tokens(given: TokenDocument, source: Source) -> Document:
    """The document, its entities T1, T2, ... and its relations R1, R2, ...

    Reported as lost are mentions of tokens that are not there, and links to such mentions.

    Raises:
        DataError: there is no token.
    """
    text, sentences = lay_out_tokens(given.sentences, given.where, source.problems)
    tokens = list(chain.from_iterable(sentence.tokens for sentence in sentences))
    draft = Draft(source, given.id, text, given.where, sentences, given.attributes)
    keys: list[str] = []
    for start, end, kind, concept in given.mentions:
        span = NOWHERE if start < end else (start, end)
        if 0 <= start < end <= len(tokens):
            span = tokens[start][0], tokens[end - 1][1]
        keys.append(draft.entity(kind, [span], concepts=(concept,) if concept else ()))
    names: dict[int | str, str] = dict(enumerate(keys))
    for kind, head, tail, said in given.links:
        concepts = isinstance(head, str) and isinstance(tail, str)
        ends = (names.get(end, str(end)) for end in (head, tail))
        draft.relation(kind, *ends, concepts=concepts, attributes=said)
    return draft.document()


def tokens_of_document(document: Document, problems: Problems) -> TokenDocument | None:
    """A document as tokens, with the entities that have some; None for one without a token.

    Entities have one fragment. Reported are entities that are widened to whole tokens
    ("not-on-token-border"), and those without a token ("no-token") with their relations, lost.
    """
    ready = segmented(document)
    where = document.where
    tokens = [token for sentence in ready.sentences for token in sentence.tokens]
    if not tokens:
        problems.lost("empty-document", where, "a document without a token has no place")
        return None
    sentences = [list(ready.token_texts(sentence)) for sentence in ready.sentences]
    found = TokenDocument(document.id, where, sentences, attributes=document.attributes)
    numbers: dict[str, int] = {}
    for entity in document.entities:
        first, last = tokens_covered(tokens, entity.start, entity.end)
        at, what = document.at(entity.start, entity.end), f"{entity.type} {entity.id}"
        if first >= last:
            problems.lost("no-token", at, f"{what} covers no token")
            continue
        if (tokens[first][0], tokens[last - 1][1]) != (entity.start, entity.end):
            problems.note("not-on-token-border", at, f"{what} taken to whole tokens")
        numbers[entity.id] = len(found.mentions)
        concept = next(iter(entity.concepts), "")
        found.mentions.append(TokenMention(first, last, entity.type, concept))
    for relation in document.relations:
        head, tail = numbers.get(relation.head), numbers.get(relation.tail)
        if head is None or tail is None:
            what = f"{relation.type} {relation.id} does not link two written mentions"
            problems.lost("relation-unheld", where, what)
        else:
            found.links.append(TokenLink(relation.type, head, tail, relation.attributes))
    return found


# --- Limits of a format, and its output -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Supports:
    """The parts of a document that a format can hold besides its text.

    `entities`: mentions of one stretch; `fragments`: of several stretches. `relations`: links
    between two written mentions. `concept_relations`: links between concepts. `concepts` of an
    entity: none, one or all. `said`: attributes of entities and relations. `attributes`: those of
    the document. `sentences`: its sentences and tokens.
    """

    entities: bool = True
    fragments: bool = False
    relations: bool = False
    concept_relations: bool = False
    confidences: bool = False
    concepts: Literal["none", "one", "all"] = "none"
    said: bool = False
    attributes: bool = False
    sentences: bool = False


JSON_LIST = "[", "]\n"
EVERYTHING = Supports(True, True, True, True, True, "all", True, True, True)


@dataclass(frozen=True, slots=True)
class Output:
    """Where documents are written, the tag scheme, the map, and what the format cannot hold."""

    path: Path
    scheme: str = "iob2"
    map: Mapping[str, Tree] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    _taken: set[str] = field(default_factory=set)

    def unheld(self, kind: str, number: int, what: str) -> None:
        """Add one problem for a number of things that the format cannot hold; none for zero."""
        if number:
            self.problems.lost(kind, self.path, f"{number} {what}")

    def write(self, *parts: str) -> None:
        """Write the file. Raises DataError."""
        files.write_parts(self.path, parts)

    def write_json(self, records: Iterable[Tree], *, around: tuple[str, str] | None = None) -> None:
        """Write JSON Lines, or a list with a record on each line `around` it. Raises DataError."""
        lines = (json.dumps(record, ensure_ascii=False) for record in records)
        if around is None:
            files.write_parts(self.path, (f"{line}\n" for line in lines))
        else:
            self.write(around[0], ",\n".join(lines), around[1])

    def file_for(self, document: Document) -> Path:
        """A path in the folder, without an ending, for a document and no other.

        >>> out = Output(Path("out"))
        >>> [out.file_for(Document(id, "")).as_posix() for id in ("a b/../c", "A_B/c")]
        ['out/a_b/c', 'out/A_B/c-2']
        """
        parts = [part.strip(".") for part in _UNSAFE.sub("_", document.id).split("/")]
        plain = "/".join(part[:100] for part in parts if part) or "document"
        names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
        name = next(name for name in names if name.lower() not in self._taken)
        self._taken.add(name.lower())
        return self.path / name


def reduce_to(supports: Supports, documents: Sequence[Document], out: Output) -> list[Document]:
    """The documents with what a format can hold, and a problem for everything else."""
    if supports == EVERYTHING:
        return list(documents)
    reduced = [_reduced(document, supports, out.problems) for document in documents]
    entities = [entity for document in documents for entity in document.entities]
    relations = [relation for document in documents for relation in document.relations]
    both: list[Entity | Relation] = [*entities, *relations]
    if not supports.confidences:
        number = sum(one.confidence is not None for one in both)
        number += sum(len(one.attribute_confidences) for one in entities)
        out.unheld(
            "confidences-unheld", number, "confidences of entities, their attributes or relations"
        )
    said = 0 if supports.said else sum(bool(one.attributes) for one in both)
    if supports.concepts == "none":
        said += sum(bool(one.concepts) for one in entities if supports.said or not one.attributes)
    out.unheld("attributes-unheld", said, "entities or relations lose concepts or attributes")
    if not supports.relations and not supports.concept_relations:
        out.unheld("relations-unheld", len(relations), "relations: the format has none")
    if not supports.attributes:
        number = sum(bool(document.attributes) for document in documents)
        out.unheld("document-attributes-unheld", number, "documents lose attributes")
    if not supports.sentences:
        number = sum(bool(document.sentences) for document in documents)
        out.unheld("segmentation-unheld", number, "documents lose sentences and tokens")
    written = [entity for document in reduced for entity in document.entities]
    if supports.concepts == "one":
        number = sum(len(entity.concepts) > 1 for entity in written)
        out.unheld(
            "concepts-unheld", number, "entities have several concepts: the first is written"
        )
    if not supports.entities:
        out.unheld("entities-unheld", len(written), "entities: the format has none")
        reduced = [replace(document, entities=()) for document in reduced]
    return reduced


def _reduced(document: Document, supports: Supports, problems: Problems) -> Document:
    entities = []
    for entity in document.entities:
        if len(entity.fragments) > 1 and not supports.fragments:
            where = document.at(entity.start, entity.end)
            what = f"{entity.type} {entity.id} has {len(entity.fragments)} fragments"
            problems.lost("discontinuous", where, what)
            continue
        entities.append(
            replace(
                entity,
                confidence=entity.confidence if supports.confidences else None,
                concepts=() if supports.concepts == "none" else entity.concepts,
                attributes=entity.attributes if supports.said else (),
                attribute_confidences=entity.attribute_confidences
                if supports.said and supports.confidences
                else (),
            )
        )
    known = {entity.id for entity in entities}
    relations = []
    for relation in document.relations if supports.relations or supports.concept_relations else ():
        linked = supports.relations and {relation.head, relation.tail} <= known
        if not (supports.concept_relations if relation.level == "concept" else linked):
            what = f"{relation.type} {relation.id} does not link two written mentions"
            problems.lost("relation-unheld", document.where, what)
            continue
        relations.append(
            replace(
                relation,
                confidence=relation.confidence if supports.confidences else None,
                attributes=relation.attributes if supports.said else (),
            )
        )
    return replace(
        document,
        entities=tuple(entities),
        relations=tuple(relations),
        sentences=document.sentences if supports.sentences else (),
        attributes=document.attributes if supports.attributes else (),
    )


# --- A format -------------------------------------------------------------------------------------

_SAMPLE = 1 << 18
_JSON = re.compile(  # no tagged "[]"
    r'(\[\s*)?\{\s*("[^"\t]*"\s*:|\}[ ,\]]*(\n|$)|$)|\[\s*\]\s*$'
    r'|(\[\s*){1,2}"(?:[^"\\\n]|\\.)*+("\s*,\s*\{\s*["}]|$)'  # a text and what is said of it
)


class Sample:
    """The beginning of a file's text, by which formats know their own."""

    def __init__(self, path: Path, text: str) -> None:
        """Cut a text. Raises DataError if it is empty."""
        self.path, self.text = path, text[:_SAMPLE]
        self.lines = files.lines_of(self.text)
        if len(self.text) == _SAMPLE and len(self.lines) > 1:
            self.lines.pop()  # it is cut in the middle
        self.rows = [line for line in self.lines if line.strip()]
        """The lines that are not blank."""
        if not self.rows:
            raise DataError("the file is empty", where=str(path))
        self.is_json = _JSON.match(self.text.lstrip()) is not None
        self.keys, self.inner = rows.first_keys(self.text) if self.is_json else ((), ())
        """The keys of the first JSON object, and those of the first object inside it."""

    def has_keys(self, *keys: str) -> bool:
        """Return whether the first JSON object has all these keys."""
        return set(keys) <= set(self.keys)


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: its name in settings, what it is, its file ending, a reader and a writer.

    `write` gets documents that hold no more than the format `supports`; it is None if the format is
    read-only. `suffix` is empty if the format is a folder. `by_bytes` and `by_text` tell the format
    from all others by a file's path and bytes, or by its text. `whole`: the reader takes a whole
    folder, not file by file. `by_annotator`: a file is one annotator's version of a document, and
    where it lies says whose and of which. `instead`: the nearest format that is written. `maps`:
    the tables that a map may have (`write`).
    """

    name: str
    title: str
    suffix: str
    read: Callable[[Path, Options], Reading]
    write: Callable[[Sequence[Document], Output], None] | None = None
    supports: Supports = EVERYTHING
    by_bytes: Callable[[Path, bytes], bool] | None = None
    by_text: Callable[[Sample], bool] | None = None
    whole: bool = False
    by_annotator: bool = False
    instead: str = "jsonl, which holds everything"
    maps: tuple[str, ...] = ()


def read_toml(path: Path) -> Tree:
    """The values of a small TOML file. Raises MissingDataError, SettingsError."""
    try:
        return tomllib.loads(file_text(path))
    except FileNotFoundError as error:
        raise MissingDataError("there is no such file", where=str(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        what = f"the TOML file cannot be read ({printable(said or type(error).__name__)})"
        raise SettingsError(what, where=str(path)) from error


def read_map(path: Path, kind: Format) -> dict[str, Tree]:
    """The tables of a map for a format. Raises SettingsError."""
    tables = read_toml(path)
    odd = next((name for name in tables if name not in kind.maps), None)
    if odd is not None or not all(isinstance(one, dict) for one in tables.values()):
        known = " and ".join(f"[{name}]" for name in kind.maps)
        raise SettingsError(
            f"the map is not one of {kind.name}",
            expected=f"the tables {known}" if known else "no map: the format takes none",
            got=printable(odd or next(iter(tables)), 60),
            where=str(path),
        )
    return tables
