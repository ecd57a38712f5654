"""From settings to sites: read every site's files, or deal one corpus to sites, and hold out text.

If text is held out of a whole corpus, it is taken off before the rest is dealt, and so is a public
set. In process, all sites are gathered on one machine; a real site gathers only itself, and the
server only the public set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from confide.data.batches.bags import Same
from confide.data.batches.completing import only
from confide.data.corpus.corpora import locate
from confide.data.corpus.facts import (
    count_entities,
    count_relations,
    fingerprint,
    kinds_of,
    part_facts,
)
from confide.data.corpus.masking import masked
from confide.data.corpus.pairing import apart
from confide.data.corpus.partitions import deal_pairs, group_of, partition
from confide.errors import DataError, SettingsError
from confide.federation.guards import Guards
from confide.federation.inprocess import SiteSpec
from confide.kinds import KINDS
from confide.methods import METHODS, method_of
from confide.runs.canaries import Canaries, dealt
from confide.runs.holding import PARTS, Parts, held_out, public_share, train_share
from confide.seeds import derive_seed
from confide.settings import PublicTable, Settings, SiteTable, SplitTable, splitting_of
from confide.tasks import TASKS, USUAL
from confide.text.checking import check_types, retag
from confide.text.document import Document, Problem, stated_pairs
from confide.text.formats import Options, read
from confide.text.segment import into_sentences
from confide.userfiles import Tree


@dataclass(frozen=True)
class Gathered:
    """Sites as specs, what did not fit, and a fingerprint of all text and annotations.

    `public` is the public set, `labelled` whether its annotations may be used, `public_problems`
    what did not fit in it. `left_out` training documents were left out because they share what
    `apart` names (`[split]`) with held-out ones.
    """

    specs: tuple[SiteSpec, ...]
    problems: dict[str, list[Problem]]
    fingerprint: str
    task: str = USUAL
    kind: str = "tagger"
    public: tuple[Document, ...] = ()
    labelled: bool = True
    public_problems: list[Problem] = field(default_factory=list)
    same: Same = "concept"
    apart: str = ""
    left_out: int = 0
    canaries: Mapping[str, Canaries] = field(default_factory=dict)

    def facts(self) -> Tree:
        """Counts per site and of the public set, for result.json. No text."""
        task = TASKS[self.task]
        facts: Tree = {
            "fingerprint": self.fingerprint,
            "sites": {
                spec.name: part_facts(
                    {part: getattr(spec, part) for part in PARTS},
                    [*self.problems[spec.name], *KINDS[self.kind].left_out(spec.train)],
                    relations=task.pairs,
                    bags=self.same if task.bags else None,
                )
                for spec in self.specs
            },
        }
        if self.public:
            count = count_entities if task.learns == "entities" else count_relations
            facts["public"] = {
                "documents": len(self.public),
                task.learns: count(self.public),
                "problems": kinds_of(self.public_problems),
            }
        if self.apart:
            facts["apart"] = {"by": self.apart, "left_out": self.left_out}
        return facts


def gather(settings: Settings, folder: Path, *, key_file: Path | None) -> Gathered:
    """Read the data of all sites. `folder` holds each site's own folder.

    Raises SettingsError, MissingDataError, FormatError, DataError.
    """
    if not settings.site and settings.split is None:
        raise SettingsError(
            "the settings name no text", fix="give [[site]] tables, or one [split] table"
        )
    public_problems: list[Problem] = []
    public = list(public_set(settings, public_problems))
    problems: dict[str, list[Problem]] = {}
    left_out = 0
    if settings.split:
        held, drawn, left_out = _dealt(settings, problems)
        public += _public(drawn, settings)
    else:
        held = _read_sites(settings, problems)
    trained = {name: train_share(parts["train"], settings, name) for name, parts in held.items()}
    if settings.data.mask_common:
        seed = derive_seed(settings.seed, "mask")
        trained = masked(trained, settings.data.mask_common, seed=seed)
    specs, canaries = [], {}
    for name in sorted(held):
        train, canaries[name] = dealt(trained[name], settings, name, folder=folder / name)
        parts = {**held[name], "train": train}
        specs.append(_spec(name, parts, settings, folder=folder, key_file=key_file))
    task = TASKS[settings.task]
    if task.learns == "relations":
        _check_relations(specs, task.name)
    texts = [(spec.name, part, getattr(spec, part)) for spec in specs for part in PARTS]
    texts += [("", "public", public)] if public else []
    return Gathered(
        tuple(specs),
        canaries=canaries,
        problems={spec.name: problems.get(spec.name, []) for spec in specs},
        fingerprint=fingerprint(texts, relations=task.pairs),
        task=settings.task,
        kind=settings.kind,
        public=tuple(public),
        labelled=settings.public.labelled,
        public_problems=public_problems,
        same=settings.bags.same,
        apart=settings.split.apart if settings.split else "",
        left_out=left_out,
    )


def public_set(settings: Settings, problems: list[Problem] | None = None) -> tuple[Document, ...]:
    """The documents in the files of `[public]`, which the server reads; none if it names no files.

    Adds what did not fit to `problems`. Raises SettingsError, MissingDataError, FormatError,
    DataError.
    """
    named = settings.public.files or settings.public.share
    if named and not method_of(settings).wants_public:
        raise SettingsError(
            "this method uses no public set",
            expected=" or ".join(one.name for one in METHODS.values() if one.wants_public),
            got=settings.trained_by,
            fix="remove [public], or choose another method",
        )
    if not settings.public.files:
        return ()
    found: list[Problem] = [] if problems is None else problems
    documents = _read(settings.public, settings, found, parts=("files",))["files"]
    return tuple(_public(documents, settings))


def _spec(
    name: str, parts: Parts, settings: Settings, *, folder: Path, key_file: Path | None
) -> SiteSpec:
    """A site's documents, with what its table says about it."""
    if not any(document.text.strip() for document in parts["train"]):
        raise DataError(
            f"site {name} has no training text",
            fix="check its `train` files with `confide data check`",
        )
    own = next((site for site in settings.site if site.name == name), None)
    vectors = (own.vectors if own else None) or KINDS[settings.kind].vectors(settings)
    return SiteSpec(
        name=name,
        train=parts["train"],
        dev=parts["dev"],
        test=parts["test"],
        folder=folder / name,
        key_file=Path(own.key) if own and own.key else key_file,
        vectors=locate(vectors) if vectors else None,
        context=own.context if own else None,
        tag_scheme=own.tag_scheme if own else None,
        knows=own.knows if own else (),
        test_knows=own.test_knows if own else (),
        types=own.types if own else (),
        guards=Guards(**settings.guards.model_dump()),
    )


