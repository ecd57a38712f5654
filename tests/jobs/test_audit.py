"""The audit catches a model that learnt its text by heart, clears one that never saw it, and writes
no text; what a run tells is read from its ledger.

The text of the attacks is noise: any words, any labels. There is nothing to learn but the sentences
themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import each
from confide import __version__
from confide.errors import ConfideError, DataError, RunError, SettingsError
from confide.federation.events import unwatched
from confide.flare.server import Conductor
from confide.jobs import audit as attacking
from confide.jobs.audit import SiteAttack, _attack, _opened, audit, promised
from confide.runs.folder import AUDIT, Audit, RunFolder, audit_sentences, audited, crossed
from confide.runs.run import run
from confide.runs.sites import COINS
from confide.settings import Settings, parse
from contract.corpus import DRUGS, FILLERS, tiny, write_conll
from flare.homes import HomesEngine, as_toml, write_site_files

HEART = (
    "rounds=1", "training.local_epochs=25", "training.learning_rate=0.02", "training.batch_size=20",
    "model.word_dim=24", "model.bilstm_hidden=48", "model.dropout=0.3", "training.clip=5",
    "training.word_dropout=0",
)  # fmt: skip
"""A tagger that learns some sixty sentences by heart in two seconds."""


def noise(path: Path, count: int) -> Path:
    """Sentences of any words with any labels; the same for the same name."""
    draw = random.Random(path.name)
    words = (*FILLERS, *DRUGS)
    return write_conll(
        path,
        [
            [(draw.choice(words), draw.choice(("O", "B-Drug"))) for _ in range(8)]
            for _ in range(count)
        ],
    )


def noisy(folder: Path, *overrides: str, train: int = 60, held: int = 60, **tree: Any) -> Settings:
    """Settings of one site whose text is noise."""
    site = {"name": "site-1", "dev": [], "test": str(noise(folder / "held.conll", held))}
    site["train"] = str(noise(folder / "train.conll", train))
    return tiny(folder, "method=fedavg", *HEART, *overrides, site=[site], **tree)


@pytest.fixture(scope="module")
def by_heart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learnt 75 sentences of noise by heart, of which 35 are canaries let in."""
    folder = tmp_path_factory.mktemp("heart")
    settings = noisy(folder, "data.canaries=80", "key=simulated", train=120)
    return run(settings, out=folder / "run").folder


def of_text(folder: Path, bench: SiteAttack, *names: str) -> SiteAttack:
    """The same model, and a site with other noise: training text and test text."""
    from confide.text.formats import read

    train, test = (tuple(read(noise(folder / name, 60)).documents) for name in names)
    return replace(bench, spec=replace(bench.spec, train=train, test=test))


def test_a_model_that_learnt_by_heart_is_caught(by_heart: Path) -> None:
    found = audit(by_heart)
    one = found.sites["site-1"]
    assert one.membership.auc.value >= 0.9
    assert one.membership.auc.low > 0.8
    assert one.membership.found.low > 0.1
    assert one.canaries is not None
    assert one.canaries.epsilon > 1
    assert one.canaries.exposure > 2
    assert one.canaries.auc.low > 0.8


def test_one_that_never_saw_the_text_is_not(by_heart: Path, tmp_path: Path) -> None:
    opened = _opened(by_heart, None)
    bench = _attack(opened, opened.gathered.specs[0], {})
    bench = of_text(tmp_path, replace(bench, canaries=type(bench.canaries)()), "a.conll", "b.conll")
    found = bench.audited(most=1000, references=0, say=str).membership
    assert found.auc.low <= 0.5 <= found.auc.high
    assert found.found.low <= 0.02
    assert found.found.value < 0.2


def test_canaries_of_other_coins_show_nothing(by_heart: Path) -> None:
    opened = _opened(by_heart, None)
    bench = _attack(opened, opened.gathered.specs[0], {})
    pool, draws, found = bench._pool(1000), np.random.default_rng(1), []
    for _ in range(9):
        coins = draws.random(len(bench.canaries.within)) < 0.5
        other = replace(bench.canaries, within=tuple(coins.tolist()))
        one = replace(bench, canaries=other)._guessed(pool, [])
        assert one is not None
        found.append(one)
    assert np.median([one.epsilon for one in found]) == 0
    assert np.median([one.exposure for one in found]) == pytest.approx(1, abs=0.4)
    assert sum(one.auc.low <= 0.5 <= one.auc.high for one in found) >= 7


def test_text_on_both_sides_tells_nothing(by_heart: Path) -> None:
    opened = _opened(by_heart, None)
    bench = _attack(opened, opened.gathered.specs[0], {})
    bench = replace(bench, canaries=type(bench.canaries)())
    test, train = [*bench.spec.dev, *bench.spec.test], bench.spec.train
    again = [replace(one, text=one.text + " ") for one in train[:5]]
    for more, members in (([], len(train)), (train[:5], len(train)), (again, len(train) - 5)):
        own = replace(bench, spec=replace(bench.spec, dev=(), test=[*test, *more]))
        found = own.audited(most=1000, references=0, say=str).membership
        assert (found.members, found.others) == (members, len(test))


