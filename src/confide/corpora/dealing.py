"""Dealing a corpus to sites, one file or folder each, and hiding entities: `confide data split`."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from confide.errors import DataError, SettingsError, printable
from confide.files import Tree
from confide.kinds.bags.batches import Same, identity
from confide.text.document import NO_RELATION, PAIR, Document, Entity, Problem, stated_pairs
from confide.text.files import write_text
from confide.text.formats import Reading, format_named, read, write
from confide.text.published.catalogue import locate
from confide.text.segment import count_words_cut, segmented

# --- Documents by pairs of entities
#
# This keeps bags whole and text apart.


def pairs_of(documents: Sequence[Document], same: Same = "concept") -> list[Hashable]:
    """Each document's one stated pair, as the identities of head and tail.

    `same` is what makes two mentions one entity. A document that states several pairs, or none,
    equals no other.
    """
    found: list[Hashable] = []
    for number, document in enumerate(documents):
        stated = stated_pairs(document) or []
        if len(stated) == 1:
            head, tail = stated[0]
            found.append((identity(document, head, same), identity(document, tail, same)))
        else:
            found.append(number)
    return found


def group_by_pair(documents: Sequence[Document], same: Same = "concept") -> list[list[Document]]:
    """The documents of each pair together, pairs in the order in which they first come."""
    groups: dict[Hashable, list[Document]] = {}
    for document, pair in zip(documents, pairs_of(documents, same), strict=True):
        groups.setdefault(pair, []).append(document)
    return list(groups.values())


def apart(
    parts: Sequence[Mapping[str, list[Document]]],
    by: str,
    *,
    same: Same = "concept",
    held: Sequence[str] = ("dev", "test"),
) -> tuple[list[dict[str, list[Document]]], int]:
    """The parts without training documents that share what `by` names with a held-out document.

    `parts` are those of one corpus or of several sites: what any of them has in the parts `held`
    counts for all.
    `by` is the name of an attribute of documents ("" leaves all as it is), or "pair": the pair of
    entities that a document states. A document without the attribute shares nothing.

    Gives the parts, and how many documents were left out. Raises DataError if no document has
    the attribute.
    """
    if not by:
        return [dict(one) for one in parts], 0
    keys_held = {key for one in parts for part in held for key in _keys(one[part], by, same)}
    kept, left_out, found = [], 0, set(keys_held)
    keys_held.discard(None)
    for one in parts:
        keys = _keys(one["train"], by, same)
        found.update(keys)
        train = [d for d, key in zip(one["train"], keys, strict=True) if key not in keys_held]
        left_out += len(keys) - len(train)
        kept.append({**one, "train": train})
    if not found - {None}:
        raise DataError(
            f"no document has an attribute {by!r}, so nothing can be kept apart by it",
            expected=f'an attribute that the format reads, or "{PAIR}"',
            fix="see what documents have with `confide data convert FILE --out FILE.jsonl`",
        )
    return kept, left_out


def _keys(documents: Iterable[Document], by: str, same: Same) -> list[Hashable | None]:
    if by == PAIR:
        pairs = pairs_of(list(documents), same)
        return [pair if isinstance(pair, tuple) else None for pair in pairs]
    return [dict(document.attributes).get(by) for document in documents]


# --- One corpus -> several simulated sites, reproducibly
#
# Nothing is lost, nothing is dealt twice.
#
# - `iid`: shuffled and cut into equal parts (sizes differ by at most one).
# - `file`, `domain`, `attribute`: whole groups, such as an author's, a patient's or a ward's. The
#   groups, sorted by name, are dealt round robin.
# - `dirichlet`: skewed labels. A document's class is the entity type it mentions most, or the
#   relation it has most (its own class if it has none); for each class the sites' shares are drawn
#   from Dirichlet(alpha, ..., alpha) (Hsu, Qi & Brown 2019, arXiv 1909.06335). A small `alpha`
#   gives sites that hardly share classes.
# - `types`: the same number of classes at every site (#C = k of Li et al. 2022, arXiv 2102.02079).
#   The shuffled list of classes is dealt round and round, so a class is at as many sites as any
#   other, give or take one; its documents are cut into equal parts. Those of no class go to all.
# - `quantity`: skewed sizes. Site i holds a share that goes with i^-alpha.
# - `pair`: all documents that state one pair of entities go to one site; the pairs are shuffled and
#   cut into equal parts. A document that states several pairs, or none, is dealt by itself.
#
# Each draw has its own seed, from `seed` and a name. So if train, dev and test of one corpus are
# dealt one after the other, a site gets the same shares of classes. `like` are the documents that
# were dealt before: their domains, values of an attribute and classes go where they went.


By = Literal["iid", "file", "domain", "attribute", "dirichlet", "types", "quantity", "pair"]
GroupedBy = Literal["file", "domain", "attribute"]
KINDS: tuple[By, ...] = get_args(By)
Classes = Literal["entities", "relations"]
ALPHA = {"dirichlet": 0.5, "types": 2, "quantity": 1.0}
"""The default of `alpha`."""
DOMAIN_KEYS = ("domain", "genre")


def partition(
    documents: Sequence[Document],
    sites: int,
    *,
    by: By = "iid",
    seed: int = 1,
    alpha: float | None = None,
    classes: Classes = "entities",
    attribute: str | None = None,
    like: Sequence[Document] | None = None,
) -> dict[str, list[Document]]:
    """Deal documents to the sites `site-01`, `site-02`, ...; each gets at least one.

    Within a site, documents keep their order. `alpha` is for `dirichlet` (default 0.5), `quantity`
    (default 1) and `types` (how many at a site, default 2), `attribute` names that of `attribute`.
    `classes` is what `dirichlet` and `types` skew. `like`, for further parts of a corpus, are the
    documents that were dealt before: then a site may get none of its own groups or types, and
    fewer documents than sites are dealt one each to the first sites.

    Raises DataError if there are fewer documents, files or other groups than sites, a document is
    in no group, `alpha` makes no sense, or with that number of types a site some are left over.
    """
    if by not in KINDS:
        raise DataError("unknown way to deal documents", expected=", ".join(KINDS), got=repr(by))
    if sites < 1:
        raise DataError("there is no site to deal to", expected="at least 1", got=str(sites))
    if by == "pair":
        return deal_pairs(documents, sites, seed=seed, everybody=like is None)
    few = len(documents) < sites
    if like is None:
        _must_reach(sites, len(documents), "documents", "ask for fewer sites, or bring more text")
    if by in ("file", "domain", "attribute"):
        groups = [group_of(document, by, attribute=attribute) for document in documents]
        again = () if by == "file" else like or ()
        before = [group_of(document, by, attribute=attribute) for document in again]
        owner = _dealt_by_group(groups, sites, attribute or by, before=before)
        few = bool(before)  # a site with none of these groups stays without
    elif by == "types":
        kinds = [commonest_type(document, classes) for document in documents]
        known = [commonest_type(document, classes) for document in like or documents]
        owner = _dealt_by_types(kinds, sites, seed, _positive(alpha, by), known)
        few = like is not None
    elif few:
        owner = np.arange(len(documents), dtype=np.int64)
    elif by == "dirichlet":
        kinds = [commonest_type(document, classes) for document in documents]
        owner = _dealt_by_class(kinds, sites, seed, _positive(alpha, by))
    else:
        skew = 0.0 if by == "iid" else _positive(alpha, by)
        wanted = np.array([float(site) ** -skew for site in range(1, sites + 1)])
        owner = _dealt(len(documents), wanted, _generator(seed, by))
    if not few:
        _leave_no_site_empty(owner, sites)
    return _by_owner(documents, owner, sites)


def deal_pairs(
    documents: Sequence[Document],
    sites: int,
    *,
    seed: int = 1,
    same: Same = "concept",
    everybody: bool = True,
) -> dict[str, list[Document]]:
    """Deal out pairs as `partition` by "pair"; `same` is what makes two mentions one entity.

    Raises DataError if there are fewer pairs than sites, and `everybody` must get one.
    """
    groups = pairs_of(documents, same)
    place = {pair: number for number, pair in enumerate(dict.fromkeys(groups))}
    if everybody:
        fix = 'ask for fewer sites, or deal by "iid" or another way'
        _must_reach(sites, len(place), "pairs of entities", fix)
    owner = _dealt(len(place), np.ones(sites), _generator(seed, "pair"))
    return _by_owner(documents, owner[[place[pair] for pair in groups]], sites)


def _must_reach(sites: int, number: int, what: str, fix: str) -> None:
    """Raise DataError if there are fewer things to deal than sites."""
    if number < sites:
        raise DataError(
            f"there are fewer {what} than sites",
            expected=f"at least {sites}",
            got=str(number),
            fix=fix,
        )


def _by_owner(documents: Sequence[Document], owner: Owner, sites: int) -> dict[str, list[Document]]:
    names = site_names(sites)
    dealt: dict[str, list[Document]] = {name: [] for name in names}
    for document, site in zip(documents, owner, strict=True):
        dealt[names[site]].append(document)
    return dealt


def site_names(sites: int) -> list[str]:
    """`site-01`, `site-02`, ..., with as many digits as the last one needs, at least two."""
    digits = max(2, len(str(sites)))
    return [f"site-{number:0{digits}}" for number in range(1, sites + 1)]


def group_of(document: Document, by: GroupedBy, *, attribute: str | None = None) -> str:
    """The file a document was read from, or the domain or `attribute` that it says it has.

    Raises DataError if the document does not say.
    """
    keys = (attribute,) if by == "attribute" else DOMAIN_KEYS
    if by == "attribute" and not attribute:
        raise DataError("no attribute is named to deal by", expected='one such as "ward"')
    if by == "file":
        group = re.sub(r":\d+$", "", document.source)
    else:
        attributes = dict(document.attributes)
        group = next((attributes[key] for key in keys if key and attributes.get(key)), "")
    if not group:
        wanted = " or ".join(repr(key) for key in keys)
        there = ", ".join(repr(name) for name, _ in document.attributes)
        raise DataError(
            f"a document has no {attribute or by}, so it belongs to no site",
            where=document.where,
            expected="the file it was read from" if by == "file" else f"an attribute {wanted}",
            got=None if by == "file" else printable(there or "no attribute", 200),
            fix='deal by "iid" or another way',
        )
    return group


def commonest_type(document: Document, classes: Classes = "entities") -> str:
    """The type that most entities, or relations, of a document have (of several the first by name).

    "" if there is none; a document that states pairs of which none is related is of the class
    `NO_RELATION`.
    """
    if classes == "entities":
        counts, none = Counter(entity.type for entity in document.entities), ""
    else:
        types = (relation.type for relation in document.relations)
        counts = Counter(type_ for type_ in types if type_ != NO_RELATION)
        none = NO_RELATION if stated_pairs(document) else ""
    return min(counts, key=lambda type_: (-counts[type_], type_), default=none)


Owner = NDArray[np.int64]


def _dealt_by_group(
    groups: Sequence[str], sites: int, by: str, *, before: Sequence[str] = ()
) -> Owner:
    """The groups round robin; those that were there `before` keep their sites."""
    names = sorted(set(before))
    names += sorted(set(groups) - set(before))
    fix = f'ask for {len(names)} sites, or deal by "iid" or another way'
    _must_reach(sites, len(names), f"{by}s", fix)
    site = {name: position % sites for position, name in enumerate(names)}
    return np.array([site[group] for group in groups])


def _dealt_by_class(kinds: Sequence[str], sites: int, seed: int, alpha: float) -> Owner:
    kind = np.array(kinds, dtype=object)
    owner = np.zeros(len(kinds), dtype=np.int64)
    for name in sorted(set(kinds)):
        generator = _generator(seed, "dirichlet", name)
        shares = generator.dirichlet(np.full(sites, alpha))
        members = np.flatnonzero(kind == name)
        owner[members] = _dealt(len(members), shares, generator)
    return owner


def _dealt_by_types(
    kinds: Sequence[str], sites: int, seed: int, alpha: float, known: Sequence[str]
) -> Owner:
    """`alpha` of the `known` classes at every site, documents of no known class at all sites."""
    each = int(alpha)
    names = sorted(set(known) - {"", NO_RELATION})
    if each != alpha or each > len(names) or sites * each < len(names):
        least = max(1, math.ceil(len(names) / sites))
        raise DataError(
            f"{alpha:g} types a site do not go round",
            expected=f"a whole number from {least} to {len(names)}, so that all {len(names)} types"
            f" are somewhere on {sites} sites",
            got=f"alpha = {alpha:g}",
            fix='change alpha or the number of sites, or deal by "dirichlet"',
        )
    order = _generator(seed, "types").permutation(len(names))
    at: dict[str, list[int]] = {name: [] for name in names}
    for place in range(sites * each):
        at[names[order[place % len(names)]]].append(place // each)
    kind = np.array(kinds, dtype=object)
    owner = np.zeros(len(kinds), dtype=np.int64)
    for name in sorted(set(kinds)):
        own = np.array(at.get(name) or range(sites))
        members = np.flatnonzero(kind == name)
        cut = _dealt(len(members), np.ones(len(own)), _generator(seed, "types", name))
        owner[members] = own[cut]
    return owner


def _positive(alpha: float | None, by: str) -> float:
    alpha = ALPHA.get(by, 1.0) if alpha is None else alpha
    if not 0 < alpha < float("inf"):
        raise DataError("alpha is not usable", expected="a positive number", got=str(alpha))
    return alpha


def _dealt(size: int, shares: NDArray[np.float64], generator: np.random.Generator) -> Owner:
    """Which site each of `size` shuffled places goes to, in numbers that follow the shares."""
    owner = np.empty(size, dtype=np.int64)
    owner[generator.permutation(size)] = np.repeat(
        np.arange(len(shares)), _largest_remainder(shares, size)
    )
    return owner


def _largest_remainder(shares: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers that go with the shares and sum to `total` (Hamilton's method)."""
    exact = shares / shares.sum() * total
    counts: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    first = np.argsort(counts - exact, kind="stable")
    counts[first[: total - counts.sum()]] += 1
    return counts


