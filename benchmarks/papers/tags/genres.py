"""What models of CrossNER's domains find in text of no site: the genres of UNER's web treebank.

    python benchmarks/papers/tags/genres.py runs/tags [--kinds encoder] [--keep FILE]

Reads the finished runs of run.py --corpora crossner. For each kind of model and variant, over
draws: strict micro F1 of persons, organisations and locations in the test part of UNER_English-EWT,
by genre; mean and standard deviation in per cent. What is found of other types is not counted:
nobody looked for them there.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from run import KINDS
from table import EVERY, NAMES, ORDER, spread

from confide.api import predict, read
from confide.scoring import count_entities, f1, micro
from confide.text.checking import retag
from confide.text.document import Document
from confide.text.published.catalogue import locate

FILE = "$CONFIDE_DATA/uner_ewt/en_ewt-ud-test.iob2"
TYPES = {"PER": "person", "ORG": "organisation", "LOC": "location"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("root", type=Path, help="folder of runs, or a kept file")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    if given.root.is_file():
        found = [json.loads(line) for line in given.root.read_text().splitlines()]
    else:
        found = measured(given.root, given.kinds)
    if given.keep:
        given.keep.write_text("".join(json.dumps(one) + "\n" for one in found))
    found.sort(key=lambda one: (ORDER.index(one["kind"]), ORDER.index(one["variant"])))
    genres = list(found[0]["genres"])
    print(f"|  | draws | {' | '.join(genres)} |\n{'|---' * (2 + len(genres))}|")
    for kind, variant in dict.fromkeys((one["kind"], one["variant"]) for one in found):
        rows = [one["genres"] for one in found if (one["kind"], one["variant"]) == (kind, variant)]
        cells = " | ".join(spread([100 * row[genre] for row in rows]) for genre in genres)
        print(f"| {kind}, {NAMES.get(variant, variant)} | {len(rows)} | {cells} |")


def measured(root: Path, kinds: Sequence[str]) -> list[dict]:
    """Of each finished run, F1 by genre."""
    gold, _ = retag(read(locate(FILE)).documents, TYPES)
    found = []
    for path in sorted(root.glob("crossner/*/*/result.json")):
        variant, _, draw = path.parent.name.rpartition("-")
        if (kind := path.parents[1].name) in kinds:
            by_genre = f1_by_genre(gold, predict(path.parent, [FILE]))
            found.append({"kind": kind, "variant": variant, "draw": int(draw), "genres": by_genre})
    return found


def f1_by_genre(gold: Sequence[Document], predicted: Sequence[Document]) -> dict[str, float]:
    """Strict micro F1 of the common types, of each genre and of all."""
    pairs = defaultdict(list)
    for one, other in zip(gold, predicted, strict=True):
        for genre in (EVERY, one.id.partition("-")[0]):
            pairs[genre].append((one, other))
    scores = {}
    for genre in sorted(pairs):
        counts = count_entities(*zip(*pairs[genre], strict=True)).strict
        scores[genre] = f1(micro({kind: counts[kind] for kind in TYPES.values() if kind in counts}))
    return scores


if __name__ == "__main__":
    main()
