"""Corpora of relations, mostly of one marked pair in a sentence, as they were published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError
from confide.files import Tree, decode_json
from confide.text import files, reading
from confide.text.document import Document, Sentence, Span, pair_attributes
from confide.text.places import TextPart
from confide.text.published.bags import PairEnd, pair_document
from confide.text.reading import Draft, Format, Options, Reading, Sample, Source
from confide.text.rows import Row, clean, quoted
from confide.text.segment import join_sentences, lay_out_tokens, one_sentence

# --- ChemProt as SciBERT's authors published it ---------------------------------------------------
#
# JSON Lines whose text marks one pair of arguments.
#
# ``<< a >>`` is the first argument in the text and ``[[ b ]]`` the other, whichever of them is the
# chemical: the file does not give the roles.

_CHEMPROT_SAMPLE = 20


def _is_chemprot(sample: Sample) -> bool:
    """Return whether the first lines of a file are such JSON Lines."""
    return sample.is_json and all(map(_is_chemprot_row, sample.rows[:_CHEMPROT_SAMPLE]))


def _is_chemprot_row(line: str) -> bool:
    try:
        row = decode_json(line)
    except ValueError:
        return False
    if not isinstance(row, dict) or not isinstance(row.get("label"), str):
        return False
    return isinstance(row.get("text"), str) and unmarked(row["text"]) is not None


def unmarked(text: str) -> tuple[str, Span, Span] | None:
    """A text without the marks of its two arguments, and their places; None if not two are marked.

    A text may hold further ``>>`` and ``]]``: the first one after its opening mark closes it.

    >>> unmarked("(<< TCDD >>) and [[ Cyp1a1 ]].")
    ('(TCDD) and Cyp1a1.', (1, 5), (11, 17))
    """
    first = _between(text, "<< ", " >>", start=0)
    second = _between(text, "[[ ", " ]]", start=first[1] + 3) if first else None
    if first is None or second is None:
        return None
    parts = [text[: first[0] - 3], text[slice(*first)]]
    parts += [text[first[1] + 3 : second[0] - 3], text[slice(*second)]]
    start = len(parts[0])
    after = start + len(parts[1]) + len(parts[2])
    return (
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


def _chemprot_document(source: Source, where: str, name: str, tree: Tree) -> Document:
    """A document of one sentence that asks about its one pair.

    Marks are removed from the text. Both entities have the type `options.bare_type`; the relation,
    whose type is the label, goes from ``<< a >>`` to ``[[ b ]]``. Raises FormatError if there is no
    text or label, or two arguments are not marked.
    """
    row = Row(tree, where)
    label = row.string("label")
    found = unmarked(row.text("text", source.problems))
    if found is None:
        raise FormatError(
            "the text does not mark two arguments",
            expected="<< a >> and after it [[ b ]], with blanks",
        )
    for key in sorted(tree.keys() - {"text", "label"}):
        if tree[key]:
            source.problems.lost("key-ignored", where, f"{quoted(key)} is not read")
    text, *spans = found
    draft = Draft(source, name, text, where)
    ends = [PairEnd(source.options.bare_type, (span,)) for span in spans]
    return pair_document(draft, ends, label)


CHEMPROT = Format(
    "chemprot",
    "ChemProt's JSON Lines",
    ".jsonl",
    reading.objects_reader("chemprot", _chemprot_document),
    by_text=_is_chemprot,
)

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


def _read_biobert(path: Path, options: Options) -> Reading:
    """Read a table: each line becomes a document of one sentence that asks about its one pair.

    The pair goes from the first blinded entity to the second, since nothing says which is the head.
    The label ``1`` means the relation "related"; any other label that is not negative names it.
    Unless a sentence has two entities, its label belongs to no pair.

    Raises:
        FormatError: a line's columns differ from those of the first, or a label is empty.
        DataError: there is no sentence.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    lines = list(source.lines())
    headed = bool(lines) and lines[0][2].split("\t") == HEADER

    def _one(source: Source, where: str, name: str, line: str) -> Document:
        columns = line.split("\t")
        if len(columns) != (3 if headed else 2) or not all(map(str.strip, columns[-2:])):
            raise FormatError(
                f"a line of {len(columns)} columns, or an empty one among them",
                expected=f"{'index, sentence' if headed else 'sentence'} and label, cut by tabs",
            )
        sentence, label = columns[-2], columns[-1].strip()
        draft = Draft(source, name, sentence, where, sentences=one_sentence(sentence))
        found = [draft.entity(match[1], [match.span()]) for match in _BLINDED.finditer(sentence)]
        if len(found) == 2:
            draft.pair(found[0], found[1], RELATED if label == POSITIVE else label)
        else:
            draft.pair("", "", None)
            what = f"the label {quoted(label)} of a sentence with {len(found)} blinded entities"
            draft.lost("not-one-pair", what)
        return draft.document()

    return source.read(lines[headed:], _one, format="biobert", header="yes" if headed else "no")


