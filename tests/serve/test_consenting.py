"""The page Agree does what `confide site consent` does, and nothing that was not shown."""

from __future__ import annotations

from datetime import date, timedelta
from html.parser import HTMLParser
from math import inf

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.flare import sitekit
from confide.flare.kit import Kit
from confide.flare.status import read_agreements
from confide.methods import METHODS
from confide.serve.app import ServedPages
from serve.kits import kit_in
from serve.served import ORIGIN, QUICK, browser

TOKEN = "t" * 43
AS_SITE = {"origin": ORIGIN, "authorization": f"Bearer {TOKEN}"}
STUDY = 'name = "study"\nrounds = 12\n[training]\nlocal_epochs = 3\nbatch_size = 16\n'


@pytest.fixture
def kit(tmp_path) -> Kit:
    return kit_in(tmp_path)


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    return file


def _there(kit: Kit, study=None):
    shown = ServedPages({}, QUICK, kit=kit.path, asked=None if study is None else str(study))
    there = browser(shown, token=TOKEN)
    there.headers.update(AS_SITE)
    return there


class _Fields(HTMLParser):
    """What a browser would send of a page's first form that is posted."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.refused: list[str] = []
        self.inside, self.done, self.select = False, False, ""

    def handle_starttag(self, tag, attrs) -> None:
        own = dict(attrs)
        if tag == "form":
            self.inside = own["method"] == "post" and not self.done
        if not self.inside:
            return
        if own.get("type") == "number":
            whole = own["value"].isdigit() and int(own["value"])
            if whole is False or not float(own["min"]) <= whole <= float(own.get("max", inf)):
                self.refused.append(own["name"])
        if tag == "input" and (own.get("type") != "checkbox" or "checked" in own):
            self.fields[own["name"]] = own["value"]
        if tag == "select":
            self.select = own["name"]
        if tag == "option" and "selected" in own:
            self.fields[self.select] = own["value"]

    def handle_endtag(self, tag) -> None:
        if tag == "form":
            self.done, self.inside = self.done or self.inside, False


def _form(page: str, act: str = "agree", **bounds: str) -> dict[str, str]:
    """The page's form, with other bounds if any are given."""
    read = _Fields()
    read.feed(page)
    return {**read.fields, "act": act, **{f"bound.{name}": one for name, one in bounds.items()}}


def test_what_is_shown_is_agreed_to_and_withdrawn(kit: Kit, study) -> None:
    there = _there(kit, study)
    page = there.get("/consent").text
    assert "fedavg-tagger – the lead asks for this" in page and "Not agreed to." in page
    assert "weights" in page and "min_sites" in page and ">12<" in page
    assert read_agreements(kit) == {}, "to look is not to agree"
    assert there.post("/consent", data=_form(page, "agree")).status_code == 303
    held = read_agreements(kit)["fedavg-tagger"].agreement
    assert (held.rounds, held.local_epochs, held.batch_size) == (12, 3, 16)
    page = there.get("/consent").text
    assert "<strong>Agreed</strong>" in page and "Withdraw from fedavg-tagger" in page
    there.post("/consent", data=_form(page, "withdraw"))
    assert read_agreements(kit) == {}


def test_more_than_was_agreed_is_said(kit: Kit, study) -> None:
    there = _there(kit, study)
    there.post("/consent", data=_form(there.get("/consent").text, "agree"))
    study.write_text(STUDY.replace("12", "30"))
    page = there.get("/consent").text
    assert "More is asked than was agreed: rounds." in page and "more than agreed" in page


def test_a_browser_sends_the_form_as_it_is_shown(kit: Kit) -> None:
    there = _there(kit)
    for method in METHODS:
        read = _Fields()
        read.feed(there.get(f"/consent?method={method}").text)
        assert read.fields["method"] == method and read.refused == []


def test_what_has_changed_since_it_was_shown_is_not_agreed_to(kit: Kit, study) -> None:
    there = _there(kit, study)
    form = _form(there.get("/consent").text, "agree")
    study.write_text(STUDY.replace("12", "900"))
    found = there.post("/consent", data=form)
    assert found.headers["location"] == "/consent?changed=1" and read_agreements(kit) == {}
    assert "Nothing was agreed to" in there.get("/consent?changed=1").text


def test_nobody_else_agrees(kit: Kit, study) -> None:
    there = _there(kit, study)
    form = _form(there.get("/consent").text, "agree")
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}):
        assert there.post("/consent", data=form, headers=headers).status_code == 403
    assert there.post("/consent", data=form, headers={"authorization": ""}).status_code == 401
    assert there.post("/consent", data={**form, "shown": "0" * 64}).status_code == 303
    assert there.post("/consent", data={**form, "act": "both"}).status_code == 422
    assert there.post("/consent", data={**form, "method": "nothing"}).status_code == 422
    assert read_agreements(kit) == {}


def test_without_settings_the_agreements_are_shown(kit: Kit) -> None:
    page = _there(kit).get("/consent").text
    assert "You have agreed to nothing" in page and "max_rounds" in page


