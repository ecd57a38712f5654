"""SYNTHETIC text: a made-up clinical corpus of three sites, to try confide without any real notes.

Everything here was written by the authors of confide. No line comes from a patient, a hospital or
a published corpus; the drugs do not exist. The corpus is for demonstrations and tests, and scores
on it say nothing about real notes.

The three sites annotate the same four things (drug, dose, adverse effect, reason for a drug), but
each in its own file format, tag scheme, tag names, vocabulary and dialect, as real sites do:

- cardiology: shorthand; CoNLL columns, IOB2; DRUG, DOSE, ADE, REASON
- oncology: letters in full sentences; CoNLL columns, IOBES; Medication, Dosage, ...
- practice: quick notes in everyday words; brat standoff; med, amount, ...

What makes it hard, on purpose: the same complaint is a reason, an adverse effect or neither,
depending on its sentence; lab values look like doses; words are misspelt now and then; and half
of the drugs in the test text never occur in any training text (they end like others of their
class). What makes it worth training together: patients move. A quarter of the held-out sentences,
but few of those for training, come from another site, with its dialect, drugs and complaints.
"""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from confide.corpora.distant import label, write_triples
from confide.errors import DataError
from confide.files import Tree
from confide.text.checking import retag
from confide.text.document import Document, Entity, Relation, Sentence, Span
from confide.text.files import write_text
from confide.text.formats import write

TYPES = ("DRUG", "DOSE", "ADE", "REASON")
MENTIONS = ("drug", "dose", "ade", "reason", "finding", "illness")
"""The slots of a pattern that are filled with a thing; the last two stay unmarked in the notes."""

# Sentences of a split as a share of the training sentences, and how often something in it (a
# sentence, a drug, a dose, a complaint) is another site's: held-out notes are those of later years.
SPLITS = {"train": (1.0, 0.05), "dev": (0.25, 0.25), "test": (0.75, 0.25)}

_NAMES_PER_CLASS, _NEW_PER_CLASS = 12, 4
_TYPOS = 0.06
_SENTENCES_PER_NOTE = (3, 6)
_SLOT = re.compile(r"\{(\w+)\}")
_TOKEN = re.compile(r"\d+(?:[.,/]\d+)*[^\W\d_]*|\w+(?:[-'/&]\w+)*|\S")


@dataclass(frozen=True, slots=True)
class Habit:
    """One site's conventions for annotated text: file format, tag scheme, its names for `TYPES`."""

    site: str
    format: str
    scheme: str
    names: tuple[str, str, str, str]

    def path(self, split: str) -> str:
        """The file (or folder, for brat) of one split, relative to the corpus folder."""
        return f"{self.site}/{split}" + ("" if self.format == "brat" else ".conll")


HABITS = (
    Habit("cardiology", "conll", "iob2", TYPES),
    Habit("oncology", "conll", "iobes", ("Medication", "Dosage", "AdverseReaction", "Indication")),
    Habit("practice", "brat", "", ("med", "amount", "side_effect", "problem")),
)


def documents(site: str, split: str, *, seed: int = 1, sentences: int = 160) -> list[Document]:
    """Synthetic notes of one site and split, segmented, with entities of the common `TYPES`.

    `sentences` counts the training sentences of a site; dev has a quarter of them, test
    three quarters.
    The same arguments give the same notes on every machine.

    Raises DataError for an unknown site or split, or fewer than 8 sentences.
    """
    if site not in {habit.site for habit in HABITS} or split not in SPLITS or sentences < 8:
        raise DataError(
            "no such synthetic text",
            expected="one of its sites and splits, and at least 8 sentences",
            got=f"{site}, {split}, {sentences} sentences",
        )
    share, away = SPLITS[split]
    writer = Writer(site, seed=seed, split=split, away=away)
    left, notes = round(sentences * share), list[Document]()
    while left > 0:
        length = min(left, writer.random.randint(*_SENTENCES_PER_NOTE))
        notes.append(writer.note(f"{site}-{split}-{len(notes) + 1:03d}", length))
        left -= length
    return notes


def must_be_ours(folder: Path, mark: Path, *, what: str, fix: str) -> None:
    """Raise DataError if the folder holds files but not `mark`, which we leave in all of ours."""
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise DataError(
            "the folder holds other files",
            expected=f"an empty folder or one with an earlier {what}",
            where=str(folder),
            fix=fix,
        )