def _is_biobert(sample: Sample) -> bool:
    """True if the first lines of a file are such a table: most sentences have a blinded pair."""
    rows = [line.split("\t") for line in sample.rows[:_SAMPLE]]
    headed = rows[0] == HEADER
    rows = rows[headed:]
    if any(len(row) != (3 if headed else 2) for row in rows):
        return False
    paired = sum(" " in row[-2] and len(_BLINDED.findall(row[-2])) == 2 for row in rows)
    return 2 * paired > len(rows)


BIOBERT = Format(
    "biobert", "BioBERT's table of relations", ".tsv", _read_biobert, by_text=_is_biobert
)

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


def _read_semeval(path: Path, options: Options) -> Reading:
    """Read the file: each sentence becomes a document, named by its number, about its one pair.

    Marks and outer quotation marks are removed from the text. Both entities have the type
    `options.bare_type`. A relation goes from e1 to e2, and its type is the whole label, direction
    included; ``Other`` and ``no_relation`` are none. A comment becomes the attribute "comment".

    Raises:
        FormatError: a line is not of this format, or a sentence does not mark e1 and e2 once each.
        DataError: there is no sentence.
    """
    source = reading.open_source(path, options, longest=files.LONGEST_LINE)
    items = list(_items(source))
    bare = [item.where for item in items if item.label is None]
    source.note_each("no-label", bare, "sentences have no label: they are read without relation")
    rows = ((item.where, item.number, item) for item in items)
    return source.read(rows, _semeval_document, format="semeval")


def _is_semeval(sample: Sample) -> bool:
    """Return whether a file begins with such a sentence."""
    match = _SENTENCE.fullmatch(sample.rows[0])
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
    spans = [
        (borders.get(f"<e{number}>", 0), len(text[: borders.get(f"</e{number}>", 0)].rstrip()))
        for number in (1, 2)
    ]
    if len(borders) != 4 or twice or any(start >= end for start, end in spans):
        raise FormatError(
            "the sentence does not mark two nominals",
            expected="<e1>...</e1> and <e2>...</e2>, each once and not empty",
        )
    draft = Draft(source, name, text, where)
    draft.attributes = (("comment", item.comment),) if item.comment else ()
    ends = [PairEnd(source.options.bare_type, (span,)) for span in spans]
    return pair_document(draft, ends, item.label)


SEMEVAL = Format(
    "semeval", "SemEval-2010 task 8, and KBP37", ".txt", _read_semeval, by_text=_is_semeval
)

# --- TACRED and FewRel ----------------------------------------------------------------------------
#
# JSON with the tokens of one sentence, and one pair of entities in it.

