"""Text without annotation: raw, and in FHIR's resources."""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from confide.errors import DataError, FormatError
from confide.text.document import Document, Problem
from confide.text.files import LONGEST_JSON, decode_text, read_text, write_text
from confide.text.reading import Options, Reading, clean, mend_surrogates, unheld
from confide.text.rows import Row, json_objects

# --- Raw text -------------------------------------------------------------------------------------
#
# A file is one document without annotation; offsets count every character of it.


def read_plain(path: Path, options: Options) -> Reading:
    """Read a file as one document, named by the file's stem.

    Raises:
        FormatError: the bytes do not fit the encoding.
        DataError: there is nothing but white space in it.
    """
    text, encoding = read_text(path, options.encoding)
    if not text.strip():
        raise DataError("the file is empty", where=str(path))
    document = Document(path.stem, text, source=str(path))
    return Reading([document], [], "text", {"encoding": encoding})


def write_plain(documents: Sequence[Document], path: Path, scheme: str) -> list[Problem]:
    """Write the texts, separated by empty lines; `scheme` is not used."""
    write_text(path, "\n\n".join(document.text for document in documents))
    entities = sum(len(document.entities) for document in documents)
    relations = sum(len(document.relations) for document in documents)
    return [
        *unheld(path, "entities: raw text has none", entities, kind="entities-unheld"),
        *unheld(path, "relations: raw text has none", relations, kind="relations-unheld"),
    ]


# --- FHIR, as JSON --------------------------------------------------------------------------------
#
# The texts of DocumentReference, DiagnosticReport and other resources.
#
# A file is one resource, a Bundle of resources, or NDJSON as a bulk export gives it. An attachment
# that is plain text becomes a document; one that is not, or that lies elsewhere, is named.

_TYPE = re.compile(r"\s*(text/[\w.+-]+)\s*(?:;\s*charset\s*=\s*\"?([\w.:-]+)\"?)?.*", re.DOTALL)
_ATTACHED = (("DocumentReference", "content"), ("DiagnosticReport", "presentedForm"),
             ("Media", "content"), ("Binary", ""), ("Observation", "valueAttachment"),
             ("Communication", "payload"))  # fmt: skip
_ABOUT = ("status", "docStatus", "date", "created", "issued", "effectiveDateTime")
_DEEPEST = 8


def is_fhir(keys: Sequence[str]) -> bool:
    """Return whether the keys of an object are those of a FHIR resource."""
    return "resourceType" in keys


def read_fhir(path: Path, options: Options) -> Reading:
    """Read a document for each text, called by its resource's type and id.

    Raises:
        FormatError: it is not FHIR's JSON, or an attachment is damaged.
        DataError: there is no text.
    """
    text, encoding = read_text(path, options.encoding, longest=LONGEST_JSON)
    problems: list[Problem] = []
    documents: list[Document] = []
    others: Counter[str] = Counter()
    for where, _, tree in json_objects(text, path, options=options, problems=problems):
        for resource in _resources(Row(tree, where), 0):
            kind = str(resource.tree.get("resourceType", "nothing"))
            name = f"{kind}/{resource.name(('id',), str(len(documents) + 1))}"
            with options.document(problems, f"{where} {name}"):
                found = list(_texts(resource, clean(name), options, problems))
                documents += found
                if not found:
                    others[kind] += 1
    if others:
        named = ", ".join(f"{clean(kind)[:40]} {count}" for kind, count in others.most_common(8))
        problems.append(Problem("no-text", str(path), f"resources without a text: {named}"))
    if not documents:
        raise DataError(
            "there is no text in these resources",
            expected="a DocumentReference with an attachment that is text and has data",
            where=str(path),
        )
    return Reading(documents, problems, "fhir", {"encoding": encoding})


def _resources(row: Row, depth: int) -> Iterator[Row]:
    """A resource, or those of a bundle."""
    if not isinstance(row.tree.get("resourceType"), str):
        raise FormatError("not a FHIR resource", expected='"resourceType"', where=row.where)
    if row.tree["resourceType"] != "Bundle" or depth > _DEEPEST:
        yield row
        return
    for entry in row.rows("entry"):
        inner = entry.tree.get("resource")
        if isinstance(inner, dict) and "resourceType" in inner:
            yield from _resources(Row(inner, row.where), depth + 1)


def _texts(
    resource: Row, name: str, options: Options, problems: list[Problem]
) -> Iterator[Document]:
    """The texts of a resource's attachments; a second one has a number behind its name."""
    about = tuple(
        (key, clean(str(resource.tree[key])))
        for key in _ABOUT
        if isinstance(resource.tree.get(key), str)
    )
    subject = resource.tree.get("subject")
    if isinstance(subject, dict) and isinstance(subject.get("reference"), str):
        about += (("subject", clean(subject["reference"])),)
    kind = _coded(resource.tree.get("type") or resource.tree.get("code"))
    about += (("type", kind),) if kind else ()
    number = 0
    for attachment in _attachments(resource):
        text = _text(attachment, name, options, problems)
        if text is not None and text.strip():
            number += 1
            own = name if number == 1 else f"{name}#{number}"
            yield Document(own, text, attributes=about, source=f"{resource.where} {own}")


def _coded(concept: object) -> str:
    """The words, or the first code, of what something is."""
    if not isinstance(concept, dict):
        return ""
    coding = concept.get("coding")
    first = coding[0] if isinstance(coding, list) and coding else {}
    said = concept.get("text") or (isinstance(first, dict) and first.get("display"))
    return clean(said) if isinstance(said, str) else ""


def _attachments(resource: Row) -> Iterator[Row]:
    key = dict(_ATTACHED).get(str(resource.tree.get("resourceType")))
    if key is None:
        return
    held = resource.tree.get(key) if key else resource.tree
    for one in held if isinstance(held, list) else [held]:
        if isinstance(one, dict):
            inner = next((one[k] for k in ("attachment", "contentAttachment") if k in one), one)
            if isinstance(inner, dict):
                yield Row(inner, resource.where)


def _text(row: Row, name: str, options: Options, problems: list[Problem]) -> str | None:
    """The text of an attachment; None, and a problem, for one that has none."""
    given = row.tree.get("contentType")
    match = _TYPE.fullmatch(given) if isinstance(given, str) else None
    plain = match is not None and match[1] in ("text/plain", "text/markdown")
    if given is not None and not plain:
        what = f"{name} is {clean(str(given))[:60]}, not plain text"
        problems.append(Problem("not-plain-text", row.where, what, lost=True))
        return None
    data = row.tree.get("data")
    if not isinstance(data, str):
        if "url" in row.tree:
            what = f"{name} lies elsewhere (url): nothing is fetched"
            problems.append(Problem("text-elsewhere", row.where, what, lost=True))
        return None
    try:
        raw = base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError("an attachment that is not base64", where=row.where) from error
    charset = options.encoding or (match[2] if match is not None else None)
    text, _ = decode_text(raw, f"{row.where} {name}", encoding=charset)
    return mend_surrogates(text, row.where, problems)
