"""WebAnno TSV 3, as WebAnno and INCEpTION write it: a token per line, a column per feature.

Span layers are entities, relation layers and slots are relations; chains are not read. Offsets
count UTF-16 units. A unit such as ``1-2.1`` is a part of a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem, Sentence, Span
from confide.text.draft import Draft, TokenDocument, tokens_of_document
from confide.text.files import lines_of, read_text, write_text
from confide.text.formats.xmi import (
    NAMED_ENTITY,
    RELATION,
    is_linguistic,
    name_of_item,
    short,
    utf16_offsets,
)
from confide.text.reading import (
    Options,
    Reading,
    Supports,
    clean,
    file_name,
    quoted,
    reduce_to,
    unheld,
)
from confide.text.segment import segmented

MARK = "#FORMAT=WebAnno TSV 3"
_UNIT = re.compile(r"(\d{1,9}-\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_OFFSETS = re.compile(r"(\d{1,10})-(\d{1,10})", re.ASCII)
_STACKED = re.compile(r"(?s)(.*)\[(\d{1,9})\]")
_ENDS = re.compile(r"(\d{1,9}-\d{1,9}(?:\.\d{1,9})?)(?:\[(\d{1,9})(?:_(\d{1,9}))?\])?", re.ASCII)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r"}
_NONE, _UNSET = "_", "*"


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of the header: its name, its features, and the place of its first column."""

    name: str
    kind: str
    features: tuple[str, ...]
    first: int

    @property
    def slots(self) -> frozenset[int]:
        """The places of the features that are links: a role, and beside it a target."""
        roles = [n for n, feature in enumerate(self.features) if feature.startswith("ROLE_")]
        return frozenset(place for n in roles for place in (n, n + 1))

    @property
    def base(self) -> str:
        """The layer that a relation's ends are of."""
        return self.features[-1].removeprefix("BT_")


@dataclass(slots=True)
class _Span:
    """An annotation in the making: its characters and features."""

    layer: _Layer
    start: int
    end: int
    features: dict[str, str]


@dataclass(slots=True)
class _Page:
    """A file: the layers, and what its lines say so far."""

    path: Path
    layers: list[_Layer]
    problems: list[Problem]
    tokens: list[list[tuple[int, int, str]]] = field(default_factory=list)
    spans: dict[tuple[str, str, str], _Span] = field(default_factory=dict)
    units: dict[tuple[str, str, str], tuple[str, str, str]] = field(default_factory=dict)
    links: list[tuple[_Layer, str, str, str, dict[str, str]]] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)


def is_webanno(text: str) -> bool:
    """Return whether a text begins as WebAnno TSV 3 does."""
    return text.lstrip("\ufeff").startswith(MARK)


def read_webanno(path: Path, options: Options) -> Reading:
    """Read a file as one document, called as the file.

    Raises:
        FormatError: the file does not begin as WebAnno TSV 3, or a line has another form.
        DataError: there is no token, or a type was not declared.
    """
    text, encoding = read_text(path, options.encoding)
    if not is_webanno(text):
        raise FormatError("not WebAnno TSV 3", expected=MARK, where=f"{path}:1")
    lines = lines_of(text)
    page = _Page(path, list(_layers(lines, path)), [])
    for number, line in enumerate(lines, 1):
        if line.startswith("#Text="):
            page.tokens.append([])
        elif line.strip() and not line.startswith("#"):
            _row(page, line.split("\t"), f"{path}:{number}")
    if not any(page.tokens):
        raise DataError("the file holds no token", where=str(path))
    document = _document(page, options)
    return Reading([document], page.problems, "webanno", {"encoding": encoding})


def _layers(lines: Sequence[str], path: Path) -> Iterator[_Layer]:
    """The layers of the header; the columns after id, offsets and token are theirs in order."""
    first = 3
    for number, line in enumerate(lines, 1):
        if line.startswith("#T_"):
            kind, _, rest = line[1:].partition("=")
            name, *features = rest.strip().split("|")
            if kind not in ("T_SP", "T_RL", "T_CH") or not name:
                raise FormatError(
                    "a layer of another form",
                    expected="#T_SP=name|feature, #T_RL or #T_CH",
                    got=quoted(line),
                    where=f"{path}:{number}",
                )
            if not features and kind == "T_RL":
                raise FormatError(
                    "a layer of relations that does not say what they link",
                    expected="#T_RL=name|feature|BT_layer of its ends",
                    got=quoted(line),
                    where=f"{path}:{number}",
                )
            if features and features[-1].startswith("ROLE_"):
                raise FormatError(
                    "a column of roles without one of what they lead to",
                    expected="#T_SP=name|ROLE_slot|type of the target",
                    got=quoted(line),
                    where=f"{path}:{number}",
                )
            yield _Layer(name, kind, tuple(features), first)
            first += max(1, len(features))
        elif line and not line.startswith("#"):
            return