_TACRED = frozenset((
    "id", "relation", "token", "subj_start", "subj_end", "obj_start", "obj_end",
    "subj_type", "obj_type",
    # a parser's layers of tokens are not annotation, and not read
    "stanford_pos", "stanford_ner", "stanford_head", "stanford_deprel",
))  # fmt: skip
_MOST_PLACES = 1000


def _tacred_document(source: Source, where: str, name: str, tree: Tree) -> Document:
    """Subject and object, T1 and T2, and their relation; ``no_relation`` is none.

    The places of subject and object include their last tokens. Raises FormatError for a record that
    does not have TACRED's form.
    """
    row = Row(tree, where)
    draft, sentence = _draft(source, row, "token", row.name(("id",), name))
    ends = []
    for side in ("subj", "obj"):
        numbers = range(row.number(f"{side}_start"), row.number(f"{side}_end") + 1)
        kind = row.name((f"{side}_type",), source.options.bare_type)
        ends.append(_end(draft, sentence, kind, numbers[:_MOST_PLACES]))
    draft.attributes = source.attributes(tree, _TACRED, where)
    label = tree.get("relation")
    return pair_document(draft, ends, None if label is None else row.type(label, '"relation"'))


def _draft(source: Source, row: Row, key: str, name: str) -> tuple[Draft, Sentence]:
    """A document of one sentence of tokens."""
    text, sentences = lay_out_tokens([row.words(key)], row.where, source.problems)
    return Draft(source, name, text, row.where, sentences=sentences), sentences[0]


def _end(
    draft: Draft, sentence: Sentence, kind: str, numbers: Sequence[int], *, concept: str = ""
) -> PairEnd:
    """An end of the pair by the numbers of its tokens; neighbours are one fragment."""
    tokens = sentence.tokens
    if not numbers or min(numbers) < 0 or max(numbers) >= len(tokens):
        what = f"{kind} is not among the tokens: its pair is left out"
        draft.lost("beyond-text", what)
        return PairEnd(kind, None, concept)
    fragments: list[Span] = []
    last = -2
    for number in sorted(set(numbers)):
        start = fragments.pop()[0] if number == last + 1 else tokens[number][0]
        fragments.append((start, tokens[number][1]))
        last = number
    return PairEnd(kind, tuple(fragments), concept)


TACRED = Format(
    "tacred",
    "TACRED's JSON",
    ".json",
    reading.objects_reader("tacred", _tacred_document),
    by_text=lambda sample: sample.has_keys("token", "subj_start", "obj_start"),
)


def _read_fewrel(path: Path, options: Options) -> Reading:
    """Read a document for each instance: head and tail, T1 and T2, with the key as relation.

    Of several places of an entity the first is read. An entity has `options.bare_type`, and its
    identifier as concept.

    Raises:
        FormatError: the file or an instance does not have FewRel's form.
        DataError: there is no instance.
    """
    source = reading.open_source(path, options)
    more: list[str] = []

    def _one(source: Source, where: str, label: str, row: Row) -> Document:
        draft, sentence = _draft(source, row, "tokens", where.rpartition("#")[2])
        ends = []
        for side in ("h", "t"):
            item, what = row.tree.get(side), f'"{side}"'
            places = row.part(item, 2, what)
            if not isinstance(places, list) or not places or not isinstance(places[0], list):
                raise row.malformed(f"the places of {what}", "[[token, ...], ...]", places)
            more.extend([where] if len(places) > 1 else [])
            first = [row.whole(one, f"a place of {what}") for one in places[0][:_MOST_PLACES]]
            given = row.part(item, 1, what)
            concept = clean(given) if isinstance(given, str) else ""
            ends.append(_end(draft, sentence, options.bare_type, first, concept=concept))
        return pair_document(draft, ends, label)

    rows = (
        (f"{path}#{clean(label)}:{number}", clean(label), row)
        for where, _, tree in source.objects()
        for label in tree
        for number, row in enumerate(Row(tree, where).rows(label), 1)
    )
    named = ((where, label, Row(row.tree, where)) for where, label, row in rows)
    found = source.read(named, _one, format="fewrel")
    source.note_each(
        "ambiguous-mention", more, "entities stand at several places: read at the first"
    )
    return found


