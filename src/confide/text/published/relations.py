"""Corpora of relations, mostly of one marked pair in a sentence, as they were published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confide.errors import DataError, FormatError, MissingDataError
from confide.files import Tree, json_of
from confide.text.document import Document, Problem, Sentence, Span, pair_attributes
from confide.text.draft import (
    Draft,
    Source,
    TokenDocument,
    TokenLink,
    TokenMention,
    document_from_tokens,
    join_sentences,
    lay_out_tokens,
    one_sentence,
    open_source,
    read_documents,
)
from confide.text.files import (
    LONGEST_LINE,
    Element,
    archive_member,
    files_below,
    is_folder,
    parse_xml,
)
from confide.text.places import TextPart
from confide.text.published.bags import PairEnd, PairLine, pair_document
from confide.text.reading import Options, Reading, clean, mend_surrogates, merge_fragments, quoted
from confide.text.rows import Row, json_objects

# --- ChemProt as SciBERT's authors published it ---------------------------------------------------
#
# JSON Lines whose text marks one pair of arguments.
#
# ``<< a >>`` is the first argument in the text and ``[[ b ]]`` the other, whichever of them is the
# chemical: the file does not give the roles.

_CHEMPROT_SAMPLE = 20


class _Arguments(NamedTuple):
    """A text without its marks, and the places of its two arguments."""

    text: str
    first: Span
    second: Span


def read_chemprot(path: Path, options: Options) -> Reading:
    """Read the file: each line becomes a document of one sentence that asks about its one pair.

    Marks are removed from the text. Both entities have the type `options.bare_type`; the relation,
    whose type is the label, goes from ``<< a >>`` to ``[[ b ]]``.

    Raises:
        FormatError: a line is not JSON, has no text or label, or does not mark two arguments.
        DataError: there is no line, or the type was not declared.
    """
    source = open_source(path, options)
    rows = json_objects(source.text, path, options=options, problems=source.problems)
    return read_documents(source, rows, partial(_chemprot_document, source), format="chemprot")


def is_chemprot(lines: Sequence[str]) -> bool:
    """Return whether the first lines of a file are such JSON Lines."""
    first = [line for line in lines if line.strip()][:_CHEMPROT_SAMPLE]
    return bool(first) and all(map(_is_row, first))


def _is_row(line: str) -> bool:
    try:
        row = json_of(line)
    except ValueError:
        return False
    return (
        isinstance(row, dict)
        and isinstance(row.get("label"), str)
        and isinstance(row.get("text"), str)
        and unmarked(row["text"]) is not None
    )


def unmarked(text: str) -> _Arguments | None:
    """A text without the marks of its two arguments; None if it does not mark two.

    A text may hold further ``>>`` and ``]]``: the first one after its opening mark closes it.

    >>> unmarked("(<< TCDD >>) and [[ Cyp1a1 ]].")
    _Arguments(text='(TCDD) and Cyp1a1.', first=(1, 5), second=(11, 17))
    """
    first = _between(text, "<< ", " >>", start=0)
    second = _between(text, "[[ ", " ]]", start=first[1] + 3) if first else None
    if first is None or second is None:
        return None
    parts = [text[: first[0] - 3], text[slice(*first)]]
    parts += [text[first[1] + 3 : second[0] - 3], text[slice(*second)]]
    start = len(parts[0])
    after = start + len(parts[1]) + len(parts[2])
    return _Arguments(
        "".join(parts) + text[second[1] + 3 :],
        (start, start + len(parts[1])),
        (after, after + len(parts[3])),
    )


def _between(text: str, opens: str, closes: str, *, start: int) -> Span | None:
    """Find the text between two marks of three characters, without surrounding white space."""
    begin = text.find(opens, start) + 3
    while begin > 2 and text[begin : begin + 1].isspace():
        begin = text.find(opens, begin) + 3
    end = text.find(closes, begin + 1) if 2 < begin < len(text) else -1
    while end > 0 and text[end - 1].isspace():
        end = text.find(closes, end + 1)
    return (begin, end) if end > 0 else None


def _chemprot_document(source: Source, where: str, name: str, row: Tree) -> Document:
    text, label = row.get("text"), row.get("label")
    if not isinstance(text, str) or not isinstance(label, str) or not label.strip():
        raise FormatError(
            "a line without text or label", expected='"text" and "label", strings', where=where
        )
    found = unmarked(mend_surrogates(text, where, source.problems))
    if found is None:
        raise FormatError(
            "the text does not mark two arguments",
            expected="<< a >> and after it [[ b ]], with blanks",
            where=where,
        )
    draft = source.draft(name, found.text, where)
    draft.sentences = one_sentence(found.text)
    for key in sorted(row.keys() - {"text", "label"}):
        if row[key]:
            draft.note("key-ignored", f"{quoted(key)} is not read")
    ends = [draft.entity(source.options.bare_type, [span]) for span in found[1:]]
    draft.pair(ends[0], ends[1], clean(label.strip()))
    return draft.document()


# --- BioBERT's tables for relations (GAD, EU-ADR) -------------------------------------------------
#
# A sentence with blinded entities, and a label.
#
# A line is ``sentence TAB label``; a file that begins with the line ``index TAB sentence TAB
# label`` has a number before each. Entities are already replaced by their types, as in ``@GENE$``.

HEADER = ["index", "sentence", "label"]
POSITIVE, RELATED = "1", "related"
_BLINDED = re.compile(r"@([A-Za-z][\w-]*)\$")
_SAMPLE = 50


def read_biobert(path: Path, options: Options) -> Reading:
    """Read a table: each line becomes a document of one sentence that asks about its one pair.

    The pair goes from the first blinded entity to the second, since nothing says which is the head.
    The label ``1`` means the relation "related"; any other label that is not negative names it.

    Raises:
        FormatError: a line's columns differ from those of the first, or a label is empty.
        DataError: there is no sentence, or a type was not declared.
    """
    source = open_source(path, options, longest=LONGEST_LINE)
    rows = list(source.lines())
    headed = bool(rows) and rows[0][2].split("\t") == HEADER

    def one(where: str, name: str, line: str) -> Document:
        return _biobert_document(source, where, name, _columns(line, where, headed=headed))

    return read_documents(
        source, rows[headed:], one, format="biobert", header="yes" if headed else "no"
    )


def is_biobert(lines: Sequence[str]) -> bool:
    """True if the first lines of a file are such a table: most sentences have a blinded pair."""
    rows = [line.split("\t") for line in lines if line.strip()][:_SAMPLE]
    headed = bool(rows) and rows[0] == HEADER
    rows = rows[headed:]
    width = 3 if headed else 2
    if any(len(row) != width for row in rows):
        return False
    paired = sum(" " in row[-2] and len(_BLINDED.findall(row[-2])) == 2 for row in rows)
    return 2 * paired > len(rows)


def _columns(line: str, where: str, *, headed: bool) -> tuple[str, str]:
    """The sentence and the label of a line."""
    columns = line.split("\t")
    if len(columns) != (3 if headed else 2) or not columns[-1].strip() or not columns[-2].strip():
        wanted = "index, sentence and label" if headed else "sentence and label"
        raise FormatError(
            f"a line of {len(columns)} columns, or an empty one among them",
            expected=f"{wanted}, cut by tabs",
            where=where,
        )
    return columns[-2], columns[-1].strip()


def _biobert_document(source: Source, where: str, name: str, row: tuple[str, str]) -> Document:
    """A line as a document. Unless it has two entities, its label belongs to no pair."""
    sentence, label = row
    draft = source.draft(name, sentence, where)
    draft.sentences = one_sentence(sentence)
    found = [draft.entity(match[1], [match.span()]) for match in _BLINDED.finditer(sentence)]
    if len(found) == 2:
        draft.pair(found[0], found[1], RELATED if label == POSITIVE else label)
    else:
        draft.pair("", "", None)
        what = f"the label {quoted(label)} of a sentence with {len(found)} blinded entities"
        draft.note("not-one-pair", what)
    return draft.document()


# --- SemEval-2010 task 8 --------------------------------------------------------------------------
#
# One sentence with two marked nominals, and the relation between them.
#
# A sentence is ``number TAB "text with <e1>...</e1> and <e2>...</e2>"``. The line after it is the
# label, whose end says the direction, ``Cause-Effect(e2,e1)``, or ``Other``; then a comment. The
# task's test file has the sentences alone. KBP37 has the same form, with blanks between all tokens
# and inside the marks, labels such as ``per:title(e1,e2)``, and ``no_relation``.

OTHER = "Other"
_SENTENCE = re.compile(r"(\d+)\t(.*\S.*)", re.DOTALL | re.ASCII)
_LABEL = re.compile(r"[A-Za-z][\w:/.-]*(\(e[12],e[12]\))?")
_COMMENT = "Comment:"
_MARK = re.compile(r"<(/?)e([12])>")


@dataclass(slots=True)
class _Item:
    """The lines of one sentence."""

    where: str
    number: str
    marked: str
    label: str | None = None
    comment: str = ""


def read_semeval(path: Path, options: Options) -> Reading:
    """Read the file: each sentence becomes a document, named by its number, about its one pair.

    Marks and outer quotation marks are removed from the text. Both entities have the type
    `options.bare_type`. A relation goes from e1 to e2, and its type is the whole label, direction
    included; ``Other`` and ``no_relation`` are none. A comment becomes the attribute "comment".

    Raises:
        FormatError: a line is not of this format, or a sentence does not mark e1 and e2 once each.
        DataError: there is no sentence, or the type was not declared.
    """
    source = open_source(path, options, longest=LONGEST_LINE)
    items = list(_items(source))
    bare = [item for item in items if item.label is None]
    if bare:
        what = (
            f"{len(bare)} of {len(items)} sentences have no label: they are read without relation"
        )
        source.problems.append(Problem("no-label", bare[0].where, what))
    rows = ((item.where, item.number, item) for item in items)
    return read_documents(source, rows, partial(_semeval_document, source), format="semeval")


def is_semeval(lines: Sequence[str]) -> bool:
    """Return whether a file begins with such a sentence."""
    first = next((line for line in lines if line.strip()), "")
    match = _SENTENCE.fullmatch(first)
    return match is not None and "<e1>" in match[2] and "<e2>" in match[2]


def _items(source: Source) -> Iterator[_Item]:
    item: _Item | None = None
    for where, _, line in source.lines():
        line = line.strip()
        match = _SENTENCE.fullmatch(line)
        if match:
            if item is not None:
                yield item
            item = _Item(where, match[1], match[2])
        elif item is not None and line.startswith(_COMMENT):
            item.comment = line.removeprefix(_COMMENT).strip()
        elif item is not None and item.label is None and _LABEL.fullmatch(line):
            item.label = line
        else:
            error = FormatError(
                f"a line that is no sentence, label or comment: {quoted(line)}",
                expected='number TAB "text", then Relation(e1,e2) or Other, then Comment:',
                where=where,
            )
            source.options.skip(error, source.problems, where)
            item = None
    if item is not None:
        yield item


def _semeval_document(source: Source, where: str, name: str, item: _Item) -> Document:
    marked = item.marked.strip()
    if len(marked) > 1 and marked[0] == marked[-1] == '"':
        marked = marked[1:-1].strip()
    text, spans = _unmarked(marked, where)
    comment = (("comment", item.comment),) if item.comment else ()
    draft = source.draft(name, text, where, attributes=comment)
    draft.sentences = one_sentence(text)
    ends = [draft.entity(source.options.bare_type, [span]) for span in spans]
    draft.pair(ends[0], ends[1], item.label)
    return draft.document()


def _unmarked(marked: str, where: str) -> tuple[str, tuple[Span, Span]]:
    """A text without its four marks, and the places of e1 and e2."""
    borders: dict[str, int] = {}
    text, last, twice = "", 0, False
    for match in _MARK.finditer(marked):
        text += marked[last : match.start()]
        last = match.end()
        if text[-1:] in ("", " ") and marked[last : last + 1] == " ":
            last += 1  # a mark that stands alone, as in KBP37
        twice = twice or match[0] in borders
        borders[match[0]] = len(text)
    text += marked[last:]
    whole = len(borders) == 4 and not twice
    for mark in ("</e1>", "</e2>"):
        borders[mark] = len(text[: borders.get(mark, 0)].rstrip())
    first, second = (
        (borders.get(f"<e{number}>", 0), borders.get(f"</e{number}>", 0)) for number in (1, 2)
    )
    if not whole or first[0] >= first[1] or second[0] >= second[1]:
        raise FormatError(
            "the sentence does not mark two nominals",
            expected="<e1>...</e1> and <e2>...</e2>, each once and not empty",
            where=where,
        )
    return text, (first, second)


# --- TACRED and FewRel ----------------------------------------------------------------------------
#
# JSON with the tokens of one sentence, and one pair of entities in it.

NOTHING = "no_relation"
_TACRED = frozenset((
    "id", "docid", "relation", "token", "subj_start", "subj_end", "obj_start", "obj_end",
    "subj_type", "obj_type",
))  # fmt: skip
_LAYERS = frozenset(("stanford_pos", "stanford_ner", "stanford_head", "stanford_deprel"))
"""A parser's layers of tokens: not annotation, and not read."""
_MOST_PLACES = 1000


