"""The verdict: what those read who read no further."""

from __future__ import annotations

from pathlib import Path

from confide.report.folder import load_runs
from confide.report.page import headline, lede
from report.folders import relation_result, result, write_run


def runs_of(folder: Path, *made: dict) -> list:  # type: ignore[type-arg]
    return load_runs([write_run(folder / str(n), one) for n, one in enumerate(made)])


def test_the_weakest_site_and_type_and_the_round_are_named(tmp_path: Path) -> None:
    found = headline(runs_of(tmp_path, result("fedavg", 0.782)))
    assert found is not None and found.score == 0.782 and found.range is None
    assert found.facts == (
        "The weakest site is cardiology (75.2), the weakest type REASON (63.2; 90 marked).",
        "The model of round 11 of 12 was kept.",
    )


def test_sites_are_counted_also_where_only_all_together_are_scored(tmp_path: Path) -> None:
    """Under masks scores have no site, and at a server no text is described; rounds name sites."""
    own = result("fedavg", 0.782)
    names = sorted(own["data"]["sites"])
    for turn in own["history"]:
        turn["sites"] = names
    own["scores"]["sites"] = {"all sites": own["scores"]["overall"]}
    said = lede(runs_of(tmp_path / "one", own))
    own["data"]["sites"] = {}
    assert said == lede(runs_of(tmp_path / "server", own))
    assert said.startswith(f"{len(names)} sites trained")


def test_all_text_in_one_place_is_no_further_site(tmp_path: Path) -> None:
    own, pooled = result("fedavg", 0.782), result("pooled", 0.8)
    for turn in pooled["history"]:
        turn["sites"] = ["pooled"]
    assert lede(runs_of(tmp_path, own, pooled)).startswith("3 sites trained")
    assert lede(runs_of(tmp_path / "alone", pooled)) == "One run on 3 sites."
    public = result("public-only", 0.6)
    for turn in public["history"]:
        turn["sites"] = ["public-only"]
    assert lede(runs_of(tmp_path / "public", own, public)).startswith("3 sites trained")


def test_a_type_that_is_marked_nowhere_is_not_the_weakest(tmp_path: Path) -> None:
    own = result("fedavg", 0.782)
    types = own["scores"]["overall"]["strict"]["types"]
    types["(other)"] = {**next(iter(types.values())), "f1": 0.0, "support": 0}
    found = headline(runs_of(tmp_path, own))
    assert found is not None and "REASON (63.2" in found.facts[0]


def test_what_sites_gain_over_training_alone(tmp_path: Path) -> None:
    alone, own = result("alone", 0.70), result("fedavg", 0.80)
    found = headline(runs_of(tmp_path / "a", alone, own))
    assert found is not None
    assert found.facts[0].startswith("Every site gains over training alone: ")
    own["scores"]["sites"]["practice"]["strict"]["f1"] = 0.5
    worse = headline(runs_of(tmp_path / "b", alone, own))
    assert worse is not None
    assert "1 of 3 sites are worse off than alone: practice -23.0 to " in worse.facts[0]


def test_of_several_federated_runs_or_other_data_there_is_no_verdict(tmp_path: Path) -> None:
    assert headline(runs_of(tmp_path / "a", result("fedavg", 0.7), result("fedner", 0.8))) is None
    other = result("alone", 0.7)
    other["data"]["fingerprint"] = "0000"
    assert headline(runs_of(tmp_path / "b", result("fedavg", 0.7), other)) is None


def test_a_run_without_test_text_has_no_score_of_nothing(tmp_path: Path) -> None:
    """It was reported as "0.0 F1"."""
    bare = result("fedavg", 0.5)
    for scores in (bare["scores"]["overall"], *bare["scores"]["sites"].values()):
        scores["sentences"] = scores["strict"]["support"] = scores["relaxed"]["support"] = 0
    runs = runs_of(tmp_path, bare)
    assert headline(runs) is None and lede(runs) == "One run on 3 sites."
    assert runs[0].score("strict") is None


def test_relations_are_told_by_micro_scores(tmp_path: Path) -> None:
    found = headline(runs_of(tmp_path, relation_result("feded", 30)))
    assert found is not None and found.called == "F1, micro"