FEWREL = Format(
    "fewrel",
    "FewRel's JSON",
    ".json",
    _read_fewrel,
    by_text=lambda sample: bool(sample.keys) and {"tokens", "h", "t"} <= set(sample.inner),
)

# --- DocRED ---------------------------------------------------------------------------------------
#
# Sentences of tokens, entities as sets of mentions, and relations between entities.
#
# An entity is a concept here: its mentions share the identifier ``V0``, ``V1``, ..., and relations
# link concepts.

_EVIDENCE = "evidence"


def _read_docred(path: Path, options: Options) -> Reading:
    """Read a document for each record. The sentences of its evidence are a relation's attribute.

    Raises:
        FormatError: a record does not have DocRED's form.
        DataError: there is no record.
    """
    source = reading.open_source(path, options)
    bare: list[str] = []

    def _one(source: Source, where: str, name: str, tree: Tree) -> Document:
        bare.extend([] if "labels" in tree else [where])
        return reading.document_from_tokens(_marked(Row(tree, where), name), source)

    found = source.read(source.objects(), _one, format="docred")
    source.note_each("no-label", bare, "documents have no relations: read without")
    return found


def _marked(row: Row, name: str) -> reading.TokenDocument:
    sentences = [row.strings(one, '"sents"') for one in row.values("sents")]
    marked = reading.TokenDocument(row.name(("title",), name), row.where, sentences)
    starts = marked.starts
    vertices = row.values("vertexSet")
    what = "a mention"
    for number, vertex in enumerate(vertices):
        if not isinstance(vertex, list):
            raise row.malformed('an item of "vertexSet"', "a list of mentions", vertex)
        for item in vertex:
            sentence = row.whole(row.part(item, "sent_id", what), "a mention's sent_id")
            place = row.part(item, "pos", what)
            first, last = (row.whole(row.part(place, n, '"pos"'), '"pos"') for n in (0, 1))
            kind = row.type(row.part(item, "type", what), "a mention's type")
            mention = reading.TokenMention(-1, -1, kind, f"V{number}")
            if 0 <= sentence < len(starts) and first >= 0:
                start = starts[sentence]
                mention = mention._replace(start=start + first, end=start + last)
            marked.mentions.append(mention)
    for label in row.rows("labels"):
        head, tail = label.number("h"), label.number("t")
        if not 0 <= head < len(vertices) or not 0 <= tail < len(vertices):
            raise row.malformed('"h" and "t"', f"entities from 0 to {len(vertices) - 1}", head)
        evidence = " ".join(map(str, label.values(_EVIDENCE)))
        said = ((_EVIDENCE, evidence),) if evidence else ()
        marked.links.append(reading.TokenLink(label.string("r"), f"V{head}", f"V{tail}", said))
    return marked


DOCRED = Format(
    "docred",
    "DocRED's JSON",
    ".json",
    _read_docred,
    by_text=lambda sample: sample.has_keys("sents", "vertexSet"),
)

# --- The DDI corpus (2013): drugs in sentences, and for every pair of them whether they interact
#
# One XML file is one document. Offsets (`charOffset`) count from the start of their sentence,
# their end is inclusive, and a discontinuous drug has several, ``a-b;c-d``.


ROOT = "document"
_OFFSETS = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)


