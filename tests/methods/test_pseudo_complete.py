"""Pseudo-complete annotation: what is joined, how sentences are weighed, and what the server sees.

Shapes: S sentences, G numbers of the shared part.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confide.errors import FederationError, QuorumError, SettingsError
from confide.federation.engines import Hosting
from confide.federation.memory import MemoryStore
from confide.federation.messages import decode
from confide.jobs.predict import evaluate, predict
from confide.kinds.protocol import SiteModel
from confide.methods import METHODS, method_of, pseudo_complete
from confide.methods.pseudo_complete import Complete, PseudoCompleteSettings, Weighed, moved_weights
from confide.runs.loading import open_models, release
from confide.runs.run import run
from confide.settings import Settings, parse
from confide.text.document import NO_RELATION, Document, Entity, Relation
from confide.text.formats import read, write
from confide.training.batches import completed, only
from confide.training.examples import WholeGradients
from contract.corpus import sentences, tiny, write_conll
from contract.models import folder_of
from contract.relations import documents, encoder, write_documents
from contract.runs import Asking, use_engine
from methods.relation_runs import started

KINDS = ("pseudo-complete-lightner", "pseudo-complete-encoder", "pseudo-complete-tagger")
every_kind = pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name != "pseudo-complete-tagger"))
        for name in KINDS
    ],
)


def _apart(settings: Settings, folder: Path) -> Settings:
    """The same with sites of which the second alone annotates effects, and no drugs."""
    knows = {"site-2": ["Effect"]}
    sites = [
        {**site.model_dump(), "annotates": knows.get(site.name, ["Drug"])} for site in settings.site
    ]
    plain = settings.model_dump(by_alias=True, exclude={"site"})
    return parse({**plain, "site": sites})


def history(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "result.json").read_text())["history"]
    return found


# --- the join (Eq. 5) -----------------------------------------------------------------------------


def test_the_join_keeps_all_own_spans_and_of_the_found_those_of_missing_types() -> None:
    own = [(4, 6, "drug"), (9, 10, "drug")]
    found = [(0, 1, "event"), (2, 3, "drug"), (5, 7, "event"), (8, 9, "event")]
    joined = completed(own, found, missing={"event"})
    assert joined == [(0, 1, "event"), (4, 6, "drug"), (8, 9, "event"), (9, 10, "drug")]


def test_of_two_found_spans_that_overlap_the_first_stays() -> None:
    assert completed([], [(0, 2, "a"), (1, 3, "a"), (3, 4, "a")], missing={"a"}) == [
        (0, 2, "a"),
        (3, 4, "a"),
    ]


def test_what_a_site_does_not_annotate_is_dropped_with_its_relations() -> None:
    entities = (
        Entity("T1", "Drug", ((0, 7),)),
        Entity("T2", "Pain", ((8, 12),)),
        Entity("T3", "Drug", ((13, 20),)),
    )
    relations = (Relation("R1", "eases", "T1", "T2"), Relation("R2", "like", "T1", "T3"))
    whole = Document("d", "aspirin pain codeine", entities, relations)
    untouched = Document("e", "aspirin", (Entity("T1", "Drug", ((0, 7),)),))
    kept, same = only([whole, untouched], {"Drug"})
    assert [one.id for one in kept.entities] == ["T1", "T3"]
    assert [one.id for one in kept.relations] == ["R2"]
    assert same is untouched


# --- instance weights (Eq. 12) --------------------------------------------------------------------


def test_weights_move_by_the_cosine_to_the_others_gradient() -> None:
    random = np.random.default_rng(1)
    before_S = random.random(5).astype(np.float32)
    source_SG = random.standard_normal((5, 7)).astype(np.float32)
    others_G = random.standard_normal(7).astype(np.float32)
    after_S = moved_weights(before_S, WholeGradients(source_SG), others_G=others_G, momentum=0.7)
    for before, slope_G, after in zip(before_S, source_SG, after_S, strict=True):
        dot = sum(float(a) * float(b) for a, b in zip(slope_G, others_G, strict=True))
        norms = [sum(float(x) ** 2 for x in one) ** 0.5 for one in (slope_G, others_G)]
        assert after == pytest.approx(0.7 * before + 0.3 * dot / (norms[0] * norms[1]), abs=1e-6)


def test_without_a_gradient_a_weight_stays() -> None:
    before_S = np.array([0.5, 2.0], np.float32)
    source = WholeGradients(np.array([[0, 0], [3, 4]], np.float32))
    nobody = moved_weights(before_S, source, others_G=np.zeros(2, np.float32), momentum=0.9)
    assert nobody.tolist() == before_S.tolist()
    some = moved_weights(before_S, source, others_G=np.array([3, 4], np.float32), momentum=0.9)
    assert some.tolist() == pytest.approx([0.5, 1.9])


def test_a_sentence_that_harms_the_others_counts_nothing_and_is_not_unlearnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: dict[float, dict[str, Any]] = {}
    for weight in (0.0, -0.5):

        def fixed(_: Any, source: Any, weight: float = weight, **rest: Any) -> Any:
            return np.full(len(source), weight, np.float32)

        monkeypatch.setattr(pseudo_complete, "moved_weights", fixed)
        settings = tiny(tmp_path, "method=pseudo-complete-tagger", "options.warmup_rounds=0")
        done = run(settings, out=tmp_path / str(weight))
        states[weight] = _weights(done.folder, METHODS["pseudo-complete-tagger"].State)
        kept = json.loads((done.folder / "sites" / "site-1" / "weights.json").read_text())
        assert {one["weight"] for one in kept["sentences"]} == {weight}
    for name, array in states[0.0].items():
        np.testing.assert_array_equal(array, states[-0.5][name])


def test_centred_weights_choose_among_sentences_and_weigh_all_together_as_none_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alike(_: Any, source: Any, **rest: Any) -> Any:
        return np.full(len(source), -0.25, np.float32)

    monkeypatch.setattr(pseudo_complete, "moved_weights", alike)
    states = []
    for option in ("centred=true", "instance_weights=false", "centred=false"):
        words = ("method=pseudo-complete-tagger", "options.warmup_rounds=0", f"options.{option}")
        settings = tiny(tmp_path, *words)
        done = run(settings, out=tmp_path / option)
        states.append(_weights(done.folder, METHODS["pseudo-complete-tagger"].State))
    centred, none, unlearnt = states
    for name, array in none.items():
        np.testing.assert_array_equal(array, centred[name])
    assert any(not np.array_equal(array, unlearnt[name]) for name, array in none.items())


@pytest.mark.parametrize("most", [pytest.param("inf", marks=pytest.mark.slow), "0.01"])
def test_a_site_compares_its_sentences_with_the_other_sites_alone(
    most: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server adds all target gradients up; a site takes its own out, and never sees another.

    Its own is what it sent, bounded by its guard.
    """
    replies: dict[str, np.ndarray] = {}
    sent: dict[str, np.ndarray] = {}

    def look(engine: Any, step: str, round: int, site: str, ask: bytes, reply: bytes) -> None:
        if step == "weigh":
            replies[site] = decode(Weighed, reply).slope_G
        if step == "complete" and round == 2:
            sent[site] = decode(Complete, ask).slope_G

    seen: dict[str, np.ndarray] = {}
    real = moved_weights

    def watched(before_S: Any, source: Any, *, others_G: Any, momentum: float) -> Any:
        seen[str(len(seen))] = others_G
        return real(before_S, source, others_G=others_G, momentum=momentum)

    use_engine(monkeypatch, Asking, look=look)
    monkeypatch.setattr("confide.methods.pseudo_complete.moved_weights", watched)
    settings = tiny(
        tmp_path,
        "method=pseudo-complete-lightner",
        "options.warmup_rounds=0",
        f"guards.max_norm={most}",
    )
    done = run(_apart(settings, tmp_path), out=tmp_path / "run")
    assert history(done.folder)[1]["pseudo"] > 0
    assert set(replies) == {"site-1", "site-2", "site-3"}
    assert any(slope.any() for slope in replies.values())
    assert all(np.linalg.norm(slope) <= float(most) * 1.001 for slope in replies.values())
    whole = np.sum([replies[site] for site in sorted(replies)], axis=0, dtype=np.float64)
    for site, sum_G in sent.items():
        np.testing.assert_allclose(sum_G, whole, atol=1e-6)
        others = np.sum([one for name, one in replies.items() if name != site], axis=0)
        last = seen[str(len(seen) - 3 + sorted(replies).index(site))]
        np.testing.assert_allclose(last, others, atol=1e-5)


