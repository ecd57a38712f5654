"""Counts of entities and relations in files, by other code than confide's.

Other libraries, or a few lines over the raw bytes; `None` where a format has no such thing.
"""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

Counts = tuple[int, int | None]


def _files(path: Path, *endings: str) -> list[Path]:
    return [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in endings)


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")


def _rows(path: Path) -> list[dict]:
    text = _text(path)
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def conll(path: Path) -> Counts:
    """seqeval's spans of the last column."""
    from seqeval.metrics.sequence_labeling import get_entities

    rows = [line.split("\t") for line in _text(path).split("\n")]
    tags = [row[-1] if len(row) > 1 else "O" for row in rows]
    return len(get_entities(tags)), None


def uner(path: Path) -> Counts:
    """UNER's own columns: the tag is the third of five."""
    from seqeval.metrics.sequence_labeling import get_entities

    tags = [cells[2] if len(cells := line.split("\t")) > 2 and not line.startswith("#") else "O"
            for line in _text(path).split("\n")]  # fmt: skip
    return len(get_entities(tags)), None


def conllu(path: Path) -> Counts:
    text = re.sub(r"^\d+\.\d+\t.*$", "", _text(path), flags=re.M)  # an empty node is no token
    return len(re.findall(r"[\t|](?:NER|NE)=[BS]-", text)) + len(
        re.findall(r"\((?=[^()]*-)", "".join(re.findall(r"Entity=(\S+)", text)))
    ), None


def brat(path: Path) -> Counts:
    text = "\n".join(_text(file) for file in _files(path, ".ann", ".a1", ".a2", ".rel"))
    plain = len(re.findall(r"^R\d+\t", text, re.M))
    events = sum(line.count(":") - 1 for line in re.findall(r"^E\d+\t(.*)$", text, re.M))
    chains = sum(len(line.split()) - 1 for line in re.findall(r"^\*\tEquiv (.*)$", text, re.M))
    return len(re.findall(r"^T\d+\t", text, re.M)), plain + events + chains


def ours(path: Path) -> Counts:
    rows = _rows(path)
    return _sum(rows, "entities"), _sum(rows, "relations")


def _sum(rows: list[dict], key: str) -> int:
    return sum(len(row.get(key) or ()) for row in rows)


def prodigy(path: Path) -> Counts:
    rows = [row for row in _rows(path) if row.get("answer", "accept") == "accept"]
    return _sum(rows, "spans"), _sum(rows, "relations")


def labelstudio(path: Path) -> Counts:
    results = [
        result
        for row in _rows(path)
        for done in [one for one in row["annotations"] if not one.get("was_cancelled")][:1]
        for result in done["result"]
    ]
    kinds = [result["type"] for result in results]
    return kinds.count("labels"), kinds.count("relation")


def labelstudio_min(path: Path) -> Counts:
    by_id: dict[object, list] = {}
    for row in _rows(path):
        lists = [value for value in row.values() if isinstance(value, list)]
        regions = [r for value in lists for r in value if isinstance(r, dict) and "labels" in r]
        by_id.setdefault(row["id"], regions)
    return sum(map(len, by_id.values())), None


def pubannotation(path: Path) -> Counts:
    rows = _rows(path)
    return _sum(rows, "denotations"), _sum(rows, "relations")


def datasets(path: Path) -> Counts:
    """Hugging Face's library for its own forms, seqeval for the tags."""
    from seqeval.metrics.sequence_labeling import get_entities

    if path.suffix in (".json", ".jsonl"):
        return sum(len(get_entities(row["ner_tags"])) for row in _rows(path)), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets as library
    library.disable_progress_bars()
    data = library.load_from_disk(str(path))
    names = data.features["ner_tags"].feature.names
    return sum(len(get_entities([names[n] for n in row["ner_tags"]])) for row in data), None