def is_tacred(keys: Sequence[str]) -> bool:
    """Return whether the keys of a record are TACRED's."""
    return {"token", "subj_start", "obj_start"} <= set(keys)


def is_fewrel(keys: Sequence[str], inner: Sequence[str]) -> bool:
    """Return whether the keys of a file's object, and of the first record in it, are FewRel's."""
    return bool(keys) and {"tokens", "h", "t"} <= set(inner)


def read_tacred(path: Path, options: Options) -> Reading:
    """Read a document for each line: subject and object, T1 and T2, and their relation.

    ``no_relation`` is none. The places of subject and object include their last tokens.

    Raises:
        FormatError: a record does not have TACRED's form.
        DataError: there is no record, or a type was not declared.
    """
    source = open_source(path, options)
    rows = json_objects(source.text, path, options=options, problems=source.problems)
    return read_documents(source, rows, partial(_tacred, source), format="tacred")


def _tacred(source: Source, where: str, name: str, tree: Tree) -> Document:
    row, options, problems = Row(tree, where), source.options, source.problems
    text, spans = _sentence(row, "token", problems)
    ends = []
    for side in ("subj", "obj"):
        places = range(row.number(f"{side}_start"), row.number(f"{side}_end") + 1)
        fragments = _stretch(places[:_MOST_PLACES], spans)
        kind = row.name((f"{side}_type",), options.bare_type)
        ends.append(_end(text, kind, fragments, row=row, problems=problems))
    label = row.tree.get("relation")
    pairs = [
        (key, str(value))
        for key, value in row.tree.items()
        if key not in _TACRED | _LAYERS and isinstance(value, str | int | float)
    ]
    if isinstance(row.tree.get("docid"), str):
        pairs.append(("docid", row.string("docid")))
    line = PairLine(
        row.name(("id",), name),
        row.where,
        text,
        (ends[0], ends[1]),
        None if label is None else row.type(label, '"relation"'),
        attributes=tuple((clean(key), clean(value)) for key, value in pairs),
        sentences=_one(spans),
    )
    return pair_document(line, options, problems)


