"""Runs over sites' homes whose sums are masked: numbers, ledgers, rosters, refusals."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide import api
from confide.errors import ConfideError
from confide.federation.failures import CODES, Failure, Refusal
from confide.federation.ledger import read_ledger
from confide.federation.messages import encode
from confide.federation.secure.site import SUMS
from confide.federation.steps import Delivery
from confide.flare.peers import Pins
from confide.flare.site import ACCOUNTS, ROSTERS, Peering, note_accounts
from confide.kinds import steps
from confide.runs.folder import crossed
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import differences, states
from flare.homes import SealedHomes, place_in, write_site_files
from flare.test_signing import conduct, site_folder

MASKED = "federation.sums=masked"


def homes(folder: Path, settings: Settings, **guards: Any) -> SealedHomes:
    """Homes whose guards demand masks."""
    guards = {"masked": True, **guards}
    return SealedHomes(write_site_files(folder / "homes", settings, guards=guards))


def test_a_masked_run_has_the_numbers_of_one_machine(tmp_path: Path) -> None:
    run(tiny(tmp_path, "rounds=2", MASKED), out=tmp_path / "one")
    settings = tiny(tmp_path, "rounds=2", MASKED)
    conduct(tmp_path, settings, homes(tmp_path, settings))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))


def test_the_ledgers_say_what_was_masked_and_nothing_counts_text(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1", MASKED)
    engine = homes(tmp_path, settings)
    conduct(tmp_path, settings, engine)
    for path in (tmp_path / "server", site_folder(tmp_path, "site-1")):
        rows = [row for row in read_ledger(path / "ledger.jsonl") if row.direction == "up"]
        seen = {row.step: row.seen for row in rows if row.field == "lanes_B"}
        assert seen == {"mask": "masked"}
        summed = {row.field for row in rows if row.step in ("train", "score", "count_examples")}
        summed.discard("(seal)")
        assert summed == {"key", "common", "commitment", "boxes_O148", "marks_N64", "signature",
                          "(header)"}  # fmt: skip
        assert (crossed(path).smallest, crossed(path).masked) == (3, True)
        markdown = api.dossier(path)[0].read_text()
        assert "left under masks" in markdown and "could read: 3. [ledger.jsonl]" in markdown
        assert f"The folder of {'the lead' if path.name == 'server' else 'one site'}" in markdown
        assert "Lead: lead" in markdown and steps.OTHER not in markdown
        assert str(tmp_path) not in markdown
    (tmp_path / "homes/site-1/memory" / SUMS).rename(tmp_path / "elsewhere")
    assert crossed(path).smallest == 3  # no site opens less
    told = json.loads((tmp_path / "server" / "result.json").read_text())
    assert list(told["scores"]["sites"]) == ["all sites"]
    assert told["data"]["sites"] == {}


def test_a_site_pins_all_others_and_notes_what_it_helped_to_sum(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1", MASKED)
    engine = homes(tmp_path, settings)
    conduct(tmp_path, settings, engine)
    pins = Pins(tmp_path / "homes" / "site-1" / "identity" / "peers.json").read()
    assert {"site-2", "site-3"} <= pins.keys() and not pins["site-2"].compared
    kept = tmp_path / "homes" / "site-1" / "memory" / SUMS
    assert len((kept / ROSTERS).read_text().split()) == 3
    held = [path.read_text() for path in kept.iterdir() if path.name != ROSTERS]
    assert held and set(held) == {"site-1\nsite-2\nsite-3\n"}


def refused(folder: Path, settings: Settings, engine: SealedHomes, code: str) -> None:
    with pytest.raises(Exception) as caught:
        conduct(folder, settings, engine)
    said = " ".join(
        path.read_text() for path in (folder / "homes").rglob("site.log") if path.exists()
    )
    assert code in said or code in str(caught.value)


def test_a_site_refuses_sums_that_the_server_could_read(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1")
    refused(tmp_path, settings, homes(tmp_path, settings), "guard `masked` forbids")


def test_a_batch_below_the_guard_is_refused_in_the_open_since_it_is_the_lead_s(
    tmp_path: Path,
) -> None:
    settings = tiny(tmp_path, "rounds=1", "training.batch_size=4", MASKED)
    refused(
        tmp_path,
        settings,
        homes(tmp_path, settings, min_batch=8),
        f"{CODES['small-batch']} (config.batch_size)",
    )


def test_a_site_that_compares_refuses_strangers(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1", MASKED)
    files = write_site_files(tmp_path / "homes", settings, guards={"masked": True}, compared=True)
    engine = SealedHomes(files)
    for place in engine.places.values():  # server and lead are compared, the sites are not
        for peer in ("server", "lead"):
            folder = tmp_path / ("kit" if peer == "server" else "lead")
            known = place_in(folder, peer, peer)
            place.pins.pin(peer, known.identity.fingerprint, compared=True)
    refused(tmp_path, settings, engine, "fingerprints have been compared")


def test_another_identity_under_a_pinned_name_is_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1", MASKED)
    engine = homes(tmp_path, settings)
    engine.places["site-1"].pins.pin("site-2", "0" * 64, compared=True)
    refused(tmp_path, settings, engine, "is not the one that was pinned")


@each(
    ("sites", "named", "code"),
    [
        ("abcd", False, ""),
        ("abc", False, "near-roster"),
        ("abcde", False, "near-roster"),
        ("abce", False, "near-roster"),
        ("abce", True, ""),
        ("abef", False, ""),
    ],
)
def test_a_roster_near_an_earlier_one_is_refused_unless_an_agreement_names_it(
    sites: str, named: bool, code: str, tmp_path: Path
) -> None:
    """Sums of two runs whose sites differ by few tell of these few; `apart` is `min_sites`."""
    place: Any = None
    Peering(place, (), False, tmp_path, apart=3, named=False)._note({one: one for one in "abcd"})
    said = ""
    try:
        now = Peering(place, (), False, tmp_path, apart=3, named=named)
        now._note({one: one for one in sites})
    except Refusal as refused:
        said = refused.code
    assert said == code


class Forgetting(SealedHomes):
    """A site's process forgets all that it never wrote down before an exchange of round 1, once."""

    before = ""
    done = False

    def deliver(self, step: str, round: int, **asked: Any) -> Generator[Delivery, None, None]:
        if (step, round, self.done) == (self.before, 1, False):
            self.done = True
            run = self.homes["site-2"]._run
            assert run is not None
            member = run.host.site.member
            member._session = member._roster = member._sum = None
        yield from super().deliver(step, round, **asked)