def docbin(path: Path) -> Counts:
    """spaCy's."""
    import spacy
    from spacy.tokens import DocBin

    count = 0
    for doc in DocBin().from_disk(path).get_docs(spacy.blank("xx").vocab):
        spans = [*doc.ents, *(span for group in doc.spans.values() for span in group)]
        count += len({(span.start, span.end, span.label) for span in spans})
    return count, None


def gliner(path: Path) -> Counts:
    return _sum(_rows(path), "ner"), _sum(_rows(path), "relations")


def spert(path: Path) -> Counts:
    return _sum(_rows(path), "entities"), _sum(_rows(path), "relations")


def dygie(path: Path) -> Counts:
    rows = _rows(path)
    entities, relations = (
        sum(len(part) for row in rows for part in row.get(key, ())) for key in ("ner", "relations")
    )
    return entities, relations


def tacred(path: Path) -> Counts:
    rows = _rows(path)
    return 2 * len(rows), sum(row["relation"] != "no_relation" for row in rows)


def fewrel(path: Path) -> Counts:
    count = sum(map(len, json.loads(_text(path)).values()))
    return 2 * count, count


def docred(path: Path) -> Counts:
    rows = _rows(path)
    return sum(len(v) for row in rows for v in row["vertexSet"]), _sum(rows, "labels")


def opennre(path: Path) -> Counts:
    rows = _rows(path)
    return 2 * len(rows), sum(row["relation"] != "NA" for row in rows)


def xmi(path: Path) -> Counts:
    """dkpro-cassis, with the type system beside the files."""
    import cassis

    ner = "de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity"
    with open(path / "TypeSystem.xml", "rb") as file:
        types = cassis.load_typesystem(file)
    entities = relations = 0
    for page in _files(path, ".xmi"):
        with open(page, "rb") as file:
            cas = cassis.load_cas_from_xmi(file, typesystem=types)
        entities += len(cas.select(ner))
        relations += len(cas.select("webanno.custom.Relation"))
    return entities, relations


def webanno(path: Path) -> Counts:
    """Numbers in the fifth column of a file that we wrote, and ends in the last."""
    if path.is_file():
        raise ValueError("other layers")
    entities = relations = 0
    for page in _files(path, ".tsv"):
        lines = [line for line in _text(page).split("\n") if re.match(r"\d+-\d+\t", line)]
        rows = [line.split("\t") for line in lines]
        entities += len({n for row in rows for n in re.findall(r"(?<!\\)\[(\d+)\]", row[4])})
        relations += sum(row[6].count("[") for row in rows)
    return entities, relations


def pubtator(path: Path) -> Counts:
    rows = [line.split("\t") for line in _text(path).split("\n") if "\t" in line]
    mention = [row for row in rows if row[1].isdigit() and row[2].isdigit()]
    return len(mention), len(rows) - len(mention)


def bioc(path: Path) -> Counts:
    if path.suffix == ".json":
        documents = json.loads(path.read_text(encoding="utf-8"))["documents"]
        passages = [passage for one in documents for passage in one["passages"]]
        return (sum(len(one["annotations"]) for one in passages),
                sum(len(one["relations"]) for one in documents))  # fmt: skip
    root = ElementTree.parse(path).getroot()
    return len(list(root.iter("annotation"))), len(list(root.iter("relation")))


def biobert(path: Path) -> Counts:
    rows = [line.split("\t") for line in _text(path).split("\n") if "\t" in line]
    rows = rows[1:] if rows[0][0] == "index" else rows
    column = 2 if len(rows[0]) > 2 else 1
    return 2 * len(rows), sum(row[column].strip() == "1" for row in rows)


def chemprot(path: Path) -> Counts:
    rows = _rows(path)
    return 2 * len(rows), sum(str(row["label"]).lower() not in ("false", "0") for row in rows)


