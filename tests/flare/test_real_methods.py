"""Every method over real processes with TLS: the numbers of one machine, and no text on the wire.

Each form runs once, over sites that are full of canaries; the tests look at what came of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.federation.comparing import compare_ledgers
from confide.jobs.predict import predict
from confide.kinds import KINDS
from confide.methods import METHODS
from confide.runs.run import run
from confide.settings import Settings
from confide.settings.tables import ModelTable
from contract.corpus import reader, tiny
from contract.entries import OPEN, OPTIONAL
from contract.runs import differences, states
from flare.forms import FORMS, READERS, Form
from flare.real import Real
from flare.tapping import EVERY, Tap, in_frames, seen
from flare.test_conducting import lines, numbers
from test_canary import PLANT, SITES, canaries

slow = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
    pytest.mark.xdist_group("tapped"),
]


def real_processes(test):
    """The marks of a test with real processes."""
    for mark in slow:
        test = mark(test)
    return test


@dataclass(frozen=True)
class Ran:
    """What is left of one form's run: at the lead, on one machine, and on the wire."""

    form: Form
    settings: Settings
    folder: Path
    note: Path
    frames: dict[tuple[str, str], list[bytes]]
    """By kit and direction."""

    def one(self) -> Path:
        """The same run on one machine; made when it is first wanted."""
        folder = self.folder.with_name(f"one-{self.folder.name}")
        if not folder.exists():
            run(self.settings, out=folder)
        return folder


def settings_of(form: Form, real: Real) -> Settings:
    """The form's settings, with sites whose text is planted."""
    data = real.folder / f"data-{form.homes}"
    if not data.exists():
        planting = PLANT.get(form.homes) or PLANT[METHODS[form.method].task]
        PLANTED[form.homes] = planting(data)
    tables = [dict(table) for table in PLANTED[form.homes]]
    if form.context:
        tables = [{**table, "context": reader("encoder")} for table in tables]
    overrides = (f"method={form.method}", *form.overrides, "rounds=3", "select.every=2")
    return tiny(real.folder, *overrides, site=tables, data={})


PLANTED: dict[str, list[dict[str, str]]] = {}
"""The tables of sites, by the name of their homes."""


LOOKED_AT = [(site, what) for site in SITES for what in EVERY]
LOOKED_AT += [("server", "up"), ("server", "local")]
"""What comes down at the server went up at a site before."""


def new(tap: Tap, where: tuple[str, str]) -> list[bytes]:
    """The frames of a kit and direction since the last look."""
    kit, what = where
    return tap.new(what, kit=kit)


@pytest.fixture(scope="module", params=FORMS)
def ran(request: pytest.FixtureRequest, tapped: Real, tap: Tap) -> Ran:
    name = request.param
    form = FORMS[name]
    settings = settings_of(form, tapped)
    homes = f"homes-{form.homes}"
    if tapped.homes.name != homes:
        tapped.become(settings, homes=homes)
    assert {where: found for where in LOOKED_AT if (found := seen(new(tap, where)))} == {}
    done = tapped.run(f"wire-{name}", settings=settings)
    frames = {where: new(tap, where) for where in LOOKED_AT}
    return Ran(form, settings, done.folder, tapped.run_of("site-1", done.folder.name), frames)


def test_every_method_and_kind_is_looked_at() -> None:
    looked = {form.method: OPEN[form.method] for form in FORMS.values()}
    assert {pair.method for pair in looked.values()} == {pair.method for pair in OPEN.values()}
    assert {value for form in FORMS.values() for value in form.overrides} >= {
        f"bags.reader={reader}" for reader in READERS
    }
    trained = {METHODS[form.method].kind.name for form in FORMS.values()}
    assert trained == set(KINDS)
    assert trained >= set(get_args(ModelTable.model_fields["kind"].annotation))
    for name, kind in looked.items():
        asked = [form.asks for form in FORMS.values() if form.method == name]
        missing = {step.name for step in kind.steps}.difference(*asked)
        assert missing <= OPTIONAL, name


@real_processes
def test_the_numbers_are_those_of_one_machine(ran: Ran) -> None:
    assert not list(differences(numbers(ran.one()), numbers(ran.folder)))
    assert not list(differences(states(ran.one()), states(ran.folder)))


@real_processes
def test_a_site_keeps_what_it_needs(ran: Ran, tmp_path: Path) -> None:
    """What a site has at home predicts what the run of one machine does."""
    found = compare_ledgers(ran.folder, ran.note)
    assert found.agree and found.verified > 0 and not found.again, found
    text = ran.settings.site[0].test[0]
    own = METHODS[ran.form.method].personal or ran.form.context  # the site knows where that lies
    ours = predict(ran.note, [text], site="site-1")
    assert ours == predict(ran.one(), [text], site="site-1" if own else None)


@real_processes
def test_no_text_is_in_any_frame(ran: Ran) -> None:
    """And each step that was asked is there, with all that the ledger says was sent."""
    noted = [line for line in lines(ran.note) if "step" in line]
    asked = {line["step"] for line in noted}
    assert asked == ran.form.asks | {"join", "leave", "close"}
    sent = {way: sum(x["bytes"] for x in noted if x["direction"] == way) for way in ("up", "down")}
    for site in SITES:
        up, down = ran.frames[site, "up"], ran.frames[site, "down"]
        for step in asked:
            assert in_frames(step, up), f"{step} travels, and was not found: nothing is looked at"
        assert in_frames(f"{ran.folder.name}-", down)
        if site == "site-1":
            assert sum(map(len, up)) > sent["up"] > 0
            assert sum(map(len, down)) > sent["down"] > 0
    assert {where: found for where, frames in ran.frames.items() if (found := seen(frames))} == {}


@real_processes
def test_a_name_of_an_entity_type_does_travel_and_is_seen(tapped: Real, tap: Tap) -> None:
    """Types are told by design (docs/wire.md): so a canary that is one has to be found."""
    word = canaries("site-2")["entity"]
    settings = settings_of(FORMS["fedavg-tagger"], tapped)
    path = Path(settings.site[1].train[0])
    before = path.read_text(encoding="utf-8")
    tapped.become(settings, homes="homes-ner")
    tap.new(*EVERY)
    path.write_text(before.replace("B-Drug", f"B-{word}"), encoding="utf-8")
    try:
        tapped.run("named", settings=settings)
    finally:
        path.write_text(before, encoding="utf-8")
    assert seen(tap.new("up", kit="site-2")) == [word]
    assert seen(tap.new("down", kit="site-1")) == [word]
    tap.new(*EVERY)
