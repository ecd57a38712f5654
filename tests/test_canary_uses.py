"""Canaries in what is done with a run: audit, home, export, corrections and the page Agree.

The strings are those of `test_canary`. A run's folder is shown to other people, and so are an
audit, an export and what a server of pages tells its terminal: a site's text is in none of them,
and in the folder of a site is the text of no other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide import api
from confide.cli.verbs import app
from confide.errors import ConfideError
from confide.runs.run import run
from contract.corpus import tiny
from test_canary import PLANT, SITES, WORDS, canaries, leaving, sightings

TAGGER, RELATIONS = "fedavg-tagger", "fedavg-relations"


@dataclass
class Used:
    """A run over planted text, its tables of sites, and what was said while it was used."""

    folder: Path
    tables: list[dict[str, Any]]
    said: list[str] = field(default_factory=list)

    def seen_elsewhere(self) -> list[object]:
        """Where text of a site is, outside that site."""
        found: list[object] = [
            (path, sightings(path.read_bytes())) for path in leaving(self.folder)
        ]
        found += [(words, sightings(words.encode())) for words in self.said]
        for site in SITES:
            own = set(canaries(site).values())
            for path in (self.folder / "sites" / site).rglob("*"):
                if path.is_file():
                    found.append((path, sorted({*sightings(path.read_bytes())} - own)))
        return [one for one in found if one[1]]  # type: ignore[index]


@pytest.fixture(scope="module", params=[TAGGER, pytest.param(RELATIONS, marks=pytest.mark.slow)])
def used(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Used:
    folder = tmp_path_factory.mktemp("used")
    tables = PLANT["ner" if request.param == TAGGER else "re"](folder / "data")
    settings = tiny(folder, f"method={request.param}", site=tables, data={})
    return Used(run(settings, out=folder / "run").folder, tables)


def cli(*words: object) -> tuple[int, str]:
    """A verb in this process: its code, and all that it shows."""
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, [*map(str, words)])
    return done.exit_code, done.stdout + done.stderr


def test_the_text_would_be_seen(used: Used, tmp_path: Path) -> None:
    path = used.folder / "sites" / "site-1" / "note.txt"
    path.write_text(canaries("site-2")["word"])
    assert len(used.seen_elsewhere()) == 1
    path.unlink()
    used.said.append(canaries("site-3")["note"])
    assert len(used.seen_elsewhere()) == 1
    used.said.clear()
    assert used.seen_elsewhere() == []


def test_an_audit_holds_no_text(used: Used, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its numbers, nor its picture, nor what it says."""
    monkeypatch.setattr("confide.jobs.audit.FEWEST", 1)
    code, shown = cli("audit", used.folder, "--references", "1")
    assert code == 0, shown
    assert (used.folder / "audit.json").exists() and (used.folder / "audit.svg").exists()
    used.said.append(shown)
    used.said.append(cli("audit", used.folder, "--site", "site-2", "--json")[1])
    assert used.seen_elsewhere() == []


def test_what_a_site_keeps_at_home_stays_there(used: Used) -> None:
    before = {path: path.read_bytes() for path in leaving(used.folder)}
    code, shown = cli("personalise", used.folder, "--passes", "1")
    assert code == 0, shown
    assert {path: path.read_bytes() for path in leaving(used.folder)} == before
    assert (used.folder / "sites" / "site-1" / "home" / "home.json").exists()
    used.said.append(shown)
    assert used.seen_elsewhere() == []


def test_a_ledger_holds_no_text(used: Used) -> None:
    used.said.append(cli("ledger", used.folder, "--both")[1])
    used.said.append(cli("ledger", used.folder, "--json")[1])
    assert used.seen_elsewhere() == []


def test_a_dossier_holds_no_text(used: Used) -> None:
    code, shown = cli("dossier", used.folder)
    assert code == 0, shown
    assert (used.folder / "dossier.md").exists() and (used.folder / "dossier.html").exists()
    used.said.append(shown)
    assert used.seen_elsewhere() == []


@pytest.mark.parametrize("to", ["onnx", "spacy", "hf"])
def test_an_export_holds_the_words_of_the_site_that_exports_and_of_no_other(
    used: Used, tmp_path: Path, to: str
) -> None:
    pytest.importorskip({"hf": "transformers"}.get(to, to))
    said: list[str] = []
    out = tmp_path / "exported"
    try:
        api.export(used.folder, to=to, out=out, site="site-1", say=said.append)  # type: ignore[arg-type]
    except ConfideError as error:  # this kind cannot be written so
        assert sightings(str(error).encode()) == [] and not out.exists()
    else:
        files = [path for path in out.rglob("*") if path.is_file()]
        assert files
        found = set(sightings(b"".join(path.read_bytes() for path in files)))
        mine = canaries("site-1")
        assert found <= {mine[name] for name in ("note", *WORDS)}
        assert not any(sightings(str(path.relative_to(tmp_path)).encode()) for path in files)
    assert not [words for words in said if sightings(words.encode())]
    assert list(tmp_path.iterdir()) in ([], [out])
    assert used.seen_elsewhere() == []


# --- pages --------------------------------------------------------------------------------