def _one(spans: Sequence[Span]) -> tuple[Sentence, ...]:
    return (Sentence(spans[0][0], spans[-1][1], tuple(spans)),)


def _sentence(row: Row, key: str, problems: list[Problem]) -> tuple[str, tuple[Span, ...]]:
    text, spans = lay_out_tokens([row.words(key)], row.where, problems)
    if not spans:
        raise DataError("a record without a token", where=row.where)
    return text, spans[0]


def _stretch(places: Sequence[int], spans: Sequence[Span]) -> tuple[Span, ...] | None:
    """The characters of some tokens, neighbours in one fragment; None if one is not there."""
    if not places or min(places) < 0 or max(places) >= len(spans):
        return None
    fragments: list[Span] = []
    last = -2
    for place in sorted(set(places)):
        start = fragments.pop()[0] if place == last + 1 and fragments else spans[place][0]
        fragments.append((start, spans[place][1]))
        last = place
    return merge_fragments(fragments)


def _end(
    text: str,
    kind: str,
    fragments: tuple[Span, ...] | None,
    *,
    row: Row,
    problems: list[Problem],
    concept: str = "",
) -> PairEnd:
    if fragments is None:
        what = f"{kind} is not among the tokens: its pair is left out"
        problems.append(Problem("beyond-text", row.where, what, lost=True))
        return PairEnd("", kind, concept)
    name = " ".join(text[start:end] for start, end in fragments)
    return PairEnd(name, kind, concept, fragments)


