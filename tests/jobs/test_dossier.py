"""The dossier: every answer from a file that it names, nothing invented, no word of the notes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide import api
from confide.errors import ConfideError, RunError
from confide.jobs import dossier as made
from confide.runs.folder import RunFolder
from report.folders import SITES, bag_result, ledger, relation_result, result, write_run
from report.test_audits import found_of
from report.test_page import Page
from report.test_spent import SETTINGS, spent

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = tomllib.loads((ROOT / "src/confide/jobs/dossier.toml").read_text())["form"]
HOSTILE = '<img src=x onerror=alert(1)>|`*_[a](b)\x1b[2J\u202e"'


def texts(run: Path, **how: Any) -> tuple[str, Page]:
    """The Markdown and the page of a run's dossier."""
    markdown, page = api.dossier(run, **how)
    return markdown.read_text(), Page(page.read_text())


def plain(folder: Path, told: dict[str, Any] | None = None) -> Path:
    run = write_run(folder, told or result("fedavg", 0.782), ledger=ledger())
    with (run / "settings.toml").open("a") as settings:
        settings.writelines(f'[[site]]\nname = "{one}"\ntrain = "private/notes"\n' for one in SITES)
    return run


def test_the_questions_are_those_of_the_laws() -> None:
    points = [[field["point"] for field in form["field"]] for form in QUESTIONS]
    assert {f"Art. 35(7)({letter})" for letter in "abcd"} <= set(points[0])
    letters = [f"Annex IV, {n}({letter})" for n in (1, 2) for letter in "abcdefgh"]
    assert points[1] == [*letters, *(f"Annex IV, {n}" for n in range(3, 10))]
    assert points[2] == ["Art. 67(2)"] * 11


def test_what_a_question_names_is_there() -> None:
    source = (ROOT / "src/confide/jobs/dossier.py").read_text()
    fields = [field for form in QUESTIONS for field in form["field"]]
    for field in fields:
        assert set(field) <= {"point", "asks", "from", "docs", "tables", "yours"}
        assert all(callable(getattr(made._Facts, name)) for name in field.get("from", ()))
        assert all(f'"{name}", ' in source for name in field.get("tables", ()))
    pages = {page for field in fields for page in field.get("docs", ())}
    pages |= set(re.findall(r"docs/[a-z-]+\.md(?:#[a-z-]+)?", source))
    pages |= {f"docs/security.md#{one}" for one in re.findall(r"\{SECURITY\}#([a-z-]+)", source)}
    for page in pages:
        path, _, anchor = page.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        known = {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}
        assert not anchor or anchor in known, page


def test_both_forms_have_the_same_words(tmp_path: Path) -> None:
    markdown, page = texts(plain(tmp_path / "run"))
    for field in (field for form in QUESTIONS for field in form["field"]):
        for said in (field["asks"], f"For you to write: {field['yours']}."):
            assert said in page.words
            assert said in markdown.replace("*", "")
    said = "trained by 3 sites with the method fedavg, by messages and without sharing text."
    assert said in page.words and f"{said} [result.json]" in markdown
    assert "F1, strict: 78.2 of 100 on held-out text." in markdown
    assert "720 sentences of training, 180 of development, 360 of test text at 3 sites" in markdown
    assert max(page.ids.values()) == 1 and not page.tags["script"]
    assert not [one for one in page.values("src") + page.values("href") if one[0] != "#"]


def test_what_is_missing_is_said_with_the_command_that_tells(tmp_path: Path) -> None:
    run = plain(tmp_path / "run")
    markdown, _ = texts(run)
    missing = "Not measured: what the model tells of its training text."
    assert f"- {missing} `confide audit RUN`" in markdown
    assert "No noise was added: this is not differential privacy. [settings.toml]" in markdown
    assert "read: 1 (it could read single replies). [ledger.jsonl]" in markdown
    assert "No sum was masked" in markdown and "one machine read the text" in markdown
    assert str(tmp_path) not in markdown and "private" not in markdown
    found_of().write(RunFolder(run))
    after, _ = texts(run)
    assert missing not in after
    assert "finds 12 (6 to 56); by chance it would be 1 (95 % interval). [audit.json]" in after
    assert "ε measured: at least 1.23 for one document" in after


@each("simulated", [False, True])
def test_noise_is_told_as_it_was_spent(simulated: bool, tmp_path: Path) -> None:
    own = {**result("dp-fedsgd", 0.6), "privacy": spent(simulated=simulated)}
    run = plain(tmp_path / "run", own)
    (run / "settings.toml").write_text(f'{SETTINGS}\n[federation]\nsums = "masked"\n')
    markdown, _ = texts(run)
    assert ("(7.98, 1e-05)-differential privacy for one document" in markdown) != simulated
    assert ("this is not differential privacy. [result.json]" in markdown) == simulated
    del own["privacy"]  # as at a real site
    (run / "result.json").write_text(json.dumps(own))
    markdown, _ = texts(run)
    assert "Trained under noise, by its settings with an ε of at most 8" in markdown
    assert "No noise was added" not in markdown


