"""The ADE corpus (Gurulingappa et al. 2012): drugs, adverse effects and doses in MEDLINE sentences.

Three files: `DRUG-AE.rel` and `DRUG-DOSE.rel`, one relation per line, and `ADE-NEG.txt`, sentences
without an adverse effect. `DRUG-DOSE.rel` annotates sentences of `DRUG-AE.rel` a second time, so
the two are always read as one: nothing here gives a sentence twice.

Offsets in the files count from the start of an abstract, which the files do not contain. They still
tell how far apart the mentions of one sentence are, and so which of several places is meant.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Span
from confide.text.files import lines_of, read_text
from confide.text.reading import Draft, Format, Options, Reading, Sample, Source
from confide.text.rows import is_number, quoted
from confide.text.segment import join_sentences

EFFECTS, DOSES, NEGATIVES = "DRUG-AE.rel", "DRUG-DOSE.rel", "ADE-NEG.txt"
_TYPES = {EFFECTS: "AE", DOSES: "Dose"}
_RELATIONS = {"AE": "adverse-effect", "Dose": "dose"}
_NEGATIVE = re.compile(r"([^|\s]+) NEG (.*\S.*)")
_CERTAIN = re.compile(r"\d+ NEG \S")
_SAMPLE = 50
_MOST_PLACES = 1000


class _Mention(NamedTuple):
    """A mention as given in a line: its offsets count from the start of the abstract."""

    type: str
    surface: str
    begin: int
    end: int


class _Row(NamedTuple):
    """A line of a `.rel` file: `drug` has the `other`, an effect or a dose."""

    where: str
    sentence: str
    other: _Mention
    drug: _Mention


@dataclass(slots=True)
class _Abstract:
    """Everything in the files about one abstract, in order."""

    where: str
    positive: dict[str, list[_Row]] = field(default_factory=dict)
    negative: dict[str, str] = field(default_factory=dict)


def corpus_file(path: Path) -> str | None:
    """The one of the three files (`EFFECTS`, `DOSES`, `NEGATIVES`) that a name means, if any."""
    name = path.name.lower().removesuffix(".gz")
    return next((known for known in (*_TYPES, NEGATIVES) if known.lower() == name), None)


def _is_ade(sample: Sample) -> bool:
    """Return whether a file begins with lines of the ADE corpus."""
    first = sample.rows[:_SAMPLE]
    return all(_columns(line) is not None for line in first) or all(map(_CERTAIN.match, first))


def _read(path: Path, options: Options, name: str) -> Reading:
    """Read the corpus: all sentences of an abstract form one document, named by its PubMed id.

    From a folder, all of the three files that exist are read. `DRUG-AE.rel` is read with the
    `DRUG-DOSE.rel` beside it; `ADE-NEG.txt` gives the sentences without an adverse effect, unless
    the format is "ade-positive".

    Raises:
        MissingDataError: the folder holds none of the three files.
        FormatError: a line does not have its file's form, or the file is none of the three.
        DataError: `DRUG-DOSE.rel` is named without the `DRUG-AE.rel` beside it, or a file is empty.
    """
    files = _files(path, negatives=name == "ade")
    source = Source(path, options)
    abstracts: dict[str, _Abstract] = {}
    for part, file in files.items():
        text, encoding = read_text(file, options.encoding)
        source.encoding = source.encoding or encoding
        lines = [(f"{file}:{n}", line) for n, line in enumerate(lines_of(text), 1) if line.strip()]
        if not lines:
            raise DataError("the file is empty", where=str(file))
        for where, line in lines:
            with options.document(source.problems, where):
                if part == NEGATIVES:
                    _add_negative(where, line, abstracts, source)
                else:
                    _add_row(where, line, _TYPES[part], abstracts)
    if list(files) == [NEGATIVES] and _beside(path.parent).keys() & _TYPES.keys():
        what = f"the files beside it hold other sentences of the same abstracts: read {path.parent}"
        source.problems.note("abstracts-divided", path, what)
    rows = ((abstract.where, id, abstract) for id, abstract in abstracts.items())
    found = source.read(rows, _document, format=name)
    return replace(found, details={"files": ", ".join(files), **found.details})


def _files(path: Path, *, negatives: bool) -> dict[str, Path]:
    """The files to read, the effects before the doses before the negatives."""
    if not path.exists():
        raise MissingDataError(
            "there is no such file or folder", where=str(path), fix="check the path"
        )
    if path.is_dir():
        chosen = _beside(path)
    else:
        part = corpus_file(path)
        if part is None:
            raise FormatError(
                "which file of the ADE corpus is this?",
                expected=f"the name {EFFECTS}, {DOSES} or {NEGATIVES}, or their folder",
                got=path.name,
                where=str(path),
                fix="give it the name that it has in the corpus",
            )
        beside = {} if part == NEGATIVES else _beside(path.parent)
        if part == DOSES and EFFECTS in beside:
            raise DataError(
                f"its sentences are sentences of the {EFFECTS} beside it, which has more of them",
                where=str(path),
                fix=f"read the folder, or {EFFECTS} alone: the doses are joined to it",
            )
        chosen = {part: path}
        if part == EFFECTS and DOSES in beside:
            chosen[DOSES] = beside[DOSES]
    if not negatives:
        chosen.pop(NEGATIVES, None)
    if not chosen:
        wanted = " or ".join((EFFECTS, DOSES, *([NEGATIVES] if negatives else [])))
        what = "there is no file of the ADE corpus"
        raise MissingDataError(what, expected=wanted, where=str(path))
    return chosen


def _beside(folder: Path) -> dict[str, Path]:
    """The files of the corpus in a folder."""
    try:
        inside = sorted(file for file in folder.iterdir() if file.is_file())
    except (OSError, ValueError) as error:
        raise MissingDataError(f"cannot be read ({error})", where=str(folder)) from error
    found: dict[str, Path] = {}
    for part in (EFFECTS, DOSES, NEGATIVES):
        files = [file for file in inside if corpus_file(file) == part]
        if len(files) > 1:
            raise DataError(
                f"the folder holds {part} twice",
                got=" and ".join(file.name for file in files),
                where=str(folder),
                fix="keep one of them",
            )
        if files:
            found[part] = files[0]
    return found


# --- Lines ----------------------------------------------------------------------------------------


def _columns(line: str) -> list[str] | None:
    """The eight columns of a line of a `.rel` file; the sentence itself may hold a bar."""
    id, _, rest = line.partition("|")
    columns = [id, *rest.rsplit("|", 6)]
    if len(columns) != 8 or not all(columns[place].strip() for place in (0, 1, 2, 5)):
        return None
    return columns if all(is_number(columns[place]) for place in (3, 4, 6, 7)) else None


def _add_row(where: str, line: str, type: str, abstracts: dict[str, _Abstract]) -> None:
    """Put a line of a `.rel` file to its abstract."""
    columns = _columns(line)
    if columns is None:
        raise FormatError(
            "not a relation of the ADE corpus",
            expected="PubMed id|sentence|effect or dose|begin|end|drug|begin|end",
        )
    id, sentence, surface, begin, end, drug, drug_begin, drug_end = columns
    other = _Mention(type, surface, int(begin), int(end))
    row = _Row(where, sentence, other, _Mention("Drug", drug, int(drug_begin), int(drug_end)))
    abstract = abstracts.setdefault(id, _Abstract(where))
    abstract.positive.setdefault(sentence, []).append(row)


def _add_negative(where: str, line: str, abstracts: dict[str, _Abstract], source: Source) -> None:
    """Put a sentence of `ADE-NEG.txt` to its abstract, once."""
    match = _NEGATIVE.fullmatch(line)
    if match is None:
        raise FormatError(
            "not a negative sentence of the ADE corpus",
            expected="PubMed id, NEG and a sentence, with one blank between them",
        )
    abstract = abstracts.setdefault(match[1], _Abstract(where))
    if match[2] in abstract.positive:
        what = f"the sentence has an adverse effect in {abstract.positive[match[2]][0].where}"
        source.problems.note("negative-and-positive", where, what)
    elif match[2] in abstract.negative:
        what = f"the sentence stands already in {abstract.negative[match[2]]}"
        source.problems.note("duplicate-sentence", where, what)
    else:
        abstract.negative[match[2]] = where


# --- From abstracts to documents ------------------------------------------------------------------


def _document(source: Source, where: str, name: str, abstract: _Abstract) -> Document:
    """The positive sentences in the order of the abstract, then the negative ones in file order."""
    placed = {text: _place(text, rows, source) for text, rows in abstract.positive.items()}
    ordered = sorted(placed, key=lambda text: placed[text][0])
    whole = join_sentences([*ordered, *abstract.negative])
    draft = Draft(source, name, whole.text, where, sentences=whole.sentences)
    marked: dict[tuple[str, _Mention], tuple[int, int, str]] = {}
    for text, start in zip(ordered, whole.starts, strict=False):
        for mention, (begin, end) in placed[text][1].items():
            marked[text, mention] = (start + begin, start + end, mention.type)
    keys = {mark: draft.entity(mark[2], [mark[:2]]) for mark in sorted(set(marked.values()))}
    names = {key: keys[mark] for key, mark in marked.items()}
    _relate(draft, [row for text in ordered for row in abstract.positive[text]], names)
    return draft.document()


def _relate(draft: Draft, rows: Sequence[_Row], names: dict[tuple[str, _Mention], str]) -> None:
    """Link each drug to its effects and doses; `names` has the entities of placed mentions."""
    seen: dict[tuple[str, str, str], str] = {}
    for row in rows:
        type = _RELATIONS[row.other.type]
        head, tail = (names.get((row.sentence, end)) for end in (row.drug, row.other))
        if head is None or tail is None:
            what = f"{type} of {quoted(row.drug.surface)}: a mention is not in the sentence"
            draft.lost("dangling-relation", what, where=row.where)
            continue
        earlier = seen.setdefault((type, head, tail), row.where)
        if earlier != row.where:
            what = f"the same relation is in {earlier}"
            draft.note("duplicate-relation", what, where=row.where)
            continue
        draft.relation(type, head, tail, where=row.where)


def _place(text: str, rows: Sequence[_Row], source: Source) -> tuple[int, dict[_Mention, Span]]:
    """The start of a sentence in its abstract, and the places of its mentions in the sentence.

    Each place at which a mention's string occurs implies where the sentence would begin. The start
    that most mentions agree on is taken, and each mention gets the place nearest to it.
    """
    first = {mention: row.where for row in reversed(rows) for mention in (row.drug, row.other)}
    places: dict[_Mention, list[int]] = {}
    for mention in first:
        found = places.setdefault(mention, [])
        place = text.find(mention.surface)
        while place >= 0 and len(found) < _MOST_PLACES:
            found.append(place)
            place = text.find(mention.surface, place + 1)
    votes = Counter(mention.begin - place for mention in places for place in places[mention])
    most = max(votes.values(), default=0)
    begins = [begin for begin, count in votes.items() if count == most]
    begin = max(begins, default=min(mention.begin for mention in places))
    spans: dict[_Mention, Span] = {}
    for mention, where in first.items():
        named, count = f"{mention.type} {quoted(mention.surface)}", len(places[mention])
        if not count:
            source.problems.lost("not-in-sentence", where, f"{named} is not in the sentence")
            continue
        meant = mention.begin - begin
        place = min(places[mention], key=lambda place: abs(place - meant))
        spans[mention] = (place, place + len(mention.surface))
        if count > 1 and (len(begins) > 1 or place != meant):
            what = f"{named} may stand at {count} places of the sentence"
            source.problems.note("ambiguous-mention", where, what)
        elif place != meant or mention.end - mention.begin != len(mention.surface):
            what = f"{named} has offsets that contradict its length or the other mentions'"
            source.problems.note("offset-mismatch", where, what)
    return begin, spans


ADE = Format("ade", "ADE corpus", "", partial(_read, name="ade"), by_text=_is_ade, whole=True)
ADE_POSITIVE = Format(
    "ade-positive",
    "ADE corpus without negatives",
    "",
    partial(_read, name="ade-positive"),
    whole=True,
)
