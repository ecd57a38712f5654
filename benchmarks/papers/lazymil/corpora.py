"""The corpora of Lazy MIL's experiments that are made here, as JSON lines of one sentence each.

    python benchmarks/papers/lazymil/corpora.py --out runs/lazymil/corpora

`scattered-W` (W = 0, 25, 50, 75): sentences of SemEval-2010 task 8 in bags of four, W per cent of
which say something else than the label of their bag; `scattered-right-W` are the right ones alone.
`truth-W.json` says of every sentence whether it is right: nobody who trains reads it.
`scattered-choose-W`: the sentences of SemEval's training part that `scattered-W` leaves over, each
with its own label. Lazy MIL's options were chosen on these: no run trains on them, and none is test
text.
`cdr`: what `confide data label` makes of the training abstracts of BC5CDR and BioRED with their
marked chemicals and diseases, the knowledge base being the relations curated for those of BC5CDR;
`cdr-test`: of the test abstracts of BC5CDR, under the relations curated for these. No abstract of
BioRED that is one of the test's is in it. `cdr-choose`: of BC5CDR's development abstracts, under
the relations curated for these, without those that `cdr` or `cdr-test` have; to choose options on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from confide.corpora.distant import knowledge_of, triples_of
from confide.corpora.distant import label as labelled
from confide.text.checking import retag
from confide.text.document import Document, Relation, pair_attributes
from confide.text.formats import read, write
from confide.text.published.catalogue import locate

BAG = 4
BAGS = 1200  # with a relation
NOTHING = 130  # bags without one
WRONG = (0, 25, 50, 75)
LAST = "cdr-test.jsonl"
SEMEVAL = (
    "$CONFIDE_DATA/semeval2010_task8/SemEval2010_task8_all_data.tar.gz!/SemEval2010_task8_all_data/"
)
TRAIN = SEMEVAL + "SemEval2010_task8_training/TRAIN_FILE.TXT"
TEST = SEMEVAL + "SemEval2010_task8_testing_keys/TEST_FILE_FULL.TXT"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/lazymil/corpora"))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make(given.out, seed=given.seed)


def corpora_in(out: Path) -> Path:
    """The folder `corpora` of experiments in `out`, made unless it is there."""
    folder = out / "corpora"
    if not (folder / LAST).exists():
        make(folder)
    return folder


def make(out: Path, *, seed: int = 1) -> None:
    """Write the corpora into a folder, `LAST` as the last."""
    out.mkdir(parents=True, exist_ok=True)
    train, test = (read(locate(path), "semeval").documents for path in (TRAIN, TEST))
    alone = [in_bag(one, f"test-{n}", label(one)) for n, one in enumerate(test)]
    write(alone, out / "scattered-test.jsonl", "jsonl")
    for share in WRONG:
        documents, right = scattered(train, wrong=share / 100, seed=seed)
        write(documents, out / f"scattered-{share}.jsonl", "jsonl")
        kept = [one for one, is_right in zip(documents, right, strict=True) if is_right]
        write(kept, out / f"scattered-right-{share}.jsonl", "jsonl")
        taken = {one.id for one in documents}
        over = [one for one in train if one.id not in taken]
        spare = [in_bag(one, f"choose-{n}", label(one)) for n, one in enumerate(over)]
        write(spare, out / f"scattered-choose-{share}.jsonl", "jsonl")
        truth = {one.id: is_right for one, is_right in zip(documents, right, strict=True)}
        (out / f"truth-{share}.json").write_text(json.dumps(truth))
        print(f"scattered-{share}: {len(documents)} sentences, {sum(right)} of them right")
    cdr(out)


def cdr(out: Path) -> None:
    """Chemicals that induce diseases: labels from a knowledge base, and curated ones to test on."""
    train, choose, test = (
        list(read(locate(f"$CONFIDE_DATA/bc5cdr_cid/CDR_{part}Set.PubTator.txt.gz")).documents)
        for part in ("Training", "Development", "Test")
    )
    biored = read(locate("$CONFIDE_DATA/biored/Train.PubTator")).documents
    types = {kind: TYPES.get(kind, "") for one in biored for kind in kinds(one)}
    more, _ = retag(biored, types)
    known = {one.id for one in (*train, *test)}
    texts = [*train, *(one for one in more if one.id not in known)]
    there = known | {one.id for one in texts}
    choose = [one for one in choose if one.id not in there]
    parts = (("cdr", texts, train), ("cdr-choose", choose, choose), ("cdr-test", test, test))
    for name, documents, facts in parts:
        found = labelled(
            documents, knowledge_of(triples_of(facts)), types=("Chemical", "Disease"), na=0.5
        )
        write(found.documents, out / f"{name}.jsonl", "jsonl")
        print(f"{name}: {found.relations} {found.counts}")


TYPES = {"ChemicalEntity": "Chemical", "DiseaseOrPhenotypicFeature": "Disease"}
"""Of BioRED; its other types are dropped."""


def kinds(document: Document) -> set[str]:
    """The types of a document's entities."""
    return {entity.type for entity in document.entities}


def scattered(
    documents: Sequence[Document], *, wrong: float, seed: int
) -> tuple[list[Document], list[bool]]:
    """Bags of `BAG` sentences, that share of them wrong, shuffled; and which sentences are right.

    The bags and their labels are the same for every share, and what is right in a bag with a larger
    share is right in it with a smaller one.
    A bag of no relation has none but sentences without one.
    """
    draw = np.random.default_rng(seed)
    order = [documents[place] for place in draw.permutation(len(documents))]
    related = [one for one in order if one.relations]
    nothing = [one for one in order if not one.relations]
    labels = [label(one) for one in related[:BAGS]]
    by_label = {
        name: [one for one in related if label(one) == name] for name in sorted(set(labels))
    }
    many = {name: min(labels.count(name), len(found) // BAG) for name, found in by_label.items()}
    right_each = BAG - round(wrong * BAG)
    bags: list[tuple[str, list[Document]]] = []
    for name, count in many.items():
        own = by_label[name]
        bags += [(name, [own[n + count * k] for k in range(right_each)]) for n in range(count)]
    free = nothing[: NOTHING * BAG]
    used = {one.id for _, found in bags for one in found} | {one.id for one in free}
    pool = [one for one in order if one.id not in used]
    for name, found in bags:
        for _ in range(BAG - right_each):
            place = next(n for n, one in enumerate(pool) if label(one) != name)
            found.append(pool.pop(place))
    bags += [("", free[n : n + BAG]) for n in range(0, len(free), BAG)]
    lines = [
        (in_bag(one, f"bag-{number}", name), label(one) == name)
        for number, (name, found) in enumerate(bags)
        for one in found
    ]
    shuffled = [lines[place] for place in draw.permutation(len(lines))]
    return [one for one, _ in shuffled], [right for _, right in shuffled]


def label(document: Document) -> str:
    """The relation of a sentence, "" if it has none."""
    return document.relations[0].type if document.relations else ""


def in_bag(document: Document, bag: str, name: str) -> Document:
    """The sentence as one of a bag: its entities are those of the bag, and so is its label."""
    (head, tail) = document.entities[:2]
    entities = (replace(head, concepts=(f"{bag}:1",)), replace(tail, concepts=(f"{bag}:2",)))
    relations = (Relation("R1", name, head.id, tail.id),) if name else ()
    pairs = pair_attributes([(head.id, tail.id)])
    return replace(document, entities=entities, relations=relations, attributes=pairs)


if __name__ == "__main__":
    main()
