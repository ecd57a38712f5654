"""One corpus -> several simulated sites, reproducibly: nothing is lost, nothing is dealt twice.

- `iid`: shuffled and cut into equal parts (sizes differ by at most one).
- `file`, `domain`: whole groups. The groups, sorted by name, are dealt round robin.
- `dirichlet`: skewed labels. A document's class is the entity type it mentions most, or the
  relation it has most (its own class if it has none); for each class the sites' shares are drawn
  from Dirichlet(alpha, ..., alpha) (Hsu, Qi & Brown 2019, arXiv 1909.06335). A small `alpha` gives
  sites that hardly share classes.
- `quantity`: skewed sizes. Site i holds a share that goes with i^-alpha, or the `shares` given.
- `pair`: all documents that state one pair of entities go to one site; the pairs are shuffled and
  cut into equal parts. A document that states several pairs, or none, is dealt by itself.

Each draw has its own seed, from `seed` and a name. So if train, dev and test of one corpus are
dealt one after the other, a site gets the same shares of classes and, if all parts have them, the
same domains.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from confide.data.batches.bags import Same
from confide.data.corpus.pairing import pairs_of
from confide.errors import DataError
from confide.text.document import NO_RELATION, Document, stated_pairs

By = Literal["iid", "file", "domain", "dirichlet", "quantity", "pair"]
KINDS: tuple[By, ...] = get_args(By)
Classes = Literal["entities", "relations"]
ALPHA = {"dirichlet": 0.5, "quantity": 1.0}
"""The default of `alpha`."""
DOMAIN_KEYS = ("domain", "genre")


def partition(
    documents: Sequence[Document],
    sites: int,
    *,
    by: By = "iid",
    seed: int = 1,
    alpha: float | None = None,
    shares: Sequence[float] | None = None,
    classes: Classes = "entities",
    everybody: bool = True,
) -> dict[str, list[Document]]:
    """Deal documents to the sites `site-01`, `site-02`, ...; each gets at least one.

    Within a site, documents keep their order. `alpha` is for `dirichlet` (default 0.5) and
    `quantity` (default 1), `shares` (one positive number per site) for `quantity`. `classes` is
    what `dirichlet` skews. Unless `everybody` must get one, fewer documents than sites are dealt
    one each to the first sites.

    Raises DataError if there are fewer documents, files or domains than sites, a document has no
    domain, or `alpha` or `shares` make no sense.
    """
    if by not in KINDS:
        raise DataError("unknown way to deal documents", expected=", ".join(KINDS), got=repr(by))
    if sites < 1:
        raise DataError("there is no site to deal to", expected="at least 1", got=str(sites))
    if by == "pair":
        return deal_pairs(documents, sites, seed=seed, everybody=everybody)
    few = len(documents) < sites
    if few and everybody:
        raise DataError(
            "there are fewer documents than sites",
            expected=f"at least {sites}",
            got=str(len(documents)),
            fix="ask for fewer sites, or bring more text",
        )
    if by in ("file", "domain"):
        owner = _dealt_by_group([group_of(document, by) for document in documents], sites, by)
    elif few:
        owner = np.arange(len(documents), dtype=np.int64)
    elif by == "dirichlet":
        kinds = [class_of(document, classes) for document in documents]
        owner = _dealt_by_class(kinds, sites, seed, _positive(alpha, by))
    else:
        wanted = [1.0] * sites if by == "iid" else _sizes(sites, _positive(alpha, by), shares)
        owner = _dealt(len(documents), np.array(wanted), _generator(seed, by))
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
    """As `partition` by "pair"; `same` is what makes two mentions one entity.

    Raises DataError if there are fewer pairs than sites, and `everybody` must get one.
    """
    groups = pairs_of(documents, same)
    place = {pair: number for number, pair in enumerate(dict.fromkeys(groups))}
    if len(place) < sites and everybody:
        raise DataError(
            "there are fewer pairs of entities than sites",
            expected=f"at least {sites}",
            got=str(len(place)),
            fix='ask for fewer sites, or deal by "iid" or another way',
        )
    owner = _dealt(len(place), np.ones(sites), _generator(seed, "pair"))
    return _by_owner(documents, owner[[place[pair] for pair in groups]], sites)


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


def group_of(document: Document, by: Literal["file", "domain"]) -> str:
    """The file a document was read from, or the domain it says it belongs to.

    Raises DataError if the document does not say.
    """
    if by == "file":
        group = re.sub(r":\d+$", "", document.source)
    else:
        attributes = dict(document.attributes)
        group = next((attributes[key] for key in DOMAIN_KEYS if attributes.get(key)), "")
    if not group:
        keys = " or ".join(repr(key) for key in DOMAIN_KEYS)
        raise DataError(
            f"a document has no {by}, so it belongs to no site",
            where=document.source or document.id,
            expected=f"an attribute {keys}" if by == "domain" else "the file it was read from",
            fix='deal by "iid" or another way',
        )
    return group


def class_of(document: Document, classes: Classes = "entities") -> str:
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


def _dealt_by_group(groups: Sequence[str], sites: int, by: str) -> Owner:
    names = sorted(set(groups))
    if len(names) < sites:
        raise DataError(
            f"there are fewer {by}s than sites",
            expected=f"at least {sites}",
            got=str(len(names)),
            fix=f'ask for {len(names)} sites, or deal by "iid" or another way',
        )
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


def _sizes(sites: int, alpha: float, shares: Sequence[float] | None) -> Sequence[float]:
    if shares is None:
        return [float(site) ** -alpha for site in range(1, sites + 1)]
    if len(shares) != sites or not all(0 < share < float("inf") for share in shares):
        raise DataError(
            "the shares do not fit the sites",
            expected=f"{sites} positive numbers",
            got=str(list(shares)),
        )
    return shares


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
