"""A document in the making: what a file says of it is checked here, once for all formats.

A reader turns its file into calls of `Draft`. How offsets are counted, places that point nowhere,
surfaces that differ from the text, ids given twice and links to nothing are found, named and left
out in one way. `read_documents` is the loop that readers of many documents share.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from confide.errors import DataError
from confide.text.document import (
    NO_RELATION,
    Document,
    Entity,
    Problem,
    Relation,
    Sentence,
    Span,
    pack_spans,
    pair_attributes,
)
from confide.text.files import LONGEST_JSON, lines_of, read_text
from confide.text.places import (
    CHARACTERS,
    NOWHERE,
    Counting,
    Ruler,
    StatedMention,
    TextPart,
    best_fit,
)
from confide.text.reading import (
    Options,
    Reading,
    entity_id,
    free_id,
    mend_surrogates,
    merge_fragments,
    no_document,
    place,
    quoted,
    quoted_at,
    same_surface,
)
from confide.text.segment import segmented, tokenise

# --- Sentences joined into a text -----------------------------------------------------------------
#
# Text that comes as a list of sentences keeps them apart.


class JoinedText(NamedTuple):
    """A text, its sentences with their tokens, and where each of the given strings begins."""

    text: str
    sentences: tuple[Sentence, ...]
    starts: tuple[int, ...]


def join_sentences(texts: Iterable[str]) -> JoinedText:
    """Sentences joined by newlines. Each stays one sentence, whatever full stops it contains."""
    given = list(texts)
    if len(given) == 1:
        return JoinedText(given[0], one_sentence(given[0]), (0,))
    sentences: list[Sentence] = []
    starts: list[int] = []
    offset = 0
    for text in given:
        tokens = pack_spans((start + offset, end + offset) for start, end in tokenise(text))
        if tokens:
            sentences.append(Sentence(tokens[0][0], tokens[-1][1], tokens))
        starts.append(offset)
        offset += len(text) + 1
    return JoinedText("\n".join(given), tuple(sentences), tuple(starts))


def one_sentence(text: str) -> tuple[Sentence, ...]:
    """A text as one sentence with its tokens; none for a text of white space."""
    tokens = pack_spans(tokenise(text))
    return (Sentence(tokens[0][0], tokens[-1][1], tokens),) if tokens else ()


Pairs = tuple[tuple[str, str], ...]
Made = TypeVar("Made")
NEGATIVE = frozenset(("0", "false", "none", "na", "other", NO_RELATION, "no_relation"))
"""Labels, in lower case, that mean no relation; so does any label that ends in ``-false``."""
_HEADS = {
    "arg1": "arg2", "subj": "obj", "subject": "object", "head": "tail", "source": "target",
    "from": "to", "e1": "e2", "entity1": "entity2", "governor": "dependent", "first": "second",
}  # fmt: skip
"""Roles, in lower case, that are a relation's head, and those of its tail."""


def is_negative(label: str) -> bool:
    """Return whether a label says that nothing holds between the two.

    >>> [label for label in ("0", "1", "CPR:4", "DDI-false", "False") if is_negative(label)]
    ['0', 'DDI-false', 'False']
    """
    label = label.lower()
    return label in NEGATIVE or label.endswith("-false")


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


