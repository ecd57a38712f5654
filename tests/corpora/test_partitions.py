from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.corpora.dealing import KINDS, commonest_type, group_of, partition, site_names
from confide.errors import DataError
from confide.text.document import NO_RELATION, Document, Entity, Relation, pair_attributes

TYPES = ("Drug", "Effect", "Test")


def document(number, types=(), domain="news", source="a.tsv:1"):
    entities = tuple(Entity(f"T{n}", t, ((n, n + 1),)) for n, t in enumerate(types))
    attributes = (("domain", domain),) if domain else ()
    return Document(f"d{number}", "abcdefgh", entities, attributes=attributes, source=source)


@st.composite
def corpora(draw, least=1):
    """Documents of a few types, files and domains."""
    size = draw(st.integers(least, 40))
    return [
        document(
            n,
            draw(st.lists(st.sampled_from(TYPES), max_size=3)),
            draw(st.sampled_from("xyz")),
            f"{draw(st.sampled_from('pqr'))}.tsv:{n + 1}",
        )
        for n in range(size)
    ]


def many(size, types=TYPES):
    return [document(n, [types[n % len(types)]], source=f"a.tsv:{n + 1}") for n in range(size)]


@given(corpora(), st.sampled_from(KINDS), st.integers(1, 6), st.integers(), st.floats(1e-6, 1e6))
def test_nothing_is_lost_or_dealt_twice(documents, by, sites, seed, alpha):
    name = "domain" if by == "attribute" else None
    grouped = by in ("file", "domain", "attribute")
    groups = {group_of(d, by, attribute=name) for d in documents} if grouped else documents
    if len(groups) < sites:
        with pytest.raises(DataError, match="fewer"):
            partition(documents, sites, by=by, seed=seed, alpha=alpha, attribute=name)
        return
    types = {commonest_type(d) for d in documents} - {""}
    alpha = 2 if by == "types" else alpha
    if by == "types" and not 2 <= len(types) <= 2 * sites:
        with pytest.raises(DataError, match="do not go round"):
            partition(documents, sites, by=by, seed=seed)
        return
    dealt = partition(documents, sites, by=by, seed=seed, alpha=alpha, attribute=name)
    assert list(dealt) == site_names(sites)
    assert all(dealt.values())
    ids = [d.id for part in dealt.values() for d in part]
    assert sorted(ids) == sorted(d.id for d in documents)
    order = [d.id for d in documents]
    for part in dealt.values():
        places = [order.index(d.id) for d in part]
        assert places == sorted(places)
    assert dealt == partition(documents, sites, by=by, seed=seed, alpha=alpha, attribute=name)


@given(st.integers(1, 200), st.integers(1, 20))
def test_iid_sizes_differ_by_at_most_one(size, sites):
    if size < sites:
        return
    sizes = [len(part) for part in partition(many(size), sites, by="iid", seed=3).values()]
    assert max(sizes) - min(sizes) <= 1


def test_another_seed_deals_otherwise():
    first, second = (partition(many(50), 5, by="iid", seed=seed) for seed in (1, 2))
    assert first != second


def test_the_deal_is_the_same_on_every_machine():
    """Changing this list changes every experiment: do it on purpose or not at all."""
    dealt = partition(many(12), 3, by="iid", seed=1)
    assert [[d.id for d in part] for part in dealt.values()] == [
        ["d3", "d8", "d9", "d11"],
        ["d1", "d4", "d6", "d10"],
        ["d0", "d2", "d5", "d7"],
    ]


def test_iid_mixes_types_evenly():
    for part in partition(many(600), 3, by="iid", seed=1).values():
        counts = Counter(commonest_type(d) for d in part)
        assert all(45 < counts[t] < 90 for t in TYPES)


