"""The page in a real browser: nothing is wider than its window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from confide.report.page import report
from report.folders import (
    SITES,
    bag_errors,
    bag_result,
    calibration,
    errors,
    ledger,
    relation_errors,
    relation_result,
    result,
    right,
    sentences,
    write_run,
    write_sentences,
)
from report.test_spent import noisy

pytestmark = pytest.mark.slow

WIDTHS = (360, 768, 1280, 1600)

WIDER = """() => {
  document.querySelectorAll('details').forEach(one => one.open = true);
  const page = document.documentElement;
  const out = [...document.querySelectorAll('body *')].filter(
    one => one.getBoundingClientRect().right > window.innerWidth + 1);
  const scrolled = [...document.querySelectorAll('.wide')].filter(
    one => one.scrollWidth > one.clientWidth + 1);
  return [...(page.scrollWidth > window.innerWidth ? ['the page'] : []),
          ...out.map(one => one.tagName + '.' + one.className),
          ...scrolled.map(one => one.getAttribute('aria-label'))];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium: the system's, or the one that playwright brought."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with api.sync_playwright() as playwright:
        own = os.environ.get("CHROMIUM") or shutil.which("chromium")
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        try:
            chromium = playwright.chromium.launch(executable_path=own, args=arguments)
        except api.Error as error:
            pytest.skip(f"needs chromium: {str(error).splitlines()[0]}")
        yield chromium
        chromium.close()


def entities(folder: Path, method: str, f1: float) -> Path:
    found = [{**errors(site), "right": [right(site)] * 5} for site in SITES]
    told = {**result(method, f1), "calibration": calibration()}
    made = write_run(folder / method, told, ledger=ledger(), errors=found)
    for site in SITES:
        write_sentences(made, sentences(site, f1))
    return made


def pages(folder: Path) -> dict[str, Path]:
    """A page of one run, of many, of relations, and of bags."""
    runs = [entities(folder, method, f1) for method, f1 in
            (("alone", 0.66), ("fedavg", 0.78), ("fedner", 0.8), ("pooled", 0.81))]  # fmt: skip
    pairs = [
        write_run(folder / f"re-{method}", relation_result(method, many), ledger=ledger(),
                  errors=[relation_errors(site) for site in SITES])
        for method, many in (("feded", 30), ("fedavg", 31), ("public-only", 9))
    ]  # fmt: skip
    bags = [
        write_run(folder / f"bags-{method}", bag_result(method, sure), ledger=ledger(),
                  errors=[bag_errors(site) for site in SITES])
        for method, sure in (("lazy-mil", 3.0), ("fedavg", 2.0))
    ]  # fmt: skip
    private = [noisy(folder / f"noise-{number}", simulated=number > 1) for number in (1, 2)]
    named = {
        "noise": private[:1],
        "noises": private,
        "one": runs[1:2],
        "four": runs,
        "relations": pairs,
        "bags": bags,
        "bag": bags[:1],
    }
    return {name: report(own, out=folder / f"{name}.html") for name, own in named.items()}


def test_nothing_overflows_at_any_width(browser: Any, tmp_path: Path) -> None:
    wider = {}
    for name, file in pages(tmp_path).items():
        for width in WIDTHS:
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(file.as_uri())
            if found := page.evaluate(WIDER):
                wider[name, width] = found[:5]
            page.close()
    assert wider == {}