def test_a_kit_that_is_none_is_said(tmp_path) -> None:
    there = browser(ServedPages({}, QUICK, kit=tmp_path), token=TOKEN)
    assert there.get("/consent", headers=AS_SITE).status_code == 500


def test_the_site_sets_the_bounds(kit: Kit, study) -> None:
    there = _there(kit, study)
    until = date.today() + timedelta(days=30)
    form = _form(
        there.get("/consent").text,
        runs="2",
        until=str(until),
        rounds="6",
        sites="site-1, site-2",
        others="false",
        lead="ada",
        combine="mean, median",
        fraction="0.5",
        at_least="2",
    )
    assert there.post("/consent", data=form).status_code == 303
    held = read_agreements(kit)["fedavg-tagger"].agreement
    assert (held.runs, held.until, held.rounds, held.at_least) == (2, until, 6, 2)
    assert (held.sites, held.others, held.lead) == (("site-1", "site-2"), False, ("ada",))
    assert (held.combine, held.fraction) == (("mean", "median"), 0.5)
    assert held.batch_size == 16, "as the lead asks"
    assert "More is asked than was agreed: rounds" in there.get("/consent").text


def test_the_page_agrees_to_what_the_command_agrees_to(kit: Kit, study) -> None:
    there = _there(kit, study)
    bounds = ["runs=3", "until=2099-01-31", 'lead=["ada"]', 'sites=["site-1"]', "others=false"]
    asked = sitekit.settings_asked(str(study))
    sitekit.agree_to(kit, "fedavg-tagger", asked=asked, bounds=bounds, steps=["join", "take"])
    by_command = read_agreements(kit)["fedavg-tagger"].agreement
    sitekit.withdraw_from(kit, "fedavg-tagger")
    form = _form(
        there.get("/consent").text,
        runs="3",
        until="2099-01-31",
        lead="ada",
        sites="site-1",
        others="false",
        at_least=str(by_command.at_least),
    )
    left = {key: one for key, one in form.items() if not key.startswith("step.")}
    there.post("/consent", data={**left, "step.join": "yes", "step.take": "yes"})
    by_page = read_agreements(kit)["fedavg-tagger"].agreement
    assert by_page.steps == ("join", "take")
    assert by_page.model_copy(update={"agreed": by_command.agreed}) == by_command


WRONG = [
    ("runs", "0"), ("runs", "x"), ("runs", ""), ("runs", "3\nrounds = 900"),
    ("until", "2001-01-01"), ("until", "soon"), ("fraction", "nan"), ("fraction", "2"),
    ("combine", "sum"), ("combine", ""), ("lead", ""), ("lead", '<script>"'), ("sites", "a b"),
    ("sites", "other"), ("others", "perhaps"), ("batch_size", "-1"), ("rounds", "9" * 9000),
]  # fmt: skip


def test_a_bound_that_is_none_is_said_and_nothing_is_agreed_to(kit: Kit, study) -> None:
    there = _there(kit, study)
    shown = there.get("/consent").text
    for name, value in WRONG:
        form = _form(shown, **{name: value})
        if value == "other":
            form["bound.others"] = "false"  # other sites only: this one would not be among them
        found = there.post("/consent", data=form)
        assert found.status_code == 422 and "Nothing was agreed to" in found.text, (name, value)
        assert read_agreements(kit) == {} and "<script>" not in found.text
        if "\n" not in value and len(value) < 100 and name != "others":
            assert _form(found.text)[f"bound.{name}"] == value, "it comes back to be mended"


def test_bounds_and_steps_that_nobody_knows_change_nothing(kit: Kit, study) -> None:
    there = _there(kit, study)
    form = _form(there.get("/consent").text)
    there.post("/consent", data={**form, "bound.wire": "0" * 16, "step.more": "yes"})
    held = read_agreements(kit)["fedavg-tagger"].agreement
    assert held.wire != "0" * 16 and held.steps == ()


def test_no_step_is_no_agreement(kit: Kit, study) -> None:
    there = _there(kit, study)
    form = _form(there.get("/consent").text)
    none = {key: one for key, one in form.items() if not key.startswith("step.")}
    found = there.post("/consent", data=none)
    assert (
        found.status_code == 422
        and "no step is ticked" in found.text
        and read_agreements(kit) == {}
    )


def test_steps_that_were_agreed_to_stay_ticked(kit: Kit) -> None:
    sitekit.agree_to(kit, "fedavg-tagger", steps=["join"])
    form = _form(_there(kit).get("/consent").text)
    assert [key for key in form if key.startswith("step.")] == ["step.join"]


def test_any_method_can_be_looked_at_and_agreed_to(kit: Kit) -> None:
    there = _there(kit)
    assert "<option>fedner-tagger</option>" in there.get("/consent").text
    page = there.get("/consent?method=fedner-tagger").text
    assert "fedner-tagger</h2>" in page and "proposed" in page
    assert there.post("/consent", data=_form(page)).status_code == 303
    assert list(read_agreements(kit)) == ["fedner-tagger"]
    assert there.get("/consent?method=<b>").status_code == 200
