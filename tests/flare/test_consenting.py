"""An agreement's bounds: what is inside, what is outside, and that nothing slips between."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import SettingsError
from confide.federation.federation import round_half_up
from confide.flare.agreements import (
    RunTerms,
    agreement_lines,
    fewest_in_sum,
    fields_outside,
    lines_beyond,
    proposed_agreement,
    usual_agreement,
    with_bounds,
)
from confide.methods import METHODS
from confide.settings import Settings, parse
from confide.settings.sitefile import BOUNDS, Agreement, ConsentFile, dump_consent, parse_consent

DAY = date(2027, 3, 1)
AGREED: dict[str, Any] = {
    "wire": "0123456789abcdef",
    "rounds": 12,
    "local_epochs": 3,
    "batch_size": 8,
    "fraction": 0.5,
    "at_least": 3,
    "combine": ["mean", "clipped"],
    "lead": ["ada"],
    "sites": ["a", "b", "c"],
    "others": False,
    "runs": 2,
    "until": DAY,
    "agreed": datetime(2026, 11, 23, 3, 30, tzinfo=UTC),
}
RUN: dict[str, Any] = {
    "rounds": 12,
    "training": {"local_epochs": 3, "batch_size": 8},
    "federation": {"fraction": 1.0},
}
AS: dict[str, Any] = {"sites": ["a", "b", "c"], "lead": "ada", "runs": 2, "today": DAY}


def outside(agreement: Agreement, settings: Settings, **about: Any) -> list[str]:
    """The fields outside an agreement, of a run about which this much is known."""
    terms = RunTerms(settings, tuple(about["sites"]), about["lead"], "study-1")
    return fields_outside(agreement, terms, runs=about["runs"], today=about["today"])


names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
leads = st.lists(st.sampled_from(["ada", "bob", "*"]), min_size=1, max_size=3, unique=True)
days = st.dates(date(2026, 1, 1), date(2028, 1, 1))
ways = st.lists(st.sampled_from(["mean", "trimmed", "median", "clipped"]), min_size=1, unique=True)


@st.composite
def agreements(draw: st.DrawFn) -> Agreement:
    others = draw(st.booleans())
    sites = draw(st.lists(st.sampled_from("abcdef"), unique=True)) if others else draw(names)
    return Agreement.model_validate(
        AGREED
        | {
            "rounds": draw(st.integers(1, 9)),
            "local_epochs": draw(st.integers(1, 5)),
            "batch_size": draw(st.integers(1, 9)),
            "fraction": draw(st.sampled_from([0.1, 0.25, 0.5, 1.0])),
            "at_least": draw(st.integers(1, 5)),
            "combine": draw(ways),
            "local_steps": draw(st.integers(1, 5)),
            "max_norm_ratio": draw(st.sampled_from([1.5, 5.0, float("inf")])),
            "rows": draw(st.lists(st.sampled_from(["all", "seen"]), min_size=1, unique=True)),
            "word_sites": draw(st.integers(1, 3)),
            "lead": draw(leads),
            "sites": sites,
            "others": others,
            "runs": draw(st.integers(1, 4)),
            "until": draw(days),
        }
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[Settings, dict[str, Any]]:
    tree = {
        "rounds": draw(st.integers(1, 10)),
        "method": draw(st.sampled_from(["fedavg", "fedavg", "fedavg", "alone"])),
        "training": {
            "local_epochs": draw(st.integers(1, 6)),
            "batch_size": draw(st.integers(1, 10)),
        },
        "federation": {
            "fraction": draw(st.sampled_from([0.05, 0.2, 0.5, 0.9, 1.0])),
            "at_least": draw(st.integers(0, 6)),
        },
        "vocabulary": {"min_sites": draw(st.integers(1, 4))},
    }
    tree["options"] = draw(
        st.sampled_from([{}, {"rows": "seen"}, {"local_steps": 3}, {"local_steps": 9}])
    )
    hidden = {"sums": "masked", "fraction": 1.0}
    tree["federation"] |= draw(
        st.sampled_from(
            [
                {},
                {"max_norm_ratio": 9.0},
                {"max_norm_ratio": float("inf")},
                hidden,
                {**hidden, "groups": 2, "combine": "clipped"},
            ]
        )
    )
    return parse(tree), {
        "sites": draw(names),
        "lead": draw(st.sampled_from(["ada", "bob", "", "eve"])),
        "runs": draw(st.integers(1, 5)),
        "today": draw(days),
    }


def holds(agreement: Agreement, settings: Settings, about: dict[str, Any]) -> set[str]:
    """The fields that are outside, written down once more in the plainest way."""
    wrong = set()
    if settings.rounds > agreement.rounds:
        wrong.add("rounds")
    if settings.training.local_epochs > agreement.local_epochs:
        wrong.add("training.local_epochs")
    if settings.training.batch_size < agreement.batch_size:
        wrong.add("training.batch_size")
    if settings.federation.fraction < agreement.fraction:
        wrong.add("federation.fraction")
    drawn = max(1, round_half_up(settings.federation.fraction * len(about["sites"])))
    too_far = (drawn - 1) // 2  # so many can be left out of a sum where every site has to answer
    left = max(min(3, drawn), drawn - too_far)
    if settings.federation.limit == float("inf"):
        left = drawn
    smallest = min(drawn, settings.federation.at_least or left, settings.federation.groups or drawn)
    if (1 if settings.method == "alone" else smallest) < agreement.at_least:
        wrong.add("federation.at_least")
    if settings.federation.combine not in agreement.combine:
        wrong.add("federation.combine")
    if settings.options.get("local_steps", 1) > agreement.local_steps:
        wrong.add("options.local_steps")
    if settings.options.get("rows", "all") not in agreement.rows:
        wrong.add("options.rows")
    if settings.vocabulary.min_sites < agreement.word_sites:
        wrong.add("vocabulary.min_sites")
    compares = settings.federation.sums != "masked" or settings.federation.groups > 0
    if compares and settings.federation.limit > agreement.max_norm_ratio:
        wrong.add("federation.max_norm_ratio")
    if not {"*", about["lead"]} & set(agreement.lead):
        wrong.add("lead")
    for site in "abcdef":
        if site in agreement.sites and site not in about["sites"]:
            wrong.add("sites")
        if site in about["sites"] and site not in agreement.sites and not agreement.others:
            wrong.add("sites")
    if about["runs"] > agreement.runs:
        wrong.add("runs")
    if about["today"] > agreement.until:
        wrong.add("until")
    return wrong


@given(agreements(), runs())
def test_what_is_outside_is_what_the_plain_words_say(
    agreement: Agreement, run: tuple[Settings, dict[str, Any]]
) -> None:
    settings, about = run
    assert set(outside(agreement, settings, **about)) == holds(agreement, settings, about)


@given(agreements(), agreements(), runs())
def test_what_goes_not_beyond_an_agreement_lets_no_run_out_of_it(
    agreed: Agreement, asked: Agreement, run: tuple[Settings, dict[str, Any]]
) -> None:
    settings, about = run
    if not lines_beyond(agreed, asked) and not outside(asked, settings, **about):
        assert not outside(agreed, settings, **about)


@given(agreements())
def test_an_agreement_is_not_beyond_itself_and_reads_as_it_was_written(
    agreement: Agreement,
) -> None:
    assert not lines_beyond(agreement, agreement)
    site = agreement.sites[0] if agreement.sites else "a"
    held = ConsentFile(site=site, method={"fedavg-tagger": agreement})
    text = dump_consent(held)
    import tomllib

    assert parse_consent(tomllib.loads(text)) == held
    assert all(f"# {told}" in text for told in BOUNDS.values())


@each(
    ("changes", "about", "field"),
    [
        ({"rounds": 13}, {}, "rounds"),
        ({"training": {"local_epochs": 4, "batch_size": 8}}, {}, "training.local_epochs"),
        ({"training": {"local_epochs": 3, "batch_size": 7}}, {}, "training.batch_size"),
        ({"federation": {"at_least": 2}}, {}, "federation.at_least"),
        ({"method": "alone"}, {}, "federation.at_least"),
        ({}, {"lead": "bob"}, "lead"),
        ({}, {"lead": ""}, "lead"),
        ({}, {"lead": "ADA"}, "lead"),
        ({}, {"sites": ["a", "b", "c", "d"]}, "sites"),
        ({}, {"sites": ["a", "b", "d"]}, "sites"),
        ({}, {"runs": 3}, "runs"),
        ({}, {"today": DAY + timedelta(days=1)}, "until"),
    ],
)
def test_one_step_outside_is_outside(
    changes: dict[str, Any], about: dict[str, Any], field: str
) -> None:
    agreement = Agreement.model_validate(AGREED)
    assert outside(agreement, parse(RUN), **AS) == []
    assert outside(agreement, parse(RUN | changes), **(AS | about)) == [field]


@each(
    ("changes", "field"),
    [
        (
            {"federation": {"sums": "masked", "combine": "clipped", "groups": 2}},
            "federation.at_least",
        ),
        ({"options": {"local_steps": 200}}, "options.local_steps"),
        ({"options": {"rows": "seen"}}, "options.rows"),
        ({"federation": {"max_norm_ratio": float("inf")}}, "federation.max_norm_ratio"),
        ({"federation": {"max_norm_ratio": 5.1}}, "federation.max_norm_ratio"),
        ({"vocabulary": {"min_sites": 1}}, "vocabulary.min_sites"),
    ],
)
def test_no_setting_changes_what_a_bound_means(changes: dict[str, Any], field: str) -> None:
    """Groups make sums smaller, steps a pass longer; a word of one site is everybody's."""
    agreement = Agreement.model_validate(AGREED | {"word_sites": 2})
    run = RUN | {"vocabulary": {"min_sites": 2}}
    assert outside(agreement, parse(run), **AS) == []
    assert outside(agreement, parse(run | changes), **AS) == [field]
    allowed = {
        "local_steps": 200,
        "rows": ["seen"],
        "max_norm_ratio": float("inf"),
        "word_sites": 1,
    }
    wide = Agreement.model_validate(AGREED | allowed | {"at_least": 2})
    assert set(outside(wide, parse(run | changes), **AS)) <= {"options.rows"}