@pytest.mark.parametrize(
    "before",
    ["train", "agree", *(pytest.param(b, marks=pytest.mark.slow) for b in ("mask", "unmask"))],
)
def test_a_site_that_forgets_greets_again_or_the_run_ends_and_resumes(
    tmp_path: Path, before: str
) -> None:
    settings = tiny(tmp_path, "rounds=2", MASKED)
    run(tiny(tmp_path, "rounds=2", MASKED), out=tmp_path / "one")
    files = write_site_files(tmp_path / "homes", settings, guards={"masked": True})
    engine = Forgetting(files)
    engine.before = before
    if before == "train":  # nothing was lost: it greets again, and the round is the same
        conduct(tmp_path, settings, engine)
        assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))
        return
    with pytest.raises(ConfideError):  # its secrets are gone, and three sites cannot lose one
        conduct(tmp_path, settings, engine)
    conduct(tmp_path, settings, SealedHomes(files))  # resumed from its last checkpoint
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))


# --- how many are in a sum ---------------------------------------------------------------------


class Losing(SealedHomes):
    """The masked numbers of a site do not come in round 1."""

    def deliver(
        self,
        step: str,
        round: int,
        *,
        asks: Mapping[str, bytes],
        timeout: float | None,
        seals: Mapping[str, bytes] | None = None,
    ) -> Generator[Delivery, None, None]:
        lost = ["site-5"] if (step, round) == ("mask", 1) else []
        left = {site: data for site, data in asks.items() if site not in lost}
        yield from super().deliver(step, round, asks=left, timeout=timeout, seals=seals)
        for site in asks.keys() - left.keys():
            yield Delivery(site, encode(Failure("lost", "", "", "")), 0.0, heard=False)


@pytest.mark.parametrize(
    ("agreed", "groups", "sites"),
    [(4, 0, 5), (5, 0, 5), pytest.param(3, 3, 9, marks=pytest.mark.slow), (5, 3, 9)],
)
def test_no_sum_is_of_fewer_sites_than_were_agreed(
    agreed: int, groups: int, sites: int, tmp_path: Path
) -> None:
    """Whatever the settings say, and whichever sites are lost; fixed groups are no exception."""
    settings = tiny(
        tmp_path, "rounds=1", MASKED, f"federation.groups={groups}",
        f"federation.at_least={agreed}", f"federation.combine={'median' if groups else 'mean'}",
        "federation.colluding=1", sites=sites,
    )  # fmt: skip
    consent = {settings.trained_by: {"at_least": agreed, "combine": [settings.federation.combine]}}
    own = {"guards": {"masked": True}, "consent": consent, "colluding": 1}
    files = write_site_files(tmp_path / "homes", settings, **own)
    engine = SealedHomes(files) if groups else Losing(files)
    kept = tmp_path / "homes" / "site-1" / "memory" / SUMS
    opened = groups or sites - 1
    if agreed > opened:
        with pytest.raises(ConfideError):
            conduct(tmp_path, settings, engine)
    else:
        conduct(tmp_path, settings, engine)
    held = [len(path.read_text().split()) for path in kept.glob("turn-*")]
    assert min(held, default=agreed) >= agreed and (opened in held) == (agreed <= opened)


# --- accounts of noise -------------------------------------------------------------------------

OLD, NEW, OTHER = (f"{count} {digit * 64}" for count, digit in ((3, "a"), (4, "b"), (4, "c")))


@each(
    ("before", "after", "code"),
    [
        ("", OLD, ""),
        (OLD, OLD, ""),
        (OLD, NEW, ""),
        (NEW, OLD, "older-account"),
        (NEW, OTHER, "older-account"),
        (OLD, "", "older-account"),
        ("", "0 " + "a" * 64, "bad-greeting"),
        ("", "-1 " + "a" * 64, "bad-greeting"),
        ("", "many", "bad-greeting"),
        ("", "5 " + "A" * 64, "bad-greeting"),
    ],
)
def test_an_account_may_only_grow(before: str, after: str, code: str, tmp_path: Path) -> None:
    note_accounts(tmp_path, {"11" * 32: before, "22" * 32: ""}, ["a", "b"])
    said = ""
    try:
        note_accounts(tmp_path, {"11" * 32: after, "22" * 32: ""}, ["a", "b"])
    except Refusal as refused:
        said = refused.code
    assert said == code


def test_a_refused_account_is_not_remembered(tmp_path: Path) -> None:
    note_accounts(tmp_path, {"11" * 32: NEW}, ["a"])
    with pytest.raises(Refusal):
        note_accounts(tmp_path, {"11" * 32: OTHER, "22" * 32: NEW}, ["a", "b"])
    assert json.loads((tmp_path / ACCOUNTS).read_text()) == {"11" * 32: NEW}
