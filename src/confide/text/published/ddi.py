"""The DDI corpus (2013): drugs in sentences, and for every pair of them whether they interact.

One XML file is one document. Offsets (`charOffset`) count from the start of their sentence, their
end is inclusive, and a discontinuous drug has several, ``a-b;c-d``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from confide.errors import DataError, FormatError, MissingDataError
from confide.text.document import Document, Span, pair_attributes
from confide.text.draft import Draft, Source, gathered, joined
from confide.text.files import Element, files_below, inside, is_folder, parse
from confide.text.places import Stretch
from confide.text.reading import Options, Reading, shown

ROOT = "document"
_OFFSETS = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)


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
    source = Source(path, options, "", "")
    reading = gathered(
        source, ((str(f), f.stem, f) for f in files), partial(_document, source), format="ddi"
    )
    encoding = source.encoding
    return replace(reading, details={"files": str(len(files)), "encoding": encoding})


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


def _document(source: Source, where: str, name: str, path: Path) -> Document:
    root, source.encoding = parse(path, source.options.encoding)
    if root.tag != ROOT or root.find("passage") is not None:
        raise FormatError(
            "not a document of the DDI corpus",
            expected="<document> with <sentence> in it",
            got=f"<{shown(root.tag)}>",
            where=where,
        )
    sentences = root.findall("sentence")
    texts = [sentence.get("text", "") for sentence in sentences]
    whole = joined(texts)
    called = "_".join(root.get("id", name).split()) or name
    draft = source.draft(called, whole.text, where)
    draft.sentences, draft.keep = whole.sentences, True
    keys: list[dict[str, str]] = []
    places = [f"{path}#{one.get('id', f's{number}')}" for number, one in enumerate(sentences)]
    for start, text, sentence, place in zip(whole.starts, texts, sentences, places, strict=True):
        draft.within = (Stretch(start, start + len(text)),)
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
            "offsets of an entity", expected="a-b, or a-b;c-d", got=shown(offsets), where=where
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
                got=shown(answer),
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
