"""Signed runs over the sites' homes: same numbers, ledgers that vouch for each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confide import __version__
from confide.federation.comparing import compare_ledgers
from confide.federation.events import unwatched
from confide.flare.conducting import Conductor
from confide.flare.signing import Evidence
from confide.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import differences, states
from flare.homes import SealedHomes, as_toml, ordered, place_in, write_site_files
from flare.test_conducting import numbers


def evidence(folder: Path, settings: Settings, engine: SealedHomes) -> Evidence:
    lead = place_in(folder / "lead", "lead", "lead")
    order = ordered(as_toml(settings), engine.sites, lead)
    return Evidence(place_in(folder / "kit", "server", "server"), order)


def conduct(folder: Path, settings: Settings, engine: SealedHomes, **changes: Any) -> Any:
    """A signed run: the server's folder is `folder/server`."""
    given = {
        "version": __version__,
        "engine": engine,
        "folder": folder / "server",
        "evidence": evidence(folder, settings, engine),
        **changes,
    }
    return Conductor("trial", as_toml(settings), **given).conduct(unwatched)


def site_folder(folder: Path, site: str) -> Path:
    return folder / "homes" / site / "memory/trial"


def test_a_signed_run_has_the_numbers_of_one_machine_and_its_ledgers_agree(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    run(settings, out=tmp_path / "one")
    engine = SealedHomes(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path, settings, engine)
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))
    for site in engine.sites:
        found = compare_ledgers(tmp_path / "server", site_folder(tmp_path, site))
        assert found.agree, found
        assert found.verified > 10 and not found.again and not found.unheard
        for other in engine.sites:
            if other != site:
                two = compare_ledgers(site_folder(tmp_path, other), site_folder(tmp_path, site))
                assert two.agree and not two.unheard and two.verified > 10, two