def ddi(path: Path) -> Counts:
    with zipfile.ZipFile(path) as packed:
        names = [name for name in packed.namelist() if name.endswith(".xml") and "/Test/" in name]
        pages = [ElementTree.fromstring(packed.read(n)) for n in names if "__MACOSX" not in n]
    entities = sum(len(list(page.iter("entity"))) for page in pages)
    pairs = sum(pair.get("ddi") == "true" for page in pages for pair in page.iter("pair"))
    return entities, pairs


def semeval(path: Path) -> Counts:
    if path.suffix == ".gz":
        with tarfile.open(path) as packed:
            name = next(n for n in packed.getnames() if n.endswith("TRAIN_FILE.TXT"))
            text = packed.extractfile(name).read().decode()  # type: ignore[union-attr]
    else:
        text = _text(path)
    labels = [b for a, b in pairwise(text.replace("\r", "").split("\n")) if re.match(r"\d+\t", a)]
    return 2 * len(labels), sum(label not in ("Other", "no_relation") for label in labels)


def i2b2_xml(path: Path) -> Counts:
    pages = [ElementTree.parse(file).getroot() for file in _files(path, ".xml")]
    tags = [tag for page in pages for tag in page.find("TAGS")]  # type: ignore[union-attr]
    return sum("start" in tag.attrib for tag in tags), sum("fromID" in tag.attrib for tag in tags)


def i2b2_2009(path: Path) -> Counts:
    pages = [_text(file) for file in _files(path, ".entries")]
    fields = [f for page in pages for f in re.findall(r'(\w+)="[^"]*" [\d:, ]+', page)]
    return len(fields), sum(field != "m" for field in fields)


def i2b2(path: Path) -> Counts:
    con = "\n".join(_text(file) for file in _files(path, ".con"))
    rel = "\n".join(_text(file) for file in _files(path, ".rel"))
    return con.count('||t="'), rel.count('||r="')


def nyt10(path: Path) -> Counts:
    rows = [line.split("\t") for line in _text(path).split("\n") if line.strip()]
    return 2 * len(rows), sum(row[4].strip() != "NA" for row in rows)


def pgr(path: Path) -> Counts:
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return 2 * len(rows), sum(row["RELATION"].strip() == "True" for row in rows)


def ade(path: Path) -> Counts:
    """Relations only: a mention in several relations has a line for each."""
    lines = [len({line for line in _text(path / name).split("\n") if line.strip()})
             for name in ("DRUG-AE.rel", "DRUG-DOSE.rel")]  # fmt: skip
    return -1, sum(lines)


def texts(path: Path) -> Counts:
    return 0, None


def fhir(path: Path) -> Counts:
    """Documents, in the place of entities."""
    bundle = json.loads(_text(path))
    held = [entry["resource"] for entry in bundle["entry"]]
    return sum(
        bool(base64.b64decode(one["attachment"].get("data", "")))
        and one["attachment"]["contentType"].startswith("text/plain")
        for resource in held
        for one in resource.get("content", ())
    ), None


COUNTERS: dict[str, Callable[[Path], Counts]] = {
    "conll": conll, "conllu": conllu, "brat": brat, "jsonl": ours, "doccano": ours,
    "prodigy": prodigy, "labelstudio": labelstudio, "labelstudio-min": labelstudio_min,
    "pubannotation": pubannotation, "datasets": datasets, "docbin": docbin, "gliner": gliner,
    "spert": spert, "dygie": dygie, "tacred": tacred, "fewrel": fewrel, "docred": docred,
    "opennre": opennre, "xmi": xmi, "webanno": webanno, "pubtator": pubtator, "bioc": bioc,
    "biobert": biobert, "chemprot": chemprot, "ddi": ddi, "semeval": semeval,
    "i2b2-xml": i2b2_xml, "i2b2-2009": i2b2_2009, "i2b2": i2b2, "nyt10": nyt10, "pgr": pgr,
    "ade-positive": ade, "notes": texts, "text": texts,
}  # fmt: skip
