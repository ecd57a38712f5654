"""SYNTHETIC text about pairs: what the sites of the made-up corpus say of a drug and a complaint.

It uses the words and patterns of `confide.data.corpus.synthetic`, and no line of it comes from a
patient either. A complaint is one type here, COMPLAINT: only the sentence tells whether the drug
`causes` it, `treats` it, or neither.

- `relation_documents`: one sentence each, with the relation that it states, as if people had
  marked it.
- `write_bags`: sentences and a knowledge base. Nobody marks a relation; a sentence gets the label
  of its pair, and for a share of the training sentences (`WRONG`) that is not what they say. In
  held-out text every sentence says what the knowledge base says, as if people had looked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from confide.data.corpus.knowledge import write_triples
from confide.data.corpus.labelling import label
from confide.data.corpus.synthetic import (
    HABITS,
    SPLITS,
    Writer,
    drug_names,
    grammar,
    tokens_of,
)
from confide.text.document import Document, Entity, Relation, Sentence
from confide.text.formats import write

CAUSES, TREATS = "causes", "treats"
STATES = {"ADE": CAUSES, "REASON": TREATS, "FINDING": "", "ILLNESS": ""}
"""What a pattern says of its drug and the complaint in this slot; empty: no relation."""
WRONG = 0.35
"""The share of training sentences in bags that say something else than the knowledge base."""

PAIRS_OF = {"train": (0.0, 0.7), "dev": (0.7, 0.8), "test": (0.8, 1.0)}
"""Where in the shuffled list of pairs a split's bags are."""
_DRUGS, _COMPLAINTS = 20, 12


class _PairWriter(Writer):
    """Marks every drug and every complaint; `pinned` says what stands in their slots."""

    marked = frozenset({"drug", "ade", "reason", "finding", "illness"})
    pinned: tuple[str, str] | None = None

    def _mention(self, slot: str) -> str:
        if self.pinned is None or slot == "dose":
            return super()._mention(slot)
        drug, complaint = self.pinned
        return drug if slot == "drug" else complaint


# --- relations ---------------------------------------------------------------------------


def relation_documents(
    site: str, split: str, *, seed: int = 1, sentences: int = 160
) -> list[Document]:
    """Sentences with one drug and one or more complaints, and what holds between them.

    The arguments are those of `confide.data.corpus.synthetic.documents`: dev has a quarter of the
    sentences, test three quarters.
    """
    share, away = SPLITS[split]
    writer = _PairWriter(site, seed=seed, split=split, away=away)
    found = list[Document]()
    while len(found) < round(sentences * share):
        text, marks = writer.sentence()
        types = [type for type, _, _ in marks]
        if types.count("DRUG") == 1 and len(types) > 1:
            found.append(_related(f"{site}-{split}-pair-{len(found) + 1:03d}", text, marks))
    return found


def _related(id: str, text: str, marks: list[tuple[str, int, int]]) -> Document:
    entities, relations = list[Entity](), list[Relation]()
    for number, (type, start, end) in enumerate(marks, start=1):
        name = "DRUG" if type == "DRUG" else "COMPLAINT"
        entities.append(Entity(f"T{number}", name, ((start, end),)))
    drug = next(e.id for e in entities if e.type == "DRUG")
    for entity, (type, _, _) in zip(entities, marks, strict=True):
        if stated := STATES.get(type):
            relations.append(Relation(f"R{len(relations) + 1}", stated, drug, entity.id))
    sentence = Sentence(0, len(text), tokens_of(text))
    return Document(id, text, tuple(entities), tuple(relations), (sentence,))


def write_relations(folder: Path, *, seed: int = 1, sentences: int = 64) -> None:
    """Write a file for each site and split, and public.jsonl: more text, which all may read.

    `sentences` counts the training sentences of a site; public text has two for every three of it.
    """
    public = list[Document]()
    for habit in HABITS:
        (folder / habit.site).mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            notes = relation_documents(habit.site, split, seed=seed, sentences=sentences)
            write(notes, folder / habit.site / f"{split}.jsonl", "jsonl")
        many = 2 * sentences // 3
        public += relation_documents(habit.site, "train", seed=seed + 1000, sentences=many)
    write(public, folder / "public.jsonl", "jsonl")


