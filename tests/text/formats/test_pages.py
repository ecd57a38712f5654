"""The table of docs/formats/all.md: the formats of tools, their pages, and what writing loses.

`make tables` writes it anew.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path

from confide.text.document import Document, Entity, Relation
from confide.text.formats import FORMATS, write

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "all.md"
TOOLS = "| format | files | what writing loses |"
PAGES = {
    "conll.md": ("conll", "conllu"),
    "brat.md": ("brat",),
    "jsonl.md": ("jsonl", "doccano"),
    "tools.md": (
        "prodigy", "labelstudio", "labelstudio-min", "pubannotation", "medcattrainer", "spacy",
        "ner-annotator", "xmi", "webanno",
    ),
    "tokens.md": ("datasets", "docbin", "gliner", "spert", "dygie"),
    "pubtator.md": ("pubtator", "bioc"),
    "clinical.md": ("fhir", "omop", "note-nlp"),
    "notes.md": ("notes", "text", "table"),
}  # fmt: skip
"""The page of each format; those of published corpora are on `published.md`."""
PLAIN = Document(
    "1", "Rash and pain", (Entity("T1", "ADE", ((0, 4),)), Entity("T2", "Sign", ((9, 13),)))
)
RASH, PAIN = PLAIN.entities
WITH = {
    "nested": replace(PLAIN, entities=(replace(RASH, fragments=((0, 13),)), PAIN)),
    "discontinuous": replace(PLAIN, entities=(replace(RASH, fragments=((0, 4), (9, 13))),)),
    "relations": replace(PLAIN, relations=(Relation("R1", "causes", "T1", "T2"),)),
    "concepts": replace(PLAIN, entities=(replace(RASH, concepts=("C1",)), PAIN)),
    "confidences": replace(PLAIN, entities=(replace(RASH, confidence=0.5), PAIN)),
    "attributes": replace(PLAIN, entities=(replace(RASH, attributes=(("mild", "yes"),)), PAIN)),
    "relations of concepts": replace(
        PLAIN,
        entities=(replace(RASH, concepts=("C1",)), replace(PAIN, concepts=("C2",))),
        relations=(Relation("R1", "causes", "C1", "C2", level="concept"),),
    ),
}
"""A document for each thing that a format may not hold."""


def lost(name: str) -> str:
    """What a format loses of the documents `WITH`, by trying."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for thing, document in [("entities", PLAIN), *WITH.items()]:
            path = Path(folder, f"{thing}{FORMATS[name].suffix}")
            if any(problem.lost for problem in write([document], path, name)):
                found.append(thing)
    if "entities" in found:
        return "all annotation" if "relations" in found else "all but relations"
    if {"concepts", "relations"} & set(found) and "relations of concepts" in found:
        found.remove("relations of concepts")
    return ", ".join(found) or "nothing"


def rows() -> list[str]:
    """The rows of the table."""
    return [
        f"| `{name}` | [{FORMATS[name].title}]({page}) |"
        f" {lost(name) if FORMATS[name].write else '*not written*'} |"
        for page, names in PAGES.items()
        for name in names
    ]


def page() -> str:
    """The page with its table as the code has it."""
    before, _, after = PAGE.read_text(encoding="utf-8").partition(TOOLS)
    _, rule, *lines = after.split("\n")
    rest = dropwhile(lambda line: line.startswith("|"), lines)
    return "\n".join([before + TOOLS, rule, *rows(), *rest])


def test_the_page_has_all_formats_and_what_they_lose() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "make tables"


def test_each_format_is_on_its_page() -> None:
    for file, names in PAGES.items():
        text = PAGE.with_name(file).read_text(encoding="utf-8")
        assert not [name for name in names if f"`{name}`" not in text], file
    corpora = PAGE.with_name("published.md").read_text(encoding="utf-8")
    named = {name for names in PAGES.values() for name in names}
    assert not [name for name in FORMATS if name not in named and f"`{name}`" not in corpora]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
