"""Surveys: the counts of all sites together are right, and nothing else is seen."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from confide.errors import GuardError, SettingsError
from confide.federation.failures import Refusal
from confide.federation.guards import Guards, check_bounded, check_reply
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode, encode, values_of
from confide.federation.site import Site
from confide.jobs.predict import predict
from confide.jobs.survey import survey, survey_settings
from confide.methods import METHODS, method_named
from confide.methods.survey import BITS, COUNT_TEXT, CountText, TextCounted, count_text
from confide.settings import Settings, dump
from contract.corpus import sentences, tiny, write_conll


def written(folder: Path, *overrides: str, **tree: Any) -> Path:
    """The settings of three sites, of which the third alone annotates one type more."""
    settings = tiny(folder, *overrides, **tree)
    third = Path(settings.site[2].train[0])
    write_conll(third, [*sentences("site-3", "train", 18), [("Ada", "B-Person")] * 3])
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
    found = survey(file, out=tmp_path / "run")
    types, surfaces = counted(survey_settings(file))
    assert (found["sites"], found["documents"], found["sentences"]) == (3, 55, 55)
    assert found["types"] == {
        "Drug": {"sites": 3, "entities": types["Drug"]},
        "Effect": {"sites": 3, "entities": types["Effect"]},
        "Person": {"sites": 1, "entities": None},  # the sum would be one site's
    }
    held = Counter(one for own in surfaces for one in own)
    shared = [one for one, sites in held.items() if sites > 1]
    mentions = sum(sum(own.values()) for own in surfaces)
    assert found["surfaces"] == {
        "distinct": len(held),
        "common": len(shared),
        "mentions": mentions,
        "common_mentions": sum(own[one] for own in surfaces for one in shared),
    }
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
    found = survey(file, overrides=["federation.sums=plain"])
    assert found["surfaces"] is None
    assert found["types"]["Person"] == {"sites": 1, "entities": 0}  # three: fewer than the guard
    assert found["types"]["Drug"]["entities"] == 54
    site = cast(Any, Site)("one", ())
    for own, bits in ((site, BITS), (dataclasses.replace(site, member=cast(Any, object())), 24)):
        with pytest.raises(Refusal) as refused:  # whatever a server asks
            count_text(own, None, CountText(["Drug"], bits), cast(Any, None))
        assert refused.value.code == "bad-ask"


def test_a_reply_that_cannot_be_is_refused() -> None:
    ask = CountText(["Drug", "Effect"], 2)
    good = TextCounted(
        3, 9, 70, np.array([4, 0]), np.array([1, 0]),
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
    kept = survey_settings(asked)
    assert kept.model == Settings().model and kept.federation.up == "rows"
    for changed, said in (({"rounds": 2}, "counts once"),):
        with pytest.raises(SettingsError, match=said):
            pair(kept.model_copy(update=changed))