class _Waiting(NamedTuple):
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
        units: how offsets may be counted, the format's own rule first (see `places.fitting`).
        keep: whether entities keep the ids of the file; else they are T1, T2, ...
        within: the parts of the text from which the offsets of the next mentions count.
        names: the entities' ids by what the file, or `entity`, calls them.
    """

    id: str
    text: str
    where: str
    options: Options
    problems: list[Problem]
    sentences: tuple[Sentence, ...] = ()
    attributes: Pairs = ()
    units: tuple[str, ...] = (CHARACTERS,)
    keep: bool = False
    within: Sequence[TextPart] = ()
    entities: dict[str, Entity] = field(default_factory=dict)
    relations: dict[str, Relation] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _waiting: list[_Waiting] = field(default_factory=list)
    _count: int = 0
    _tried: tuple[dict[str, int], dict[str, int]] = field(default_factory=lambda: ({}, {}))

    def note(self, kind: str, what: str, *, lost: bool = True, where: str = "") -> None:
        """Write down a problem."""
        self.problems.append(Problem(kind, where or self.where, what, lost))

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

        Raises DataError if the type was not declared.
        """
        self.options.require(kind, where or self.where)
        self._count += 1
        key = f"\0{self._count}"
        mention = StatedMention(spans, surface if isinstance(surface, str) else "", self.within)
        rest = confidence, concepts, attributes
        self._waiting.append(_Waiting(key, given, kind, where or self.where, mention, rest))
        return key

    @property
    def names(self) -> Mapping[str, str]:
        """The ids of all entities that have a place, by their keys and what the file calls them."""
        self.place()
        return self._names

    def place(self) -> None:
        """Give all mentions that were taken their places, once it is known how they count."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        given = [one.mention for one in waiting]
        ruler, doubt = best_fit(self.text, given, self.units)
        if ruler.way != Counting(self.units[0]):
            self.note("offsets-counted", str(ruler.way), lost=False)
        if doubt:
            self.note("offsets-doubtful", f"{doubt}; read as {ruler.way.unit}")
        for one in waiting:
            self._place(one, ruler)

    def _place(self, one: _Waiting, ruler: Ruler) -> None:
        """Give a mention its place in the text, or write down that it has none."""
        kind, given, (spans, surface, within) = one.kind, one.given, one.mention
        called = f"{kind} {given}" if given else kind
        placed = [ruler(span, within) for span in spans]
        if not placed or NOWHERE in placed:
            start, end = spans[placed.index(NOWHERE)] if placed else (0, 0)
            length = len(self.text) if len(within) != 1 else within[0].end - within[0].start
            what = f"{called} {start}-{end} points nowhere in {length} characters"
            slug = "empty-span" if start >= end and (start, end) != NOWHERE else "beyond-text"
            self.note(slug, what, where=one.where)
            return
        fragments = merge_fragments(placed) if len(placed) > 1 else tuple(placed)
        if len(fragments) != len(placed):
            what = f"fragments of {called} touch or overlap: made one"
            self.note("fragments-merged", what, lost=False, where=one.where)
        if surface and not same_surface(self.text, placed, surface):
            what = f"{called} is {quoted(surface)} but {quoted_at(self.text, placed)} in the text"
            self.note("text-mismatch", what, lost=False, where=one.where)
        if given and given in self._names:
            what = f"another entity is called {given}"
            self.note("duplicate-id", what, lost=False, where=one.where)
        name = entity_id(len(self.entities) + 1)
        if self.keep:  # a file that names some by their ids names the rest by their order
            name = given or entity_id(int(one.key[1:]))
        name = free_id(name, self.entities, self._tried[0])
        self._names[one.key] = name
        self._names.setdefault(given or name, name)
        self.entities[name] = Entity(name, kind, fragments, *one.rest)

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
                self.note("dangling-relation", what, where=where)
                return
            head, tail = self._names[head], self._names[tail]
        if given in self.relations:
            what = f"another relation is called {given}"
            self.note("duplicate-id", what, lost=False, where=where)
        name = free_id(given or f"R{len(self.relations) + 1}", self.relations, self._tried[1])
        level: Literal["entity", "concept"] = "concept" if concepts else "entity"
        self.relations[name] = Relation(name, kind, head, tail, level, confidence, attributes)

    def pair(self, head: str, tail: str, label: str | None) -> None:
        """State that the document asks about this pair, and what its label says.

        Nothing is asked if one of the two has no place. A label that `is_negative` is no relation;
        None: nobody says whether there is one.
        """
        if {head, tail} <= self.names.keys():
            self.attributes = (
                *pair_attributes([(self._names[head], self._names[tail])]), *self.attributes
            )  # fmt: skip
            if label is not None and not is_negative(label):
                self.relation(label, head, tail)
        else:
            self.attributes = (*pair_attributes([]), *self.attributes)

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


# --- the loop of a reader ---------------------------------------------------------------------


@dataclass(slots=True)
class Source:
    """A file that is read: its text, and what all its documents share.

    `encoding` is empty if it is no text.
    """

    path: Path
    options: Options
    text: str
    encoding: str
    problems: list[Problem] = field(default_factory=list)
    roles: dict[frozenset[str], str] = field(default_factory=dict)

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Every line that is not blank: its place, a name for its document, and the line."""
        file, stem = str(self.path), self.path.stem
        for number, line in enumerate(lines_of(self.text), 1):
            if line and not line.isspace():
                yield f"{file}:{number}", f"{stem}:{number}", line

    def draft(
        self,
        id: str,
        text: str,
        where: str,
        *,
        sentences: tuple[Sentence, ...] = (),
        attributes: Pairs = (),
    ) -> Draft:
        """A new document of this file."""
        return Draft(id, text, where, self.options, self.problems, sentences, attributes)


def open_source(path: Path, options: Options, *, longest: int = LONGEST_JSON) -> Source:
    """Read a file's text. Raises FormatError."""
    text, encoding = read_text(path, options.encoding, longest=longest)
    return Source(path, options, text, encoding)


def read_documents(
    source: Source,
    rows: Iterable[tuple[str, str, Made]],
    one: Callable[[str, str, Made], Document | None],
    *,
    format: str,
    **details: str,
) -> Reading:
    """The documents of all rows; a broken one is left out if that is wished.

    Raises DataError if there is none.
    """
    documents: list[Document] = []
    known = {"encoding": source.encoding} if source.encoding else {}
    for where, name, row in rows:
        with source.options.document(source.problems, where):
            found = one(where, name, row)
            documents += [found] if found is not None else []
    if not documents:
        raise no_document(source.path, source.problems, "there is no document: the file is empty")
    return Reading(documents, source.problems, format, known | details)


# --- Tokens with numbered mentions and links ------------------------------------------------------
#
# Many JSON forms are that: to documents and back.