def _row(page: _Page, cells: Sequence[str], where: str) -> None:
    """A token's line, or that of a part of a token."""
    unit = _UNIT.fullmatch(cells[0])
    offsets = _OFFSETS.fullmatch(cells[1]) if len(cells) > 2 else None
    if unit is None or offsets is None:
        raise FormatError(
            "not a line of WebAnno TSV 3",
            expected="1-1 TAB 0-4 TAB token TAB features",
            got=quoted("\t".join(cells)),
            where=where,
        )
    start, end = int(offsets[1]), int(offsets[2])
    if unit[2] is None:
        if not page.tokens:
            page.tokens.append([])
        page.tokens[-1].append((start, end, _plain(cells[2])))
    for layer in page.layers:
        width = max(1, len(layer.features))
        own = list(cells[layer.first : layer.first + width])
        own += [_NONE] * (width - len(own))  # a line may end before its last columns
        if layer.kind == "T_CH" or is_linguistic(layer.name):
            if any(cell not in (_NONE, "") for cell in own):
                page.ignored.add(layer.name)
        elif layer.kind == "T_SP":
            _spans(page, layer, own, (cells[0], start, end))
        else:
            _relation(page, layer, own, cells[0])


def _plain(value: str) -> str:
    """A value without its escapes."""
    if "\\" in value:
        value = _ESCAPED.sub(lambda match: _LETTERS.get(match[1], match[1]), value)
    return clean(value)


def _stack(cell: str) -> list[tuple[str, str]]:
    """The values of a cell, each with its number in a stack ("" where it has none)."""
    found = []
    for part in re.split(r"(?<!\\)\|", cell) if cell else []:
        match = _STACKED.fullmatch(part)
        numbered = match is not None and not match[1].endswith("\\")
        value, number = (match[1], match[2]) if match is not None and numbered else (part, "")
        found.append((value, number))
    return found


def _spans(page: _Page, layer: _Layer, cells: Sequence[str], unit: tuple[str, int, int]) -> None:
    """The annotations of one layer that touch a token; a number joins those of several tokens."""
    name, start, end = unit
    slots = layer.slots
    columns = [
        [(part, "") for part in re.split(r"(?<!\\)\|", cell)] if place in slots else _stack(cell)
        for place, cell in enumerate(cells)
    ]
    most = max((len(column) for column in columns), default=0)
    for place in range(most):
        values = [column[place] if place < len(column) else (_NONE, "") for column in columns]
        if all(value == _NONE for value, _ in values):
            continue
        number = next((number for _, number in values if number), "")
        key = layer.name, number or f"{name}/{place}", ""
        page.units[layer.name, name, number] = key
        known = page.spans.get(key)
        if known is not None:
            known.start, known.end = min(known.start, start), max(known.end, end)
            continue
        features = {
            feature: _plain(value)
            for at, (feature, (value, _)) in enumerate(zip(layer.features, values, strict=False))
            if at not in slots and value not in (_NONE, _UNSET)
        }
        page.spans[key] = _Span(layer, start, end, features)
        _slots(page, layer, values, key)


def _slots(
    page: _Page, layer: _Layer, values: Sequence[tuple[str, str]], host: tuple[str, str, str]
) -> None:
    """Links with roles: a column of roles, and beside it one of targets, cut by semicolons."""
    for place, feature in enumerate(layer.features[:-1]):
        if not feature.startswith("ROLE_"):
            continue
        roles, targets = values[place][0].split(";"), values[place + 1][0].split(";")
        base = layer.features[place + 1]
        for role, target in zip(roles, targets, strict=False):
            if target not in (_NONE, _UNSET, ""):
                kind = feature.partition(":")[2] or short(layer.name)
                said = {"role": kind if role in (_NONE, _UNSET) else _plain(role)}
                slot = _Layer(base, "T_SL", (base,), 0)
                page.links.append((slot, "\0".join(host), target, "", said))


