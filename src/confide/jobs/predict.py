"""Using trained models: annotate documents, or score the models on annotated ones.

A run recognises entities, or finds relations between given entities. One of each makes a chain,
which finds relations between the entities that the first one found. With "context" in a chain,
entities have the assertions that ConText's rules give them.
"""

from __future__ import annotations

import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from confide.errors import DataError, Note, RunError, SettingsError, printable
from confide.files import Tree
from confide.kinds.entities import among
from confide.kinds.relations import batches
from confide.runs.loading import Models, Runs, open_models, types_of
from confide.scoring import count_entities, count_relations, ranked_scores, relation_scores, scores
from confide.scoring.counts import Mode, Scored
from confide.scoring.relations import FactKey, Mention, count_facts
from confide.text.checking import retag
from confide.text.document import NO_RELATION, Document, Problem, attributes_as_relations
from confide.text.formats import Options, read
from confide.text.published.catalogue import locate

if TYPE_CHECKING:
    from confide.kinds import Extractor

STANDARD_INPUT = "-"


def predict(
    run: Runs | Models,
    sources: Sequence[str | Path | Document],
    *,
    site: str | None = None,
    format: str | None = None,
    key: Path | str | None = None,
    types: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    threshold: float = 0.0,
) -> list[Document]:
    """Annotate files or standard input (`-`) with the models of runs or releases.

    Args:
        run: a run that recognises entities, one that finds relations, or both (see `Runs`); or the
            `models` of what `confide.load` gave, with what was said there.
        sources: raw text, any format that confide reads, or documents. A model that recognises
            entities replaces those in the text; one for relations alone keeps them and replaces
            relations.
        site: the site whose model to use, if every site has its own.
        format: the format of the sources; by default each is detected.
        key: the sites' shared key file; by default the one that the run's settings name.
        types: the entity types or relations that are wanted: the model decides among these alone.
            By default those that the settings say that `site` wants, or else all.
        names: what the relation model calls the entity types, where names differ by more than case;
            "" leaves a type out. The documents keep their own names.
        threshold: drop relations with a lower confidence.

    Warns (`Note`) of what is not looked at.

    Raises:
        KeyFileError: the model's vocabulary is keyed, and the key is missing or another one.
        MissingDataError, FormatError: a source cannot be read.
        RunError: a folder holds no model, or two models have the same task.
        DataError: no relation is possible between the entity types at hand.
        SettingsError: `types`, `names` or `threshold` is out of range.
    """
    models = open_models(run, site=site, key=key, types=types)
    check_options(models, names, threshold=threshold)
    documents = read_sources(sources, format=format)
    note_cut(models, documents)
    if models.relations is None:
        return models.found(documents)
    common = common_names(models, documents, names, say=note)
    found = related(models.relations, models.found(documents), common)
    return [above_threshold(document, threshold) for document in found]