def _leave_no_site_empty(owner: Owner, sites: int) -> None:
    """Give an empty site the last document of the largest one."""
    sizes = np.bincount(owner, minlength=sites)
    for site in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        owner[np.flatnonzero(owner == largest)[-1]] = site
        sizes[largest] -= 1
        sizes[site] += 1


def _generator(seed: int, *names: str) -> np.random.Generator:
    name = "\0".join(("partition", str(seed), *names))
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


# --- Masking of common entities
#
# Entities that occur at several sites are hidden, to see how much of a gain depends on them.
#
# Ge et al. 2020, 4.5 (Fig. 5) mask a share of the entities that their data sets have in common,
# but do not say how. Here a mention's letters and digits become "x": it stays an entity of the
# same length at the same place, but nobody can learn its words.


_SPACE = re.compile(r"\s+")
_LETTER = re.compile(r"\w")


def common_entities(sites: Mapping[str, Sequence[Document]]) -> list[str]:
    """Return the surfaces, in small letters, of entities annotated at two sites or more."""
    holders: dict[str, set[str]] = {}
    for site, documents in sites.items():
        for document in documents:
            for entity in document.entities:
                holders.setdefault(_written(document, entity), set()).add(site)
    return sorted(text for text, names in holders.items() if len(names) > 1)