def test_an_older_agreement_allows_the_least_of_what_it_does_not_say() -> None:
    agreed = Agreement.model_validate(AGREED)
    assert (agreed.local_steps, agreed.rows, agreed.max_norm_ratio) == (1, ("all",), 5.0)


def test_a_name_that_is_said_twice_is_one_site() -> None:
    settings = parse(RUN)
    assert fewest_in_sum(settings, ["a", "a", "a"]) == 1
    agreement = Agreement.model_validate(AGREED | {"sites": [], "others": True})
    assert outside(agreement, settings, **(AS | {"sites": ["a", "a", "a"]})) == [
        "federation.at_least"
    ]


def test_other_ways_of_combining_are_outside() -> None:
    agreement = Agreement.model_validate(AGREED)
    median = RUN | {"federation": {"combine": "median"}}
    assert outside(agreement, parse(median), **AS) == ["federation.combine"]


def test_a_resumed_run_is_the_same_and_one_with_other_settings_another() -> None:
    key = RunTerms(parse(RUN), ("a",), "ada", "study-1").key
    assert RunTerms(parse(RUN), ("a", "b"), "ada", "study-1").key == key
    assert RunTerms(parse(RUN), ("a",), "ada", "study-2").key != key
    assert RunTerms(parse(RUN | {"seed": 2}), ("a",), "ada", "study-1").key != key