# --- rounds ---------------------------------------------------------------------------------------


@every_kind
def test_only_missing_types_are_pseudo_annotated_and_not_before_the_model_has_learnt(
    method: str, tmp_path: Path
) -> None:
    learning = ("training.local_epochs=4", "training.learning_rate=0.03", "rounds=5")
    if method != "pseudo-complete-tagger":
        learning = ("training.local_epochs=6", "training.learning_rate=0.01", "rounds=5")
    settings = tiny(tmp_path, f"method={method}", *learning, "options.warmup_rounds=2")
    if method == "pseudo-complete-lightner":
        settings = _apart(settings, tmp_path)
    rounds = history(run(settings, out=tmp_path / "run").folder)
    assert [one["pseudo"] for one in rounds[:2]] == [0, 0]
    assert len({one["own"] for one in rounds}) == 1
    assert any(one["pseudo"] for one in rounds[2:])
    everybody = [{**site.model_dump(), "annotates": ["Drug", "Effect"]} for site in settings.site]
    complete = tiny(tmp_path, f"method={method}", site=everybody)
    assert [one["pseudo"] for one in history(run(complete, out=tmp_path / "all").folder)] == [0, 0]


def test_without_distillation_and_weights_it_is_fedavg_of_the_kind(tmp_path: Path) -> None:
    plain = ("options.distil=false", "options.instance_weights=false")
    done = run(tiny(tmp_path, "method=pseudo-complete-tagger", *plain), out=tmp_path / "run")
    lines = (done.folder / "ledger.jsonl").read_text().splitlines()
    steps = {json.loads(line)["step"] for line in lines}
    assert "weigh" not in steps
    assert "complete" in steps