def write_corpus(folder: Path, *, seed: int = 1, sentences: int = 160) -> Path:
    """Write the corpus of three sites into `folder`, and return the path of its settings.toml.

    The folder gets one sub-folder per site, README.txt, and settings that `confide.api.run` and
    `confide run` accept. An earlier corpus in it is replaced.

    Raises DataError if the folder already holds something else.
    """
    folder = Path(folder)
    readme = folder / "README.txt"
    must_be_ours(folder, readme, what="synthetic corpus", fix="choose another folder")
    # first, or a corpus that was left by half is nobody's
    write_text(readme, grammar()["beside"]["readme"])
    for habit in HABITS:
        shutil.rmtree(folder / habit.site, ignore_errors=True)
        (folder / habit.site).mkdir(parents=True)
        for split in SPLITS:
            notes = documents(habit.site, split, seed=seed, sentences=sentences)
            renamed, _ = retag(notes, dict(zip(TYPES, habit.names, strict=True)))
            write(renamed, folder / habit.path(split), habit.format, scheme=habit.scheme or "iob2")
    key = hashlib.sha256(f"the key of the synthetic corpus, seed {seed}".encode()).hexdigest()
    (folder / "shared.key").write_text(f"confide-key-1 {key}\n", encoding="ascii")
    settings = folder / "settings.toml"
    settings.write_text(settings_text(seed=seed), encoding="utf-8")
    return settings


# --- one site's writer -------------------------------------------------------------------


@cache
def grammar() -> Tree:
    """Words, sentence patterns and the files beside the text, as synthetic.toml explains them."""
    return tomllib.loads(
        files("confide.corpora").joinpath("synthetic.toml").read_text(encoding="utf-8")
    )


@cache
def drug_names(seed: int) -> dict[str, tuple[str, ...]]:
    """Distinct names per class; the last `_NEW_PER_CLASS` of a class are for held-out text only."""
    drugs = grammar()["drugs"]
    endings = list(drugs["everywhere"])
    for habit in HABITS:
        endings += grammar()[habit.site]["drugs"]
    rng, taken = random.Random(f"{seed}/drugs"), set[str]()
    names: dict[str, tuple[str, ...]] = {}
    for ending in endings:
        own: list[str] = []
        while len(own) < _NAMES_PER_CLASS:
            name = "".join(rng.sample(drugs["syllables"], rng.randint(1, 3))) + ending
            if name not in taken:
                taken.add(name)
                own.append(name)
        names[ending] = tuple(own)
    return names


class Writer:
    """Fills one site's patterns at random. `marked` names the slots that become entities."""

    marked: ClassVar[frozenset[str]] = frozenset(name.lower() for name in TYPES)

    def __init__(self, site: str, *, seed: int, split: str, away: float) -> None:
        self.site, self.away, self.seed, self.voice = site, away, seed, site
        self.known = _NAMES_PER_CLASS - (_NEW_PER_CLASS if split == "train" else 0)
        self.random = random.Random(f"{seed}/{site}/{split}")

    def note(self, id: str, length: int) -> Document:
        """A note of `length` sentences."""
        own = grammar()[self.site]
        text, entities, sentences = "", list[Entity](), list[Sentence]()
        for number in range(length):
            if number:
                text += own["between"]
            sentence, marks = self.sentence()
            start = len(text)
            for type, first, last in marks:
                entities.append(
                    Entity(f"T{len(entities) + 1}", type, ((start + first, start + last),))
                )
            sentences.append(Sentence(start, start + len(sentence), tokens_of(sentence, start)))
            text += sentence
        return Document(id, text, tuple(entities), sentences=tuple(sentences))

    def sentence(self) -> tuple[str, list[tuple[str, int, int]]]:
        """A sentence and its entities: type, first character, one past the last."""
        self.voice = self._here_or_away(self.site)
        own = grammar()[self.voice]
        marks: list[tuple[str, int, int]] = []
        text = self._fill(self.random.choice(own["patterns"]), "", marks)
        return (text[0].upper() + text[1:] if own["capitals"] else text), marks

    def _here_or_away(self, here: str) -> str:
        """Mostly `here`; as often as the split says, one of the other sites."""
        others = [habit.site for habit in HABITS if habit.site != here]
        return self.random.choice(others) if self.random.random() < self.away else here

    def _fill(self, pattern: str, text: str, marks: list[tuple[str, int, int]]) -> str:
        """`text` and after it the pattern with its slots filled; entities are added to `marks`."""
        for position, part in enumerate(_SLOT.split(pattern)):
            if position % 2 == 0:
                text += part
            elif part in MENTIONS:
                start, text = len(text), text + self._mention(part)
                if part in self.marked:
                    marks.append((part.upper(), start, len(text)))
            else:
                own = grammar()[self.voice]
                options = own[part] if part in own else grammar()["words"][part]
                text = self._fill(self.random.choice(options), text, marks)
        return text

    def _mention(self, slot: str) -> str:
        rng, words = self.random, grammar()
        source = words[self._here_or_away(self.voice)]
        if slot == "dose":
            return str(rng.choice(source["doses"]))
        if slot == "drug":
            ending = rng.choice([*source["drugs"], *words["drugs"]["everywhere"]])
            return self._misspelt(rng.choice(drug_names(self.seed)[ending][: self.known]))
        usual, other = ("reasons", "findings") if slot == "reason" else ("findings", "either")
        kind = "reasons" if slot == "illness" else usual if rng.random() < 0.75 else other
        complaint = str(rng.choice(source[kind]))
        if kind == "findings" and rng.random() < 0.4:
            common = words["findings"]
            complaint = rng.choice(common["everywhere"] + common["made"])
        return self._misspelt(self._fill(complaint, "", []))

    def _misspelt(self, word: str) -> str:
        rng = self.random
        if len(word) < 6 or rng.random() >= _TYPOS:
            return word
        at = rng.randrange(1, len(word) - 2)
        middle = rng.choice((word[at + 1] + word[at], word[at] * 2 + word[at + 1], word[at + 1]))
        return word[:at] + middle + word[at + 2 :]