def evaluate(
    run: Runs | Models,
    data: Sequence[str | Path | Document],
    *,
    site: str | None = None,
    format: str | None = None,
    key: Path | str | None = None,
    mode: Mode = "default",
    types: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Scored:
    """Score the models of runs on annotated files, or on documents.

    The result has the form of `scoring.scores` for entities, of `scoring.relation_scores` for
    relations between annotated entities and for assertions of these, and of `scoring.bag_scores`
    for bags. A chain gives `{"entities": ..., "relations": ...}`, both with "strict" and "relaxed":
    a relation is true only if its entities are (`scoring.end_to_end`), and entity types have the
    relation model's names. With relations, "unknown" lists the types that the relation model does
    not know; without, if there are any, those that the recogniser cannot find. `types` says what
    the model, or in a chain the relation model, calls types of the files.

    If sites annotate different types, a found type that neither occurs in the files nor is
    annotated at `site` does not count, because nobody looked for it there.

    "confidences" says so if they were calibrated on little development text.

    If the settings map the types and relations of `site`, the maps are applied to the files. If
    `types` says what is wanted (see `predict`), nothing else is found or sought. `mode` is how
    entities are matched. Raises as `predict` does, and DataError if the files hold no entity
    or no relation, or none whose type or name the model knows.
    """
    models = open_models(run, site=site, key=key, types=types)
    documents = read_sources(data, format=format)
    note_cut(models, documents)
    files = models.split(documents)
    if models.attributes is not None:
        return _assertion_scores(models, files, names)
    gold, _ = retag(files, models.tags, relations=models.relation_names)
    wanted = models.asked(gold)
    what = "entity" if models.relations is None else "relation"

    def types_in(documents: Sequence[Document]) -> set[str]:
        marked = (one.entities if what == "entity" else one.relations for one in documents)
        return {one.type for each in marked for one in each}

    if not (held := types_in(gold)):
        raise DataError(
            f"there is nothing to score against: no {what} is annotated in these files",
            fix="look at them with `confide data check`",
        )
    if not types_in(wanted):
        raise DataError(
            f"there is nothing to score against: no {what} in these files has a wanted type",
            fix=f"they hold {', '.join(sorted(held))}: name one of them in --types",
        )
    found = _evaluated(models, wanted, mode=mode, names=names)
    parts = [one for one in (models.entities, models.relations) if one is not None]
    doubt = next((one.calibrator.doubt for one in parts if one.calibrator.doubt), "")
    return {**found, "confidences": doubt} if doubt else found


def _evaluated(
    models: Models, gold: Sequence[Document], *, mode: Mode, names: Mapping[str, str] | None
) -> Scored:
    """The scores of models on documents under their common names."""
    if models.relations is None:
        assert models.entities is not None
        found, known = types_of(gold), set(models.entities.types)
        batches.check_renamed(names or {}, sorted(found), known)
        if known.isdisjoint((names or {}).get(name, name) for name in found):
            raise _nothing_common("entity type", found, known)
        gold = retag(gold, names)[0] if names else list(gold)
        scored = scores(count_entities(gold, _looked_for(models, gold), mode=mode))
        never = sorted(types_of(gold) - known)
        return {**scored, "unknown": never} if never else scored
    marked = {one.type for document in gold for one in document.relations}
    if marked.isdisjoint(models.relations.relations):
        raise _nothing_common("relation", marked, set(models.relations.relations) - {NO_RELATION})
    called = common_names(models, gold, names)
    if models.relations.finds == "facts":
        if models.entities is not None:
            raise SettingsError(
                "bags are scored between annotated entities only",
                fix="score the recogniser and the run over bags separately",
            )
        ranked = ranked_scores(models.relations.counts(retag(gold, called)[0]))
        return {**ranked, "unknown": _unknown(called, names)}
    predicted = related(models.relations, _looked_for(models, gold), called)
    common = {
        name: batches.known_type(name, models.relations.types) or name for name in types_of(gold)
    }
    common |= {name: known or name for name, known in called.items()}
    gold, predicted = (retag(side, common)[0] for side in (gold, predicted))
    looked = batches.candidates(gold, models.relations.rules)
    if models.entities is None:
        labels = [example.relation for example in looked.examples]
        answers = batches.predicted_labels(looked, predicted)
        result = relation_scores(count_relations(labels, answers, missed=looked.missed))
    else:
        result = {
            "entities": scores(count_entities(gold, predicted, mode=mode)),
            "relations": _end_to_end(gold, predicted, looked),
        }
    return {**result, "unknown": _unknown(called, names)}


def _assertion_scores(
    models: Models, files: Sequence[Document], names: Mapping[str, str] | None
) -> Scored:
    """The scores of what is said of annotated entities, of those types of which files say it."""
    assert models.attributes is not None
    if names or len(models.parts) > 1:
        raise SettingsError(
            "assertions are scored on the files' own entities, by the files' own names",
            got="--as" if names else "a chain",
            fix="leave --as out" if names else "score each run, and context, by itself",
        )
    name, wanted = models.attributes.attribute, models.wanted
    gold = [attributes_as_relations(one, name) for one in files]
    gold, _ = retag(gold, models.tags, relations=models.relation_names)
    types = {head for head, _ in batches.type_pairs(gold)}
    if not types:
        raise DataError(
            f"there is nothing to score against: no entity has the attribute {name!r}",
            fix="look at the files with `confide data check`",
        )
    looked = batches.candidates(
        gold, batches.Rules(frozenset((one, one) for one in types), alone=True)
    )
    found = [attributes_as_relations(one, name) for one in models.found(gold)]
    labels = [example.relation for example in looked.examples]
    answers = batches.predicted_labels(looked, found)
    if wanted is not None:
        labels, answers = (
            [one if one in wanted else NO_RELATION for one in side] for side in (labels, answers)
        )
    return relation_scores(count_relations(labels, answers))


def _nothing_common(what: str, found: set[str], known: set[str]) -> DataError:
    """Nothing in the files is of a type, or has a name, that the model knows."""
    fix = (
        "choose a run that learnt these, or map the names: --site NAME applies a site's map of the"
    )
    fix += " run's settings"
    if what == "entity type":
        pairs = {name: batches.known_type(name, known) for name in sorted(found)}
        name, other = next(
            ((name, other) for name, other in pairs.items() if other),
            (min(found), min(known, default="KNOWN")),
        )
        fix += f", --as renames a type: --as {shlex.quote(f'{name}={other}')}"
    return DataError(
        f"the files have no {what} in common with the model, so every score would be 0",
        expected=f"some of the model's: {', '.join(sorted(known)) or 'none'}",
        got=f"in the files: {', '.join(map(printable, sorted(found)))}",
        fix=fix,
    )


def _looked_for(models: Models, gold: Sequence[Document]) -> list[Document]:
    """The documents with the entities found in them, of types that annotators looked for."""
    found = models.found(gold)
    return found if models.annotated is None else among(found, gold, models.annotated)


# --- types of entities, and relations between them ----------------------------------------------


def note(text: str) -> None:
    """Warn the caller of a public function."""
    warnings.warn(text, Note, stacklevel=3)


MUCH = 0.02
"""The share of words in entities that are cut otherwise from which on a model should be told."""


def note_cut(models: Models, documents: Sequence[Document]) -> None:
    """Warn if the recogniser learnt other tokens than these documents' raw text will have."""
    share = models.words_cut.share
    if share > MUCH and not all(one.sentences for one in documents):
        note(
            f"the model learnt from the tokens of files, and raw text has {100 * share:.0f} % of"
            ' the words in their entities otherwise; data.train_on = "own tokens" trains on those'
        )


def check_options(
    models: Models, names: Mapping[str, str] | None, *, threshold: float = 0.0
) -> None:
    """Raise SettingsError if an option is out of range or has no relation model to act on."""
    if not 0 <= threshold <= 1:
        raise SettingsError(
            "the threshold is not a probability", expected="from 0 to 1", got=f"{threshold:g}"
        )
    if models.relations is None and (names or threshold):
        raise SettingsError(
            f"{'--as' if names else '--threshold'} is for relations, but this run finds entities",
            fix="name a relation run after it: NER_RUN+RE_RUN",
        )


def common_names(
    models: Models,
    documents: Sequence[Document],
    types: Mapping[str, str] | None,
    *,
    say: Callable[[str], None] | None = None,
) -> dict[str, str]:
    """Map each type that can be found to the relation model's name for it; raises as `as_known`.

    Calls `say` with the types that the relation model does not know.
    """
    assert models.relations is not None
    found = models.types(documents)
    if not found:
        raise DataError(
            "there is no entity in these files, so there can be no relation",
            expected="files with entities, or a model that recognises them",
            fix="put its run before the relation run: confide predict NER_RUN+RE_RUN FILE",
        )
    known, pairs = models.relations.types, models.relations.rules.types
    names = batches.as_known(found, known, pairs=pairs, given=types or {})
    unknown = _unknown(names, types)
    if unknown and say is not None:
        say(
            f"the relation model does not know the type {' or '.join(unknown)}:"
            " it looks for no relation of such entities"
        )
    return names


def _unknown(names: Mapping[str, str], types: Mapping[str, str] | None) -> list[str]:
    """The types that are left out although nobody asked for it."""
    return sorted(name for name, known in names.items() if not known and name not in (types or {}))


def related(
    extract: Extractor, documents: Sequence[Document], names: Mapping[str, str]
) -> list[Document]:
    """The documents with the relations between those entities that the model has a name for."""
    renamed, _ = retag(documents, names)
    return [
        replace(document, relations=other.relations)
        for document, other in zip(documents, extract(renamed), strict=True)
    ]


def above_threshold(document: Document, threshold: float) -> Document:
    """The document without the relations below the threshold."""
    kept = (one for one in document.relations if (one.confidence or 0.0) >= threshold)
    return replace(document, relations=tuple(kept))


def _end_to_end(
    gold: Sequence[Document], predicted: Sequence[Document], looked: batches.Candidates
) -> Scored:
    """Strict and relaxed scores of relations between entities that a model found.

    `looked` holds the pairs of the gold documents that a model would look at.
    """

    def facts_of(document: Document, pairs: Iterable[tuple[str, str, str]]) -> list[FactKey]:
        mentions = {one.id: Mention(one.type, one.fragments) for one in document.entities}
        return [FactKey(relation, mentions[head], mentions[tail]) for relation, head, tail in pairs]

    pairs: list[list[tuple[str, str, str]]] = [[] for _ in gold]
    for example in looked.examples:
        if example.relation != NO_RELATION:
            pairs[example.document].append((example.relation, *example.pair))
    wanted = [facts_of(document, some) for document, some in zip(gold, pairs, strict=True)]
    seen = [
        facts_of(document, ((one.type, one.head, one.tail) for one in document.relations))
        for document in predicted
    ]
    found = scores(count_facts(wanted, seen, missed=looked.missed))
    return {kind: found[kind] for kind in ("strict", "relaxed")}


# --- documents --------------------------------------------------------------------------------


def read_sources(
    sources: Sequence[str | Path | Document],
    *,
    format: str | None,
    options: Options | None = None,
    problems: list[Problem] | None = None,
) -> list[Document]:
    """The documents of files or standard input (`-`), each with an id of its own.

    Documents among the sources are taken as they are; `options` say how files are read. What did
    not fit in the files is added to `problems`.
    """
    found: list[Problem] = [] if problems is None else problems
    documents: list[Document] = []
    for source in sources:
        if isinstance(source, Document):
            documents.append(source)
            continue
        if str(source) == STANDARD_INPUT:
            documents.append(Document("stdin", sys.stdin.read(), source="stdin"))
            continue
        reading = read(locate(source), format, options=options)
        documents += reading.documents
        found += reading.problems
    if not documents:
        raise DataError("there is no document to read", expected="at least one file, or -")
    seen = Counter[str]()
    for place, document in enumerate(documents):
        seen[document.id] += 1
        if seen[document.id] > 1:
            documents[place] = replace(document, id=f"{document.id}#{seen[document.id]}")
    return documents


# --- Facts in text
#
# A model of bags finds them, each with the sentences that say so.
#
# A fact is a relation between two identities (`[bags].same` of the run), over all files together.
# Its sentences are those that name both, so facts hold text of whoever owns the files.


COLUMNS = (
    "head", "relation", "tail", "confidence", "sentences", "head_name", "tail_name", "document",
    "sentence",
)  # fmt: skip
"""The columns of the table of facts."""


@dataclass(frozen=True, slots=True)
class FactSentence:
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
    sentences: tuple[FactSentence, ...]

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
    run: Runs | Models,
    sources: Sequence[str | Path | Document],
    *,
    site: str | None = None,
    format: str | None = None,
    key: Path | str | None = None,
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
    models = open_models(run, site=site, key=key, types=types)
    extract = models.relations
    if extract is None or extract.finds != "facts":
        raise RunError(
            "this run finds no facts, because it reads the sentences of a pair one by one",
            where="" if isinstance(run, Models) else str(run),
            expected='a run of task = "bags"',
            fix="write its output with --to jsonl, brat or another format",
        )
    check_options(models, names, threshold=threshold)
    documents = read_sources(sources, format=format)
    called = common_names(models, documents, names, say=note)
    read = retag(models.found(documents), called)[0]
    texts = {
        (one.document, one.pair): one.text
        for one in batches.candidates(read, extract.rules).examples
    }
    return [
        StatedFact(
            found.head,
            found.relation,
            found.tail,
            *found.names,
            found.confidence,
            tuple(
                FactSentence(read[one.document].id, texts[one.document, one.pair], one.score)
                for one in found.sentences
            ),
        )
        for found in extract.facts(read, least=threshold or None)
    ]