def test_a_share_of_lightner_travels_and_hidden_decides_how_much(tmp_path: Path) -> None:
    shares = []
    for hidden in ("2", "8"):
        settings = tiny(
            tmp_path,
            "method=pseudo-complete-lightner",
            "lightner.tune=prompts",
            f"lightner.hidden={hidden}",
            "rounds=1",
        )
        shares.append(history(run(settings, out=tmp_path / hidden).folder)[0]["share"])
    assert 0 < shares[0] < shares[1] < 0.7


@pytest.mark.parametrize(
    "adversary", ["dann", *(pytest.param(a, marks=pytest.mark.slow) for a in ("fada", "fade"))]
)
def test_an_adversary_travels_with_lightner(adversary: str, tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=pseudo-complete-lightner", f"lightner.adversary={adversary}")
    done = run(settings, out=tmp_path / "run")
    state = METHODS["pseudo-complete-lightner"].State
    names = {name for name in _weights(done.folder, state) if name.startswith("adversary.")}
    assert names
    assert (
        len(open_models(done.folder).entities([Document("d", "the patient took aspirin .")])) == 1
    )


def _weights(folder: Path, kind: type) -> dict[str, Any]:
    from confide.runs.folder import RunFolder

    store = RunFolder(folder).store("")
    weights: dict[str, Any] = decode(kind, store.load(2).state.tobytes()).weights
    return weights


# --- at the site ----------------------------------------------------------------------------------


def test_instance_weights_are_readable_at_the_site_and_travel_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked: list[Any] = []
    real = SiteModel.row_gradients

    def row_gradients(site_model: SiteModel, *given: Any) -> Any:
        worked.append(site_model)
        return real(site_model, *given)

    monkeypatch.setattr(SiteModel, "row_gradients", row_gradients)
    settings = tiny(tmp_path, "method=pseudo-complete-tagger", "options.warmup_rounds=0")
    folder = run(settings, out=tmp_path / "run").folder
    assert len(worked) == 2 * 3  # once a round at each site, though two steps need them
    found = json.loads((folder / "sites" / "site-1" / "weights.json").read_text())
    weights = [one["weight"] for one in found["sentences"]]
    assert found["round"] == 2
    assert len(weights) == 18
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) > 1
    kind = METHODS["pseudo-complete-tagger"].Memory
    memory = MemoryStore(folder / "sites" / "site-1" / "memory", kind).latest()
    assert sorted(memory.instance_weights_S.tolist(), reverse=True) == pytest.approx(weights)