class TestGroups:
    def test_a_file_stays_whole(self):
        documents = [document(n, source=f"{'abc'[n % 3]}.tsv:{n + 1}") for n in range(9)]
        dealt = partition(documents, 3, by="file", seed=1)
        files = [{group_of(d, "file") for d in part} for part in dealt.values()]
        assert files == [{"a.tsv"}, {"b.tsv"}, {"c.tsv"}]

    def test_more_domains_than_sites_go_round(self):
        documents = [document(n, domain="abcde"[n % 5]) for n in range(10)]
        dealt = partition(documents, 2, by="domain", seed=1)
        domains = [{group_of(d, "domain") for d in part} for part in dealt.values()]
        assert domains == [{"a", "c", "e"}, {"b", "d"}]

    def test_genre_is_a_domain(self):
        one = Document("d", "x", attributes=(("genre", "mail"),))
        assert group_of(one, "domain") == "mail"

    def test_the_seed_does_not_matter(self):
        documents = [document(n, domain="abc"[n % 3]) for n in range(9)]
        assert partition(documents, 3, by="domain", seed=1) == partition(
            documents, 3, by="domain", seed=2
        )

    def test_no_domain(self):
        with pytest.raises(DataError, match=r"a\.tsv:1: a document has no domain.*'genre'"):
            partition([document(1, domain="")], 1, by="domain", seed=1)

    def test_no_file(self):
        with pytest.raises(DataError, match="no file"):
            partition([document(1, source="")], 1, by="file", seed=1)

    def test_an_attribute_deals_its_values(self):
        documents = [of_ward(n, "abc"[n % 3]) for n in range(9)]
        dealt = partition(documents, 2, by="attribute", attribute="ward")
        assert [{ward_of(d) for d in part} for part in dealt.values()] == [{"a", "c"}, {"b"}]

    def test_a_document_without_the_attribute(self):
        with pytest.raises(DataError, match=r"has no author.*expected.*'author'.*got 'domain'"):
            partition(many(3), 2, by="attribute", attribute="author")

    def test_no_attribute_is_named(self):
        with pytest.raises(DataError, match="no attribute is named"):
            partition(many(3), 2, by="attribute")

    def test_a_value_is_at_one_site_in_all_parts(self):
        train = [of_ward(n, "bdf"[n % 3]) for n in range(9)]
        test = [of_ward(n, "fad"[n % 3]) for n in range(6)]
        dealt = partition(test, 3, by="attribute", attribute="ward", like=train)
        assert [{ward_of(d) for d in part} for part in dealt.values()] == [{"a"}, {"d"}, {"f"}]


def of_ward(number, ward):
    return Document(f"d{number}", "abc", attributes=(("ward", ward),))


def ward_of(one):
    return dict(one.attributes)["ward"]


class TestTypes:
    @each(("sites", "each_has"), [(3, 1), (4, 2), (6, 2), (2, 3)])
    def test_each_site_has_so_many_types_and_no_type_is_lost(self, sites, each_has):
        dealt = partition(many(120), sites, by="types", alpha=each_has).values()
        types = [{commonest_type(d) for d in part} for part in dealt]
        assert {len(found) for found in types} == {each_has}
        assert set.union(*types) == set(TYPES)
        holders = [sum(name in found for found in types) for name in TYPES]
        assert max(holders) - min(holders) <= 1

    def test_text_without_a_type_goes_to_all(self):
        documents = [*many(60), *(document(60 + n) for n in range(30))]
        dealt = partition(documents, 3, by="types", alpha=1).values()
        assert [sum(not d.entities for d in part) for part in dealt] == [10, 10, 10]

    def test_another_part_has_the_same_types_at_each_site(self):
        train, test = many(90), [document(n, ["Test"]) for n in range(10)]
        how = {"by": "types", "alpha": 1}
        at = [{commonest_type(d) for d in part} for part in partition(train, 3, **how).values()]
        found = partition(test, 3, like=train, **how).values()
        assert [len(part) for part in found] == [10 * (types == {"Test"}) for types in at]

    @each(
        ("sites", "each_has", "words"),
        [(2, 1, "from 2 to 3"), (3, 4, "from 1 to 3"), (3, 1.5, "whole")],
    )
    def test_too_few_or_many(self, sites, each_has, words):
        with pytest.raises(DataError, match=f"{each_has} types a site do not go round.*{words}"):
            partition(many(30), sites, by="types", alpha=each_has)

    def test_relations(self):
        documents = [linked(n, ["xyz"[n % 3]] if n % 2 else []) for n in range(120)]
        dealt = partition(documents, 3, by="types", alpha=1, classes="relations").values()
        found = [{r.type for d in part for r in d.relations} for part in dealt]
        assert sorted(map(len, found)) == [1, 1, 1]
        assert len(set.union(*found)) == 3


class TestDirichlet:
    @staticmethod
    def skew(alpha):
        """Mean over sites of the share of a site's largest class."""
        dealt = partition(many(3000), 5, by="dirichlet", seed=7, alpha=alpha)
        shares = []
        for part in dealt.values():
            counts = Counter(commonest_type(d) for d in part)
            shares.append(max(counts.values()) / len(part))
        return sum(shares) / len(shares)

    def test_a_small_alpha_is_skewed_and_a_large_one_is_not(self):
        assert self.skew(0.05) > 0.8
        assert self.skew(1000) < 0.4

    def test_splits_dealt_one_after_the_other_get_the_same_shares(self):
        train = partition(many(3000), 5, by="dirichlet", seed=7, alpha=0.3)
        test = partition(many(900), 5, by="dirichlet", seed=7, alpha=0.3)
        for site, part in train.items():
            for type_ in TYPES:
                ours = sum(commonest_type(d) == type_ for d in part) / 1000
                theirs = sum(commonest_type(d) == type_ for d in test[site]) / 300
                assert ours == pytest.approx(theirs, abs=0.01)

    def test_documents_without_an_entity_are_a_class(self):
        assert commonest_type(document(1)) == ""
        assert commonest_type(document(1, ["Test", "Drug", "Test"])) == "Test"
        assert commonest_type(document(1, ["Test", "Drug"])) == "Drug"


