"""`confide site consent` and `confide site status`: what a site reads before it agrees."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cases import each
from confide.cli.verbs import app
from confide.errors import KitError, SettingsError
from confide.federation.keys import new_key
from confide.flare.agreements import CONSENT_FILE, COUNT_FILE, SITE_FILE
from confide.flare.kit import Kit
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.sitekit import (
    agree_to,
    propose_consent,
    settings_asked,
    setup_site,
    withdraw_from,
)
from confide.flare.status import agreement_status, guard_values
from confide.runs.folder import AtHome, Candidate, RunFolder
from confide.settings import load_site
from confide.settings.sitefile import load_consent
from contract.corpus import write_sites

STUDY = 'name = "study"\nrounds = 12\n[training]\nlocal_epochs = 3\nbatch_size = 16\n'
SOON = ("--bound", "lead=ada", "--bound", "runs=2", "--bound", "sites=site-1,b,c")


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    """A site's kit with its text, and no guard in its own file."""
    made = create_consortium("trial", sites=["site-1"], host="localhost", out=tmp_path / "trial")
    table = write_sites(tmp_path / "data", 1, train=24)[0]
    key = new_key(tmp_path / "shared.key")
    lines = [f'{name} = "{value}"' for name, value in {**table, "key": key}.items()]
    file = tmp_path / "own" / "site.toml"
    file.parent.mkdir()
    file.write_text("\n".join(lines))
    setup_site(made.kit("site-1"), file)
    return made.kit("site-1")


@pytest.fixture
def study(tmp_path: Path) -> Path:
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    return file


