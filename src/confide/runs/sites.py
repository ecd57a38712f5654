"""From settings to sites: read every site's files, or deal one corpus to sites, and hold out text.

If text is held out of a whole corpus, it is taken off before the rest is dealt, and so is a public
set. In process, all sites are gathered on one machine; a real site gathers only itself, and the
server only the public set.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, islice, pairwise
from math import ceil
from pathlib import Path

import numpy as np

from confide import models
from confide.corpora import dealing
from confide.errors import DataError, RunError, SettingsError, os_errors_as, printable
from confide.federation.guards import Guards
from confide.federation.keys import simulated_key
from confide.federation.site import Site
from confide.files import Tree, file_bytes, private_folder, write_of_run
from confide.kinds import KINDS
from confide.kinds.bags.batches import Same
from confide.kinds.entities import patient_of
from confide.methods import METHODS, method_of
from confide.seeds import derive_seed
from confide.settings import SIMULATED, PublicTable, Settings, SiteTable, SplitTable, splitting_of
from confide.settings.tables import PrivacyTable
from confide.tasks import TASKS, USUAL
from confide.text.checking import retag
from confide.text.document import Document, Problem, attributes_as_relations, stated_pairs
from confide.text.formats import Options, read
from confide.text.published.catalogue import locate
from confide.text.reading import check_types
from confide.text.segment import into_sentences, segmented
from confide.training.batches import only

# --- Held-out and public documents
#
# They are chosen here where no files say so.
#
# Without noise exact shares are drawn. Under noise (`[privacy]`) each document's own unit decides
# by itself, so that a unit more or less moves no other: where shares are cut from a permutation,
# one document more deals all of them anew, and far more than one unit of the training text
# changes.
#
# Where a file does not say where its documents begin, each of its sentences is a document
# (`Document.unmarked`), and the next one is often of the same text and names the same things. Held
# out one by one, they would be scored by a model that has read their neighbours, so shares of them
# are drawn in blocks of neighbours. Under noise a sentence still decides by itself.


PARTS = ("train", "dev", "test")
LONGEST_BLOCK, SHORTEST_BLOCK, BLOCKS = 20, 10, 5
"""Neighbouring sentences in a block at most, and at least where the share has that number; and the
number of blocks that the smallest share gets, if they are no shorter than that."""
Parts = dict[str, list[Document]]
MOST_VALUES = 20
"""Values that an attribute may have which is learnt (`[pairs].attribute`)."""
_VALUE = re.compile(r"[\w.+-]{1,60}")


def hold_out(parts: Parts, settings: Settings, name: str, *, given: Sequence[str] = ()) -> Parts:
    """The parts of a site (or of a corpus, ""), with dev and test text held out if it lacks files.

    Without noise at least one document stays for training; a site of one document holds out
    nothing. Parts that are `given` stay as they are, even if this site has none of them. For bags,
    a share of the pairs of entities is held out, each pair with all its documents. Sentences of
    unknown documents are held out by `neighbour_blocks`. Raises DataError as `_by_unit`.
    """
    wanted = [
        (held, share)
        for held, share in (("test", settings.data.test_share), ("dev", settings.data.dev_share))
        if not parts[held] and held not in given
    ]
    if not wanted:
        return parts
    train = parts["train"]
    if settings.privacy is not None:
        names, shares = zip(*wanted, strict=True)
        found = _by_unit(train, shares, settings, "hold out", name)
        return {**parts, **dict(zip((*names, "train"), found, strict=True))}
    bags = TASKS[settings.task].bags
    smallest = min((share for _, share in wanted if share), default=0.0)
    units = (
        dealing.group_by_pair(train, settings.bags.same_entity)
        if bags
        else neighbour_blocks(train, share=smallest)
    )
    order = np.random.default_rng(derive_seed(settings.seed, "hold out", name))
    shuffled = [units[place] for place in order.permutation(len(units))]
    found_parts = dict(parts)
    for held, share in wanted:
        count = min(int(share * len(units) + 0.5), len(shuffled) - 1)
        found_parts[held] = list(chain.from_iterable(shuffled[:count]))
        shuffled = shuffled[count:]
    return {**found_parts, "train": list(chain.from_iterable(shuffled))}


def neighbour_blocks(
    documents: Sequence[Document], *, share: float | None = None
) -> list[list[Document]]:
    """Documents one by one, sentences of unknown documents in blocks of neighbours, all in order.

    A block is of one file, and of about the same length as all others there: 10 sentences, or, if
    a `share` of the file is to be drawn, a fifth of that, but from 10 to 20 and no more than it.

    >>> one = [Document(str(n), "", source=f"a.conll:{n}", unmarked=True) for n in range(100)]
    >>> [len(block) for block in neighbour_blocks(one, share=0.2)]
    [10, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    >>> [len(block) for block in neighbour_blocks([*one[:9], Document("letter", "")], share=0.2)]
    [1, 2, 2, 2, 2, 1]
    """
    found: list[list[Document]] = []
    for file, neighbours in groupby(documents, key=_file_of):
        run = list(neighbours)
        longest = 1 if file is None else SHORTEST_BLOCK
        if file is not None and share is not None:
            drawn = ceil(share * len(run))
            longest = max(1, min(LONGEST_BLOCK, max(SHORTEST_BLOCK, drawn // BLOCKS), drawn))
        count = ceil(len(run) / longest)
        edges = [place * len(run) // count for place in range(count + 1)]
        found += [run[a:b] for a, b in pairwise(edges)]
    return found


def _file_of(document: Document) -> str | None:
    """The file of a sentence whose document is unknown; None for any other document."""
    return document.source.rpartition(":")[0] if document.unmarked else None


def public_share(
    train: list[Document], settings: Settings
) -> tuple[list[Document], list[Document]]:
    """A corpus's training documents as (those to deal, those in the public set), each in order.

    Without noise at least one is dealt. Raises DataError as `_by_unit`.
    """
    share = settings.public.share
    if not share:
        return train, []
    public, rest = _drawn(train, share, settings, "public", most=len(train) - 1)
    return rest, public


def train_share(train: list[Document], settings: Settings, name: str) -> list[Document]:
    """The share of a site's training documents that it trains on, in order.

    Raises DataError as `_by_unit`.
    """
    share = settings.data.train_share
    if share == 1.0:
        return train
    return _drawn(train, share, settings, "train share", name, most=len(train))[0]


def _drawn(
    train: list[Document], share: float, settings: Settings, *names: str, most: int
) -> tuple[list[Document], list[Document]]:
    """A share of the documents and the rest, each in order; a larger one contains every smaller.

    It is at least one document and at most `most`; under noise it may be none or all. Raises
    DataError as `_by_unit`.
    """
    if settings.privacy is not None:
        drawn, rest = _by_unit(train, (share,), settings, *names)
        return drawn, rest
    order = np.random.default_rng(derive_seed(settings.seed, *names)).permutation(len(train))
    count = min(max(1, int(share * len(train) + 0.5)), most)
    return [train[n] for n in sorted(order[:count])], [train[n] for n in sorted(order[count:])]


def _by_unit(
    documents: Sequence[Document], shares: Sequence[float], settings: Settings, *names: str
) -> list[list[Document]]:
    """About so large shares of the documents, and the rest; each document's unit decides alone.

    Raises DataError if units are sentences and a document has several: one sentence would then
    decide about others.
    """
    privacy = settings.privacy
    assert privacy is not None
    edges = list(accumulate(shares))
    found: list[list[Document]] = [[] for _ in (*shares, "rest")]
    for document in documents:
        draw = derive_seed(settings.seed, *names, _unit_of(document, privacy)) / 2**63
        found[bisect_right(edges, draw)].append(document)
    return found


def _unit_of(document: Document, privacy: PrivacyTable) -> str:
    """The key that decides about a document: its patient's name, or its text (not its place)."""
    if privacy.unit == "patient":
        return patient_of(document, privacy.patients)
    if privacy.unit == "sentence" and (count := _sentences(document)) > 1:
        raise DataError(
            "under noise by the sentence, no share of this text can be drawn",
            expected="one sentence a document",
            got=f"{count} in document {document.id}",
            fix='name held-out text in files (`dev`, `test`), or set privacy.unit = "document"',
        )
    return document.text


def _sentences(document: Document) -> int:
    return len((document if document.sentences else segmented(document)).sentences)


# --- Canaries
#
# Documents of a site of which a coin let each into its training, or left it out.
#
# The coins come from a secret in the site's own folder, so nobody else can know them. After the
# run whoever can tell the two kinds apart shows how much the model tells (`confide audit`;
# Steinke et al. 2023). Between simulated sites the secret comes from the seed, so that numbers
# repeat.


COINS = "canaries.key"
"""The secret, in the folder that the site owns."""
_BYTES = 32


@dataclass(frozen=True)
class Canaries:
    """Documents, and for each whether it was let in."""

    documents: tuple[Document, ...] = ()
    within: tuple[bool, ...] = ()

    @property
    def out(self) -> list[Document]:
        """Those that were left out."""
        return [one for one, let in zip(self.documents, self.within, strict=True) if not let]


def canaries_of(settings: Settings, site: str) -> int:
    """The number of a site's documents that are canaries."""
    own = next((one for one in settings.site if one.name == site), None)
    return (own.canaries if own else 0) or settings.data.canaries


def dealt(
    train: list[Document], settings: Settings, site: str, *, folder: Path
) -> tuple[list[Document], Canaries]:
    """The training documents without the canaries that are left out, and all canaries.

    `folder` is the site's own. Raises DataError if the site has too few documents, and RunError if
    its secret cannot be read or kept.
    """
    count = canaries_of(settings, site)
    if not count:
        return train, Canaries()
    if count >= len(train):
        raise DataError(
            f"site {site} has too few training documents for its canaries",
            expected=f"at most {len(train) - 1}",
            got=str(count),
            fix="lower `canaries`: half of them are left out of training",
        )
    draws = np.random.default_rng(derive_seed(settings.seed, "canaries", site))
    chosen = sorted(draws.permutation(len(train))[:count].tolist())
    within = _coins(_secret(settings, folder), site, count)
    out = {place for place, let in zip(chosen, within, strict=True) if not let}
    kept = [one for place, one in enumerate(train) if place not in out]
    return kept, Canaries(tuple(train[place] for place in chosen), within)


def has_coins(settings: Settings, site: str, folder: Path) -> bool:
    """Return whether the site's coins can be known here; it may have no canaries at all."""
    return not canaries_of(settings, site) or _simulated(settings) or (folder / COINS).is_file()


def _simulated(settings: Settings) -> bool:
    return settings.split is not None or settings.key == SIMULATED


def _coins(secret: bytes, site: str, count: int) -> tuple[bool, ...]:
    return tuple(
        bool(hmac.digest(secret, f"{site}\0{number}".encode(), hashlib.sha256)[0] & 1)
        for number in range(count)
    )


def _secret(settings: Settings, folder: Path) -> bytes:
    if _simulated(settings):
        return simulated_key(derive_seed(settings.seed, "coins"))
    path = folder / COINS
    with os_errors_as(RunError, "the secret of the canaries cannot be kept or read", where=path):
        if not path.exists():
            private_folder(folder)
            write_of_run(path, secrets.token_bytes(_BYTES))
        return file_bytes(path)


@dataclass(frozen=True)
class Gathered:
    """Sites as specs, what did not fit, and a fingerprint of all text and annotations.

    `public` is the public set, `labelled` whether its annotations may be used, `public_problems`
    what did not fit in it. `left_out` training documents were left out because they share what
    `apart` names (`[split]`) with held-out ones.
    """

    specs: tuple[Site, ...]
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
                spec.name: dealing.part_facts(
                    {part: getattr(spec, part) for part in PARTS},
                    [*self.problems[spec.name], *KINDS[self.kind].left_out(spec.train)],
                    relations=task.pairs,
                    bags=self.same if task.bags else None,
                )
                for spec in self.specs
            },
        }
        if self.public:
            count = (
                dealing.entities_by_type if task.learns == "entities" else dealing.relations_by_type
            )
            facts["public"] = {
                "documents": len(self.public),
                task.learns: count(self.public),
                "problems": dealing.count_problems(self.public_problems),
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
        trained = dealing.masked(trained, settings.data.mask_common, seed=seed)
    specs, canaries = [], {}
    for name in sorted(held):
        train, canaries[name] = dealt(trained[name], settings, name, folder=folder / name)
        parts = {**held[name], "train": train}
        specs.append(_spec(name, parts, settings, folder=folder, key_file=key_file))
    task = TASKS[settings.task]
    if task.learns == "relations":
        _check_relations(specs, settings)
    texts = [(spec.name, part, getattr(spec, part)) for spec in specs for part in PARTS]
    texts += [("", "public", public)] if public else []
    return Gathered(
        tuple(specs),
        canaries=canaries,
        problems={spec.name: problems.get(spec.name, []) for spec in specs},
        fingerprint=dealing.text_fingerprint(texts, relations=task.pairs),
        task=settings.task,
        kind=settings.kind,
        public=tuple(public),
        labelled=settings.public.labelled,
        public_problems=public_problems,
        same=settings.bags.same_entity,
        apart=settings.split.disjoint_by if settings.split else "",
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
) -> Site:
    """A site's documents, with what its table says about it."""
    if not any(document.text.strip() for document in parts["train"]):
        raise DataError(
            f"site {name} has no training text",
            fix="check its `train` files with `confide data check`",
        )
    plain = SiteTable(name=name, train=())
    own = next((site for site in settings.site if site.name == name), plain)
    vectors = own.vectors or KINDS[settings.kind].Spec.vectors(settings)
    return Site(
        name=name,
        train=parts["train"],
        dev=parts["dev"],
        test=parts["test"],
        folder=folder / name,
        key_file=Path(own.key) if own.key else key_file,
        vectors=_vector_file(vectors) if vectors else None,
        context=own.context,
        tag_scheme=own.tag_scheme,
        annotates=own.annotates,
        test_annotates=own.test_annotates,
        types=own.types,
        guards=Guards(**settings.guards.model_dump()),
    )


def _vector_file(named: str) -> Path:
    """The file of word vectors that settings name, by a path or as a public model."""
    return models.find(named, vectors=True) if named in models.known() else locate(named)


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
        parts = hold_out(_read(site, settings, found), settings, site.name)
        sites[site.name] = _annotated(parts, site, settings)
        problems[site.name] = found
    return sites


def _annotated(parts: Parts, site: SiteTable, settings: Settings) -> Parts:
    """The documents, with only the entity types that the site annotates if it names them."""
    if not site.annotates or TASKS[settings.task].learns != "entities":
        return parts
    types = dict.fromkeys(parts, frozenset(site.annotates))
    types["test"] |= frozenset(site.test_annotates)
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
    same = settings.bags.same_entity
    (whole,), left_out = dealing.apart(
        [_read(split, settings, found)], split.disjoint_by, same=same
    )
    corpus = hold_out(whole, settings, "") if split.holdout_from == "corpus" else dict(whole)
    (corpus,), more = dealing.apart([corpus], split.disjoint_by, same=same, held=("test",))
    corpus["train"], drawn = public_share(corpus["train"], settings)
    _check_groups(whole, corpus, settings)
    sites: dict[str, Parts] = {}
    for part, documents in corpus.items():
        if not documents:
            continue
        like = corpus["train"] if part != "train" else None
        for name, share in _dealt_part(documents, part, settings, like=like).items():
            sites.setdefault(name, {p: [] for p in PARTS})[part] = share
    given = [part for part in PARTS if corpus[part]]
    for name in sites:
        sites[name] = hold_out(sites[name], settings, name, given=given)
        problems[name] = found
        found = []
    kept, last = dealing.apart(list(sites.values()), split.disjoint_by, same=same, held=("test",))
    return dict(zip(sites, kept, strict=True)), drawn, left_out + more + last


def _dealt_part(
    documents: list[Document], part: str, settings: Settings, *, like: Sequence[Document] | None
) -> dict[str, list[Document]]:
    """A part of a corpus, dealt as the settings say; held-out bags always stay whole."""
    split, same = settings.split, settings.bags.same_entity
    assert split is not None
    everybody = part == "train"
    task = TASKS[settings.task]
    if split.by == "pair" or (task.bags and not everybody):
        return dealing.deal_pairs(
            documents, split.sites, seed=split.seed, same=same, everybody=everybody
        )
    return dealing.partition(
        documents,
        split.sites,
        by=split.by,
        seed=split.seed,
        alpha=split.alpha,
        classes="relations" if task.pairs else "entities",
        attribute=split.attribute,
        like=like,
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
    if name := settings.pairs.attribute:
        everything = [attributes_as_relations(one, name) for one in everything]
    renamed, changed = retag(everything, table.tags, relations=table.relations)
    if settings.pairs.attribute:
        _check_values(renamed, settings.pairs.attribute)
    if settings.data.types:
        check_types(renamed, settings.data.types)
    problems += changed
    left = iter(renamed)
    return {part: list(islice(left, len(found))) for part, found in read_parts.items()}


def odd_values(values: Iterable[str]) -> int:
    """The number of values of an attribute that are no labels: not one word of letters and such."""
    return sum(_VALUE.fullmatch(value) is None for value in values)


def _check_values(documents: Sequence[Document], name: str) -> None:
    """Raise DataError unless an attribute's values are few words: as names, they leave the site."""
    values = {one.type for document in documents for one in document.relations}
    odd = odd_values(values)
    if odd or len(values) > MOST_VALUES:
        raise DataError(
            f"the values of the attribute {printable(name, 60)!r} are no labels, and they would"
            " leave the site as names",
            expected=f"at most {MOST_VALUES}, each of at most 60 letters, digits and _ . + -",
            got=f"{len(values)} values, {odd} of another form",
            fix='name another attribute, or rename values: relations = { "not sure" = "possible" }',
        )


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
    there = {dealing.group_of(document, split.by) for document in whole["train"]}
    drawn = [part for part in PARTS if not whole[part] and corpus[part]]
    for part in ("train", *([] if TASKS[settings.task].bags else drawn)):
        missing = there - {dealing.group_of(document, split.by) for document in corpus[part]}
        if missing:
            raise DataError(
                f"no document of the {split.by} {min(missing)!r} is left for {part}",
                fix='deal by "iid" or another way, or set hold_out = "site" and a smaller public'
                " set",
            )


def _check_relations(specs: Sequence[Site], settings: Settings) -> None:
    """Raise DataError if relations are to be learnt and no site has any.

    A single real site may have nothing but pairs without a relation.
    """
    train = [document for spec in specs for document in spec.train]
    if dealing.relations_by_type(train) or (len(specs) == 1 and any(map(stated_pairs, train))):
        return
    if name := settings.pairs.attribute:
        raise DataError(
            f"no entity of the training text has the attribute {printable(name, 60)!r}",
            expected="entities with that attribute, because pairs.attribute names it",
            fix="look at the files with `confide data check`; i2b2's .ast files give the attribute"
            ' "assertion", brat\'s A lines those that they name',
        )
    raise DataError(
        "no training document has a relation",
        expected=f'annotated relations, because task = "{settings.task}"',
        got=f"{len(train)} documents without any",
        fix="see what is in the files with `confide data stats`; relations are read from brat, "
        "PubTator, BioC, BioBERT's tables, ChemProt, DDI, i2b2, SemEval and the ADE corpus",
    )


# --- Sites of the references
#
# All text in one place, or the public set alone.


def pooled(gathered: Gathered, folder: Path) -> Site:
    """One site with the text of all, which is only possible where text may move.

    It also trains on the public set, if that is labelled.
    """
    train = [document for spec in gathered.specs for document in spec.train]
    train += gathered.public if gathered.labelled else ()
    return _everybody("pooled", train, gathered, folder)


def public_only(gathered: Gathered, folder: Path) -> Site:
    """One site that trains on the public set alone and is tested on everybody's text.

    Raises SettingsError if there is no labelled public set.
    """
    if not gathered.public or not gathered.labelled:
        what = "not labelled" if gathered.public else "no public set"
        raise SettingsError(
            "public-only has nothing to learn from",
            expected="an annotated public set",
            got=what,
            fix="name files or a share of the corpus in [public]",
        )
    return _everybody("public-only", list(gathered.public), gathered, folder)


def _everybody(name: str, train: list[Document], gathered: Gathered, folder: Path) -> Site:
    specs = gathered.specs
    return Site(
        name=name,
        train=train,
        dev=[document for spec in specs for document in spec.dev],
        test=[document for spec in specs for document in spec.test],
        folder=folder / name,
        key_file=specs[0].key_file,
        vectors=specs[0].vectors,
        context=specs[0].context,
        guards=specs[0].guards,
    )
