"""Surveys: the counts of all sites together are right, and nothing else is seen."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import GuardError, RunError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.guards import Guards, check_bounded, check_reply
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode, encode, values_of
from confide.federation.site import Site
from confide.jobs.predict import predict
from confide.jobs.survey import (
    SurveyCounts,
    read_survey,
    survey,
    survey_of,
    survey_settings,
    survey_verdict,
)
from confide.methods import METHODS, method_named
from confide.methods.survey import (
    BITS,
    COUNT_TEXT,
    LANGUAGES,
    CountText,
    Layout,
    TextCounted,
    count_text,
    facts_of,
)
from confide.settings import Settings, dump
from contract.corpus import sentences, tiny, write_conll


def written(folder: Path, *overrides: str, **tree: Any) -> Path:
    """The settings of three sites, of which the third alone annotates one type more."""
    settings = tiny(folder, *overrides, **tree)
    third = Path(settings.site[2].train[0])
    more = [[("Ada", "B-Person")] * 3, [("the", "O"), ("Sotalol", "B-Drug")]]
    write_conll(third, [*sentences("site-3", "train", 18), *more])
    file = folder / "ours.toml"
    file.write_text(dump(settings))
    return file


def counted(settings: Settings) -> tuple[dict[str, int], list[Counter[tuple[str, str]]]]:
    """Entities by type over all sites, and each site's surfaces, from the files themselves."""
    surfaces = []
    for site in settings.site:
        found: list[list[str]] = []
        for line in Path(site.train[0]).read_text().splitlines():
            word, _, tag = line.partition("\t")
            if tag.startswith("B-"):
                found.append([tag[2:], word.lower()])
            elif tag.startswith("I-"):
                found[-1].append(word.lower())
        surfaces.append(Counter((kind, " ".join(words)) for kind, *words in found))
    types: Counter[str] = Counter()
    for own in surfaces:
        for (kind, _), count in own.items():
            types[kind] += count
    return dict(types), surfaces


def test_the_sums_are_those_of_all_text_and_the_server_reads_no_single_reply(
    tmp_path: Path,
) -> None:
    file = written(tmp_path)
    found, folder = survey(file, out=tmp_path / "run")
    assert folder == tmp_path / "run"
    types, surfaces = counted(survey_settings(file))
    assert (found["sites"], found["documents"], found["sentences"]) == (3, 56, 56)
    assert found["languages"] == {"en": 3}
    for name, one in found["types"].items():
        counted_at = None if name == "Person" else 3  # the sum would be one site's
        assert (one["sites"], one["sites_counted"]) == (counted_at or 1, counted_at)
        assert one["entities"] == (counted_at and types[name])
    held = Counter(one for own in surfaces for one in own if one[0] != "Person")
    assert held["Drug", "sotalol"] == 1 < held["Drug", "aspirin"]

    def overlap(*kinds: str) -> dict[str, int]:
        shared = [one for one, sites in held.items() if one[0] in kinds and sites > 1]
        own = [one for one in held if one[0] in kinds]
        return {
            "distinct": len(own),
            "common": len(shared),
            "mentions": sum(site[one] for site in surfaces for one in own),
            "common_mentions": sum(site[one] for site in surfaces for one in shared),
        }

    assert found["surfaces"] == overlap("Drug", "Effect")
    of_types = {name: one["surfaces"] for name, one in found["types"].items()}
    assert of_types == {"Drug": overlap("Drug"), "Effect": overlap("Effect"), "Person": None}
    seen = {
        (one.step, one.seen)
        for one in read_ledger(tmp_path / "run" / "ledger.jsonl")
        if one.direction == "up"
    }
    assert ("count_text", "sum") not in seen and ("mask", "masked") in seen
    assert {step for step, how in seen if how == "one by one"} >= {"describe", "check_key"}
    with pytest.raises(SettingsError, match="a survey train"):
        predict(tmp_path / "run", [tmp_path / "data" / "site-1" / "test.conll"])