# --- what is proposed -----------------------------------------------------------------------


@each("pair", METHODS)
def test_the_usual_bounds_let_the_defaults_of_a_pair_run(pair: str) -> None:
    now = datetime(2026, 11, 23, tzinfo=UTC)
    agreement = usual_agreement(pair, AGREED["wire"], at_least=3, now=now)
    of = METHODS[pair]
    tree: dict[str, Any] = {"method": of.method, "task": of.task}
    tree |= {"model": {"kind": of.kind.name}} if of.task == "ner" else {}
    assert parse(tree).trained_by == pair
    about = {"sites": ["x", "y", "z"], "lead": "anyone", "runs": 10, "today": date(2027, 11, 23)}
    assert outside(agreement, parse(tree), **about) == []
    assert outside(agreement, parse(tree), **(about | {"runs": 11})) == ["runs"]
    assert outside(agreement, parse(tree), **(about | {"today": date(2027, 11, 24)})) == ["until"]
    many = parse(tree | {"rounds": 100_000})
    assert outside(agreement, many, **about) == ["rounds"]


@given(agreements(), runs())
def test_a_run_is_within_what_its_settings_propose(
    base: Agreement, run: tuple[Settings, dict[str, Any]]
) -> None:
    settings, about = run
    asked = proposed_agreement(settings, base)
    fields = set(outside(asked, settings, **about))
    assert not fields & {
        "rounds",
        "training.local_epochs",
        "training.batch_size",
        "federation.fraction",
        "federation.combine",
        "federation.max_norm_ratio",
        "options.local_steps",
        "options.rows",
        "vocabulary.min_sites",
    }
    if base.sites and set(base.sites) == set(about["sites"]):
        assert "federation.at_least" not in fields


