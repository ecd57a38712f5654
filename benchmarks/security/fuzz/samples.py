"""A small valid corpus in every format of `FORMATS`, as the files that it consists of."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "tests"))  # its tiny corpora

from confide.text.document import Document, Entity, Relation, pair_attributes
from confide.text.formats import FORMATS, write
from confide.text.segment import segmented
from text.formats import published
from text.formats import test_bioc as bioc
from text.published import test_ade as ade
from text.published import test_bag_formats as bags
from text.published import test_i2b2 as i2b2
from text.published import test_marked_pairs as pairs
from text.published import test_psytar as psytar

TEXT = "Rash after aspirin (81 mg) was seen.\nNaïve patients had no rash: see 😀 table 2."


@dataclass(frozen=True)
class Sample:
    """Files by their names, and the one that is read; none where the folder is."""

    files: dict[str, bytes]
    entry: str = ""


def document() -> Document:
    """A document with entities, one of them in two pieces, and a relation."""
    entities = (
        Entity("T1", "AE", ((0, 4),), 0.5, ("D005076",)),
        Entity("T2", "Drug", ((11, 18),)),
        Entity("T3", "AE", ((43, 51), (62, 66))),
    )
    pair = pair_attributes([("T1", "T2")])
    whole = Document(
        "d1", TEXT, entities, (Relation("R1", "adverse", "T1", "T2"),), attributes=pair
    )
    return segmented(whole)


@cache
def samples() -> dict[str, tuple[Sample, ...]]:
    """The samples of each format. Raises LookupError where a format has none."""
    found: dict[str, list[Sample]] = {name: list(_others().get(name, ())) for name in FORMATS}
    for name, kind in FORMATS.items():
        if kind.write is not None:
            found[name].append(_written(name))
    missing = [name for name, several in found.items() if not several]
    if missing:
        raise LookupError(f"no sample of the format {missing[0]}: write one in {__file__}")
    return {name: tuple(several) for name, several in found.items()}


def _written(name: str) -> Sample:
    """What our own writer makes of a document."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, f"out{FORMATS[name].suffix}")
        write([document()], place, name)
        if place.is_dir():
            return Sample({file.name: file.read_bytes() for file in sorted(place.iterdir())})
        return Sample({place.name: place.read_bytes()}, place.name)


def _others() -> dict[str, tuple[Sample, ...]]:
    """Samples of what is only read, or is written in other ways than ours."""
    rel = {"DRUG-AE.rel": ade.EFFECTS, "DRUG-DOSE.rel": ade.DOSES}
    note = {"n1.txt": i2b2.NOTE, "n1.con": i2b2.CON, "n1.rel": i2b2.REL, "n1.ast": i2b2.AST}
    born = {"text": "Ada of London.", "relation": "r", "h": {"name": "Ada", "id": "m1"},
            "t": {"name": "London", "id": "m2", "pos": [7, 13]}}  # fmt: skip
    pgr = "1\tBRCA1 makes a cancer\tBRCA1\tcancer\t672\tHP:1\t0\t5\t14\t20\tTrue"
    a1 = "T1\tAE 0 4\tRash\nT2\tDrug 11 18\taspirin\n"
    a2 = "E1\tAE:T1 Theme:T2\n*\tEquiv T1 T2\nA1\tNegated E1\n#1\tAnnotatorNotes T2\tx\n"
    return {
        "brat": (_sample({"a.txt": TEXT, "a.a1": a1, "a.a2": a2}),),
        "bioc": (
            _sample({"c.xml": bioc.XML}, "c.xml"),
            _sample({"c.json": json.dumps(bioc.as_json())}, "c.json"),
        ),
        "biobert": (
            _sample({"t.tsv": pairs.TABLE}, "t.tsv"),
            _sample({"t.tsv": pairs.HEADED}, "t.tsv"),
        ),
        "chemprot": (_sample({"t.jsonl": pairs.lines(pairs.CHEMPROT)}, "t.jsonl"),),
        "ddi": (_sample({"d.xml": _ddi()}), _sample({"Train/d.xml": _ddi()})),
        "i2b2": (_sample(note),),
        "nyt10": (_sample({"t.txt": bags.SIX}, "t.txt"), _sample({"t.txt": bags.SEVEN}, "t.txt")),
        "opennre": (_sample({"t.txt": f"{json.dumps(born)}\n{born!r}\n"}, "t.txt"),),
        "pgr": (
            _sample({"t.tsv": f"{bags.HEADER}\n{pgr}\n"}, "t.tsv"),
            _sample({"t.tsv": f"{bags.CURATED}{pgr}\tC\n"}, "t.tsv"),
        ),
        "ade": (_sample({**rel, "ADE-NEG.txt": ade.NEGATIVES}),),
        "ade-positive": (_sample(rel),),
        **_published(),
        "psytar": (Sample({"p.xlsx": psytar.book()}, "p.xlsx"),),
        "conll": (
            _sample({"t.conll": "EU NNP B-ORG\nrejects VBZ O\n\nPeter NNP I-PER\n"}, "t.conll"),
        ),
    }