PLACEHOLDER = "\ufffd"
_FROM, _TO = itemgetter(0), itemgetter(1)


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
    attributes: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class TokenDocument:
    """A document as such a form has it: sentences of tokens, mentions and links."""

    id: str
    where: str
    sentences: list[list[str]]
    mentions: list[TokenMention] = field(default_factory=list)
    links: list[TokenLink] = field(default_factory=list)
    attributes: tuple[tuple[str, str], ...] = ()

    @property
    def starts(self) -> list[int]:
        """The number of the first token of each sentence."""
        starts = [0]
        for sentence in self.sentences:
            starts.append(starts[-1] + len(sentence))
        return starts[:-1]


def lay_out_tokens(
    sentences: Sequence[Sequence[str]], where: str, problems: list[Problem]
) -> tuple[str, list[tuple[Span, ...]]]:
    """The text of sentences (tokens joined by blanks, sentences by newlines), and their tokens.

    An empty token is read as U+FFFD, which is reported.
    """
    lines: list[str] = []
    spans: list[tuple[Span, ...]] = []
    offset = 0
    for sentence in sentences:
        tokens = [token if token.strip() else PLACEHOLDER for token in sentence]
        if PLACEHOLDER in tokens and list(sentence) != tokens:
            what = "an empty token is read as U+FFFD"
            problems.append(Problem("empty-token", where, what))
        tokens = [mend_surrogates(token, where, problems) for token in tokens]
        row: list[Span] = []
        for token in tokens:
            row.append((offset, offset + len(token)))
            offset += len(token) + 1
        if row:
            lines.append(" ".join(tokens))
            spans.append(tuple(row))
    return "\n".join(lines), spans


def document_from_tokens(
    marked: TokenDocument, options: Options, problems: list[Problem]
) -> Document:
    """The document, its entities T1, T2, ... and its relations R1, R2, ...

    Reported as lost are mentions of tokens that are not there, and links to such mentions.

    Raises:
        DataError: there is no token, or a type was not declared.
    """
    text, spans = lay_out_tokens(marked.sentences, marked.where, problems)
    if not spans:
        raise DataError("a document without a token", where=marked.where)
    tokens = list(chain.from_iterable(spans))
    sentences = tuple(Sentence(row[0][0], row[-1][1], row) for row in spans)
    draft = Draft(marked.id, text, marked.where, options, problems, sentences, marked.attributes)
    keys: list[str] = []
    for start, end, kind, concept in marked.mentions:
        fits = 0 <= start < end <= len(tokens)
        span = (tokens[start][0], tokens[end - 1][1]) if fits else (start, end)
        if not fits and start < end:
            span = NOWHERE
        keys.append(draft.entity(kind, [span], concepts=(concept,) if concept else ()))
    names: dict[int | str, str] = dict(enumerate(keys))
    for kind, head, tail, said in marked.links:
        concepts = isinstance(head, str) and isinstance(tail, str)
        ends = (names.get(end, str(end)) for end in (head, tail))
        draft.relation(kind, *ends, concepts=concepts, attributes=said)
    return draft.document()


# --- documents to tokens ------------------------------------------------------------------


def tokens_of_document(document: Document, problems: list[Problem]) -> TokenDocument | None:
    """A document as tokens, with the entities that have some; None for one without a token.

    Entities have one fragment. Reported are entities that are widened to whole tokens
    ("not-on-token-border"), and those without a token ("no-token") with their relations, lost.
    """
    ready = segmented(document)
    where = document.source or document.id
    tokens = [token for sentence in ready.sentences for token in sentence.tokens]
    if not tokens:
        what = "a document without a token has no place"
        problems.append(Problem("empty-document", where, what, lost=True))
        return None
    mentions: list[TokenMention] = []
    numbers: dict[str, int] = {}
    for entity in document.entities:
        first = bisect_right(tokens, entity.start, key=_TO)
        last = bisect_left(tokens, entity.end, key=_FROM)
        at = place(document, entity.start, entity.end)
        if first >= last:
            what = f"{entity.type} {entity.id} covers no token"
            problems.append(Problem("no-token", at, what, lost=True))
            continue
        if (tokens[first][0], tokens[last - 1][1]) != (entity.start, entity.end):
            what = f"{entity.type} {entity.id} taken to whole tokens"
            problems.append(Problem("not-on-token-border", at, what))
        numbers[entity.id] = len(mentions)
        mentions.append(TokenMention(first, last, entity.type, next(iter(entity.concepts), "")))
    links: list[TokenLink] = []
    for relation in document.relations:
        head, tail = numbers.get(relation.head), numbers.get(relation.tail)
        if head is None or tail is None:
            what = f"{relation.type} {relation.id} does not link two written mentions"
            problems.append(Problem("relation-unheld", where, what, lost=True))
            continue
        links.append(TokenLink(relation.type, head, tail, relation.attributes))
    sentences = [list(ready.token_texts(sentence)) for sentence in ready.sentences]
    return TokenDocument(document.id, where, sentences, mentions, links, document.attributes)