def masked(
    sites: Mapping[str, Sequence[Document]], share: float, *, seed: int
) -> dict[str, list[Document]]:
    """Hide a `share` of the common entities wherever they are annotated.

    For the same seed, a larger share hides everything that a smaller one hides.
    """
    common = common_entities(sites)
    order = np.random.default_rng(seed).permutation(len(common))
    hidden = {common[place] for place in order[: int(share * len(common) + 0.5)]}
    return {site: [_hide(one, hidden) for one in documents] for site, documents in sites.items()}


def _written(document: Document, entity: Entity) -> str:
    pieces = [document.text[start:end] for start, end in entity.fragments]
    return _SPACE.sub(" ", " ".join(pieces)).strip().lower()


def _hide(document: Document, hidden: set[str]) -> Document:
    """The document with the letters of these entities replaced; no offset moves."""
    text = document.text
    for entity in document.entities:
        if _written(document, entity) in hidden:
            for start, end in entity.fragments:
                text = text[:start] + _LETTER.sub("x", text[start:end]) + text[end:]
    return document if text == document.text else replace(document, text=text)


# --- Facts about text without text
#
# Counts of its parts, and a fingerprint.


TRAIN = "train"


def part_facts(
    parts: Mapping[str, Sequence[Document]],
    problems: Sequence[Problem],
    *,
    relations: bool,
    bags: Same | None = None,
) -> Tree:
    """Sentences of each part, entities of the training text by type, and problems by kind.

    `words_cut`: the words in these entities, and how many of them raw text has otherwise.

    With `relations`, also the training text's relations by type. With `bags` (what makes two
    mentions one entity), also how many pairs of entities each part has (several in one document
    count as one).
    """
    train = parts[TRAIN]
    facts: Tree = {part: _sentences(documents) for part, documents in parts.items()}
    facts["entities"] = entities_by_type(train)
    facts["words_cut"] = asdict(count_words_cut(train))
    if bags is not None:
        facts["pairs"] = {part: len(set(pairs_of(of, bags))) for part, of in parts.items()}
    if relations:
        facts["relations"] = relations_by_type(train)
    return {**facts, "problems": count_problems(problems)}