# --- FewRel -------------------------------------------------------------------------------


def read_fewrel(path: Path, options: Options) -> Reading:
    """Read a document for each instance: head and tail, T1 and T2, with the key as relation.

    Of several places of an entity the first is read. An entity has `options.bare_type`, and its
    identifier as concept.

    Raises:
        FormatError: the file or an instance does not have FewRel's form.
        DataError: there is no instance, or the type was not declared.
    """
    source, more = open_source(path, options), 0

    def one(where: str, label: str, row: Row) -> Document:
        nonlocal more
        document, places = _fewrel(row, label, options, source.problems)
        more += places
        return document

    rows = (
        (f"{path}#{clean(label)}:{number}", clean(label), row)
        for where, _, tree in json_objects(
            source.text, path, options=options, problems=source.problems
        )
        for label in tree
        for number, row in enumerate(Row(tree, where).rows(label), 1)
    )
    named = ((where, label, Row(row.tree, where)) for where, label, row in rows)
    reading = read_documents(source, named, one, format="fewrel")
    if more:
        what = f"{more} entities stand at several places: the first is read"
        source.problems.append(Problem("ambiguous-mention", str(path), what))
    return reading


def _fewrel(
    row: Row, label: str, options: Options, problems: list[Problem]
) -> tuple[Document, int]:
    """The document of an instance, and how many of its two entities stand at several places."""
    text, spans = _sentence(row, "tokens", problems)
    ends, more = [], 0
    for side in ("h", "t"):
        item = row.tree.get(side)
        places = row.part(item, 2, f'"{side}"')
        if not isinstance(places, list) or not places or not isinstance(places[0], list):
            raise row.malformed(f'the places of "{side}"', "[[token, ...], ...]", places)
        more += len(places) > 1
        first = [row.whole(place, f'a place of "{side}"') for place in places[0][:_MOST_PLACES]]
        concept = row.part(item, 1, f'"{side}"')
        ends.append(
            _end(
                text,
                options.bare_type,
                _stretch(first, spans),
                row=row,
                problems=problems,
                concept=clean(str(concept)) if isinstance(concept, str) else "",
            )
        )
    stem = row.where.rpartition("#")[2]
    line = PairLine(stem, row.where, text, (ends[0], ends[1]), label, sentences=_one(spans))
    return pair_document(line, options, problems), more


