"""Ends of sentences in four languages: our rules, before and after, and libraries that know many.

python benchmarks/defaults/segmentation/run.py [--peers] [--json FILE]

`--peers` needs pysbd, syntok and pyicu, which confide itself never imports.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module

from gold import Gold, gold

from confide.text.segment import RuleSegmenter

LANGUAGES = ("es", "fr", "de", "en")
Ends = Callable[[str, str], set[int]]


def rules(language: str, text: str) -> set[int]:
    return {sentence.end for sentence in RuleSegmenter(language)(text)}


def before(language: str, text: str) -> set[int]:
    return rules("", text)


def trimmed(text: str, cuts: list[int]) -> set[int]:
    """The ends of what lies between cuts, without white space."""
    ends, start = set(), 0
    for cut in (*cuts, len(text)):
        piece = text[start:cut].rstrip()
        if piece.strip():
            ends.add(start + len(piece))
        start = cut
    return ends


def sentencex(language: str, text: str) -> set[int]:
    cuts, end = [], 0
    for piece in import_module("sentencex").segment(language, text):
        end += len(piece)
        cuts.append(end)
    return trimmed(text, cuts)


def pysbd(language: str, text: str) -> set[int]:
    found = import_module("pysbd").Segmenter(language=language, clean=False, char_span=True)
    return trimmed(text, [span.end for span in found.segment(text)])


def syntok(language: str, text: str) -> set[int]:
    lasts = [list(s)[-1] for p in import_module("syntok.segmenter").analyze(text) for s in p]
    return {token.offset + len(token.value) for token in lasts}


def icu(language: str, text: str) -> set[int]:
    library = import_module("icu")
    place = library.Locale(f"{language}@ss=standard")
    breaks = library.BreakIterator.createSentenceInstance(place)
    breaks.setText(text)
    return trimmed(text, list(breaks))


def measured(ends: Ends, language: str, documents: list[Gold]) -> dict[str, float]:
    true = found = marked = crossed = entities = 0
    for document in documents:
        own = ends(language, document.text)
        true += len(own & document.ends)
        found += len(own)
        marked += len(document.ends)
        crossed += sum(any(a < end < b for end in own) for a, b, _ in document.entities)
        entities += len(document.entities)
    text = " ".join(document.text for document in documents) * 20
    start = time.process_time()
    ends(language, text)
    seconds = time.process_time() - start
    return {
        "precision": round(100 * true / found, 1),
        "recall": round(100 * true / marked, 1),
        "f1": round(200 * true / (found + marked), 1),
        "crossed": crossed,
        "entities": entities,
        "mb_per_second": round(len(text.encode()) / 1e6 / seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json")
    asked = parser.parse_args()
    sides: dict[str, Ends] = {"before": before, "now": rules}
    if asked.peers:
        sides |= {"sentencex": sentencex, "pysbd": pysbd, "syntok": syntok, "icu": icu}
    rows = []
    for unseen in (False, True):
        for name, ends in sides.items():
            for language in LANGUAGES:
                row = measured(ends, language, gold(language, unseen=unseen))
                rows.append({"side": name, "language": language, "unseen": unseen, **row})
                print(name.ljust(10), "unseen" if unseen else "seen  ", language, row)
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