def test_without_masks_no_surface_is_counted_and_rare_types_are_none(tmp_path: Path) -> None:
    file = written(tmp_path, "guards.min_token_count=4")
    found, folder = survey(file, overrides=["federation.sums=plain"])
    assert folder is None
    assert found["surfaces"] is None
    words = ["survey", str(file), "--set", "federation.sums=plain", "--out", str(tmp_path / "run")]
    said = CliRunner().invoke(app, words).output.replace("\n", " ")
    assert "  confide init --survey" in said and "Person: 1 of 3 sites annotates it" in said
    person = {"sites": 1, "sites_counted": 0, "entities": 0, "surfaces": None}
    assert found["types"]["Person"] == person  # three: fewer than the guard
    assert found["types"]["Drug"]["entities"] == 55
    site = cast(Any, Site)("one", ())
    masked = dataclasses.replace(site, member=cast(Any, object()))
    for own, bits, types in ((site, BITS, 1), (masked, 24, 1), (masked, BITS, 2), (site, 0, 2)):
        with pytest.raises(Refusal) as refused:  # whatever a server asks
            count_text(own, None, CountText(["Drug"] * types, bits), cast(Any, None))
        assert refused.value.code == "bad-ask"


def language(*names: str) -> NDArray[np.int64]:
    """A reply's field of these languages."""
    return np.array([name in names for name in LANGUAGES], np.int64)


def test_a_count_of_one_site_is_kept_back_and_types_share_no_bucket() -> None:
    form = Layout(["A", "B", "C"], {"A": 2, "B": 2, "C": 2, "D": 1})
    counts_B, sites_B = np.zeros((2, 16), np.int32)
    counts_B[[0, 4, 5, 8]], sites_B[[0, 4, 5, 8]] = (9, 6, 4, 7), (2, 2, 1, 1)
    total = TextCounted(
        5, 20, 99, language("de"), np.array([9, 10, 7]), np.array([2, 2, 1]), counts_B, sites_B
    )
    found = facts_of(form, total, sites=3)["types"]
    assert found["B"]["surfaces"] == {
        "distinct": 2, "common": 1, "mentions": 10, "common_mentions": 6}  # fmt: skip
    assert found["A"]["surfaces"]["mentions"] == 9
    for name, enough in (("C", 1), ("D", None)):
        own = {"sites": form.annotated[name], "sites_counted": enough}
        assert found[name] == {**own, "entities": None, "surfaces": None}


def test_what_came_from_other_places_is_checked_before_it_is_used(tmp_path: Path) -> None:
    surfaces = {"distinct": 9, "common": 4, "mentions": 30, "common_mentions": 15}
    drug = {"sites": 3, "sites_counted": 2, "entities": 60, "surfaces": surfaces}
    rare = {"sites": 3, "sites_counted": 3, "entities": 8, "surfaces": None}
    good = {
        "sites": 3, "documents": 30, "sentences": 1200, "tokens": 9000, "languages": {"en": 2},
        "types": {"Drug": drug, "Rare": rare}, "surfaces": surfaces,
    }  # fmt: skip
    file = tmp_path / "survey.json"
    file.write_text(json.dumps(good))
    found = read_survey(file)
    assert (found.each, found.language, found.model_dump()) == (400, "en", good)
    drugs, rarely, _, gain = survey_verdict(found)
    assert "1 with fewer than the guard" in drugs
    assert "fewer than 10 in all" in rarely and "14 to 18 points" in gain
    one = {**good["types"], "Person": {"sites": 1, "entities": None}}
    said = survey_verdict({**good, "types": one})
    assert any("Person: 1 of 3 sites annotates it; its number is kept back" in s for s in said)
    assert "types differ" in said[-1] and "about 430" in said[-1]
    assert "capacity" in survey_verdict({**good, "sentences": 9000})[-1]
    old = {name: value for name, value in good.items() if name != "languages"}
    old["types"] = {"Drug": {"sites": 3, "entities": 60}}
    file.write_text(json.dumps(old))  # as version 0.3 wrote it
    assert read_survey(file).language == ""
    wrong: list[dict[str, Any]] = [
        {"sites": 0}, {"sites": "3"}, {"sentences": -1}, {"tokens": 10**13}, {"documents": 1.5},
        {"types": {"Dr\x1b[2Jug": drug}}, {"types": {"x" * 999: drug}}, {"types": {"Drug": 3}},
        {"types": {"Drug": drug | {"sites": 4}}}, {"types": {"Drug": drug | {"sites_counted": 9}}},
        {"languages": {"English": 3}}, {"languages": {"en": 3, "de": 1}},
        {"types": {str(n): drug for n in range(2001)}},
    ]  # fmt: skip
    for changed in wrong:
        file.write_text(json.dumps(good | changed))
        with pytest.raises(RunError, match="not what `confide survey --json` wrote"):
            read_survey(file)
    with pytest.raises(RunError, match=r"no survey counts this.*sites"):
        survey_of(
            cast(Any, SimpleNamespace(history=[{"survey": {**good, "sites": -1}}])), where=file
        )