# --- reading, dealing and holding out -------------------------------------------------


def _read_sites(settings: Settings, problems: dict[str, list[Problem]]) -> dict[str, Parts]:
    sites = {}
    for site in settings.site:
        if site.types and TASKS[settings.task].learns != "entities":
            raise SettingsError(
                "a site's `types` are entity types, and this task learns relations",
                where=f"site {site.name}",
                fix="leave them out; `confide predict --types` takes the relations that are wanted",
            )
        found: list[Problem] = []
        parts = held_out(_read(site, settings, found), settings, site.name)
        sites[site.name] = _annotated(parts, site, settings)
        problems[site.name] = found
    return sites


def _annotated(parts: Parts, site: SiteTable, settings: Settings) -> Parts:
    """The documents, with only the entity types that the site annotates if it names them."""
    if not site.knows or TASKS[settings.task].learns != "entities":
        return parts
    types = dict.fromkeys(parts, frozenset(site.knows))
    types["test"] |= frozenset(site.test_knows)
    return {part: only(documents, types[part]) for part, documents in parts.items()}


def _dealt(
    settings: Settings, problems: dict[str, list[Problem]]
) -> tuple[dict[str, Parts], list[Document], int]:
    """One corpus, each part dealt by itself to the same sites, and its share that is public.

    Also how many training documents were left out for sharing something with held-out ones.
    """
    split = settings.split
    assert split is not None
    found: list[Problem] = []
    same = settings.bags.same
    (whole,), left_out = apart([_read(split, settings, found)], split.apart, same=same)
    corpus = held_out(whole, settings, "") if split.hold_out == "corpus" else dict(whole)
    (corpus,), more = apart([corpus], split.apart, same=same, held=("test",))
    corpus["train"], drawn = public_share(corpus["train"], settings)
    _check_groups(whole, corpus, settings)
    sites: dict[str, Parts] = {}
    for part, documents in corpus.items():
        if not documents:
            continue
        for name, share in _dealt_part(documents, part, settings).items():
            sites.setdefault(name, {p: [] for p in PARTS})[part] = share
    given = [part for part in PARTS if corpus[part]]
    for name in sites:
        sites[name] = held_out(sites[name], settings, name, given=given)
        problems[name] = found
        found = []
    kept, last = apart(list(sites.values()), split.apart, same=same, held=("test",))
    return dict(zip(sites, kept, strict=True)), drawn, left_out + more + last


