"""Survey: the sites' text in numbers before anything is trained, so that they know what a run has.

It trains nothing. Each site counts its documents, sentences and tokens, its entities by type and,
where no single reply can be seen, its entities' surfaces (type and words, in lower case) by the
bucket of a keyed digest; each type has buckets of its own. Only sums over all sites are used; under
masks the server sees no others.

What leaves a site: the names of the entity types that it annotates; counts, and the language of its
text, in a sum; under masks two numbers for each bucket of surfaces, in a sum: how often they occur,
and 1 if they do.
What never leaves: text, a surface, its digest, the key. Types and surfaces that occur less often at
a site than its guard `min_token_count` count as none.
What sums may still reveal: whoever has the key and hears the server's sums can ask whether any site
has some surface, as with the words of a common vocabulary. So without masks, where the server
receives each site's counts by themselves, nobody counts surfaces. A type that one site alone
annotates (or fewer than `vocabulary.min_sites`) is not counted under masks, nor are its surfaces:
the sum would be its count. Where two annotate it and one has too few, the server reads the other's
count, and the survey keeps it back. Of a type that two sites annotate, each learns the other's
counts by taking its own off the sum: `vocabulary.min_sites = 3` counts no such type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from confide.errors import GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.federation import Federation
from confide.federation.guards import MOST_NAMES
from confide.federation.messages import Arrays, Value, carries
from confide.federation.site import Site
from confide.federation.steps import Step, Turn
from confide.kinds import agreement, protocol
from confide.kinds.agreement import bucket_count
from confide.kinds.tagger.site import TaggerKind
from confide.methods.method import Carried, Facts, Method, OptionsTable, Pair
from confide.settings import Settings as RunSettings
from confide.tasks import Counts
from confide.text.document import Document
from confide.text.segment import CODES, language_of
from confide.training.vocabulary import bucket_of, keyed_digest

BITS = 18
"""Surfaces have 2 to the power of this many buckets, over all types: of 10,000, 4 in 100 share one,
if their types have equally many."""
LANGUAGES = tuple(sorted(CODES))


@dataclass(frozen=True)
class CountText:
    """Count your training text."""

    types: list[str] = carries("names of the entity types to count", rule="varies")
    bits: int = carries(
        "surfaces have 2 to the power of this many buckets, over all types; 0: none is counted"
    )


@dataclass(frozen=True)
class TextCounted:
    """Counts of the training text: only their sums over all sites are used.

    T types, B buckets, L languages.
    """

    documents: int = carries("number of the site's training documents", value=Value(least=0))
    sentences: int = carries("number of its training sentences", value=Value(least=0))
    tokens: int = carries("number of their tokens", value=Value(least=0))
    languages_L: NDArray[np.int64] = carries(
        "1 for the language of their text, if it can be told",
        rule="counts",
        value=Value(least=0, shape=lambda ask: (len(LANGUAGES),)),
    )
    entities_T: NDArray[np.int64] = carries(
        "how many entities of each type they have",
        rule="min_token_count",
        value=Value(least=0, shape=lambda ask: (len(ask.types),)),
    )
    sites_T: NDArray[np.int64] = carries(
        "1 for each type of which they have one",
        rule="counts",
        value=Value(shape=lambda ask: (len(ask.types),)),
    )
    surface_counts_B: NDArray[np.int32] = carries(
        "how often surfaces of each bucket occur; none without masks",
        rule="min_token_count",
        value=Value(least=0, shape=lambda ask: (bucket_count(ask.bits),)),
    )
    surface_sites_B: NDArray[np.int32] = carries(
        "1 for each bucket with a surface of the site",
        rule="counts",
        value=Value(shape=lambda ask: (bucket_count(ask.bits),)),
    )


def count_text(
    site: Site, memory: object, ask: CountText, turn: Turn
) -> tuple[TextCounted, object]:
    """Count documents, sentences, tokens, entities by type, and surfaces by bucket.

    Raises Refusal if there is less text than the site's guard says, if a type is asked twice, or
    if surfaces are to be counted where a single reply can be seen.
    """
    if ask.bits not in (0, BITS) or (ask.bits and site.member is None):
        raise Refusal("bad-ask")
    if len({*ask.types}) < len(ask.types) or len(ask.types) > MOST_NAMES:
        raise Refusal("bad-ask")
    site.check_sentences()
    examples, floor = agreement.training_examples(site), site.guards.min_token_count
    places = {name: n for n, name in enumerate(ask.types)}
    surfaces = Counter(
        (kind, " ".join(one.tokens[first:last]).lower())
        for one in examples
        for first, last, kind in one.spans
        if kind in places
    )
    entities_T = np.zeros(len(places), np.int64)
    counts_B = np.zeros(bucket_count(ask.bits), np.int32)
    bits = bits_of_a_type(ask.bits, len(places))
    key = site.key() if ask.bits else b""
    for (kind, words), count in surfaces.items():
        entities_T[places[kind]] += count
        if ask.bits and count >= floor:
            digest = keyed_digest(key, "surface", f"{kind}\0{words}")
            counts_B[(places[kind] << bits) + bucket_of(digest, bits)] += count
    entities_T[entities_T < floor] = 0
    language = language_of(document.text for document in site.train)
    counted = TextCounted(
        documents=len({one.document for one in examples}),
        sentences=len(examples),
        tokens=sum(len(one.tokens) for one in examples),
        languages_L=np.array([name == language for name in LANGUAGES], np.int64),
        entities_T=entities_T,
        sites_T=(entities_T > 0).astype(np.int64),
        surface_counts_B=counts_B,
        surface_sites_B=(counts_B > 0).astype(np.int32),
    )
    return counted, memory


def bits_of_a_type(bits: int, types: int) -> int:
    """The bits of one type's buckets: the powers of two that as many types share.

    >>> bits_of_a_type(18, 4), bits_of_a_type(18, 5), bits_of_a_type(18, 1)
    (16, 15, 18)
    """
    return max(0, bits - (types - 1).bit_length()) if types else bits


def check_text(ask: CountText, reply: TextCounted) -> None:
    """Raise GuardError unless sites are 1 where there is a count, and there is one language."""
    if reply.languages_L.sum() > 1 or reply.languages_L.max() > 1:
        raise GuardError("a site's text has one language")
    for counts, sites in (
        (reply.entities_T, reply.sites_T),
        (reply.surface_counts_B, reply.surface_sites_B),
    ):
        if (sites != (counts > 0)).any():
            raise GuardError("counts and sites do not fit")


COUNT_TEXT = Step.of(count_text, summed=True, check=check_text)


def _no_files(site: Site, name: str) -> Any:
    raise Refusal("bad-ask")


DESCRIBE = agreement.describing(_no_files, types=agreement.own_types)


@dataclass(frozen=True)
class Layout(protocol.ModelSpec):
    """Names what is counted, and how many sites annotate each type of all; there is no model."""

    types: list[str] = carries("names of the entity types to count", rule="varies")
    annotated: dict[str, int] = carries("sites that annotate each type", rule="varies")

    @classmethod
    def settled(cls, run: RunSettings, *, public: bool) -> dict[str, Any]:
        """Nothing: types are those that the sites have."""
        return {}

    @property
    def labels(self) -> list[str]:
        """The entity types that are counted."""
        return self.types

    def first(self, seed: int, *, site: Site | None = None) -> Arrays:
        """No weights."""
        return {}

    def with_labels_of(self, before: Self) -> Self:
        """Raise SettingsError: nothing is trained."""
        raise _untrained()

    def at(self, site: Site) -> protocol.SiteModel:
        """Raise Refusal: nothing is trained."""
        raise Refusal("bad-ask")

    def extractor(self, weights: Arrays, *, key: bytes | None, encoder: str | None = None) -> Any:
        """Raise SettingsError: nothing was trained."""
        raise _untrained()


def _untrained() -> SettingsError:
    return SettingsError("a survey trains no model", fix="name a run of another method")


class CountKind(TaggerKind):
    """Counts, in the place of a model, of text as a tagger reads it."""

    Spec: ClassVar[type[protocol.ModelSpec]] = Layout
    steps: ClassVar[tuple[Step, ...]] = (DESCRIBE, agreement.CHECK_KEY)
    trains: ClassVar[bool] = False

    def check(self, run: RunSettings, *, public: bool) -> None:
        """Nothing is trained, so no model has to fit."""

    def asked(self, run: RunSettings, *, public: bool) -> dict[str, dict[str, object]]:
        """Fields of the ask for the sites' types."""
        return {DESCRIBE.name: agreement.asked_of_types(run)}

    def agree(
        self, run: RunSettings, federation: Federation, *, public: Sequence[Document] | None = None
    ) -> protocol.Agreed:
        """The types to count; under masks those of enough sites, which also must hold one key."""
        types, replies = agreement.agree_on_types(run, federation, step=DESCRIBE)
        least = 1
        if federation.summing is not None:
            _, _, holders = agreement.compare_keys(federation)
            replies = {site: replies[site] for site in holders if site in replies}
            least = max(2, run.vocabulary.min_sites)
        sites = Counter(name for reply in replies.values() for name in reply.types)
        counted = [name for name in types if sites[name] >= least]
        return agreement.agreed(Layout(counted, {name: sites[name] for name in types}), replies)