def entities_by_type(documents: Iterable[Document]) -> dict[str, int]:
    """Count the annotated entities of each type."""
    types = Counter(entity.type for document in documents for entity in document.entities)
    return dict(sorted(types.items()))


def relations_by_type(documents: Iterable[Document]) -> dict[str, int]:
    """Count the annotated relations of each type."""
    types = Counter(relation.type for document in documents for relation in document.relations)
    return {name: count for name, count in sorted(types.items()) if name != NO_RELATION}


def count_problems(problems: Iterable[Problem]) -> dict[str, int]:
    """Count the problems of each kind."""
    return dict(sorted(Counter(problem.kind for problem in problems).items()))


def text_fingerprint(
    texts: Iterable[tuple[str, str, Sequence[Document]]], *, relations: bool
) -> str:
    """A digest of all text and entities (and `relations`), with their sites and parts."""
    digest = hashlib.sha256()
    for name, part, documents in texts:
        digest.update(f"\0{name}\0{part}".encode())
        for document in documents:
            digest.update(document.text.encode("utf-8", "surrogatepass"))
            marks = [(entity.type, entity.fragments) for entity in document.entities]
            digest.update(repr(marks).encode())
            if relations:
                digest.update(_related(document))
    return digest.hexdigest()


def _related(document: Document) -> bytes:
    """The relations of a document as bytes, for a digest."""
    mentions = [(entity.id, entity.concepts) for entity in document.entities]
    links = [(one.level, one.type, one.head, one.tail) for one in document.relations]
    said = repr((mentions, links, stated_pairs(document)))
    return said.encode("utf-8", "surrogatepass")