def say(*words: Any, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["site", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return " ".join(done.output.split())


def test_a_leads_settings_are_proposed_agreed_to_and_compared(kit: Kit, study: Path) -> None:
    said = say("consent", kit.path, "--for", study, *SOON)
    assert "rounds of a run, at most 12" in said and "proposed" in said
    assert "min_sites 3 default joins no run of fewer sites" in said
    assert "agreed: no" in said and "with --agree" in said
    assert not (kit.path / "local" / CONSENT_FILE).exists(), "to look is not to agree"
    assert "agreed: yes until" in say("consent", kit.path, "--for", study, *SOON, "--agree")
    held = load_consent(kit.path / "local" / CONSENT_FILE).method["fedavg-tagger"]
    assert (held.rounds, held.local_epochs, held.batch_size, held.at_least) == (12, 3, 16, 3)
    assert (held.lead, held.sites, held.others, held.runs) == (
        ("ada",),
        ("site-1", "b", "c"),
        False,
        2,
    )
    study.write_text(STUDY.replace("12", "20").replace("16", "32"))
    said = say("consent", kit.path, "--for", study)
    assert "12 20 more than agreed" in said and "16 32 fraction" in said
    assert "the run asks for more than was agreed: rounds" in said
    assert load_consent(kit.path / "local" / CONSENT_FILE).method["fedavg-tagger"] == held


def test_a_run_that_a_guard_refuses_is_said_to_be_so_before_it_is_agreed_to(
    kit: Kit, tmp_path: Path
) -> None:
    file = tmp_path / "usual.toml"
    file.write_text('name = "study"\n')  # a tagger's batches are of four
    said = say("consent", kit.path, "--for", file)
    assert "a guard of this site refuses that run" in said
    assert "set training.batch_size to at least that" in said
    assert (
        "training.batch_size"
        in json.loads(say("consent", kit.path, "--for", file, "--json"))["refused"]
    )
    file.write_text('name = "study"\ntraining = { batch_size = 8 }\n')
    assert "refuses that run" not in say("consent", kit.path, "--for", file)


def test_a_method_alone_gets_the_usual_bounds_and_is_withdrawn(kit: Kit) -> None:
    assert "agreed: no" in say("consent", kit.path, "fedavg")
    say("consent", kit.path, "fedavg", "--agree", "--step", "join", "--step", "train")
    held = load_consent(kit.path / "local" / CONSENT_FILE).method["fedavg-tagger"]
    assert (held.rounds, held.runs, held.lead, held.steps) == (100, 10, ("*",), ("join", "train"))
    assert "agreed: no" in say("consent", kit.path, "fedavg", "--withdraw")
    assert load_consent(kit.path / "local" / CONSENT_FILE).method == {}


def test_a_guard_that_the_site_says_is_said_to_be_its_own(kit: Kit, tmp_path: Path) -> None:
    assert {guard.source for guard in guard_values(kit)} == {"default"}
    file = tmp_path / "own" / "site.toml"
    file.write_text(file.read_text() + "\n[guards]\nmin_sites = 1\nmax_norm = inf\n")
    setup_site(kit, file)
    said = say("status", kit.path)
    assert "min_sites 1 own file" in said and "max_norm any own file" in said
    assert "min_batch 8 default" in said
    found = {one["name"]: one for one in json.loads(say("status", kit.path, "--json"))["guards"]}
    assert (found["min_sites"]["value"], found["min_sites"]["source"]) == (1, "own file")


def test_status_warns_of_an_end_that_is_near_and_of_runs_that_are_used_up(kit: Kit) -> None:
    agree_to(kit, "fedavg-tagger", bounds=("runs=1", "lead=ada"))
    [held] = agreement_status(kit)
    assert (held.used, held.runs, held.lead, held.warning) == (0, 1, ("ada",), "")
    near = held.until.replace(day=held.until.day)
    for days, warning in ((15, ""), (14, "ends soon"), (0, "ends soon"), (-1, "has ended")):
        day = near.fromordinal(near.toordinal() - days)
        [now] = agreement_status(kit, today=day)
        assert now.days_left == days
        assert now.warning.startswith(warning) and bool(now.warning) == bool(warning)
    said = say("status", kit.path)
    assert f"fedavg-tagger {held.until} 0 of 1 ada" in said
    (kit.path / "local" / COUNT_FILE).unlink()
    assert "the count of its runs is lost" in say("status", kit.path)


def test_status_says_which_model_the_site_keeps_after_a_run(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confide.runs.folder.round_of", lambda *_: 4)
    folder = RunFolder(Path(load_site(kit.path / "local" / SITE_FILE).memory) / "runs" / "R1")
    own = folder.home("site-1")
    own.mkdir(parents=True)
    model = Candidate(passes=3, dev=0.8125, test=None, seconds=1.0)
    compared = {"federated": model.model_copy(update={"dev": 0.75}), "tuned": model}
    found = AtHome(site="site-1", kept="tuned", by="strict", why="", round=4, candidates=compared)
    (own / "home.json").write_text(found.model_dump_json())
    assert "R1 75.0 / – 81.2 / – – tuned" in say("status", kit.path)
    assert json.loads(say("status", kit.path, "--json"))["keeps"]["R1"]["kept"] == "tuned"
    (own / "home.json").write_text("{}")  # damaged: what the site agreed to is shown all the same
    read = json.loads(say("status", kit.path, "--json"))
    assert read["guards"] and read["agreements"] == [] and read["keeps"] is None
    said = say("status", kit.path)
    assert "min_batch 8" in said and "what the site compared cannot be read" in said


def test_what_an_older_confide_wrote_is_moved_with_the_usual_bounds(kit: Kit, study: Path) -> None:
    file = kit.path / "local" / SITE_FILE
    file.write_text(file.read_text() + f'\n[consent.fedavg-tagger]\nwire = "{"0" * 16}"\n')
    [held] = agreement_status(kit)
    assert "the usual ones apply" in held.warning
    assert "agreed: to another table" in say("consent", kit.path, "fedavg")
    os.utime(file, (1.79e9, 1.79e9))
    until = agreement_status(kit)[0].until
    setup_site(kit, file)
    assert not load_site(file).consent
    [moved] = agreement_status(kit)
    assert (moved.until, moved.runs, moved.warning) == (until, 10, "")


def test_what_was_agreed_to_stays_when_the_sites_own_file_changes(
    kit: Kit, tmp_path: Path, study: Path
) -> None:
    agree_to(kit, "fedavg-tagger", asked=settings_asked(study))
    before = (kit.path / "local" / CONSENT_FILE).read_text()
    setup_site(kit, tmp_path / "own" / "site.toml")
    assert (kit.path / "local" / CONSENT_FILE).read_text() == before
    count = (kit.path / "local" / COUNT_FILE).read_text()
    withdraw_from(kit, "fedavg-tagger")
    agree_to(kit, "fedavg-tagger", bounds=("runs=3",))
    assert (kit.path / "local" / COUNT_FILE).read_text().startswith(count)


def test_settings_that_run_another_method_or_are_not_the_leads_are_refused(
    kit: Kit, study: Path
) -> None:
    assert settings_asked(study, "fedner").trained_by == "fedner-tagger"
    assert settings_asked(study, "alone").trained_by == "fedavg-tagger"
    with pytest.raises(SettingsError, match=r"do not run this method.*fedner.*fedavg"):
        propose_consent(kit, "fedner-tagger", asked=settings_asked(study))
    study.write_text(STUDY + '[data]\nformat = "conll"\n')
    with pytest.raises(SettingsError, match=r"study.toml: data.format: only a site"):
        settings_asked(study)


@each(
    ("words", "said"),
    [
        (("--agree",), "no method is named"),
        (("--withdraw",), "no method is named"),
        (("--bound", "runs=3"), "no method is named"),
        (("fedavg", "--bound", "run=3", "--agree"), "did you mean 'runs'"),
        (("fedavg", "--bound", "until=2020-01-01", "--agree"), "the last day of the agreement has"),
        (("fedavg", "--step", "trian", "--agree"), "did you mean 'train'"),
        (("fedavgg", "--agree"), "fedavgg"),
        (("--for", "nowhere.toml"), "nowhere.toml"),
        (("fedavg", "--bound", "sites=b,c", "--agree"), "this site, 'site-1', is missing"),
    ],
)
def test_what_cannot_be_agreed_to_is_refused_and_nothing_is_written(
    kit: Kit, words: tuple[str, ...], said: str
) -> None:
    assert said in say("consent", kit.path, *words, code=2)
    assert not (kit.path / "local" / CONSENT_FILE).exists()


def test_a_kit_without_text_shows_its_status_and_says_what_to_do(tmp_path: Path) -> None:
    made = create_consortium("trial", sites=["site-1"], host="localhost", out=tmp_path / "trial")
    said = say("status", made.kit("site-1").path)
    assert "running" in said and "confide site setup" in said
    assert json.loads(say("status", made.kit("site-1").path, "--json"))["guards"] is None
    with pytest.raises(KitError):
        guard_values(made.kit("site-1"))


def test_status_needs_no_torch(kit: Kit) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path\n"
        "from confide.flare.kit import open_kit; from confide.flare import status\n"
        "kit = open_kit(Path(sys.argv[1]))\n"
        "status.agreement_status(kit); status.guard_values(kit)\n"
        "status.budget_status(kit)\n"
        "print('torch' in sys.modules)"
    )
    given = [sys.executable, "-c", code, str(kit.path)]
    assert subprocess.run(given, capture_output=True, text=True, check=True).stdout == "False\n"