# --- DocRED ---------------------------------------------------------------------------------------
#
# Sentences of tokens, entities as sets of mentions, and relations between entities.
#
# An entity is a concept here: its mentions share the identifier ``V0``, ``V1``, ..., and relations
# link concepts.

_EVIDENCE = "evidence"


def is_docred(keys: Sequence[str]) -> bool:
    """Return whether the keys of a record are DocRED's."""
    return {"sents", "vertexSet"} <= set(keys)


def read_docred(path: Path, options: Options) -> Reading:
    """Read a document for each record. The sentences of its evidence are a relation's attribute.

    Raises:
        FormatError: a record does not have DocRED's form.
        DataError: there is no record, or a type was not declared.
    """
    source = open_source(path, options)
    bare = 0

    def one(where: str, name: str, tree: Tree) -> Document:
        nonlocal bare
        bare += "labels" not in tree
        return document_from_tokens(_marked(Row(tree, where), name), options, source.problems)

    rows = json_objects(source.text, path, options=options, problems=source.problems)
    reading = read_documents(source, rows, one, format="docred")
    if bare:
        what = f"{bare} of {len(reading.documents)} documents have no relations: read without"
        source.problems.append(Problem("no-label", str(path), what))
    return reading


def _marked(row: Row, name: str) -> TokenDocument:
    sentences = [row.strings(one, '"sents"') for one in row.values("sents")]
    marked = TokenDocument(row.name(("title",), name), row.where, sentences)
    starts = marked.starts
    vertices = row.values("vertexSet")
    for number, vertex in enumerate(vertices):
        if not isinstance(vertex, list):
            raise row.malformed('an item of "vertexSet"', "a list of mentions", vertex)
        for item in vertex:
            marked.mentions.append(_mention(row, item, starts, f"V{number}"))
    for label in row.rows("labels"):
        head, tail = label.number("h"), label.number("t")
        if not 0 <= head < len(vertices) or not 0 <= tail < len(vertices):
            raise row.malformed('"h" and "t"', f"entities from 0 to {len(vertices) - 1}", head)
        evidence = " ".join(str(one) for one in label.values(_EVIDENCE))
        said = ((_EVIDENCE, evidence),) if evidence else ()
        marked.links.append(TokenLink(label.string("r"), f"V{head}", f"V{tail}", said))
    return marked