def _relation(page: _Page, layer: _Layer, cells: Sequence[str], unit: str) -> None:
    """The relations that end at a token; the last column says where each begins."""
    for place, (source, number) in enumerate(_relation_stack(cells[-1] if cells else "")):
        features: dict[str, str] = {}
        for feature, cell in zip(layer.features[:-1], cells, strict=False):
            stack = _stack(cell)
            value = stack[place][0] if place < len(stack) else _NONE
            if value not in (_NONE, _UNSET):
                features[feature] = _plain(value)
        page.links.append((layer, source, unit, number, features))


def _relation_stack(cell: str) -> Iterator[tuple[str, str]]:
    for part in cell.split("|"):
        if part not in (_NONE, ""):
            match = _ENDS.fullmatch(part)
            numbers = f"{match[2] or ''} {match[3] or ''}" if match else " "
            yield (match[1] if match else part), numbers


# --- the document -------------------------------------------------------------------------


def _document(page: _Page, options: Options) -> Document:
    text, places, sentences = _laid_out(page)
    name = page.path.name.partition(".")[0] or page.path.name
    draft = Draft(name, text, str(page.path), options, page.problems, sentences)
    for key, span in page.spans.items():
        kind, concepts, attributes = name_of_item(span.layer.name, span.features)
        fragment = places.get(span.start, 0), places.get(span.end, 0)
        name = "\0".join(key)
        draft.entity(kind, [fragment], given=name, concepts=concepts, attributes=attributes)
    for layer, source, target, numbers, features in page.links:
        ends = _link_ends(page, layer, source, target, numbers=numbers)
        kind, _, attributes = name_of_item(layer.name, features)
        draft.relation(kind, *map("\0".join, ends), attributes=attributes)
    quiet = sorted(short(name) for name in page.ignored if is_linguistic(name))
    if quiet:
        what = f"layers of the text's analysis are not read: {', '.join(quiet)}"
        page.problems.append(Problem("layer-ignored", str(page.path), what))
    for name in sorted(name for name in page.ignored if not is_linguistic(name)):
        what = f"the chains of {short(name)} are not read"
        page.problems.append(Problem("layer-ignored", str(page.path), what, lost=True))
    return draft.document()


def _laid_out(page: _Page) -> tuple[str, dict[int, int], tuple[Sentence, ...]]:
    """The text that the tokens make up, where each offset stands in it, and the sentences."""
    pieces: list[str] = []
    places: dict[int, int] = {}
    sentences: list[Sentence] = []
    length = units = 0
    for row in page.tokens:
        own: list[Span] = []
        for start, end, token in row:
            wide = sum(1 + (character > "\uffff") for character in token)
            if start < units or end - start != wide:
                raise FormatError(
                    "tokens that do not fit their offsets",
                    expected=f"a token of {wide} from {units} on",
                    got=f"{start}-{end}",
                    where=str(page.path),
                )
            if start - units > len(token) + _MOST_BLANKS:
                raise FormatError("a gap of blanks", got=f"{start - units:,}", where=str(page.path))
            gap = start - units
            new_line = not own and bool(sentences)
            pieces += [("\n" + " " * (gap - 1)) if new_line and gap else " " * gap, token]
            length += gap
            offset = start
            for place, character in enumerate(token):
                places[offset] = length + place
                offset += 1 + (character > "\uffff")
            if token.strip():
                own.append((length, length + len(token)))
            length += len(token)
            places[end] = length
            units = end
        if own:
            sentences.append(Sentence(own[0][0], own[-1][1], tuple(own)))
    return "".join(pieces), places, tuple(sentences)


_MOST_BLANKS = 100_000


_Key = tuple[str, str, str]


def _link_ends(
    page: _Page, layer: _Layer, source: str, target: str, *, numbers: str
) -> tuple[_Key, _Key]:
    """The keys of the annotations at both ends of a relation."""
    nowhere = ("", "", "")
    if layer.kind == "T_SL":
        match = _ENDS.fullmatch(target)
        tail = (
            page.units.get((layer.name, match[1], _or_none(match[2])), nowhere)
            if match
            else nowhere
        )
        parts = source.split("\0")
        return (parts[0], parts[1], parts[2]), tail
    first, _, second = numbers.partition(" ")
    head = page.units.get((layer.base, source, _or_none(first)), nowhere)
    return head, page.units.get((layer.base, target, _or_none(second)), nowhere)