def _dealt_part(
    documents: list[Document], part: str, settings: Settings
) -> dict[str, list[Document]]:
    """A part of a corpus, dealt as the settings say; held-out bags always stay whole."""
    split, same = settings.split, settings.bags.same
    assert split is not None
    everybody = part == "train"
    task = TASKS[settings.task]
    if split.by == "pair" or (task.bags and not everybody):
        return deal_pairs(documents, split.sites, seed=split.seed, same=same, everybody=everybody)
    return partition(
        documents,
        split.sites,
        by=split.by,
        seed=split.seed,
        alpha=split.alpha,
        classes="relations" if task.pairs else "entities",
        everybody=everybody,
    )


def _read(
    table: SiteTable | SplitTable | PublicTable,
    settings: Settings,
    problems: list[Problem],
    *,
    parts: Sequence[str] = PARTS,
) -> Parts:
    """Each part's documents under their common names; adds what did not fit to `problems`."""
    keys = ("format", "scheme", "encoding", "columns", "annotators", "skip_broken")
    how = {key: getattr(table, key, None) or getattr(settings.data, key) for key in keys}
    format = how.pop("format")
    read_parts: Parts = {part: [] for part in parts}
    for part, documents in read_parts.items():
        for path in getattr(table, part):
            reading = read(locate(path), format, options=Options(**how))
            documents += reading.documents
            problems += reading.problems
    found = [one for documents in read_parts.values() for one in documents]
    everything = into_sentences(found, splitting_of(table, settings))
    renamed, changed = retag(everything, table.tags, relations=table.relations)
    if settings.data.types:
        check_types(renamed, settings.data.types)
    problems += changed
    left = iter(renamed)
    return {part: list(islice(left, len(found))) for part, found in read_parts.items()}


def _public(documents: Sequence[Document], settings: Settings) -> list[Document]:
    """Public documents, without their annotation if the public set is not labelled.

    If relations are learnt, entities stay: a model must know between which to look.
    """
    if settings.public.labelled:
        return list(documents)
    plain = [replace(document, relations=()) for document in documents]
    if TASKS[settings.task].learns == "entities":
        plain = [replace(document, entities=()) for document in plain]
    return plain


def _check_groups(whole: Parts, corpus: Parts, settings: Settings) -> None:
    """Raise DataError if a part lacks a file or domain that others have.

    Only if each part has them all do files or domains go to the same sites in every part.
    """
    split = settings.split
    if split is None or split.by not in ("file", "domain"):
        return
    there = {group_of(document, split.by) for document in whole["train"]}
    drawn = [part for part in PARTS if not whole[part] and corpus[part]]
    for part in ("train", *([] if TASKS[settings.task].bags else drawn)):
        missing = there - {group_of(document, split.by) for document in corpus[part]}
        if missing:
            raise DataError(
                f"no document of the {split.by} {min(missing)!r} is left for {part}",
                fix='deal by "iid" or another way, or set hold_out = "site" and a smaller public'
                " set",
            )


def _check_relations(specs: Sequence[SiteSpec], task: str) -> None:
    """Raise DataError if relations are to be learnt and no site has any.

    A single real site may have nothing but pairs without a relation.
    """
    train = [document for spec in specs for document in spec.train]
    if count_relations(train) or (len(specs) == 1 and any(map(stated_pairs, train))):
        return
    raise DataError(
        "no training document has a relation",
        expected=f'annotated relations, because task = "{task}"',
        got=f"{len(train)} documents without any",
        fix="see what is in the files with `confide data stats`; relations are read from brat, "
        "PubTator, BioC, BioBERT's tables, ChemProt, DDI, i2b2, SemEval and the ADE corpus",
    )