def _mention(row: Row, item: object, starts: Sequence[int], concept: str) -> TokenMention:
    what = "a mention"
    sentence = row.whole(row.part(item, "sent_id", what), "a mention's sent_id")
    place = row.part(item, "pos", what)
    first, last = (row.whole(row.part(place, n, '"pos"'), '"pos"') for n in (0, 1))
    kind = row.type(row.part(item, "type", what), "a mention's type")
    if not 0 <= sentence < len(starts) or first < 0:
        return TokenMention(-1, -1, kind, concept)
    return TokenMention(starts[sentence] + first, starts[sentence] + last, kind, concept)


# --- The DDI corpus (2013): drugs in sentences, and for every pair of them whether they interact
#
# One XML file is one document. Offsets (`charOffset`) count from the start of their sentence,
# their end is inclusive, and a discontinuous drug has several, ``a-b;c-d``.


ROOT = "document"
_OFFSETS = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)


def read_ddi(path: Path, options: Options) -> Reading:
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
    source = Source(path, options, "", "")
    reading = read_documents(
        source, ((str(f), f.stem, f) for f in files), partial(_document, source), format="ddi"
    )
    encoding = source.encoding
    return replace(reading, details={"files": str(len(files)), "encoding": encoding})


def xml_files(folder: Path) -> list[Path]:
    """The XML files of a folder and of the folders in it, in the order of their names."""
    try:
        packed = archive_member(folder) is not None and not folder.exists()
        return sorted(
            file
            for file in (files_below(folder) if packed else folder.rglob("*"))
            if file.suffix.lower() == ".xml"
            and not file.name.startswith(".")
            and (packed or file.is_file())
        )
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error


