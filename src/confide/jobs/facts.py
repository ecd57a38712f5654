"""The facts that a model of bags finds in text, each with the sentences that say so.

A fact is a relation between two identities (`[bags].same` of the run), over all files together. Its
sentences are those that name both, so facts hold text of whoever owns the files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from confide.data.batches.relations import candidates
from confide.errors import RunError
from confide.jobs.predict import check_options, common_names, documents_of, note
from confide.runs.opening import Runs, opened
from confide.text.checking import retag
from confide.text.document import Document
from confide.userfiles import Tree

COLUMNS = (
    "head", "relation", "tail", "confidence", "sentences", "head_name", "tail_name", "document",
    "sentence",
)  # fmt: skip
"""The columns of the table of facts."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sentence that names both ends: its document's id, its text, and how strongly it says so."""

    document: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class StatedFact:
    """A relation between two entities, its confidence, and all their sentences, best first.

    `head` and `tail` are identities; the names are spelt as in the best sentence.
    """

    head: str
    relation: str
    tail: str
    head_name: str
    tail_name: str
    confidence: float
    sentences: tuple[Evidence, ...]

    def row(self) -> tuple[str, ...]:
        """A line of the table of facts (`COLUMNS`); tabs and line ends in text become blanks."""
        best = self.sentences[0]
        cells = (
            self.head, self.relation, self.tail, f"{self.confidence:.4f}", str(len(self.sentences)),
            self.head_name, self.tail_name, best.document, best.text,
        )  # fmt: skip
        return tuple(" ".join(cell.split()) for cell in cells)

    def record(self) -> Tree:
        """The fact as an object of JSON Lines, with every sentence."""
        return asdict(self)


def facts(
    run: Runs,
    sources: Sequence[str | Path | Document],
    *,
    site: str | None = None,
    format: str | None = None,
    key: Path | None = None,
    types: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    threshold: float = 0.0,
) -> list[StatedFact]:
    """The facts in files or standard input (`-`), the likeliest first.

    All arguments but `threshold` are as in `predict`.

    Args:
        run: a run over bags or its release, or a chain with a run that recognises entities first.
        sources: the files, or documents.
        site: the site whose names of types and relations, and whose key, are used.
        format: the format of the sources.
        key: the sites' shared key file.
        types: the entity types that a recogniser in a chain decides among; all by default.
        names: what the model calls the entity types.
        threshold: 0 gives each pair its likeliest relation, unless that is none; more gives every
            relation that is at least this likely.

    Raises as `predict` does, and RunError if the run finds no facts.
    """
    models = opened(run, site=site, key=key, types=types)
    extract = models.relations
    if extract is None or extract.finds != "facts":
        raise RunError(
            "this run finds no facts, because it reads the sentences of a pair one by one",
            where=str(run),
            expected='a run of task = "bags"',
            fix="write its output with --to jsonl, brat or another format",
        )
    check_options(models, names, threshold=threshold)
    documents = documents_of(sources, format=format)
    called = common_names(models, documents, names, say=note)
    read = retag(models.found(documents), called)[0]
    texts = {(one.document, one.pair): one.text for one in candidates(read, extract.rules).examples}
    return [
        StatedFact(
            found.head,
            found.relation,
            found.tail,
            *found.names,
            found.confidence,
            tuple(
                Evidence(read[one.document].id, texts[one.document, one.pair], one.score)
                for one in found.sentences
            ),
        )
        for found in extract.facts(read, least=threshold or None)
    ]