def linked(number, types, stated=True):
    """A document with relations of these types, which may state its pair."""
    links = tuple(Relation(f"R{n}", kind, "T0", "T1") for n, kind in enumerate(types))
    attributes = pair_attributes([("T0", "T1")]) if stated else ()
    return Document(f"d{number}", "ab", relations=links, attributes=attributes)


class TestRelations:
    def test_the_class_is_the_relation_that_a_document_has_most(self):
        assert commonest_type(linked(1, ["b", "a", "b"]), "relations") == "b"
        assert commonest_type(linked(1, ["b", "a"]), "relations") == "a"
        assert commonest_type(linked(1, [NO_RELATION, NO_RELATION, "b"]), "relations") == "b"
        assert commonest_type(linked(1, ["b"])) == ""

    def test_pairs_without_a_relation_are_a_class(self):
        assert commonest_type(linked(1, []), "relations") == NO_RELATION
        assert commonest_type(linked(1, [], stated=False), "relations") == ""
        empty = Document("d", "ab", attributes=pair_attributes([]))
        assert commonest_type(empty, "relations") == ""

    @each(("alpha", "low", "high"), [(0.05, 0.85, 1.0), (1000, 0.5, 0.6)])
    def test_dirichlet_skews_relations(self, alpha, low, high):
        documents = [linked(n, ["x"] if n % 2 else []) for n in range(2000)]
        dealt = partition(
            documents, 4, by="dirichlet", seed=3, alpha=alpha, classes="relations"
        ).values()
        assert sorted(d.id for part in dealt for d in part) == sorted(d.id for d in documents)
        shares = [sum(bool(d.relations) for d in part) / len(part) for part in dealt]
        assert low <= sum(max(share, 1 - share) for share in shares) / 4 <= high
        by_entity = partition(documents, 4, by="dirichlet", seed=3, alpha=alpha).values()
        large = [[bool(d.relations) for d in part] for part in by_entity if len(part) > 50]
        assert all(0.3 < sum(one) / len(one) < 0.7 for one in large)


class TestFew:
    @given(
        st.integers(0, 30), st.integers(1, 20), st.sampled_from(["iid", "dirichlet", "quantity"])
    )
    def test_fewer_documents_than_sites_go_to_the_first_ones(self, size, sites, by):
        dealt = partition(many(size), sites, by=by, seed=1, like=())
        if size >= sites:
            assert dealt == partition(many(size), sites, by=by, seed=1)
        else:
            wanted = [[f"d{n}"] if n < size else [] for n in range(sites)]
            assert [[d.id for d in part] for part in dealt.values()] == wanted

    def test_groups_are_not_torn(self):
        with pytest.raises(DataError, match="fewer domains than sites"):
            partition(many(2), 3, by="domain", like=())


class TestQuantity:
    def test_a_power_law(self):
        sizes = [len(p) for p in partition(many(1000), 4, by="quantity", seed=1).values()]
        assert sizes == [480, 240, 160, 120]

    def test_no_site_is_left_empty(self):
        dealt = partition(many(20), 5, by="quantity", seed=1, alpha=50)
        assert [len(part) for part in dealt.values()] == [16, 1, 1, 1, 1]


class TestBadInput:
    def test_fewer_documents_than_sites(self):
        with pytest.raises(DataError, match="expected at least 5; got 3; to fix it, ask for fewer"):
            partition(many(3), 5, by="iid", seed=1)

    def test_no_site(self):
        with pytest.raises(DataError, match="there is no site to deal to"):
            partition(many(3), 0, by="iid", seed=1)

    def test_an_unknown_way(self):
        with pytest.raises(DataError, match="got 'size'"):
            partition(many(3), 1, by="size", seed=1)

    @each("alpha", [0, -1, float("nan"), float("inf")])
    def test_alpha_that_makes_no_sense(self, alpha):
        with pytest.raises(DataError, match="alpha"):
            partition(many(9), 3, by="dirichlet", seed=1, alpha=alpha)


def test_site_names():
    assert site_names(2) == ["site-01", "site-02"]
    assert site_names(100)[0] == "site-001"
