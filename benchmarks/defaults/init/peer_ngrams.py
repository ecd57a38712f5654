"""Relations by n-grams and logistic regression (scikit-learn) on pooled text.

Words, pairs and triples of words: of the whole sentence, and, apart, between the two entities. C is
chosen on development text.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from relations import CORPORA, labelled
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

_MARKS = re.compile(r"<e[12]>|</e[12]>|<<|>>|\[\[|\]\]|@\w+\$")


def said(text: str) -> list[str]:
    """n-grams of a sentence, those between its two marks once more under another name."""
    tokens = [
        token.lower() for token in re.findall(r"</?e[12]>|<<|>>|\[\[|\]\]|@\w+\$|\w+|\S", text)
    ]
    marks = [at for at, token in enumerate(tokens) if _MARKS.fullmatch(token)]
    inside = tokens[marks[0] : marks[-1] + 1] if len(marks) > 1 else []
    order = [tokens[at] for at in marks]
    return [
        *_grams(tokens, 3, ""), *_grams(inside, 3, "in:"), "order:" + " ".join(order),
    ]  # fmt: skip


def _grams(tokens: list[str], most: int, name: str) -> list[str]:
    return [name + " ".join(tokens[at : at + n]) for n in range(1, most + 1)
            for at in range(len(tokens) - n + 1)]  # fmt: skip


def micro(gold: list[str], found: list[str]) -> float:
    right = sum(a == b != "" for a, b in zip(gold, found, strict=True))
    return 2 * right / max(1, sum(map(bool, gold)) + sum(map(bool, found)))


def main(folder: Path, out: Path) -> None:
    name = folder.name.rsplit("-", 1)[0]
    suffix = CORPORA[name].suffix
    parts = {part: labelled(name, folder / f"{part}{suffix}") for part in ("train", "dev", "test")}
    counted = CountVectorizer(analyzer=said, binary=True, min_df=2)
    train = counted.fit_transform([text for text, _ in parts["train"]])
    labels = np.array([label for _, label in parts["train"]])
    best, chosen = -1.0, None
    for strength in (0.1, 1.0, 10.0):
        model = LogisticRegression(C=strength, max_iter=500).fit(train, labels)
        found = model.predict(counted.transform([text for text, _ in parts["dev"]]))
        score = micro([label for _, label in parts["dev"]], list(found))
        if score > best:
            best, chosen = score, model
    assert chosen is not None
    found = chosen.predict(counted.transform([text for text, _ in parts["test"]]))
    score = micro([label for _, label in parts["test"]], list(found))
    out.write_text(json.dumps({"test": round(100 * score, 2), "dev": round(100 * best, 2)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
