# ruff: noqa: E402
"""The pages in a real browser: from paste to export, by keyboard, on a phone, for everyone.

Needs Debian's chromium and playwright (extra `browser`); axe-core comes with axe-playwright-python
and is never served.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, extra `browser`")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs /usr/bin/chromium"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

from confide.serve.app import ServedPages, _server, application, hosts_of, listening
from confide.serve.gate import CallerLimits
from confide.serve.models import Served
from confide.text.document import Document
from serve.served import annotate, other

TOKEN = "t" * 43
LIMITS = CallerLimits(pad=0.0)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium():
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture
def site(tmp_path, demo_run):
    """A served address with all pages, which asks for a token."""
    demo_run(tmp_path / "runs")
    own = {
        "ours": Served("ours", "entities", ("DRUG", "ADE"), annotate, LIMITS),
        "other": Served("other", "entities", ("DRUG",), other, LIMITS),
    }
    texts = [Document("start", "drug7 was given.\n\nA rash came.")]
    shown = ServedPages(own, LIMITS, tmp_path / "kept", texts, tmp_path / "runs")
    with _served(shown) as address:
        yield address


@contextmanager
def _served(shown: ServedPages) -> Iterator[str]:
    """The address of a server that asks for a token."""
    taken = listening("127.0.0.1", 0)
    port = taken.getsockname()[1]
    told: list[str] = []
    app = application(shown, hosts=hosts_of("127.0.0.1", port, ()), token=TOKEN, tell=told.append)
    server = _server(app, LIMITS)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[taken])))
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)
    assert told == []


@pytest.fixture
def agreeing(tmp_path):
    """The address of a site's page Agree, and its kit."""
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")
    from serve.kits import kit_in

    kit = kit_in(tmp_path)
    study = tmp_path / "study.toml"
    study.write_text('name = "study"\nrounds = 12\n')
    with _served(ServedPages({}, LIMITS, kit=kit.path, asked=str(study))) as address:
        yield address, kit


@pytest.fixture
def page(chromium, site):
    yield from _page(chromium, site)


@pytest.fixture
def phone(chromium, site):
    yield from _page(
        chromium, site, viewport={"width": 360, "height": 740}, color_scheme="dark", has_touch=True
    )