def test_a_type_that_a_site_may_lack_by_chance_is_not_called_lacking() -> None:
    def lacking(**types: int | None) -> list[str]:
        of = {name: {"sites": 2, "entities": count} for name, count in types.items()}
        every = {"All": {"sites": 3, "entities": 900}, **of}
        few = {"sites": 3, "documents": 9, "sentences": 90, "tokens": 900}
        return SurveyCounts.model_validate({**few, "types": every}).lacking(
            rare=0.01, by_chance=0.01
        )

    assert lacking(Kept=None, Rare=5, Some=200) == ["Kept", "Some"]
    assert lacking(Rare=5) == []


def test_a_reply_that_cannot_be_is_refused() -> None:
    ask = CountText(["Drug", "Effect"], 2)
    good = TextCounted(
        3, 9, 70, language("en"), np.array([4, 0]), np.array([1, 0]),
        np.array([4, 0, 0, 0], np.int32), np.array([1, 0, 0, 0], np.int32),
    )  # fmt: skip
    check_reply(COUNT_TEXT, ask, good)
    assert encode(decode(TextCounted, encode(good))) == encode(good)
    for changed in (
        {"sites_T": np.array([1, 1])},
        {"surface_sites_B": np.zeros(4, np.int32)},
        {"entities_T": np.array([4])},
        {"entities_T": np.array([4, -1])},
        {"documents": -1},
        {"languages_L": language("en", "de")},
        {"languages_L": 2 * language("en")},
        {"languages_L": np.array([1])},
        {"surface_counts_B": np.zeros(8, np.int32)},
    ):
        with pytest.raises(GuardError):
            check_reply(COUNT_TEXT, ask, dataclasses.replace(good, **changed))
    with pytest.raises(Refusal) as refused:
        check_bounded(values_of(good), Guards(min_token_count=5))
    assert refused.value.code == "guard"


def test_a_survey_is_no_method_that_trains(tmp_path: Path) -> None:
    pair = method_named("survey")
    assert pair.name == "survey-tagger" and pair.name not in [*METHODS]
    assert [step.name for step in pair.steps] == [
        "describe", "check_key", "count_text", "count_examples"]  # fmt: skip
    asked = written(tmp_path, "federation.up=float16", "model.kind=linear")
    with pytest.raises(SettingsError, match="no text is named"):
        survey()
    assert survey_settings(None, ["federation.at_least=3"]).name == "sites"
    kept = survey_settings(asked)
    assert kept.model == Settings().model and kept.federation.up == "rows"
    for changed, said in (({"rounds": 2}, "counts once"),):
        with pytest.raises(SettingsError, match=said):
            pair(kept.model_copy(update=changed))