def _published() -> dict[str, tuple[Sample, ...]]:
    """The samples that we wrote after definitions, and what `datasets` reads in other forms."""
    card = {"r.csv": published.HF_CSV, "README.md": published.HF_CARD}
    notes = {"n1": published.NOTE_2009, "n1.entries": published.ENTRIES_2009}
    chosen = {"data": {"text": "Rash."}, "annotations": [
        {"completed_by": 1, "result": [{"id": "a", "type": "labels", "value":
            {"start": 0, "end": 4, "text": "Rash", "labels": ["ADE"]}}]},
        {"completed_by": {"email": "b"}, "was_cancelled": True, "result": []},
    ]}  # fmt: skip
    linked = {"start": 0, "end": 4, "value": "Rash", "cui": "5076", "validated": True,
              "meta_anns": {"Status": {"name": "Status", "value": "Affirmed"}}}  # fmt: skip
    trained = {"id": 1, "text": "Rash.", "annotations": [linked, {**linked, "killed": True}]}
    pair = ["Rash.", {"entities": [[0, 4, "ADE"]]}]
    spans = ["Rash.", {"spans": {"sc": [[0, 4, "ADE"]]}, "cats": {"good": 1.0}}]
    return {
        "datasets": (
            _sample({"r.json": published.HF_JSON}, "r.json"),
            _sample(card, "r.csv"),
            _rows("rows.parquet"),
            _rows("rows"),
        ),
        "prodigy": (_sample({"p.jsonl": published.PRODIGY}, "p.jsonl"),),
        "labelstudio": (_sample({"l.json": json.dumps([chosen])}, "l.json"),),
        "labelstudio-min": (_sample({"l.json": published.LABEL_STUDIO_MIN}, "l.json"),),
        "medcattrainer": (
            _sample(
                {"m.json": json.dumps({"projects": [{"name": "p", "documents": [trained]}]})},
                "m.json",
            ),
        ),
        "spacy": (
            _sample({"s.json": json.dumps([pair, spans])}, "s.json"),
            _sample({"s.jsonl": f"{json.dumps(pair)}\n{json.dumps(spans)}\n"}, "s.jsonl"),
        ),
        "ner-annotator": (
            _sample(
                {"a.json": json.dumps({"classes": ["ADE"], "annotations": [pair, None]})}, "a.json"
            ),
        ),
        "pubannotation": (_sample({"p.json": published.PUBANNOTATION}, "p.json"),),
        "gliner": (_sample({"g.json": published.GLINER}, "g.json"),),
        "spert": (_sample({"s.json": published.SPERT}, "s.json"),),
        "dygie": (_sample({"d.jsonl": published.DYGIE}, "d.jsonl"),),
        "tacred": (_sample({"t.json": published.TACRED}, "t.json"),),
        "fewrel": (_sample({"f.json": published.FEWREL}, "f.json"),),
        "docred": (_sample({"d.json": published.DOCRED}, "d.json"),),
        "semeval": (
            _sample({"t.txt": pairs.SEMEVAL}, "t.txt"),
            _sample({"k.txt": published.KBP37}, "k.txt"),
        ),
        "webanno": (_sample({"w.tsv": published.WEBANNO}, "w.tsv"),),
        "xmi": (_sample({"x.xmi": published.XMI}, "x.xmi"),),
        "i2b2-2009": (_sample(notes), _sample(notes, "n1.entries")),
        "i2b2-xml": (
            _sample({"a.xml": published.XML_2012}, "a.xml"),
            _sample({"b.xml": published.XML_2014}, "b.xml"),
        ),
        "conllu": (
            _sample({"c.conllu": published.CONLLU}, "c.conllu"),
            _sample({"g.conllu": published.GUM}, "g.conllu"),
        ),
        "notes": (_sample({"n.csv": published.NOTES_CSV}, "n.csv"),),
        "fhir": (_sample({"b.json": published.BUNDLE}, "b.json"),),
        "omop": (_notes(),),
    }


def _notes() -> Sample:
    """A database with a note, and a query of it."""
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE note (note_id, note_text)")
        database.execute("INSERT INTO note VALUES (1, ?)", (TEXT,))
        raw = database.serialize()
    query = 'url = "sqlite:///cdm.sqlite"\nquery = "SELECT note_id, note_text FROM note"\n'
    return Sample({"cdm.toml": query.encode(), "cdm.sqlite": raw}, "cdm.toml")


def _rows(name: str) -> Sample:
    """A document as rows, in a file or a folder."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, name)
        write([document()], place, "datasets")
        if place.is_dir():
            return Sample({file.name: file.read_bytes() for file in sorted(place.iterdir())})
        return Sample({place.name: place.read_bytes()}, place.name)


def _ddi() -> str:
    inside = '<entity id="d.s0.e{0}" charOffset="{1}" type="drug" text="{2}"/>'
    parts = (
        inside.format(0, "0-6", "Aspirin"),
        inside.format(1, "8-10;22-26", "may bleed"),
        '<pair id="d.s0.p0" e1="d.s0.e0" e2="d.s0.e1" ddi="true" type="effect"/>',
    )
    text = "Aspirin may cause some bleeding."
    return (
        f'<document id="d"><sentence id="d.s0" text="{text}">{"".join(parts)}</sentence></document>'
    )


def _sample(texts: dict[str, str], entry: str = "") -> Sample:
    return Sample({name: text.encode() for name, text in texts.items()}, entry)