def _document(source: Source, where: str, name: str, path: Path) -> Document:
    root, source.encoding = parse_xml(path, source.options.encoding)
    if root.tag != ROOT or root.find("passage") is not None:
        raise FormatError(
            "not a document of the DDI corpus",
            expected="<document> with <sentence> in it",
            got=f"<{quoted(root.tag)}>",
            where=where,
        )
    sentences = root.findall("sentence")
    texts = [sentence.get("text", "") for sentence in sentences]
    whole = join_sentences(texts)
    called = "_".join(root.get("id", name).split()) or name
    draft = source.draft(called, whole.text, where)
    draft.sentences, draft.keep = whole.sentences, True
    keys: list[dict[str, str]] = []
    places = [f"{path}#{one.get('id', f's{number}')}" for number, one in enumerate(sentences)]
    for start, text, sentence, place in zip(whole.starts, texts, sentences, places, strict=True):
        draft.within = (TextPart(start, start + len(text)),)
        keys.append({})
        for item in sentence.findall("entity"):
            name, key = _entity(draft, item, place)
            keys[-1].setdefault(name, key)
    pairs: list[tuple[str, str]] = []
    complete = True
    for sentence, place, own in zip(sentences, places, keys, strict=True):
        known = {name: key for name, key in own.items() if key in draft.names}
        stated = list(_pairs(draft, sentence, known, place))
        pairs += stated
        different = {tuple(sorted(pair)) for pair in stated}
        complete = complete and all(head != tail for head, tail in stated)
        complete = complete and 2 * len(different) == len(known) * (len(known) - 1)
    draft.attributes = () if complete else pair_attributes(pairs)
    return draft.document()


def _entity(draft: Draft, item: Element, where: str) -> tuple[str, str]:
    """Take an entity; its name in the file, and its key."""
    kind, given = item.get("type", ""), item.get("id", "")
    if not kind or not given.strip():
        raise FormatError("an entity without id or type", expected="both", where=where)
    name, spans = "_".join(given.split()), _spans(item.get("charOffset", ""), where)
    return name, draft.entity(kind, spans, given=name, surface=item.get("text"), where=where)


def _spans(offsets: str, where: str) -> list[Span]:
    """Half-open fragments from offsets whose end is inclusive."""
    matches = [_OFFSETS.fullmatch(part.strip()) for part in offsets.split(";")]
    if not all(matches):
        raise FormatError(
            "offsets of an entity", expected="a-b, or a-b;c-d", got=quoted(offsets), where=where
        )
    return [(int(match[1]), int(match[2]) + 1) for match in matches if match]


def _pairs(
    draft: Draft, sentence: Element, known: dict[str, str], where: str
) -> Iterator[tuple[str, str]]:
    """Add a sentence's relations, and every pair that it asks about."""
    for item in sentence.findall("pair"):
        kind, answer = item.get("type", ""), item.get("ddi", "").lower()
        if answer not in ("true", "false"):
            raise FormatError(
                "a pair that does not say whether it interacts",
                expected='ddi="true" or ddi="false"',
                got=quoted(answer),
                where=where,
            )
        head, tail = ("_".join(item.get(end, "").split()) for end in ("e1", "e2"))
        if answer == "true" and not kind:
            what = f"pair {item.get('id')} interacts, but how is not said: the pair is left out"
            draft.note("relation-without-type", what, where=where)
        elif answer == "true" or not {head, tail} <= known.keys():
            ends = known.get(head, f"\0{head}"), known.get(tail, f"\0{tail}")
            draft.relation(kind or "pair", *ends, where=where)
        if {head, tail} <= known.keys() and (answer == "false" or kind):
            yield draft.names[known[head]], draft.names[known[tail]]