def test_canaries_that_fell_alike_show_nothing(by_heart: Path) -> None:
    opened, said = _opened(by_heart, None), list[str]()
    bench = _attack(opened, opened.gathered.specs[0], {})
    few = replace(bench.canaries, documents=bench.spec.train[:3], within=(True, True, True))
    found = replace(bench, canaries=few).audited(most=1000, references=0, say=said.append)
    assert found.canaries is None
    assert said == ["site-1: its few canaries fell alike, so they show nothing"]


def test_two_ways_to_guess_share_the_level(by_heart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, levels, guess = _opened(by_heart, None), [], attacking.guessed
    bench = _attack(opened, opened.gathered.specs[0], {})
    monkeypatch.setattr(SiteAttack, "_trained", lambda self, spec, seed: bench.weights)
    monkeypatch.setattr(
        attacking, "guessed", lambda *a, level, **k: levels.append(level) or guess(*a, **k)
    )
    pool = bench._pool(1000)
    made = bench._references(pool, 2, str)
    bench._guessed(pool, [])
    bench._guessed(pool, made)
    replace(bench, looks=5)._guessed(pool, [])
    assert levels == pytest.approx([0.95, 0.975, 0.975, 0.99])


def test_references_know_what_is_hard(by_heart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole: Callable[..., list[Any]] = attacking.alone_configs
    monkeypatch.setattr(attacking, "alone_configs", lambda *a, **k: whole(*a, **k)[:1])
    trained: list[int] = []
    found = audit(by_heart, references=2, say=lambda said: trained.append(said.count("reference")))
    one = found.sites["site-1"].referenced
    assert one is not None
    assert sum(trained) == one.references == 2
    assert found.sites["site-1"].strongest.found.value >= one.found.value
    assert one.auc.value >= 0.9
    # two halves make up the whole, so each unit has a model that never saw it
    assert one.members == found.sites["site-1"].membership.members


def test_one_reference_judges_only_what_it_never_saw(
    by_heart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = _opened(by_heart, None)
    bench = _attack(opened, opened.gathered.specs[0], {})
    monkeypatch.setattr(SiteAttack, "_trained", lambda self, spec, seed: bench.weights)
    pool = bench._pool(1000)
    (made,) = bench._references(pool, 1, str)
    _, beside = bench._scored(pool, pool.members, [made])
    assert 0 < len(beside.at_U) < len(pool.members)
    assert not made.trained_on & set(beside.at_U.tolist())
    assert beside.scores_U == pytest.approx(0)  # its own model tells nothing that it does not


def test_no_text_is_written(by_heart: Path) -> None:
    audit(by_heart)
    said = (by_heart / AUDIT).read_text()
    assert not any(f'"{word}' in said or f" {word}" in said for word in (*DRUGS, "patient"))
    assert Audit.model_validate_json(said) == audited(RunFolder(by_heart))
    assert (by_heart / AUDIT).stat().st_mode & 0o077 == 0


def test_the_verb_tells_three_numbers(by_heart: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from confide.cli.verbs import app

    said = CliRunner().invoke(app, ["audit", str(by_heart), "--quiet"])
    assert said.exit_code == 0
    assert said.stdout.startswith("site-1: of 100 sentences of ours an attacker")
    *_, epsilon, smallest = said.stdout.splitlines()
    assert epsilon.startswith("ε promised: none; ε measured: at least ")
    assert smallest.endswith("could read: 1 (it could read single replies)")
    plain = CliRunner().invoke(app, ["audit", str(by_heart), "--json"])
    assert Audit.model_validate_json(plain.stdout) == audited(RunFolder(by_heart))
    assert (by_heart / "audit.svg").read_text().startswith("<?xml")
    wrong = CliRunner().invoke(app, ["audit", str(tmp_path / "nothing")])
    assert isinstance(wrong.exception, (SystemExit, RunError))


def test_an_audit_of_another_model_does_not_count(by_heart: Path) -> None:
    found = audit(by_heart)
    found.model_copy(update={"rounds": {"": 7}}).write(RunFolder(by_heart))
    assert audited(RunFolder(by_heart)) is None
    (by_heart / AUDIT).write_text('{"schema": 1, "sites": 3}')
    with pytest.raises(RunError, match="does not hold an audit") as caught:
        audited(RunFolder(by_heart))
    assert "confide audit" in str(caught.value)
    (by_heart / AUDIT).unlink()
    assert audited(RunFolder(by_heart)) is None


def test_the_same_numbers_again(by_heart: Path) -> None:
    assert audit(by_heart) == audit(by_heart)


# --- what it cannot measure -------------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A run of three sites in one round."""
    return run(tiny(tmp_path, "method=fedavg", "rounds=1"), out=tmp_path / "run").folder


def test_text_that_changed_or_is_gone_is_refused(short: Path) -> None:
    train = Path(RunFolder(short).settings().site[0].train[0])
    before = train.read_text()
    train.write_text("\n".join(before.rstrip().split("\n\n")[:-1]) + "\n")
    with pytest.raises(DataError, match="changed since the run"):
        audit(short)
    train.unlink()
    with pytest.raises(ConfideError, match="train"):
        audit(short)


def test_what_is_no_run_or_no_site_is_refused(short: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not the folder of a run"):
        audit(tmp_path / "nothing")
    with pytest.raises(RunError, match="no site 'site-9'"):
        audit(short, site="site-9")
    with pytest.raises(DataError, match="too little text"):
        audit(short)


def test_a_server_has_no_text_to_audit(short: Path) -> None:
    settings = short / "settings.toml"
    settings.write_text(settings.read_text().partition("[[site]]")[0])
    with pytest.raises(RunError, match="server's folder of the run"):
        audit(short)


def test_a_site_without_its_part_of_the_model_is_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedner", "rounds=1")
    folder = run(settings, out=tmp_path / "run").folder
    for file in (folder / "sites" / "site-1" / "memory").iterdir():
        file.unlink()
    with pytest.raises(RunError, match="own part of the model is not here"):
        audit(folder, site="site-1")


def test_coins_that_are_lost_are_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedavg", "rounds=1", "data.canaries=6")
    folder = run(settings, out=tmp_path / "run").folder
    coins = folder / "sites" / "site-1" / COINS
    assert len(coins.read_bytes()) == 32
    assert coins.stat().st_mode & 0o077 == 0
    coins.unlink()
    with pytest.raises(RunError, match="which canaries of site-1 were let in"):
        audit(folder)
    assert not coins.exists()


# --- the ledger, and what was promised --------------------------------------------------------


@each(("sums", "smallest"), [("plain", 1), ("masked", 3)])
def test_the_ledger_says_what_the_server_could_read(
    sums: str, smallest: int, tmp_path: Path
) -> None:
    settings = tiny(tmp_path, "method=fedavg", "rounds=1", f"federation.sums={sums}")
    found = crossed(run(settings, out=tmp_path / "run").folder)
    assert (found.smallest, found.masked) == (smallest, sums == "masked")
    assert (found.digests > 0) == (sums == "plain")


def test_what_is_promised_is_read_from_the_settings(tmp_path: Path, by_heart: Path) -> None:
    own = {"unit": "document", "epsilon": 3.0, "noise": 1.0, "rate": 0.01}
    settings = tiny(tmp_path, "federation.sums=masked", privacy=own)
    said = promised(settings)
    assert said is not None
    assert (said.unit, said.epsilon, said.delta) == ("document", 3.0, 1e-5)
    del own["epsilon"]
    solved = promised(tiny(tmp_path, "federation.sums=masked", privacy={**own, "rounds": 100}))
    assert solved is not None
    assert 0.1 < solved.epsilon < 3
    assert promised(tiny(tmp_path)) is None
    found = audit(by_heart)
    assert "ε promised: none" in "\n".join(audit_sentences(found))
    kept = found.model_copy(update={"promised": said})
    assert not kept.broken
    assert "ε promised: 3.00 for one document" in "\n".join(audit_sentences(kept))
    low = found.model_copy(update={"promised": said.model_copy(update={"epsilon": 0.5})})
    assert low.broken
    assert "The promise was broken" in "\n".join(audit_sentences(low))


# --- real sites -------------------------------------------------------------------------------


def test_a_real_site_audits_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacking, "FEWEST", 2)
    monkeypatch.setattr("confide.runs.sites.secrets.token_bytes", lambda size: bytes(size))
    settings = tiny(tmp_path, "method=fedavg", "rounds=1")
    files = write_site_files(tmp_path / "homes", settings, canaries=8)
    engine, ordered = HomesEngine(files), as_toml(settings)
    conductor = Conductor(
        "trial", ordered, version=__version__, engine=engine, folder=tmp_path / "server"
    )
    conductor.conduct(unwatched)
    own = tmp_path / "homes" / "site-2" / "memory" / "runs" / "trial"
    found = audit(own)
    assert set(found.sites) == {"site-2"}
    canaries = found.sites["site-2"].canaries
    assert canaries is not None
    assert canaries.canaries == 8
    assert (
        found.sites["site-2"].membership.members + canaries.canaries
        >= 18
        > (found.sites["site-2"].membership.members)
    )
    assert found.crossed.smallest == 1
    with pytest.raises(RunError, match="server's folder"):
        audit(tmp_path / "server")
    for checkpoint in (own / "checkpoints").iterdir():
        checkpoint.unlink()
    with pytest.raises(ConfideError) as caught:
        audit(own)
    assert "checkpoint" in str(caught.value)


def test_a_lead_cannot_ask_for_canaries() -> None:
    from confide.flare.joining import check_suited

    with pytest.raises(SettingsError, match=r"data\.canaries: only a site may say this"):
        check_suited(parse({"data": {"canaries": 5}}))
