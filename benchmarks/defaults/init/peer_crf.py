"""A feature CRF from a library on pooled text: sklearn-crfsuite, its tutorial's features."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import sklearn_crfsuite
from spans import f1, sentences


def features(tokens: list[str], at: int) -> dict[str, object]:
    word = tokens[at]
    said = {
        "bias": 1.0, "word": word.lower(), "word[-3:]": word[-3:], "word[-2:]": word[-2:],
        "word[-4:]": word[-4:], "word[:2]": word[:2], "word[:3]": word[:3], "word[:4]": word[:4],
        "upper": word.isupper(), "title": word.istitle(), "digit": word.isdigit(),
        "shape": "".join("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c
                         for c in word),
    }  # fmt: skip
    for by in (-2, -1, 1, 2):
        if 0 <= at + by < len(tokens):
            other = tokens[at + by]
            said |= {
                f"{by}:word": other.lower(), f"{by}:upper": other.isupper(),
                f"{by}:title": other.istitle(), f"{by}:suffix": other[-3:],
            }  # fmt: skip
        else:
            said[f"{by}:border"] = True
    return said


def main(folder: Path, out: Path) -> None:
    train = [one for path in sorted(folder.glob("site*/train.conll")) for one in sentences(path)]
    test = [one for path in sorted(folder.glob("site*/test.conll")) for one in sentences(path)]
    reads = [[features(tokens, at) for at in range(len(tokens))] for tokens, _ in train]
    model = sklearn_crfsuite.CRF(algorithm="lbfgs", c1=0.1, c2=0.1, max_iterations=100,
                                 all_possible_transitions=True)  # fmt: skip
    model.fit(reads, [tags for _, tags in train])
    found = model.predict([[features(t, at) for at in range(len(t))] for t, _ in test])
    score = f1([tags for _, tags in test], found)
    out.write_text(json.dumps({"test": round(100 * score, 2)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
