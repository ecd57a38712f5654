"""spaCy's default entity recogniser on pooled text: what `spacy init config --pipeline ner` writes.

It trains until development text has not got better for 1,600 steps, which is that file's default.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import spacy
from spacy.cli.init_config import init_config
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spans import f1, sentences, spans


def docs(folder: Path, part: str, nlp: spacy.Language) -> list[tuple[Doc, list[str]]]:
    """The sentences of a part as documents with their entities, and their tags."""
    made = []
    for path in sorted(folder.glob(f"site*/{part}.conll")):
        for tokens, tags in sentences(path):
            doc = Doc(nlp.vocab, words=tokens)
            doc.ents = [spacy.tokens.Span(doc, a, b + 1, label=kind) for a, b, kind in spans(tags)]
            made.append((doc, tags))
    return made


def main(folder: Path, out: Path) -> None:
    blank = spacy.blank("de" if folder.name.startswith("german") else "en")
    config = init_config(lang=blank.lang, pipeline=["ner"], optimize="efficiency", silent=True)
    for part in ("train", "dev"):
        file = folder / f"{part}.spacy"
        DocBin(docs=[doc for doc, _ in docs(folder, part, blank)]).to_disk(file)
        config["paths"][part] = str(file)
    config["training"]["seed"] = 1
    (folder / "spacy-model").mkdir(exist_ok=True)
    train(init_nlp(config), folder / "spacy-model", use_gpu=-1)
    model = spacy.load(folder / "spacy-model" / "model-best")
    gold, found = [], []
    for doc, tags in docs(folder, "test", model):
        gold.append(tags)
        said = model(Doc(model.vocab, words=[token.text for token in doc]))
        found.append([f"{t.ent_iob_}-{t.ent_type_}" if t.ent_type_ else "O" for t in said])
    out.write_text(json.dumps({"test": round(100 * f1(gold, found), 2)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
