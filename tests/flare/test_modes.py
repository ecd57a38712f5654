"""What a consortium and its sites write is readable by its owner only, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from confide import __version__
from confide.federation.failures import Failure
from confide.federation.messages import decode, encode
from confide.files import for_the_owner, private_folder
from confide.flare.joining import Join
from confide.flare.site import SiteHome
from confide.runs.run import run
from contract.corpus import tiny
from flare.homes import HomesEngine, as_toml, write_site_files
from flare.test_conducting import conduct, numbers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """Nothing of what a test makes is closed, unless the code closes it."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_in(folder: Path) -> dict[str, str]:
    """What others than the owner can read, write or enter, with its mode."""
    return {
        str(path.relative_to(folder)): oct(mode(path))
        for path in [folder, *folder.rglob("*")]
        if mode(path) != (0o700 if path.is_dir() else 0o600)
    }


def test_a_folder_is_made_for_its_owner_and_closed_where_it_is_there(tmp_path: Path) -> None:
    private_folder(tmp_path / "new" / "inner")
    assert (mode(tmp_path / "new"), mode(tmp_path / "new/inner")) == (0o700, 0o700)
    (tmp_path / "old").mkdir(mode=0o2775)
    (tmp_path / "old").chmod(0o2775)
    private_folder(tmp_path / "old")
    assert mode(tmp_path / "old") == 0o2700
    with pytest.raises(ZeroDivisionError), for_the_owner():
        (tmp_path / "file").touch()
        1 / 0  # noqa: B018
    (tmp_path / "other").touch()
    assert (mode(tmp_path / "file"), mode(tmp_path / "other")) == (0o600, 0o666)


def test_what_a_site_keeps_is_its_owners(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedner", sites=2)
    files = write_site_files(tmp_path / "homes", settings)
    engine = HomesEngine(files)
    conduct(tmp_path / "server", settings, engine)
    memory = tmp_path / "homes/site-1/memory"
    assert decode(Failure, engine.homes["site-1"].answer("improve", 1, b"no ask")).code == "bad-ask"
    refused = SiteHome(write_site_files(tmp_path / "homes", settings, consent={})["site-1"])
    ask = encode(Join(__version__, "other", as_toml(settings), ["site-1"], "", "", ""))
    assert decode(Failure, refused.answer("join", 0, ask)).code == "no-consent"
    names = {path.name for path in memory.rglob("*")}
    assert {"veil.key", "ledger.jsonl", "refused.jsonl", "site.log", "asked.txt"} <= names
    assert {"errors.json", "result.json", "memory", "checkpoints"} <= names
    assert open_in(memory) == {}


def test_kits_and_what_setup_writes_are_their_owners(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")
    from confide.flare.nvidia.consortium import add_site, create_consortium, renew_kit
    from confide.flare.sitekit import agree_to, setup_site, site_file

    made = create_consortium("trial", sites=["site-1"], host="localhost", out=tmp_path / "trial")
    assert made.kit("site-1").key.exists()
    assert open_in(made.path) == {}
    add_site(made.path, "west")
    (made.path / "kits/lead").rename(tmp_path / "old-lead")
    renew_kit(made.path, "lead")
    settings = tiny(tmp_path, sites=1)
    file = write_site_files(tmp_path / "homes", settings, consent={})["site-1"]
    memory = tmp_path / "homes/site-1/memory"
    memory.mkdir(mode=0o755)
    kit = made.kit("site-1")
    setup_site(kit, file)
    agree_to(kit, "fedavg-tagger")
    assert "[method.fedavg-tagger]" in site_file(kit).with_name("consent.toml").read_text()
    assert open_in(made.path) == {}
    assert open_in(memory) == {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_processes_of_a_real_run_open_nothing_either(tmp_path: Path) -> None:
    """With a guard in a site's own file, so that it is kept over real sites as well."""
    pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")
    from flare.real import running

    settings = tiny(tmp_path, "rounds=2", "guards.max_norm=0.5", sites=2)
    with running(tmp_path, settings) as real:
        done = real.run("bounded")
        assert sorted(done.result.scores.sites) == ["site-1", "site-2"]
        assert done.result.left_out == {}
        for site in ("site-1", "site-2"):
            assert next(real.memory(site).rglob("errors.json"))
            assert open_in(real.memory(site)) == {}
        for kit in real.consortium.kits():
            found = open_in(kit.path)
            assert not found, f"{kit.name}: {found}"
    run(settings, out=tmp_path / "one")
    assert done.result.scores.model_dump() == numbers(tmp_path / "one")["scores"]
