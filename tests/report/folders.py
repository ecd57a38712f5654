"""Run folders made by hand, in the form of a real run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from confide.scoring import (
    BagCounts,
    RelationCounts,
    count_ranked,
    ranked_scores,
    relation_scores,
    sum_bag_counts,
    sum_relation_counts,
)
from confide.scoring.relations import ranked_bags
from confide.text.document import NO_RELATION

TYPES = ("DRUG", "DOSE", "ADE", "REASON")
RELATIONS = ("causes", "prevents", "treats")
SITES = ("cardiology", "oncology", "practice")


def rates(f1: float, support: int) -> dict[str, Any]:
    true = round(f1 * support)
    return {"f1": f1, "precision": f1 + 0.01, "recall": f1 - 0.01, "support": support,
            "true": true, "predicted": support}  # fmt: skip


def scores(f1: float, support: int = 120) -> dict[str, Any]:
    def one(shift: float) -> dict[str, Any]:
        types = {t: rates(f1 + shift - 0.05 * n, support // 4) for n, t in enumerate(TYPES)}
        return {**rates(f1 + shift, support), "types": types}

    return {"strict": one(0.0), "relaxed": one(0.04), "sentences": support, "malformed": 0}


def result(method: str, f1: float, *, rounds: int = 12, sites: tuple[str, ...] = SITES) -> dict:
    history = [
        {
            "round": n, "seconds": 2.5, "loss": 9 / n, "learning_rate": 0.005 * 0.95 ** n,
            "dev": {"strict": f1 * (1 - 0.6 / n), "relaxed": f1 * (1 - 0.5 / n)},
            "dev_sites": dict.fromkeys(sites, f1 * (1 - 0.6 / n)), "sites": list(sites),
            "failed": {}, "bytes": {"up": 900_000, "down": 900_000}, "sentences_per_second": 1200,
        }
        for n in range(1, rounds + 1)
    ]  # fmt: skip
    return {
        "schema": 1, "confide": "0.1.0", "method": method, "name": "demo", "seed": 1,
        "rounds": rounds, "best_round": rounds - 1,
        "scores": {
            "overall": scores(f1, 360),
            "sites": {site: scores(f1 + 0.03 * (n - 1)) for n, site in enumerate(sites)},
        },
        "dev": {"overall": scores(f1)}, "history": history,
        "bytes": {"up": {site: 3_600_000 + 1000 * n for n, site in enumerate(sites)},
                  "down": dict.fromkeys(sites, 3_700_000)},
        "seconds": 31.0, "sentences_per_second": 1234.5, "compute_seconds": 55.5,
        "data": {
            "fingerprint": "9f8e7d6c5b4a",
            "sites": {site: {"train": 240, "dev": 60, "test": 120,
                             "entities": dict.fromkeys(TYPES, 100),
                             "problems": {"snapped": 2} if site == "practice" else {}}
                      for site in sites},
        },
        "parameters": 123_456, "peak_rss_mb": 512.0,
    }  # fmt: skip


def ledger(sites: tuple[str, ...] = SITES, rounds: int = 2) -> list[dict]:
    lines = []
    for site in sites:
        lines.append({"round": 0, "step": "count_words", "direction": "up", "site": site,
                      "field": "word_counts", "kind": "array", "bytes": 20_480, "count": 1024,
                      "seen": "one by one"})  # fmt: skip
    for n in range(1, rounds + 1):
        for site in sites:
            for way, seen in (("down", "one by one"), ("up", "sum")):
                lines.append({"round": n, "step": "train", "direction": way, "site": site,
                              "field": "weights", "kind": "arrays", "bytes": 300_000,
                              "count": 75_000, "seen": seen})  # fmt: skip
    return lines


def errors(site: str, secret: str = "dry cough") -> dict:
    text = f"C/o {secret} since ramopril uptitrated to 5 mg."
    start, end = 4, 4 + len(secret)
    drug = text.index("ramopril")
    return {
        "site": site,
        "confusion": {"ADE": {"ADE": 30, "REASON": 4, "": 6}, "REASON": {"REASON": 20, "ADE": 3},
                      "DRUG": {"DRUG": 88, "": 2}, "": {"ADE": 5, "DRUG": 1}},
        "worst": [{"text": text, "where": f"{site}-test-003:2",
                   "gold": [[start, end, "ADE"], [drug, drug + 8, "DRUG"]],
                   "predicted": [[start, end, "REASON", 0.81], [drug, drug + 8, "DRUG", 0.99]]}],
    }  # fmt: skip


def relation_counts(right: int, wrong: int = 4) -> RelationCounts:
    """Of each relation `right` found, and three times `wrong` mistaken; of one, two overlooked."""
    confusion = {(name, name): right for name in RELATIONS}
    confusion |= {(name, NO_RELATION): wrong for name in RELATIONS}
    confusion |= {(NO_RELATION, name): wrong for name in RELATIONS}
    confusion |= {("causes", "treats"): wrong, (NO_RELATION, NO_RELATION): 900}
    return RelationCounts(dict(sorted(confusion.items())), {"treats": 2})


def relation_result(
    method: str, right: int, *, rounds: int = 12, sites: tuple[str, ...] = SITES, up: int = 42_000
) -> dict[str, Any]:
    """Of a relation run: site by site one more relation is found; each round `up` bytes leave."""
    counts = {site: relation_counts(right + n) for n, site in enumerate(sites)}
    overall = relation_scores(sum_relation_counts(counts.values()))
    micro, macro = overall["micro"]["f1"], overall["macro"]["f1"]
    made = result(method, 0.0, rounds=rounds, sites=sites)
    for n, turn in enumerate(made["history"], 1):
        turn["dev"] = {"micro": micro * (1 - 0.6 / n), "macro": macro * (1 - 0.6 / n)}
        turn["bytes"] = {"up": up, "down": 900_000}
    scores = {site: relation_scores(count) for site, count in counts.items()}
    made |= {"task": "re", "scores": {"overall": overall, "sites": scores}, "dev": overall}
    made["bytes"]["up"] = dict.fromkeys(sites, up * rounds // len(sites))
    for facts in made["data"]["sites"].values():
        facts["relations"] = dict.fromkeys(RELATIONS, 70)
    made["data"]["public"] = {"documents": 55, "relations": {"treats": 9}, "problems": {}}
    return made


def relation_errors(site: str, secret: str = "dry cough") -> dict[str, Any]:
    """Two wrong pairs: one with a wrong relation, one that was not found."""
    text = f"Ramopril 5 mg caused {secret}."
    tail = text.index(secret)
    pair = {"text": text, "head": [[0, 8]], "tail": [[tail, tail + len(secret)]],
            "head_type": "DRUG", "tail_type": "ADE", "gold": "causes"}  # fmt: skip
    return {
        "site": site,
        "task": "re",
        "confusion": {"causes": {"causes": 9, "treats": 1, NO_RELATION: 2, "": 3},
                      NO_RELATION: {"treats": 1, NO_RELATION: 40}, "treats": {"treats": 5}},
        "worst": [
            {**pair, "where": "n1:T1:T2", "predicted": "treats", "confidence": 0.93},
            {**pair, "where": "n7:T1:T2", "predicted": NO_RELATION, "confidence": None},
        ],
    }  # fmt: skip


def bag_counts(sure: float, *, bags: int = 300, seed: int = 0) -> BagCounts:
    """Bags whose facts are ranked the higher the surer the model is."""
    return count_ranked(*scored_bags(sure, bags=bags, seed=seed))


def bag_sentences(site: str, sure: float, *, seed: int = 0) -> dict[str, Any]:
    """sentences.json of the bags that `bag_counts` counts."""
    ranked = ranked_bags(*scored_bags(sure, bags=300, seed=seed))
    rows = [[0, 1, row[0]] for row in ranked]
    return {"schema": 1, "site": site, "fingerprint": "f", "best": rows, "ranked": ranked}


def scored_bags(sure: float, *, bags: int, seed: int) -> tuple[Any, Any, Any]:
    """Scores, the names of the relations, and facts."""
    generator = np.random.default_rng(seed)
    labels = (NO_RELATION, *RELATIONS)
    places_G = generator.choice(len(labels), size=bags, p=[0.55, 0.25, 0.15, 0.05])
    logits_GR = generator.normal(size=(bags, len(labels)))
    logits_GR[:, 0] += 1.5
    logits_GR[np.arange(bags), places_G] += sure
    scores_GR = np.exp(logits_GR) / np.exp(logits_GR).sum(axis=1, keepdims=True)
    facts = [frozenset({labels[place]} - {NO_RELATION}) for place in places_G]
    return scores_GR, labels, facts


def bag_result(
    method: str, sure: float, *, rounds: int = 12, sites: tuple[str, ...] = SITES, up: int = 42_000
) -> dict[str, Any]:
    """Of a run over bags: the AUC grows from round to round; each round `up` bytes leave."""
    counts = {site: bag_counts(sure + 0.2 * n, seed=n) for n, site in enumerate(sites)}
    overall = ranked_scores(sum_bag_counts(counts.values()))
    made = result(method, 0.0, rounds=rounds, sites=sites)
    for n, turn in enumerate(made["history"], 1):
        share = 1 - 0.6 / n
        turn["dev"] = {
            "auc": overall["auc"] * share,
            "auc_2000": overall["auc_2000"] * share,
            "precision_at": overall["precision_at"]["mean"] * share,
        }
        turn["bytes"] = {"up": up, "down": 900_000}
    scores = {site: ranked_scores(count) for site, count in counts.items()}
    made |= {"task": "bags", "scores": {"overall": overall, "sites": scores}, "dev": overall}
    made["bytes"]["up"] = dict.fromkeys(sites, up * rounds // len(sites))
    for facts in made["data"]["sites"].values():
        facts["relations"] = dict.fromkeys(RELATIONS, 70)
        facts["pairs"] = {"train": 200, "dev": 30, "test": 300}
    made["data"]["apart"] = {"by": "file", "left_out": 321}
    return made


def bag_errors(site: str, secret: str = "dry cough") -> dict[str, Any]:
    """Two wrong bags: one with a wrong relation, one of which the model says nothing."""
    text = f"Ramopril 5 mg caused {secret}."
    tail = text.index(secret)
    sentence = {"where": "n1:T1:T2", "text": text, "head": [[0, 8]],
                "tail": [[tail, tail + len(secret)]], "head_type": "DRUG", "tail_type": "ADE",
                "score": 0.91}  # fmt: skip
    bag = {"head": "RX:35296", "tail": "HP:0031246", "names": ["Ramopril", secret],
           "gold": ["causes"]}  # fmt: skip
    return {
        "site": site,
        "task": "bags",
        "confusion": {},
        "worst": [
            {**bag, "predicted": "treats", "confidence": 0.93, "relation": "treats", "more": 12,
             "sentences": [sentence, {**sentence, "where": "n4:T1:T2", "score": 0.42}]},
            {**bag, "gold": [], "predicted": "treats", "confidence": 0.81, "relation": "treats",
             "more": 0, "sentences": [sentence]},
            {**bag, "predicted": NO_RELATION, "confidence": 0.66, "relation": "causes", "more": 0,
             "sentences": [{**sentence, "score": None}]},
        ],
    }  # fmt: skip


def right(site: str, words: str = "sleeps well") -> dict[str, Any]:
    """A sentence in which everything is right."""
    text = f"Rash after varelozil, {words}."
    return {"text": text, "where": f"{site}-test-001:1", "gold": [[0, 4, "ADE"]],
            "predicted": [[0, 4, "ADE", 0.97]]}  # fmt: skip


def sentences(site: str, f1: float = 0.8, many: int = 50) -> dict[str, Any]:
    """Counts of sentences with two entities each."""
    wrong = round(2 * many * (1 - f1))
    rows = (
        [[2, 2, 2]] * (many - wrong // 2) + [[1, 2, 2]] * (wrong % 2) + [[0, 2, 2]] * (wrong // 2)
    )
    rows = rows[:many]
    return {
        "schema": 1, "site": site, "fingerprint": "0" * 64, "strict": rows, "relaxed": rows,
    }  # fmt: skip


def calibration() -> dict[str, Any]:
    """Finds of which the model was too sure until its confidences were calibrated."""

    def told(mean: float, gap: float) -> dict[str, Any]:
        bins = [
            {"lower": 0.4, "upper": 0.5, "mean": 0.45, "right": 4, "found": 10},
            {"lower": 0.9, "upper": 1.0, "mean": mean, "right": 72, "found": 90},
        ]
        return {"error": gap, "types": {"ADE": gap + 0.1, "DRUG": gap}, "bins": bins}  # fmt: skip

    return {"calibrators": {"": {"temperature": 2.0, "offset": 0.0}},
            "before": told(0.98, 0.167), "after": told(0.82, 0.023)}  # fmt: skip


def write_sentences(folder: Path, held: dict[str, Any]) -> None:
    own = folder / "sites" / held["site"]
    own.mkdir(parents=True, exist_ok=True)
    (own / "sentences.json").write_text(json.dumps(held))


def write_run(
    folder: Path, result: dict, *, ledger: list[dict] | None = None, errors: list[dict] = ()
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
    if ledger is not None:
        (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ledger))
    (folder / "settings.toml").write_text('schema = 2\nmethod = "fedavg"\nrounds = 12\n')
    (folder / "environment.json").write_text(
        json.dumps({"python": "3.11.2", "packages": {"torch": "2.13.0"}, "cores": 2})
    )
    for found in errors:
        site = folder / "sites" / found["site"]
        site.mkdir(parents=True)
        (site / "errors.json").write_text(json.dumps(found))
    return folder