# --- bags --------------------------------------------------------------------------------


@cache
def knowledge(seed: int) -> dict[tuple[str, str], str]:
    """What holds between each of some drugs and complaints; empty: nothing. In a drawn order."""
    draw = random.Random(f"{seed}/knowledge")
    drugs = sorted(name for names in drug_names(seed).values() for name in names)
    complaints = sorted({*grammar()["findings"]["everywhere"], *_eithers()})
    pairs = [
        (drug, complaint)
        for drug in draw.sample(drugs, _DRUGS)
        for complaint in draw.sample(complaints, _COMPLAINTS)
    ]
    draw.shuffle(pairs)
    return {pair: draw.choice((CAUSES, TREATS, "")) for pair in pairs}


def _eithers() -> Iterator[str]:
    for habit in HABITS:
        yield from grammar()[habit.site]["either"]


def bag_documents(site: str, split: str, *, seed: int = 1, sentences: int = 160) -> list[Document]:
    """Sentences about the split's pairs, whose entities carry identifiers and no relation.

    The pairs of train, dev and test are different ones. Of a pair that several sites mention, each
    has its own sentences.
    """
    share, away = SPLITS[split]
    first, last = (round(at * len(knowledge(seed))) for at in PAIRS_OF[split])
    pairs = list(knowledge(seed).items())[first:last]
    writer = _PairWriter(site, seed=seed, split=f"{split}/bags", away=away)
    draw, wrong = writer.random, WRONG if split == "train" else 0.0
    found = list[Document]()
    for number in range(1, round(sentences * share) + 1):
        pair, holds = draw.choice(pairs)
        others = sorted({*STATES.values()} - {holds})
        said = draw.choice(others) if draw.random() < wrong else holds
        writer.pinned = pair
        text, marks = _saying(writer, said)
        found.append(_identified(f"{site}-{split}-bag-{number:03d}", text, marks, pair))
    return found


def _saying(writer: _PairWriter, said: str) -> tuple[str, list[tuple[str, int, int]]]:
    """A sentence of one drug and one complaint that says this of them."""
    while True:
        text, marks = writer.sentence()
        types = [type for type, _, _ in marks]
        if types.count("DRUG") == 1 and [STATES[t] for t in types if t != "DRUG"] == [said]:
            return text, marks


def _identified(
    id: str, text: str, marks: list[tuple[str, int, int]], pair: tuple[str, str]
) -> Document:
    drug, complaint = map(_named, pair)
    entities = tuple(
        Entity(f"T{n}", "DRUG", ((start, end),), concepts=(f"drug:{drug}",))
        if type == "DRUG"
        else Entity(f"T{n}", "COMPLAINT", ((start, end),), concepts=(f"complaint:{complaint}",))
        for n, (type, start, end) in enumerate(marks, start=1)
    )
    return Document(id, text, entities, sentences=(Sentence(0, len(text), tokens_of(text)),))


def write_bags(folder: Path, *, seed: int = 1, sentences: int = 160) -> None:
    """Write known.tsv, the knowledge base, and each site's sentences as it labels them."""
    held = ((d, c, relation) for (d, c), relation in knowledge(seed).items() if relation)
    names = [(f"drug:{_named(d)}", relation, f"complaint:{_named(c)}") for d, c, relation in held]
    folder.mkdir(parents=True, exist_ok=True)
    write_triples(names, folder / "known.tsv")
    for habit in HABITS:
        (folder / habit.site).mkdir(exist_ok=True)
        for split in SPLITS:
            notes = bag_documents(habit.site, split, seed=seed, sentences=sentences)
            labelled = label(notes, folder / "known.tsv").documents
            write(labelled, folder / habit.site / f"{split}.jsonl", "jsonl")


def _named(thing: str) -> str:
    return thing.lower().replace(" ", "-")