@every_kind
def test_what_is_found_of_a_type_that_nobody_annotated_there_is_not_counted(
    method: str, tmp_path: Path
) -> None:
    settings = tiny(tmp_path, f"method={method}", "rounds=1")
    sites = [{**site.model_dump(), "test_annotates": []} for site in settings.site]
    scores = run(tiny(tmp_path, f"method={method}", "rounds=1", site=sites), out=tmp_path / "r")
    result = json.loads((scores.folder / "result.json").read_text())["scores"]["sites"]
    assert set(result["site-3"]["strict"]["types"]) <= {"Drug"}
    assert "Effect" in result["site-1"]["strict"]["types"]


def test_files_in_which_nobody_looked_for_a_type_are_scored_without_it(tmp_path: Path) -> None:
    rounds = ("rounds=4", "training.local_epochs=4")
    done = run(tiny(tmp_path, "method=pseudo-complete-encoder", *rounds), out=tmp_path / "run")
    (file,) = (tmp_path / "data" / "site-1").glob("test*")
    drugs = tmp_path / "drugs.conll"
    write(only(read(file).documents, {"Drug"}), drugs, "conll")
    assert {e.type for one in predict(done.folder, [drugs]) for e in one.entities} > {"Drug"}
    for model in (done.folder, release(done.folder, out=tmp_path / "released")):
        scored = evaluate(model, [drugs])
        assert scored["strict"]["types"].keys() == scored["relaxed"]["types"].keys() == {"Drug"}
    looked_for = evaluate(done.folder, [drugs], site="site-1")["strict"]["types"]
    assert looked_for["Effect"]["predicted"] > looked_for["Effect"]["support"] == 0
    of_run = done.result.scores.sites["site-1"]["strict"]
    assert evaluate(done.folder, [file], site="site-1")["strict"] == of_run


@every_kind
def test_a_release_finds_what_the_run_finds(method: str, tmp_path: Path) -> None:
    rounds = ("rounds=4", "training.local_epochs=4")
    done = run(tiny(tmp_path, f"method={method}", *rounds), out=tmp_path / "run")
    text = [Document("d", "the patient took codeine then had severe joint pain .")]
    copy = release(done.folder, out=tmp_path / "released")
    of_run, of_copy = (open_models(folder).entities(text) for folder in (done.folder, copy))
    assert of_copy == of_run


def test_a_tagger_may_have_the_states_of_a_frozen_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    context = f"model.context={encoder()}"
    done = run(tiny(tmp_path, "method=pseudo-complete-tagger", context), out=tmp_path / "run")
    plain = run(tiny(tmp_path, "method=pseudo-complete-tagger"), out=tmp_path / "plain")
    assert history(done.folder)[0]["loss"] != history(plain.folder)[0]["loss"]
    text = [Document("d", "the patient took codeine then had severe joint pain .")]
    copy = release(done.folder, out=tmp_path / "released")
    of_run, of_copy = (open_models(folder).entities(text) for folder in (done.folder, copy))
    assert of_copy == of_run


