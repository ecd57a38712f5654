"""A run: the folder that it leaves, numbers that add up, and the round that it selects."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cases import each
from confide.errors import FederationError, MissingDataError, RunError, SettingsError
from confide.federation.ledger import read_ledger
from confide.federation.messages import decode
from confide.kinds.protocol import State
from confide.methods import METHODS
from confide.runs.folder import RunFolder
from confide.runs.rounds import Progress, Rounds
from confide.runs.run import RunResult, run
from confide.scoring import Count, EntityCounts, scores
from confide.settings import dump, parse
from contract.corpus import tiny, write_conll
from contract.runs import result, same_run, states
from federation.generics import Flat


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, list[Any]]:
    """One tiny run that several tests look at, and its events."""
    folder = tmp_path_factory.mktemp("run")
    events: list[Any] = []
    return run(tiny(folder, "rounds=3"), out=folder / "out", on_event=events.append), events


def test_the_folder_holds_what_is_promised(done: tuple[RunResult, Any]) -> None:
    found, _ = done
    names = {str(path.relative_to(found.folder)) for path in found.folder.rglob("*")}
    assert {"settings.toml", "environment.json", "result.json", "ledger.jsonl"} <= names
    assert "checkpoints/round-000003.ckpt" in names
    assert "sites/site-1/errors.json" in names
    assert not [name for name in names if name.endswith(".tmp")]
    environment = json.loads((found.folder / "environment.json").read_text())
    assert {"confide", "python", "packages", "machine", "seed", "data"} <= environment.keys()
    assert json.loads((found.folder / "result.json").read_text()) == found.result.model_dump()
    assert RunFolder(found.folder).settings().rounds == 3


def test_the_promised_paths_stand_in_the_result(done: tuple[RunResult, Any]) -> None:
    body = done[0].result
    assert body.schema_ == 1
    assert body.method == "fedavg"
    for site in ("site-1", "site-2", "site-3"):
        assert 0 <= body.scores.sites[site]["strict"]["f1"] <= 1
        assert body.bytes.up[site] > 0 < body.bytes.down[site]
    for kind in ("strict", "relaxed"):
        assert 0 <= body.scores.overall[kind]["f1"] <= 1
    assert [turn.round for turn in body.history] == [1, 2, 3]
    assert all(turn.seconds > 0 for turn in body.history)
    assert body.seconds >= sum(turn.train_seconds for turn in body.history)
    assert body.sentences_per_second > 0


def test_every_key_of_the_result_is_documented(done: tuple[RunResult, Any], root: Path) -> None:
    page = (root / "docs" / "result.md").read_text(encoding="utf-8")
    body = done[0].result
    named = [
        *body.model_dump(),
        *body.history[0].model_dump(),
        *body.scores.overall,
        *body.scores.overall["strict"],
    ]
    named += [*body.data.model_dump(), *body.data.sites["site-1"].model_dump()]
    assert not [key for key in named if f"`{key}" not in page and f".{key}" not in page]
    line = json.loads((done[0].folder / "ledger.jsonl").read_text().splitlines()[0])
    assert not [key for key in line if f"`{key}`" not in page]
    errors = json.loads((done[0].folder / "sites" / "site-1" / "errors.json").read_text())
    assert not [key for key in [*errors, *errors["worst"][0]] if f"`{key}" not in page]


def test_scores_of_all_are_the_sum_of_the_sites(done: tuple[RunResult, Any]) -> None:
    body = done[0].result.scores
    for kind in ("strict", "relaxed"):
        for field in ("true", "predicted", "support"):
            assert body.overall[kind][field] == sum(
                site[kind][field] for site in body.sites.values()
            )
    assert body.overall["sentences"] == 18


def test_bytes_are_those_of_the_ledger(done: tuple[RunResult, Any]) -> None:
    found, _ = done
    totals: dict[str, dict[str, int]] = {"up": {}, "down": {}}
    for entry in read_ledger(found.folder / "ledger.jsonl"):
        totals[entry.direction][entry.site] = (
            totals[entry.direction].get(entry.site, 0) + entry.bytes
        )
    assert found.result.bytes.model_dump() == totals
    weights = decode(METHODS["fedavg-tagger"].State, states(found.folder).popitem()[1]).weights
    rows = [e for e in read_ledger(found.folder / "ledger.jsonl") if e.field == "weights"]
    up = [entry for entry in rows if entry.direction == "up"]
    whole = sum(array.nbytes for array in weights.values())
    tables = sum(array.nbytes for array in weights.values() if array.ndim == 2)
    assert all(whole - tables < entry.bytes < whole for entry in up)  # rows that changed
    assert {e.bytes for e in rows if e.direction == "down" and e.step == "train"} == {whole}
    assert {entry.step for entry in up} == {"train"}
    assert len(up) == 9
    assert found.result.parameters == sum(array.size for array in weights.values())


def test_events_tell_the_story(done: tuple[RunResult, Any]) -> None:
    _, events = done
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    rounds = [event for event in events if event.kind == "round"]
    assert [event.round for event in rounds] == [1, 2, 3]
    assert all(event.rounds == 3 and event.loss > 0 for event in rounds)
    assert rounds[-1].seconds_left == 0
    assert kinds.count("ask") == kinds.count("reply")


def test_the_same_settings_give_the_same_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    same_run(run(settings, out=tmp_path / "a").folder, run(settings, out=tmp_path / "b").folder)


def test_a_dealt_corpus_gives_the_same_run_without_a_key_of_its_own(tmp_path: Path) -> None:
    """The key decides how words are numbered, so simulated sites get theirs from the seed."""
    from contract.corpus import TINY, sentences

    file = str(write_conll(tmp_path / "all.conll", sentences("all", "train", 30)))
    split = {"sites": 2, "train": file, "test": file}
    settings = parse({**TINY, "split": split})
    one, two = (run(settings, out=tmp_path / name).folder for name in "ab")
    same_run(one, two)
    assert RunFolder(one).key_file(settings).read_bytes() == (
        RunFolder(two).key_file(settings).read_bytes()
    )


def test_sites_of_their_own_get_a_random_key(tmp_path: Path) -> None:
    settings = tiny(tmp_path).model_copy(update={"key": None})
    keys = {
        RunFolder(run(settings, out=tmp_path / name).folder).key_file(settings).read_bytes()
        for name in "ab"
    }
    assert len(keys) == 2


def test_settings_from_a_file_and_their_relative_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = dump(tiny(tmp_path)).replace(f"{tmp_path}/", "")
    (tmp_path / "three.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    found = run("three.toml", overrides=["rounds=1"])
    assert found.folder == Path("runs/three-fedavg-1")
    assert found.result.name == "three"
    assert found.result.rounds == 1
    import tomllib

    unanchored = parse(tomllib.loads(text))
    again = run(unanchored, overrides=[], out=tmp_path / "again")
    assert RunFolder(again.folder).settings().site[0].train[0].startswith(str(tmp_path / "data"))


def test_what_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no such settings file"):
        run(tmp_path / "none.toml")
    with pytest.raises(SettingsError, match=r"ncbi-iid10"):
        run("ncbi-iid")
    with pytest.raises(SettingsError, match="no method 'fedmagic'"):
        run(tiny(tmp_path).model_copy(update={"method": "fedmagic"}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- folders that are taken -----------------------------------------------------------


def test_a_second_run_does_not_go_into_a_taken_folder(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1")
    out = run(settings, out=tmp_path / "run").folder
    before = states(out)
    with pytest.raises(RunError, match=r"already a run in this folder.*--resume.*--out"):
        run(settings, out=out)
    assert states(out) == before


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no run to resume"):
        run(tiny(tmp_path), out=tmp_path / "run", resume=True)


def test_a_folder_of_a_newer_schema_is_refused_in_words(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1")
    out = run(settings, out=tmp_path / "run").folder
    body = json.loads((out / "result.json").read_text())
    (out / "result.json").write_text(json.dumps({**body, "schema": 2}))
    for action in (lambda: RunFolder(out).result(), lambda: run(settings, out=out, resume=True)):
        with pytest.raises(RunError, match=r"newer confide.*schema 1 or older; got schema 2"):
            action()
    text = (out / "settings.toml").read_text()
    (out / "settings.toml").write_text(text.replace("schema = 2", "schema = 3"))
    with pytest.raises(RunError, match="schema 3 is newer than this confide"):
        run(settings, out=out, resume=True)


@each("text", ["", "{", "[]", '{"schema": "x"}', "null"])
def test_a_damaged_result_is_refused(tmp_path: Path, text: str) -> None:
    folder = RunFolder(tmp_path)
    folder.write("settings.toml", "")
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(RunError, match="not the result of a run"):
        folder.result()


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not the folder of a run"):
        RunFolder(tmp_path).result()
    RunFolder(tmp_path).write("settings.toml", dump(tiny(tmp_path)))
    with pytest.raises(RunError, match=r"not finished.*--resume"):
        RunFolder(tmp_path).result()


# --- references -----------------------------------------------------------------------


def test_alone_is_one_federation_for_each_site(tmp_path: Path) -> None:
    together = run(tiny(tmp_path, "method=alone"), out=tmp_path / "alone")
    assert sorted(p.name for p in (together.folder / "alone").iterdir()) == [
        "site-1", "site-2", "site-3",
    ]  # fmt: skip
    single = tiny(tmp_path / "one", "method=alone", sites=2)
    only = run(single.model_copy(update={"site": single.site[1:]}), out=tmp_path / "only")
    assert only.result.scores.sites["site-2"] == together.result.scores.sites["site-2"]
    assert together.result.best_rounds.keys() == {"site-1", "site-2", "site-3"}
    assert together.result.history[0].sites == ["site-1", "site-2", "site-3"]


@pytest.mark.slow
def test_alone_with_workers_is_the_same(tmp_path: Path) -> None:
    one = run(tiny(tmp_path, "method=alone"), out=tmp_path / "one").folder
    two = run(tiny(tmp_path, "method=alone", "workers=2"), out=tmp_path / "two").folder
    assert result(one) == result(two)


def test_pooled_scores_each_site_on_its_own_text(tmp_path: Path) -> None:
    found = run(tiny(tmp_path, "method=pooled"), out=tmp_path / "pooled").result
    assert sorted(found.scores.sites) == ["site-1", "site-2", "site-3"]
    supports = [site["strict"]["support"] for site in found.scores.sites.values()]
    assert found.scores.overall["strict"]["support"] == sum(supports)
    assert list(found.bytes.up) == ["pooled"]


# --- which round is kept --------------------------------------------------------------


class Scripted:
    """A method whose development scores are given: F1 by round, or None where nobody has text."""

    pair = SimpleNamespace(name="scripted", State=State[Flat], Memory=State[Flat])

    def __init__(self, f1s: list[float | None]) -> None:
        self.f1s = f1s

    def round(self, state: Any, federation: Any, n: int) -> tuple[Any, dict[str, Any]]:
        from dataclasses import replace

        return replace(state, weights={"n": np.array([n])}), {"loss": 1.0}

    def start(self, federation: Any) -> Any:
        return State(Flat(0.0), {"n": np.array([0])}, [])

    def first_drawn(self, federation: Any) -> None:
        return None

    def entry(self, state: Any) -> None:
        return None

    def score(self, state: Any, federation: Any, *, part: str, round: int) -> Any:
        f1 = self.f1s[round - 1]
        if f1 is None:
            return {"a": EntityCounts({}, {})}
        right = round_to_int(f1 * 100)
        return {"a": EntityCounts({"X": Count(right, 100, 100)}, {"X": Count(100, 100, 100)}, 5)}


def round_to_int(number: float) -> int:
    return int(number + 0.5)


def selected(folder: Path, f1s: list[float | None], *overrides: str) -> tuple[int, int]:
    """The round that is kept, and how many were done."""
    from confide.federation.ledger import Ledger
    from federation.toys import federation, sequential

    settings = tiny(folder, f"rounds={len(f1s)}", *overrides)
    ledger = Ledger()
    rounds = Rounds(
        Scripted(f1s),  # type: ignore[arg-type]
        federation(sequential(folder / "toys"), ledger),
        settings=settings,
        store=RunFolder(folder).store(),
        ledger=ledger,
        binding="",
        watch=lambda event: None,
    )
    trained = rounds.run()
    assert trained.state.weights["n"][0] == trained.progress.best_round
    return trained.progress.best_round, len(trained.progress.history)


@each(
    ("f1s", "overrides", "expected"),
    [
        ([0.1, 0.5, 0.3], [], (2, 3)),
        ([0.5, 0.5, 0.5], [], (1, 3)),
        ([0.0, 0.0], [], (1, 2)),
        ([0.1, 0.5, 0.3], ["select.by=last"], (3, 3)),
        ([0.1, 0.5, 0.3], ["select.by=relaxed"], (1, 3)),
        ([0.1, 0.5, 0.3, 0.4, 0.9], ["select.patience=2"], (2, 4)),
        ([0.1, 0.5, 0.3, 0.6, 0.2, 0.1, 0.1], ["select.patience=2"], (4, 6)),
        ([None, None, None], [], (3, 3)),
        ([0.2, None, None], [], (1, 3)),
        ([None, 0.0, 0.2, None], [], (3, 4)),
        ([0.9, 0.1, 0.8, 0.2, 0.3], ["select.every=2"], (5, 5)),
        ([0.9, 0.4, 0.8, 0.2, 0.3], ["select.every=2"], (2, 5)),
    ],
)
def test_the_round_is_chosen_by_development_scores(
    tmp_path: Path, f1s: list[float | None], overrides: list[str], expected: tuple[int, int]
) -> None:
    assert selected(tmp_path, f1s, *overrides) == expected


# --- the mean of the last rounds -----------------------------------------------------


def test_what_is_kept_is_the_mean_of_the_last_rounds_and_training_goes_on_without_it(
    tmp_path: Path,
) -> None:
    from confide.runs.rounds import RunningMean

    mean, by_hand = RunningMean(3), 0.0
    for n in range(1, 8):
        state = State(Flat(0.0), {"n": np.float32([n])}, [])
        mean.add(state.weights)
        by_hand += (n - by_hand) / min(n, 3)
        assert mean.of(state).weights["n"][0] == pytest.approx(by_hand, rel=1e-6)
        assert state.weights["n"][0] == n
    assert by_hand == pytest.approx(2 * (2 / 3) ** 4 + sum(
        n / 3 * (2 / 3) ** (7 - n) for n in range(4, 8)
    ))  # fmt: skip


def test_with_one_round_the_mean_is_the_round_itself(tmp_path: Path) -> None:
    from confide.runs.rounds import RunningMean

    mean, state = RunningMean(1), State(Flat(0.0), {"n": np.float32([4])}, [])
    mean.add(state.weights)
    assert mean.of(state) is state


def test_the_mean_survives_a_resume_bit_for_bit(tmp_path: Path) -> None:
    own = ("select.average=3", "select.every=2", "training.optimiser=adam")
    straight = run(tiny(tmp_path, "rounds=6", *own), out=tmp_path / "straight").folder
    for rounds in (2, 6):
        again = run(
            tiny(tmp_path, f"rounds={rounds}", *own), out=tmp_path / "again", resume=rounds == 6
        ).folder
        (again / "result.json").unlink() if rounds == 2 else None
    assert states(straight) == states(again)
    store = RunFolder(straight).store()
    last = store.load(store.rounds()[-1])
    assert last.next.size
    assert last.next.tobytes() != last.state.tobytes()
    plain = run(tiny(tmp_path, "rounds=6", *own[1:]), out=tmp_path / "plain").folder
    unaveraged = RunFolder(plain).store()
    assert unaveraged.load(6).state.tobytes() == last.next.tobytes()
    assert not unaveraged.load(6).next.size


def test_progress_travels_as_json() -> None:
    progress = Progress(history=[{"round": 1}], best_round=1, best_dev=scores(EntityCounts({}, {})))
    assert Progress(**json.loads(json.dumps(vars(progress)))) == progress


# --- a site in trouble ----------------------------------------------------------------


def test_a_site_without_a_key_is_left_out_to_the_end(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "federation.at_least=2", "site.1.key=/nowhere/own.key")
    found = run(settings, out=tmp_path / "run")
    assert found.result.left_out == {"site-2": "no-key"}
    assert [set(turn.failed) for turn in found.result.history] == [{"site-2"}] * 2
    assert sorted(found.result.scores.sites) == ["site-1", "site-3"]
    assert not (found.folder / "sites" / "site-2" / "errors.json").exists()


# --- what a site may upload --------------------------------------------------------------


def megabytes_up(folder: Path) -> float:
    return float(max(RunFolder(folder).result().bytes.up.values())) / 1e6  # type: ignore[union-attr]


def test_a_run_ends_before_a_site_uploads_more_than_it_may(tmp_path: Path) -> None:
    whole = run(tiny(tmp_path, "rounds=6"), out=tmp_path / "whole").folder
    each = megabytes_up(whole) / 6
    for every, rounds in ((1, 3), (2, 2)):
        own = (f"select.every={every}", f"federation.max_upload_mb={3.5 * each}", "rounds=6")
        folder = run(tiny(tmp_path, *own), out=tmp_path / f"every-{every}").folder
        found = RunFolder(folder).result()
        assert len(found.history) == rounds
        assert megabytes_up(folder) <= 3.5 * each
        assert found.history[-1].dev is not None
    (folder / "result.json").unlink()
    run(tiny(tmp_path, *own), out=folder, resume=True)
    assert len(RunFolder(folder).result().history) == 2
    (folder / "result.json").unlink()
    more = (own[0], f"federation.max_upload_mb={4.5 * each}", "rounds=6")
    run(tiny(tmp_path, *more), out=folder, resume=True)
    assert len(RunFolder(folder).result().history) == 4


def test_a_bound_below_the_first_scoring_ends_in_an_error_that_says_how_much_it_takes(
    tmp_path: Path,
) -> None:
    own = ("select.every=3", "rounds=6", "federation.max_upload_mb=0.001")
    with pytest.raises(FederationError, match=r"first scored after round 3; expected at least"):
        run(tiny(tmp_path, *own), out=tmp_path / "run")
    pooled = run(tiny(tmp_path, *own, "method=pooled"), out=tmp_path / "pooled").folder
    assert len(RunFolder(pooled).result().history) == 6


def test_every_device_of_the_workers_has_to_be_there(tmp_path: Path) -> None:
    settings = tiny(tmp_path, 'devices=["cpu", "cuda:99"]', "workers=2")
    with pytest.raises(SettingsError, match=r"this machine has no such device.*cuda:99"):
        run(settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
