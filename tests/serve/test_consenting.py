"""The page Agree does what `confide site consent` does, and nothing that was not shown."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.keys import new_key
from confide.flare.kits.startup import Kit
from confide.flare.nvidia.founding import init
from confide.flare.run.sitekit import setup
from confide.flare.run.standing import held_of
from confide.serve.app import Shown
from contract.corpus import write_sites
from serve.served import ORIGIN, QUICK, browser

TOKEN = "t" * 43
AS_SITE = {"origin": ORIGIN, "authorization": f"Bearer {TOKEN}"}
STUDY = 'name = "study"\nrounds = 12\n[training]\nlocal_epochs = 3\nbatch_size = 16\n'


@pytest.fixture
def kit(tmp_path) -> Kit:
    made = init("trial", sites=["site-1"], host="localhost", out=tmp_path / "trial")
    table = write_sites(tmp_path / "data", 1, train=24)[0]
    key = new_key(tmp_path / "shared.key")
    lines = [f'{name} = "{value}"' for name, value in {**table, "key": key}.items()]
    (tmp_path / "site.toml").write_text("\n".join(lines))
    setup(made.kit("site-1"), tmp_path / "site.toml")
    return made.kit("site-1")


@pytest.fixture
def study(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(STUDY)
    return file


def _there(kit: Kit, study=None):
    shown = Shown({}, QUICK, kit=kit.path, asked=None if study is None else str(study))
    there = browser(shown, token=TOKEN)
    there.headers.update(AS_SITE)
    return there


def _form(page: str, act: str) -> dict[str, str]:
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]+)"', page))
    return {**fields, "act": act}


def test_what_is_shown_is_agreed_to_and_withdrawn(kit: Kit, study) -> None:
    there = _there(kit, study)
    page = there.get("/consent").text
    assert "fedavg-tagger – the lead asks for this" in page and "Not agreed to." in page
    assert "weights" in page and "min_sites" in page and ">12<" in page
    assert held_of(kit) == {}, "to look is not to agree"
    assert there.post("/consent", data=_form(page, "agree")).status_code == 303
    held = held_of(kit)["fedavg-tagger"].agreement
    assert (held.rounds, held.local_epochs, held.batch_size) == (12, 3, 16)
    page = there.get("/consent").text
    assert "<strong>Agreed</strong>" in page and "Withdraw from fedavg-tagger" in page
    there.post("/consent", data=_form(page, "withdraw"))
    assert held_of(kit) == {}


def test_more_than_was_agreed_is_said(kit: Kit, study) -> None:
    there = _there(kit, study)
    there.post("/consent", data=_form(there.get("/consent").text, "agree"))
    study.write_text(STUDY.replace("12", "30"))
    page = there.get("/consent").text
    assert "More is asked than was agreed: rounds." in page and "more than agreed" in page


def test_what_has_changed_since_it_was_shown_is_not_agreed_to(kit: Kit, study) -> None:
    there = _there(kit, study)
    form = _form(there.get("/consent").text, "agree")
    study.write_text(STUDY.replace("12", "900"))
    found = there.post("/consent", data=form)
    assert found.headers["location"] == "/consent?changed=1" and held_of(kit) == {}
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
    assert held_of(kit) == {}


def test_without_settings_the_agreements_are_shown(kit: Kit) -> None:
    page = _there(kit).get("/consent").text
    assert "You have agreed to nothing" in page and "max_rounds" in page


def test_a_kit_that_is_none_is_said(tmp_path) -> None:
    there = browser(Shown({}, QUICK, kit=tmp_path), token=TOKEN)
    assert there.get("/consent", headers=AS_SITE).status_code == 500