def _read_ddi(path: Path, options: Options) -> Reading:
    """Read one file, or all ``.xml`` files below a folder, which may be in an archive.

    Sentences stay as they are in the file, separated by newlines. A pair that interacts is a
    relation from its e1 to its e2, with the pair's type. If the file lists all pairs of drugs of a
    sentence, the document asks about all of them, otherwise about those listed. An interaction
    without a type is left out, both as a relation and as a pair, and reported
    ("relation-without-type").

    Raises:
        MissingDataError: there is no such file, or the folder holds none.
        FormatError: a file is not XML or not of the corpus.
    """
    trees = xml_files(path) if files.is_folder(path) else [path]
    if not trees:
        raise MissingDataError("the folder holds no .xml file", where=str(path))
    source = Source(path, options)
    found = source.read(((str(f), f.stem, f) for f in trees), _ddi_document, format="ddi")
    return replace(found, details={"files": str(len(trees)), "encoding": source.encoding})


def xml_files(folder: Path) -> list[Path]:
    """The XML files of a folder and of the folders in it, in the order of their names."""
    try:
        packed = files.archive_member(folder) is not None and not folder.exists()
        return sorted(
            file
            for file in (files.files_below(folder) if packed else folder.rglob("*"))
            if file.suffix.lower() == ".xml"
            and not file.name.startswith(".")
            and (packed or file.is_file())
        )
    except OSError as error:
        raise DataError(f"the folder cannot be read ({error})", where=str(folder)) from error


def _ddi_document(source: Source, where: str, name: str, path: Path) -> Document:
    root, source.encoding = files.parse_xml(path, source.options.encoding)
    if root.tag != ROOT or root.find("passage") is not None:
        raise FormatError(
            "not a document of the DDI corpus",
            expected="<document> with <sentence> in it",
            got=f"<{quoted(root.tag)}>",
        )
    sentences = root.findall("sentence")
    texts = [sentence.get("text", "") for sentence in sentences]
    whole = join_sentences(texts)
    called = _one_word(root.get("id", name)) or name
    draft = Draft(source, called, whole.text, where, sentences=whole.sentences)
    draft.keep = True
    keys: list[dict[str, str]] = []
    places = [f"{path}#{one.get('id', f's{number}')}" for number, one in enumerate(sentences)]
    for start, text, sentence, place in zip(whole.starts, texts, sentences, places, strict=True):
        draft.within = (TextPart(start, start + len(text)),)
        keys.append({})
        for item in sentence.findall("entity"):
            name, key = _add_drug(draft, item, place)
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


def _one_word(name: str) -> str:
    return "_".join(name.split())


def _add_drug(draft: Draft, item: files.Element, where: str) -> tuple[str, str]:
    """Take an entity; its name in the file, and its key."""
    kind, name = item.get("type", ""), _one_word(item.get("id", ""))
    if not kind or not name:
        raise FormatError("an entity without id or type", expected="both", where=where)
    offsets = item.get("charOffset", "")
    matches = [_OFFSETS.fullmatch(part.strip()) for part in offsets.split(";")]
    if not all(matches):
        raise FormatError(
            "offsets of an entity", expected="a-b, or a-b;c-d", got=quoted(offsets), where=where
        )
    spans = [(int(match[1]), int(match[2]) + 1) for match in matches if match]
    return name, draft.entity(kind, spans, given=name, surface=item.get("text"), where=where)


def _pairs(
    draft: Draft, sentence: files.Element, known: dict[str, str], where: str
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
        head, tail = (_one_word(item.get(end, "")) for end in ("e1", "e2"))
        placed = {head, tail} <= known.keys()
        if answer == "true" and not kind:
            what = f"pair {item.get('id')} interacts, but how is not said: the pair is left out"
            draft.lost("relation-without-type", what, where=where)
        elif answer == "true" or not placed:
            ends = known.get(head, f"\0{head}"), known.get(tail, f"\0{tail}")
            draft.relation(kind or "pair", *ends, where=where)
        if placed and (answer == "false" or kind):
            yield draft.names[known[head]], draft.names[known[tail]]


DDI = Format(
    "ddi",
    "DDI corpus",
    "",
    _read_ddi,
    by_bytes=lambda path, raw: files.root_name(raw) == ROOT,
    whole=True,
)