def test_corrections_are_in_their_folder_and_the_answers_alone(
    used: Used, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is read, saved, suggested, refused and exported is told and written nowhere else."""
    pytest.importorskip("starlette", reason="needs the extra confide[serve]")
    from confide.serve.app import ServedPages
    from serve.served import ORIGIN, QUICK, browser, models
    from serve.test_annotating import INCEPTION, STUDIO, asked, to_recommend, xmi

    caplog.set_level(logging.DEBUG)
    word, note = canaries("site-1")["word"], canaries("site-1")["note"]
    told: list[str] = []
    kept = tmp_path / "kept"
    own = {name: model for name, model in models().items() if name != "broken"}
    there = browser(ServedPages(own, QUICK, kept, watched=used.folder.parent), told=told)
    there.headers["origin"] = ORIGIN
    text = f"{word} took drug1 today."
    pool = {"texts": [{"id": note, "text": text}]}
    assert there.post("/pages/pool", json=pool).json()["added"] == 1
    item = there.post("/pages/next", json={"annotator": "ann"}).json()["item"]
    marks = [{"id": "A1", "type": "MED", "fragments": [[0, len(word)]]}]
    save = {"annotator": "ann", "id": item["id"], "entities": marks}
    assert there.post("/pages/save", json=save).json() == {"saved": 1}
    assert word in there.get("/corrections/export?annotator=ann&format=conll").text
    refused = [
        {**save, "entities": [{"id": word, "type": word, "fragments": [[0, 9**9]]}]},
        {**save, "id": word},
        {**save, "annotator": f"../{word}"},
        {"texts": [{"id": note, "text": [word]}]},
    ]
    for body in refused:
        answer = there.post("/pages/save", json=body)
        assert answer.status_code >= 400 and sightings(answer.content) == []
    for path, asks in ((STUDIO, asked(text)), (INCEPTION, to_recommend(xmi(text=text)))):
        assert "drug1" in there.post(f"{path}/predict", json=asks).text
    for path, asks in (
        (STUDIO, {**asked(word), "label_config": f"<{word}/>"}),
        (STUDIO, {"tasks": word}),
        (INCEPTION, to_recommend(f"<{word}>&{word};")),
        (INCEPTION, to_recommend(xmi(), word + "!")),
    ):
        answer = there.post(f"{path}/predict", json=asks)
        assert answer.status_code == 422 and sightings(answer.content) == []
    (kept / "ann.jsonl").write_text(f'{{"id": "{note}", "text": "{word}\n')  # a damaged file
    again = browser(ServedPages(own, QUICK, kept, watched=used.folder.parent), told=told)
    again.headers["origin"] = ORIGIN
    for page in ("/", "/runs", "/runs/run", "/health"):
        assert sightings(there.get(page).content) == [], page
    captured = capfd.readouterr()
    used.said += [*told, caplog.text, captured.out, captured.err]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert used.seen_elsewhere() == []
    used.said.clear()


@each("spoilt", [False, True])
def test_the_page_agree_holds_no_text(tmp_path: Path, spoilt: bool) -> None:
    """Nor what is agreed to: the lead sees how that stands. Also where the text cannot be read."""
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")
    pytest.importorskip("starlette", reason="needs the extra confide[serve]")
    from confide.serve.app import ServedPages
    from serve.kits import kit_in
    from serve.served import ORIGIN, QUICK, browser
    from serve.test_consenting import STUDY, _form

    kit = kit_in(tmp_path, PLANT["ner"](tmp_path / "data")[0])
    (tmp_path / "study.toml").write_text(STUDY)
    if spoilt:
        for path in (tmp_path / "data" / "site-1").iterdir():
            path.write_text(f"{canaries('site-1')['word']} \x00 B-{canaries('site-1')['note']}\n")
    told: list[str] = []
    shown = ServedPages({}, QUICK, kit=kit.path, asked=str(tmp_path / "study.toml"))
    there = browser(shown, token="t" * 43, told=told)
    there.headers.update({"origin": ORIGIN, "authorization": f"Bearer {'t' * 43}"})
    page = there.get("/consent")
    assert page.status_code == 200 and sightings(page.content) == []
    assert there.post("/consent", data=_form(page.text)).status_code == 303
    after = there.get("/consent")
    assert "Agreed" in after.text and sightings(after.content) == []
    word = canaries("site-1")["word"]
    wrong = there.post("/consent", data=_form(after.text, rounds=word, **{word: "1"}))
    assert wrong.status_code != 303 or sightings(there.get("/consent").content) == []
    assert not [words for words in told if sightings(words.encode())]
    written = [path for path in kit.path.rglob("*") if path.is_file() and path.name != "site.toml"]
    assert not [path for path in written if sightings(path.read_bytes())]
    assert (
        sightings(json.dumps([str(path.relative_to(kit.path)) for path in written]).encode()) == []
    )


def test_a_canary_in_a_site_s_own_file_is_no_word_of_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk while a site audits or compares names the file of the run, and no text."""
    tables = PLANT["ner"](tmp_path / "data")
    folder = run(tiny(tmp_path, site=tables, data={}), out=tmp_path / "run").folder

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    verbs: dict[str, Callable[[], object]] = {
        "audit": lambda: api.audit(folder, most=20),
        "personalise": lambda: api.personalise(folder, passes=1, alone=False),
    }
    monkeypatch.setattr("confide.files.os.fsync", full)
    for name, verb in verbs.items():
        with pytest.raises(ConfideError) as caught:
            verb()
        assert sightings(str(caught.value).encode()) == [], name