def _or_none(number: str | None) -> str:
    """A number in a stack; 0 stands for none."""
    return "" if number in (None, "", "0") else str(number)


# --- Documents to WebAnno TSV 3.3, one file each --------------------------------------------------
#
# Named entities with identifiers, and relations.

_KEEPS = Supports(relations=True, concepts=True, sentences=True)
_HEAD = (
    f"{MARK}.3",
    f"#T_SP={NAMED_ENTITY}|identifier|value",
    f"#T_RL={RELATION}|label|BT_{NAMED_ENTITY}",
    "",
)
_SPECIAL = re.compile(r"[\\\[\]|_;*]|->")
_BLANK = re.compile(r"[\t\n\r\0]")


def write_webanno(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write a folder of files; `scheme` is not used.

    Entities are widened to tokens. White space other than blanks, and one line end between two
    sentences, is lost. Raises DataError if the files cannot be written.
    """
    cut, problems = reduce_to(documents, _KEEPS, path)
    taken: set[str] = set()
    several = other = 0
    for document in map(segmented, cut):
        marked = tokens_of_document(document, problems)
        if marked is None:
            continue
        name = file_name(document.id, taken)
        write_text(path / f"{name}.tsv", "\n".join(_lines(document, marked)) + "\n")
        other += _kept(document) != document.text
        several += sum(len(entity.concepts) > 1 for entity in document.entities)
    concepts = "entities have several concepts: the first is written"
    return [
        *problems,
        *unheld(path, "documents lose their white space", other, kind="white-space-unheld"),
        *unheld(path, concepts, several, kind="concepts-unheld"),
    ]


def _kept(document: Document) -> str:
    """The text that a reader makes of the tokens and their offsets."""
    pieces: list[str] = []
    last = 0
    for number, sentence in enumerate(document.sentences):
        for place, (start, end) in enumerate(sentence.tokens):
            gap = start - last
            line = number and place == 0 and gap
            pieces += ["\n" + " " * (gap - 1) if line else " " * gap, document.text[start:end]]
            last = end
    return "".join(pieces)


def _lines(document: Document, marked: TokenDocument) -> Iterator[str]:
    yield from _HEAD
    offsets = [offset for one in document.sentences for token in one.tokens for offset in token]
    units = utf16_offsets(document.text, offsets)
    ends_at: dict[int, list[str]] = {}
    labels: dict[int, list[str]] = {}
    names = _names(document)
    for link in marked.links:
        assert isinstance(link.head, int) and isinstance(link.tail, int)
        head, tail = marked.mentions[link.head], marked.mentions[link.tail]
        place = f"{names[head.start]}[{link.head + 1}_{link.tail + 1}]"
        ends_at.setdefault(tail.start, []).append(place)
        labels.setdefault(tail.start, []).append(_escaped(link.type))
    over: dict[int, list[int]] = {}
    for number, mention in enumerate(marked.mentions):
        for token in range(mention.start, mention.end):
            over.setdefault(token, []).append(number)
    number = 0
    for sentence in document.sentences:
        yield ""
        whole = document.text[sentence.start : sentence.end]
        yield f"#Text={_BLANK.sub(' ', whole)}"
        for start, end in sentence.tokens:
            own = over.get(number, [])
            stack = [(_escaped(marked.mentions[n].concept) if marked.mentions[n].concept else "*",
                      _escaped(marked.mentions[n].type), n + 1) for n in own]  # fmt: skip
            cells = [
                names[number],
                f"{units[2 * number]}-{units[2 * number + 1]}",
                _escaped(document.text[start:end], token=True),
                "|".join(f"{concept}[{n}]" for concept, _, n in stack) or "_",
                "|".join(f"{kind}[{n}]" for _, kind, n in stack) or "_",
                "|".join(labels.get(number, ())) or "_",
                "|".join(ends_at.get(number, ())) or "_",
            ]
            yield "\t".join(cells) + "\t"
            number += 1


def _names(document: Document) -> list[str]:
    """The names of all tokens: sentence and place, from 1."""
    return [
        f"{number}-{place}"
        for number, sentence in enumerate(document.sentences, 1)
        for place in range(1, len(sentence.tokens) + 1)
    ]


def _escaped(value: str, *, token: bool = False) -> str:
    plain = _BLANK.sub(" ", value)
    return plain.replace("\\", "\\\\") if token else _SPECIAL.sub(r"\\\g<0>", plain)