def test_names_from_elsewhere_are_words(tmp_path: Path) -> None:
    told = json.loads(json.dumps(result("fedavg", 0.8)).replace(SITES[0], "evil"))
    told["name"] = HOSTILE
    told["data"]["sites"][HOSTILE] = told["data"]["sites"].pop("evil") | {
        "entities": {HOSTILE: 3},
        "problems": {HOSTILE: 1},
    }
    told["scores"]["sites"][HOSTILE] = told["scores"]["sites"].pop("evil")
    rows = json.loads(json.dumps(ledger()).replace('"weights"', json.dumps(HOSTILE)))
    run = write_run(tmp_path / "run", told, ledger=rows)
    chosen = json.dumps("rows <b>|x")
    (run / "settings.toml").write_text(f"schema = 2\n[options]\nrows = {chosen}\n")
    (run / "environment.json").write_text(json.dumps({"machine": {HOSTILE: HOSTILE}}))
    markdown, page = texts(run)
    assert not page.tags["img"] and not page.tags["b"]
    assert "\x1b" not in markdown and "\u202e" not in markdown
    assert "<img" not in markdown and "<b>" not in markdown
    widths: set[int] = set()
    for line in markdown.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line))
        widths = widths | {cells} if cells else set()
        assert len(widths) < 2, line


@each(("told", "said"), [
    (relation_result("feded", 30), "F1, micro"),
    (bag_result("lazy-mil", 3.0), "AUC"),
    (result("pooled", 0.8), "in one place: nothing was federated"),
])  # fmt: skip
def test_every_task_and_reference_has_one(told: dict[str, Any], said: str, tmp_path: Path) -> None:
    run = plain(tmp_path / "run", told)
    task, method = told.get("task", "ner"), told["method"]
    (run / "settings.toml").write_text(f'schema = 2\ntask = "{task}"\nmethod = "{method}"\n')
    markdown, _ = texts(run)
    assert said in markdown
    assert ("What left the sites" in markdown) == (method != "pooled")


def test_no_word_of_the_corpus_is_in_it(small_demo: Path, tmp_path: Path) -> None:
    markdown, page = texts(small_demo / "federated", out=tmp_path / "out")
    assert not (small_demo / "federated" / "dossier.md").exists()
    assert str(small_demo) not in markdown + page.words and "/tmp" not in markdown
    known, _ = texts(plain(tmp_path / "run"))
    ours = set(re.findall(r"[a-z]{6,}", known.lower()))
    corpus = api.read(small_demo / "corpus" / "cardiology" / "train.conll")
    words = set(re.findall(r"[a-z]{6,}", " ".join(one.text for one in corpus.documents).lower()))
    assert len(words) > 50
    shown = (markdown + page.words).lower()
    assert not [word for word in words - ours if re.search(rf"\b{word}\b", shown)]


def test_what_cannot_be_told_is_refused(tmp_path: Path) -> None:
    run = plain(tmp_path / "run")
    (run / "ledger.jsonl").rename(run / "elsewhere")
    with pytest.raises(RunError, match="nobody can say what left"):
        api.dossier(run)
    (run / "result.json").unlink()
    with pytest.raises(RunError, match="not finished"):
        api.dossier(run)
    with pytest.raises(ConfideError):
        api.dossier(tmp_path)


def test_a_changed_ledger_is_told(small_demo: Path, tmp_path: Path) -> None:
    lines = (small_demo / "federated" / "ledger.jsonl").read_text().splitlines(keepends=True)
    run = plain(tmp_path / "run")
    (run / "ledger.jsonl").write_text("".join(lines))
    assert f"The {len(lines):,} lines of the ledger form an unbroken chain." in texts(run)[0]
    lines[4] = lines[4].replace('"bytes":', '"bytes":1')
    (run / "ledger.jsonl").write_text("".join(lines))
    assert "The ledger was changed: line 6, or the one before it" in texts(run)[0]


def test_a_site_s_kit_adds_its_agreement_and_guards(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")
    from confide.flare.sitekit import agree_to
    from serve.kits import kit_in

    kit = kit_in(tmp_path)
    with pytest.raises(RunError, match="a kit belongs to a site's own folder"):
        api.dossier(plain(tmp_path / "run"), kit=kit.path)
    joined = {**ledger()[0], "step": "join", "site": "site-1", "field": "check", "kind": "text"}
    run = write_run(tmp_path / "runs" / "one", result("fedavg", 0.8, sites=("site-1",)),
                    ledger=[joined])  # fmt: skip
    (run / "settings.toml").write_text('schema = 2\n[[site]]\nname = "site-1"\ntrain = "a/b"\n')
    markdown, _ = texts(run)
    assert "No file here holds a site's agreement; its kit does." in markdown
    assert "The site agrees to no run of fedavg-tagger now." in texts(run, kit=kit.path)[0]
    agree_to(kit, "fedavg", bounds=["runs=3", "until=9999-12-31"])
    markdown, page = texts(run, kit=kit.path)
    assert "until 9999-12-31, for 3 runs, of which 0 began. [KIT/local/consent.toml]" in markdown
    assert "| min\\_sites | 3 | default | joins no run of fewer sites" in markdown
    assert "Over all its runs the site spent ε = 0.00 in 0 sums" in page.words
    (run / "settings.toml").write_text('schema = 2\n[[site]]\nname = "north"\ntrain = "a/b"\n')
    with pytest.raises(ConfideError, match="belong to different sites"):
        api.dossier(run, kit=kit.path)