# --- relations ------------------------------------------------------------------------------------

RELATIONS = "pseudo-complete-relations"


def _each_lacks_one(folder: Path, *overrides: str) -> Settings:
    """Sites of which the second alone annotates `causes`, and no `eases`; test text has both."""
    usual = tiny(folder, f"method={RELATIONS}", *overrides)
    sites = []
    for table in usual.site:
        knows = ["causes"] if table.name == "site-2" else ["eases"]
        train = [
            replace(one, relations=tuple(r for r in one.relations if r.type in knows))
            for one in documents(table.name, "train", 18)
        ]
        path = write_documents(folder / "own" / f"{table.name}.jsonl", train)
        plain = table.model_dump(exclude={"relations"}, exclude_none=True)
        sites.append(
            {**plain, "train": path, "annotates": knows, "test_annotates": ["causes", "eases"]}
        )
    return tiny(folder, f"method={RELATIONS}", *overrides, site=sites)


def test_relations_that_a_site_lacks_are_learnt_from_the_other_sites(tmp_path: Path) -> None:
    learning = ("training.local_epochs=3", "training.batch_size=4", "rounds=9")
    warm = ("options.warmup_rounds=2",)
    done = run(_each_lacks_one(tmp_path, *learning, *warm), out=tmp_path / "run")
    rounds = history(done.folder)
    assert [one["pseudo"] for one in rounds[:2]] == [0, 0]
    assert all(one["pseudo"] for one in rounds[3:])
    assert len({one["own"] for one in rounds}) == 1
    scores = done.result.scores
    assert scores.overall["micro"]["f1"] > 0.75
    for site, lacked in (("site-1", "causes"), ("site-2", "eases")):
        assert scores.sites[site]["micro"]["types"][lacked]["recall"] > 0.9


def test_pairs_and_what_they_count_are_readable_at_the_site(tmp_path: Path) -> None:
    folder = run(_each_lacks_one(tmp_path), out=tmp_path / "run").folder
    found = json.loads((folder / "sites" / "site-2" / "weights.json").read_text())
    weights = [one["weight"] for one in found["pairs"]]
    assert (found["round"], len(weights)) == (2, 18)
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) > 1
    assert {one["relation"] for one in found["pairs"]} == {"causes", NO_RELATION}
    kept = MemoryStore(folder / "sites" / "site-2" / "memory", METHODS[RELATIONS].Memory).latest()
    train = documents("site-2", "train", 18)
    by_place = {one["where"]: one["weight"] for one in found["pairs"]}
    assert [by_place[one.id] for one in train] == pytest.approx(kept.instance_weights_S.tolist())


def test_a_site_compares_its_pairs_with_the_other_sites_alone(tmp_path: Path) -> None:
    """Site 2 alone lacks `eases`: of its own target gradient nothing is left for it."""
    settings = _each_lacks_one(tmp_path, "rounds=1")
    method, federation, engine = started(tmp_path, settings)
    state = method.start(federation)
    biased = {**state.weights, "relation.bias": np.array([0, -50, 50], np.float32)}
    method.round(replace(state, weights=biased), federation, 1)
    sent = {site: engine.replies["weigh", site].slope_G for site in federation.sites}
    assert [bool(sent[site].any()) for site in sorted(sent)] == [False, True, False]
    moved = {s: engine.memory(s).instance_weights_S for s in federation.sites}
    assert (moved["site-2"] == 1).all()
    assert (moved["site-1"] != 1).any()


# --- faults ---------------------------------------------------------------------------------------