def tokens_of(sentence: str, offset: int = 0) -> tuple[Span, ...]:
    """Words, numbers and other signs of a sentence that starts at `offset` of its text."""
    return tuple((offset + m.start(), offset + m.end()) for m in _TOKEN.finditer(sentence))


# --- what lies beside the text -----------------------------------------------------------


def settings_text(*, seed: int = 1) -> str:
    """The TOML that trains on a corpus folder it lies in."""
    sites = "\n".join(map(_site_table, HABITS))
    return str(grammar()["beside"]["settings"]).format(seed=seed, sites=sites)


def _site_table(habit: Habit) -> str:
    lines = ["[[site]]", f'name = "{habit.site}"']
    lines += [f'{split} = "{habit.path(split)}"' for split in SPLITS]
    pairs = [f"{own} = {common!r}" for common, own in zip(TYPES, habit.names, strict=True)]
    tags = f"tags = {{ {', '.join(pairs)} }}".replace("'", '"')
    lines += [f'scheme = "{habit.scheme}"'] if habit.scheme else []
    lines += [tags] if habit.names != TYPES else []
    return "\n".join([*lines, ""])


# --- SYNTHETIC text about pairs
#
# Sentences of the made-up corpus's sites about a drug and a complaint.
#
# It uses the words and patterns of `confide.corpora.synthetic`, and no line of it comes from a
# patient either. A complaint is one type here, COMPLAINT: only the sentence tells whether the drug
# `causes` it, `treats` it, or neither.
#
# - `relation_documents`: one sentence each, with the relation that it states, as if people had
#   marked it.
# - `write_bags`: sentences and a knowledge base. Nobody marks a relation; a sentence gets the label
#   of its pair, and for a share of the training sentences (`WRONG`) that is not what they say. In
#   held-out text every sentence says what the knowledge base says, as if people had looked.


CAUSES, TREATS = "causes", "treats"
STATES = {"ADE": CAUSES, "REASON": TREATS, "FINDING": "", "ILLNESS": ""}
"""The relation that a pattern states between its drug and the complaint in this slot; empty:
none."""
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

    The arguments are those of `confide.corpora.synthetic.documents`: dev has a quarter of the
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
    """Return the relation of each of some drugs and complaints; empty: none. In a drawn order."""
    draw = random.Random(f"{seed}/knowledge")
    drugs = sorted(name for names in drug_names(seed).values() for name in names)
    eithers = (one for habit in HABITS for one in grammar()[habit.site]["either"])
    complaints = sorted({*grammar()["findings"]["everywhere"], *eithers})
    pairs = [
        (drug, complaint)
        for drug in draw.sample(drugs, _DRUGS)
        for complaint in draw.sample(complaints, _COMPLAINTS)
    ]
    draw.shuffle(pairs)
    return {pair: draw.choice((CAUSES, TREATS, "")) for pair in pairs}


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