def test_bounds_are_given_as_settings_are() -> None:
    base = usual_agreement("fedavg-tagger", AGREED["wire"], at_least=3, now=AGREED["agreed"])
    found = with_bounds(
        base, ["runs=3", "until=2027-01-31", "lead=ada", "sites=a,b,c", 'combine=["mean"]']
    )
    assert (found.runs, found.until, found.lead) == (3, date(2027, 1, 31), ("ada",))
    assert (found.sites, found.others, found.combine) == (("a", "b", "c"), False, ("mean",))
    assert with_bounds(base, ["sites=a,b", "others=true"]).others
    assert with_bounds(found, ["sites=[]"]).others


@each(
    ("bound", "said"),
    [
        ("run=3", "no line 'run'.*'runs'"),
        ("wire=0", "no line 'wire'"),
        ("agreed=2027-01-01T00:00:00Z", "no line 'agreed'"),
        ("runs=0", "runs is wrong"),
        ("runs=many", "runs is wrong"),
        ("fraction=nan", "fraction is wrong"),
        ("fraction=0", "fraction is wrong"),
        ("until=tomorrow", "until is wrong"),
        ("combine=sum", "combine.0 is wrong"),
        ("combine=[]", "combine is wrong"),
        ("lead=[]", "lead is wrong"),
        ('lead="a b"', "lead.0 is wrong"),
        ("sites=../x", "sites.0 is wrong"),
        ("runs", "no value"),
        ("others=false", "name sites that must take part"),
    ],
)
def test_bounds_that_cannot_be_are_refused(bound: str, said: str) -> None:
    base = usual_agreement("fedavg-tagger", AGREED["wire"], at_least=3, now=AGREED["agreed"])
    with pytest.raises(SettingsError, match=said):
        with_bounds(base, [bound])


def test_the_difference_names_the_lines_that_go_further() -> None:
    agreed = Agreement.model_validate(AGREED)
    asked = with_bounds(agreed, ["rounds=20", "batch_size=16", "runs=1", "lead=ada,bob"])
    found = {line.name: line for line in agreement_lines(agreed, asked)}
    assert [name for name, line in found.items() if line.outside] == ["rounds", "lead"]
    assert (found["rounds"].agreed, found["rounds"].asked) == (12, 20)
    assert not any(line.outside for line in agreement_lines(None, asked))


# --- the file -------------------------------------------------------------------------------


@each(
    ("changes", "said"),
    [
        ({"sites": ["b", "c"]}, "this site, 'a', is missing from sites"),
        ({"wire": "0f3a"}, "wire is wrong"),
        ({"limit": 3}, "unknown key 'method.fedavg-tagger.limit'"),
        ({"agreed": datetime(2026, 1, 1)}, "agreed is wrong"),
        ({"steps": ["a\nb"]}, "steps.0 is wrong"),
    ],
)
def test_a_file_that_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_consent({"site": "a", "method": {"fedavg-tagger": AGREED | changes}})


def test_a_file_of_a_newer_confide_is_refused() -> None:
    with pytest.raises(SettingsError, match="newer confide"):
        parse_consent({"site": "a", "schema": 99})


def test_a_line_that_is_missing_is_not_made_up() -> None:
    for name in AGREED:
        tree = {key: value for key, value in AGREED.items() if key != name}
        with pytest.raises(SettingsError, match=f"method.fedavg-tagger.{name} is missing"):
            parse_consent({"site": "a", "method": {"fedavg-tagger": tree}})