class SurveySettings(OptionsTable):
    """No settings of its own."""

    def check(self, run: RunSettings) -> None:
        """Raise SettingsError for more than one round: nothing changes from one to the next."""
        if run.rounds != 1:
            raise SettingsError("a survey counts once", expected="rounds = 1", got=str(run.rounds))


class Survey(Method):
    """The method: its one round sums the sites' counts."""

    name: ClassVar[str] = "survey"
    kinds: ClassVar[tuple[str, ...]] = ("tagger",)
    steps: ClassVar[tuple[Step, ...]] = (COUNT_TEXT,)
    Settings: ClassVar[type[OptionsTable]] = SurveySettings

    def start(self, federation: Federation) -> Any:
        """Agree on the types to count."""
        agreed = self.kind.agree(self.run, federation)
        return self.State(agreed.form, {}, [])

    def round(self, state: Any, federation: Federation, n: int) -> tuple[Carried, Facts]:
        """Sum the sites' counts; the history has them, and no bucket."""
        ask = CountText(state.form.types, BITS if federation.summing is not None else 0)
        total = federation.sum(COUNT_TEXT, ask, round=n)
        return state, {"survey": facts_of(state.form, total, sites=len(federation.sites))}

    def fields(self, n: int) -> dict[str, object]:
        """Surfaces are counted under masks only."""
        return {"bits": 0 if self.run.sharing.sums in (None, "plain") else BITS}

    def score(
        self, state: Any, federation: Federation, *, part: str, round: int
    ) -> Mapping[str, Counts]:
        """Nothing: there is no model."""
        return {}