def test_a_declared_type_that_nobody_annotates_is_no_error(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=pseudo-complete-tagger")
    data = {**settings.data.model_dump(), "types": ["Drug", "Effect", "Dose"]}
    declared = tiny(tmp_path, "method=pseudo-complete-tagger", data=data)
    done = run(declared, out=tmp_path / "run")
    assert open_models(done.folder).entities.types == ("Drug", "Effect", "Dose")


def test_a_site_without_an_entity_takes_part(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=pseudo-complete-tagger", "options.warmup_rounds=0")
    bare = [[(word, "O") for word, _ in one] for one in sentences("site-3", "train", 9)]
    write_conll(tmp_path / "data" / "site-3" / "train.conll", bare)
    result = run(settings, out=tmp_path / "run").result
    assert all("site-3" in one.sites for one in result.history)


def test_rows_of_a_file_of_word_vectors_are_filled_in(tmp_path: Path) -> None:
    """Trained for (almost) nothing, the row of a known word is the file's, and stays."""
    file = tmp_path / "vectors.txt"
    file.write_text("aspirin " + " ".join(["7"] * 8) + "\nnobody " + " ".join(["1"] * 8) + "\n")
    settings = tiny(
        tmp_path,
        "method=pseudo-complete-tagger",
        "training.optimiser=sgd",
        "training.learning_rate=1e-12",
        f"model.vectors={file}",
    )
    state = METHODS["pseudo-complete-tagger"].State
    rows_VD = _weights(run(settings, out=tmp_path / "run").folder, state)["word.weight"]
    assert np.isclose(rows_VD, 7, atol=1e-4).all(1).sum() == 1
    assert not np.isclose(rows_VD, 1, atol=1e-4).all(1).any()


def test_a_kind_that_a_method_does_not_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="lazy-mil does not train encoder") as caught:
        method_of(tiny(tmp_path, "method=lazy-mil", "model.kind=encoder"))
    named = "fedavg, fedatt, chain, dp-fedsgd, dp-feded, dp-fedner, fedner, feded, feddf"
    assert f"{named}, pseudo-complete" in str(caught.value)


def test_an_adversary_of_the_tagger_is_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=pseudo-complete-tagger", "lightner.adversary=dann")
    with pytest.raises(SettingsError, match="only LightNER can be trained"):
        run(settings, out=tmp_path / "run")


def test_lightner_without_a_bart_says_what_to_do(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=pseudo-complete-lightner", 'lightner.bart=""')
    with pytest.raises(SettingsError, match="LightNER needs a BART") as caught:
        run(settings, out=tmp_path / "run")
    assert "small_bart.py" in str(caught.value)


def test_a_site_with_another_bart_is_named(tmp_path: Path) -> None:
    import shutil

    settings = tiny(tmp_path, "method=pseudo-complete-lightner")
    other = tmp_path / "other-bart"
    shutil.copytree(folder_of(settings.lightner.bart), other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"note": "another"}))
    sites = [site.model_dump() for site in settings.site]
    sites[1]["context"] = str(other)
    with pytest.raises((FederationError, QuorumError), match="site-2"):
        run(tiny(tmp_path, "method=pseudo-complete-lightner", site=sites), out=tmp_path / "run")


def test_a_type_outside_what_a_site_says_it_knows_cannot_stay(tmp_path: Path) -> None:
    """Entities of other types are dropped before anybody sees them; the test text keeps its own."""
    seen: dict[str, Any] = {}
    real = Hosting.host

    def host(self: Hosting, spec: Any, scratch: Any) -> Any:
        seen[spec.name] = spec
        return real(self, spec, scratch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hosting, "host", host)
        run(tiny(tmp_path, "method=pseudo-complete-tagger", "rounds=1"), out=tmp_path / "run")
    spec = seen["site-3"]
    kinds = {
        part: {entity.type for one in getattr(spec, part) for entity in one.entities}
        for part in ("train", "dev", "test")
    }
    assert kinds == {"train": {"Drug"}, "dev": {"Drug"}, "test": {"Drug", "Effect"}}


def test_the_defaults_are_the_papers() -> None:
    assert PseudoCompleteSettings().model_dump() == {
        "distil": True, "confidence": 0.0, "instance_weights": True, "momentum": 0.9,
        "centred": False, "warmup_rounds": 1, "weighting": "equal", "rows": "all",
        "teacher": "common",
    }  # fmt: skip