def _sentences(documents: Sequence[Document]) -> int:
    return sum(bool(s.tokens) for document in documents for s in segmented(document).sentences)


SCHEMA = 1
DESCRIPTION = "split.json"


@dataclass(frozen=True, slots=True)
class SiteShare:
    """One site's share of a corpus. `groups` are its files, domains or the like, if dealt."""

    path: str
    documents: int
    sentences: int
    entities: dict[str, int]
    groups: tuple[str, ...] = ()
    relations: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SplitReport:
    """The contents of `split.json` beside the sites' files: how a corpus was dealt.

    `classes` is what dirichlet or types skewed: relations if most documents state their pairs,
    otherwise entities. `problems` counts, by kind, what reader and writer could not hold or had to
    change.
    """

    by: str
    seed: int
    alpha: float | None
    format: str
    sources: tuple[str, ...]
    sites: dict[str, SiteShare]
    problems: dict[str, int]
    classes: Classes | None = None
    attribute: str | None = None

    def to_json(self) -> Tree:
        """The report as plain values."""
        return {"schema": SCHEMA, **asdict(self)}


def split(
    paths: str | Path | Sequence[str | Path],
    sites: int,
    *,
    by: str = "iid",
    seed: int = 1,
    alpha: float | None = None,
    out: str | Path,
    format: str | None = None,
    to: str | None = None,
) -> SplitReport:
    """Read files, deal their documents to sites (see `partition`), write one file or folder each.

    `by` may also be `attribute=NAME`. `format` is the format of the files (None: detect it), `to`
    the one to write (None: the same).

    Raises:
        DataError: as `partition` does; or there is no document, or a site's file already exists.
        SettingsError: the files have several formats and `to` does not choose one.
    """
    readings = read_all(paths, format=format)
    documents = [document for reading in readings.values() for document in reading.documents]
    formats = sorted({reading.format for reading in readings.values()})
    if to is None and len(formats) > 1:
        raise SettingsError(
            "the files have several formats", got=", ".join(formats), fix="say which one to write"
        )
    kind = format_named(to or formats[0])
    asked = sum(stated_pairs(document) is not None for document in documents)
    classes: Classes = "relations" if 2 * asked > len(documents) else "entities"
    way, attribute = _way(by)
    dealt = partition(
        documents, sites, by=way, seed=seed, alpha=alpha, classes=classes, attribute=attribute
    )
    folder = Path(out)
    paths_of = {name: folder / (name + kind.suffix) for name in dealt}
    taken = next((path for path in (folder / DESCRIPTION, *paths_of.values()) if path.exists()), "")
    if taken:
        raise DataError(
            "there is something already",
            where=str(taken),
            fix="give another folder, or remove what is there",
        )
    problems = [problem for reading in readings.values() for problem in reading.problems]
    shares = {}
    for name, part in dealt.items():
        problems += write(part, paths_of[name], kind.name)
        groups: set[str] = set()
        if way in ("file", "domain", "attribute"):
            groups = {group_of(document, way, attribute=attribute) for document in part}
        shares[name] = SiteShare(
            path=paths_of[name].name,
            documents=len(part),
            sentences=sum(len(document.sentences) for document in part),
            entities=entities_by_type(part),
            groups=tuple(sorted(groups)),
            relations=relations_by_type(part),
        )
    report = SplitReport(
        by=way,
        seed=seed,
        alpha=ALPHA.get(way) if alpha is None else alpha,
        format=kind.name,
        sources=tuple(readings),
        sites=shares,
        problems=count_problems(problems),
        classes=classes if way in ("dirichlet", "types") else None,
        attribute=attribute,
    )
    text = json.dumps(report.to_json(), indent=2, ensure_ascii=False)
    write_text(folder / DESCRIPTION, text + "\n")
    return report


def _way(by: str) -> tuple[By, str | None]:
    """The way to deal, and the name of the attribute in `attribute=NAME`. Raises DataError."""
    name, _, attribute = by.partition("=")
    way = next((one for one in KINDS if one == name), None)
    if way is None or bool(attribute) != (way == "attribute"):
        known = ", ".join(one + "=NAME" * (one == "attribute") for one in KINDS)
        raise DataError(
            "unknown way to deal documents", expected=known, got=printable(repr(by), 60)
        )
    return way, attribute or None


def read_all(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    scheme: str | None = None,
) -> dict[str, Reading]:
    """Read each path (`$CONFIDE_DATA` is expanded); by path, as it was given.

    Raises DataError if there is no path or no document, and what the readers raise.
    """
    given = [paths] if isinstance(paths, (str, Path)) else paths
    readings = {str(path): read(locate(path), format, scheme=scheme) for path in given}
    if not any(reading.documents for reading in readings.values()):
        raise DataError(
            "there is no document", expected="at least one", got=", ".join(readings) or "no file"
        )
    return readings