def facts_of(form: Layout, total: TextCounted, *, sites: int) -> Facts:
    """The survey in plain values: the history's entry `survey`."""
    rows_T = zip(total.entities_T.tolist(), total.sites_T.tolist(), strict=True)
    counted_T = dict(zip(form.types, rows_T, strict=True))
    by_type: dict[str, Facts] = {}
    bits = max(0, total.surface_sites_B.size - 1).bit_length()
    each = 1 << bits_of_a_type(bits, len(form.types))
    for name, annotating in sorted(form.annotated.items()):
        entities, enough = counted_T.get(name, (None, None))
        own = None
        if bits and enough == 1:  # the sum is one site's
            entities = None
        elif bits and name in counted_T:
            first = form.types.index(name) * each
            own = _overlap(total, slice(first, first + each))
        by_type[name] = {
            "sites": annotating,
            "sites_counted": enough,
            "entities": entities,
            "surfaces": own,
        }
    languages = zip(LANGUAGES, total.languages_L.tolist(), strict=True)
    return {
        "sites": sites,
        "documents": total.documents,
        "sentences": total.sentences,
        "tokens": total.tokens,
        "languages": {name: count for name, count in languages if count},
        "types": by_type,
        "surfaces": _overlap(total, slice(None)) if bits else None,
    }


def _overlap(total: TextCounted, buckets: slice) -> Facts:
    """Surfaces of these buckets, and those that two or more sites have, with their mentions."""
    sites_B, counts_B = total.surface_sites_B[buckets], total.surface_counts_B[buckets]
    distinct = np.bincount(sites_B, minlength=2)
    mentions = np.bincount(sites_B, weights=counts_B, minlength=2)
    return {
        "distinct": int(distinct[1:].sum()),
        "common": int(distinct[2:].sum()),
        "mentions": int(mentions[1:].sum()),
        "common_mentions": int(mentions[2:].sum()),
    }


SURVEY = Pair(Survey, CountKind())