def _page(chromium, site: str, *, start: str = "/read", **options):
    context = chromium.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(10_000)
    wrong: list[str] = []
    page.on("console", lambda said: said.type == "error" and wrong.append(said.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda ask: asked.append(ask.url))
    page.goto(f"{site}/enter#{TOKEN}")
    page.wait_for_url(f"**{start}")
    yield page
    assert [said for said in wrong if "status of 4" not in said] == []
    assert all(url.startswith(site) for url in asked), "something came from outside"
    context.close()


def _said(page, words: str) -> None:
    page.locator("#said", has_text=words).wait_for()


def test_from_paste_to_export(page, tmp_path) -> None:
    page.fill("#text", "𝒳 drug1 helped.\n\ndrug9 <b>too</b>.")
    page.get_by_role("button", name="Find").click()
    _said(page, "2 sentences, 2 entities by ours; the sides differ in 2.")
    assert page.locator("article mark").first.inner_text() == "drug1 DRUG 10 %"
    assert page.locator("article b").count() == 0, "text is never HTML"
    page.locator("#sure").fill("50")
    _said(page, "1 entities by ours; the sides differ in 1.")
    page.get_by_role("button", name="Correct these").click()
    page.wait_for_url("**/correct")
    page.fill("#annotator", "ann")
    page.get_by_role("button", name="Start").click()
    _said(page, "0 of 4 sentences")
    assert "drug1" in page.locator("#sentence .own").inner_text()
    page.get_by_role("button", name="Reject drug1").click()
    page.get_by_label("From word").select_option(label="3: helped")
    page.get_by_label("To word").select_option(label="3: helped")
    page.get_by_label("Type", exact=True).fill("ACT")
    page.get_by_role("button", name="Add entity").click()
    page.get_by_role("button", name="Save and go on").click()
    _said(page, "1 of 4 sentences")
    (line,) = (tmp_path / "kept/ann.jsonl").read_text().splitlines()
    assert json.loads(line)["entities"] == [{"id": "A1", "type": "ACT", "fragments": [[8, 14]]}]
    page.reload()
    page.get_by_label("As", exact=True).select_option("conll")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert "helped B-ACT" in Path(download.value.path()).read_text().replace("\t", " ")


def test_words_are_chosen_with_the_mouse(page) -> None:
    page.goto(page.url.replace("/read", "/correct"))
    page.fill("#annotator", "ann")
    page.get_by_role("button", name="Start").click()
    page.locator("#work").wait_for()
    box = page.locator("#sentence .own").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 50, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()
    chosen = page.locator("#from").evaluate("one => one.selectedOptions[0].textContent")
    assert chosen.split(": ")[1] in ("was", "given")


def _drag(page, words: str) -> None:
    """Select these characters of the sentence with the mouse."""
    box = page.evaluate(
        """words => {
            const walk = document.createTreeWalker(document.querySelector("#sentence .own"), 4);
            while (walk.nextNode()) {
                const at = walk.currentNode.data.indexOf(words);
                if (at < 0) continue;
                const range = document.createRange();
                range.setStart(walk.currentNode, at);
                range.setEnd(walk.currentNode, at + words.length);
                const { left, right, top, bottom } = range.getBoundingClientRect();
                return { left, right, middle: (top + bottom) / 2 };
            }
        }""",
        words,
    )
    page.mouse.move(box["left"] + 0.5, box["middle"])
    page.mouse.down()
    page.mouse.move(box["right"] - 0.5, box["middle"], steps=8)
    page.mouse.up()


def _work_on(page, text: str, *, whole: bool = False) -> None:
    """Correct a text of one's own, in which the model is the least sure."""
    page.goto(page.url.replace("/read", "/correct"))
    page.locator("summary", has_text="Add text").click()
    page.fill("#text", text)
    page.get_by_role("button", name="Add", exact=True).click()
    _said(page, "new")
    page.fill("#annotator", "ann")
    if whole:
        page.get_by_label("Whole texts").check()
    page.get_by_role("button", name="Start").click()
    page.locator("#sentence .own", has_text=text[:9]).wait_for()


def test_parts_of_words_are_marked_if_wished(page, tmp_path) -> None:
    _work_on(page, "The drug2stopped it.")
    _drag(page, "stopped")
    assert page.locator("#chosen").inner_text() == "drug2stopped", "whole words, unless wished"
    page.get_by_label("Parts of words too").check()
    assert page.locator("#chosen").inner_text() == "stopped"
    page.get_by_role("button", name="Begin one character later").click()
    page.get_by_role("button", name="End one character earlier").click()
    assert page.locator("#chosen").inner_text() == "toppe"
    page.get_by_role("button", name="Begin one character earlier").click()
    page.get_by_role("button", name="End one character later").click()
    page.get_by_label("Type", exact=True).fill("ACT")
    page.get_by_role("button", name="Add entity").click()
    _said(page, "Marked as ACT.")
    assert "stopped ACT" in page.locator("#sentence .own").inner_text()
    page.get_by_role("button", name="Save and go on").click()
    _said(page, "1 of 3")
    (line,) = (tmp_path / "kept/ann.jsonl").read_text().splitlines()
    spans = {one["type"]: one["fragments"] for one in json.loads(line)["entities"]}
    assert spans == {"DRUG": [[4, 9]], "ACT": [[9, 16]]}


def test_a_relation_from_sentence_to_sentence_of_a_whole_text(page, tmp_path) -> None:
    _work_on(page, "The drug2 was given.\n\nA rash came.", whole=True)
    assert page.locator("#sentence-title").inner_text() == "Text"
    _drag(page, "rash")
    page.get_by_label("Type", exact=True).fill("ADE")
    page.get_by_role("button", name="Add entity").click()
    page.locator("summary", has_text="Relations").click()
    page.get_by_label("From", exact=True).select_option(label="drug2 (DRUG)")
    page.get_by_label("Relation", exact=True).fill("causes")
    page.get_by_label("To", exact=True).select_option(label="rash (ADE)")
    page.get_by_role("button", name="Add relation").click()
    _said(page, "The relation is added.")
    page.get_by_role("button", name="Save and go on").click()
    _said(page, "1 of 2 texts")
    (line,) = (tmp_path / "kept/ann.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert row["text"].startswith("The drug2") and row["text"].endswith("rash came.")
    (relation,) = row["relations"]
    ends = {one["id"]: one["fragments"][0] for one in row["entities"]}
    assert (ends[relation["head"]], ends[relation["tail"]]) == ([4, 9], [24, 28])
    page.get_by_label("Whole texts").uncheck()
    _said(page, "2 of 4 sentences")


def test_a_site_agrees_within_its_own_bounds(chromium, agreeing) -> None:
    from confide.flare.status import read_agreements

    address, kit = agreeing
    until = date.today() + timedelta(days=20)
    for page in _page(chromium, address, start="/consent"):
        page.get_by_label("runs, for fedavg-tagger").fill("2")
        page.get_by_label("until, for fedavg-tagger").fill(str(until))
        page.get_by_label("lead, for fedavg-tagger").fill("ada, bob")
        page.get_by_role("button", name="Agree to fedavg-tagger").click()
        page.get_by_text("Agreed until", exact=False).first.wait_for()
        held = read_agreements(kit)["fedavg-tagger"].agreement
        assert (held.runs, held.until, held.lead) == (2, until, ("ada", "bob"))
        page.get_by_label("sites, for fedavg-tagger", exact=True).fill("nobody here")
        page.get_by_role("button", name="Agree to fedavg-tagger").click()
        page.get_by_role("alert").wait_for()
        assert read_agreements(kit)["fedavg-tagger"].agreement == held
        page.get_by_role("button", name="Withdraw from fedavg-tagger").click()
        page.get_by_text("Not agreed to.").wait_for()
        assert read_agreements(kit) == {}


def test_a_site_agrees_on_a_phone_and_without_a_violation(chromium, agreeing) -> None:
    address, _ = agreeing
    dark = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "bypass_csp": True}
    for page in _page(chromium, address, start="/consent", **dark):
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 360
        page.locator("summary", has_text="Steps").click()
        assert _violations(page) == []


def test_a_key_that_is_over_is_said(page, site) -> None:
    page.context.clear_cookies()
    page.fill("#text", "drug1")
    page.get_by_role("button", name="Find").click()
    _said(page, "Open the address that it printed")


def test_by_keyboard_only(page, tmp_path) -> None:
    def tab_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            seen = page.evaluate(
                "() => [document.activeElement.id, document.activeElement.textContent.trim()]"
            )
            if name in seen:
                return
        raise AssertionError(f"{name} cannot be reached by keyboard")

    page.goto(page.url.replace("/read", "/correct"))
    tab_to("annotator")
    page.keyboard.type("key")
    page.keyboard.press("Enter")
    page.locator("#work").wait_for()
    _said(page, "0 of 2")
    assert page.evaluate("() => document.activeElement.id") == "sentence-title"
    tab_to("Reject")
    page.keyboard.press("Enter")
    _said(page, "drug7: rejected.")
    assert page.evaluate("() => document.activeElement.textContent") == "Keep"
    page.keyboard.press("Space")
    _said(page, "drug7: kept.")
    tab_to("save")
    page.keyboard.press("Enter")
    _said(page, "1 of 2")
    tab_to("keys")
    page.keyboard.press("Space")
    page.keyboard.press("s")
    _said(page, "Nothing is left")
    assert len((tmp_path / "kept/key.jsonl").read_text().splitlines()) == 2


def test_keys_do_nothing_unless_wished(page, tmp_path) -> None:
    page.goto(page.url.replace("/read", "/correct"))
    page.fill("#annotator", "ann")
    page.get_by_role("button", name="Start").click()
    page.locator("#work").wait_for()
    page.locator("#sentence-title").focus()
    page.keyboard.press("s")
    page.wait_for_timeout(300)
    assert not (tmp_path / "kept").exists()


def test_a_file_that_is_chosen(page, tmp_path) -> None:
    file = tmp_path / "gold.conll"
    file.write_text("drug3 B-DRUG\nhelped O\n")
    page.set_input_files("#files", str(file))
    page.get_by_role("button", name="Find").click()
    _said(page, "the sides differ in 1")
    assert page.locator("article").first.inner_text().count("the file") == 1


def test_right_to_left_text(page) -> None:
    page.fill("#text", "המטופל קיבל drug4 היום.")
    page.get_by_role("button", name="Find").click()
    _said(page, "1 sentences")
    text = page.locator("article .text").first
    assert text.evaluate("one => getComputedStyle(one).direction") == "rtl"
    assert page.locator("article mark").first.inner_text().startswith("drug4")


def test_a_run_is_watched_live(page, tmp_path) -> None:
    going = tmp_path / "runs/going"
    shutil.copytree(tmp_path / "runs/federated", going)
    (going / "result.json").unlink()
    page.goto(page.url.replace("/read", "/watch"))
    page.locator("#live", has_text="running").wait_for()
    shutil.copy(tmp_path / "runs/federated/result.json", going / "result.json")
    _said(page, "No run is in progress.")
    page.locator("#live tr", has_text="going").locator("td", has_text="finished").wait_for()


PAGES = ("/read", "/correct", "/watch", "/watch/run?name=federated", "/api")


@pytest.mark.parametrize("path", PAGES)
def test_on_a_phone_in_the_dark(phone, path: str) -> None:
    phone.goto(phone.url.replace("/read", path))
    assert phone.evaluate("() => document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_violation_of_accessibility(chromium, site, scheme: str) -> None:
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.goto(f"{site}/enter")
    found = {"/enter": _violations(page)}
    page.goto(f"{site}/enter#{TOKEN}")
    page.reload()
    page.wait_for_url("**/read")
    page.fill("#text", "drug1 drug9 helped.\n\nNo rash.")
    page.get_by_role("button", name="Find").click()
    page.locator("article").first.wait_for()
    found["/read with entities"] = _violations(page)
    page.get_by_role("button", name="Correct these").click()
    page.wait_for_url("**/correct")
    page.fill("#annotator", "ann")
    page.get_by_role("button", name="Start").click()
    page.locator("#work").wait_for()
    page.get_by_role("button", name="Reject drug1").click()
    page.locator("summary", has_text="Relations").click()
    page.get_by_label("Parts of words too").check()
    found["/correct at work"] = _violations(page)
    for path in (*PAGES, "/watch/compare?first=federated&second=federated"):
        page.goto(site + path)
        found[path] = _violations(page)
    assert not {path: wrong for path, wrong in found.items() if wrong}
    context.close()


def _violations(page) -> list[str]:
    found = axe.Axe().run(page).response["violations"]
    return [f"{one['id']}: {[node['html'][:150] for node in one['nodes']]}" for one in found]
