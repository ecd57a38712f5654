"""Encrypted keys of a consortium: its authority's root key, and the shared key of a site."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pty
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.cli.verbs import app
from confide.errors import KitError, LockedKeyError
from confide.federation import keys
from confide.federation import keys as passphrase
from confide.federation.keys import VARIABLE, new_key, protect_key
from confide.flare.kit import Consortium, open_consortium
from confide.flare.nvidia import consortium, processes
from confide.flare.nvidia.consortium import add_site, create_consortium, renew_kit
from confide.flare.sitekit import setup_site
from contract.corpus import tiny
from flare.homes import write_site_files

SECRET = "five words that nobody joins"


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little work for scrypt, no passphrase in the environment, and nobody at the terminal."""
    monkeypatch.setattr(passphrase, "LEAST_COST", 2**4)
    monkeypatch.setattr(passphrase, "COST", 2**4)
    monkeypatch.setattr(passphrase, "_asked", _nobody)
    monkeypatch.setattr(keys, "_OPENED", {})
    monkeypatch.delenv(VARIABLE, raising=False)


def _nobody(prompt: str, path: Path, *, otherwise: str) -> str:
    raise passphrase._unasked(otherwise, path)


def know(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str = SECRET) -> Path:
    path = folder / "passphrase"
    path.write_text(text + "\n")
    path.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- the authority ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    out = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium("trial", sites=["north"], host="fl.example.org", out=out)


@pytest.fixture
def copied(founded: Consortium, tmp_path: Path) -> Consortium:
    return open_consortium(Path(shutil.copytree(founded.path, tmp_path / "trial")))


def test_a_root_key_is_encrypted_from_its_first_moment(tmp_path, monkeypatch):
    """Nothing that the founder's disk ever had says the key in plain."""
    know(monkeypatch, tmp_path)
    written: list[bytes] = []
    real = passphrase.write_key

    def write(path: Path, data: bytes, *, over: bool = False) -> None:
        if path.name == consortium.ROOT_KEY:
            written.append(data)
        real(path, data, over=over)

    monkeypatch.setattr(passphrase, "write_key", write)
    made = create_consortium(
        "trial", sites=["a"], host="h", out=tmp_path / "trial", passphrase=SECRET.encode()
    )
    root = made.authority / consortium.ROOT_KEY
    assert root.read_bytes().startswith(b"confide-key-2 private scrypt ")
    assert len(written) == 1 and b"BEGIN" not in written[0]
    assert not [path for path in made.authority.iterdir() if b"PRIVATE" in path.read_bytes()]
    assert add_site(made.path, "b").name == "b"


@pytest.mark.parametrize("make", [lambda c: add_site(c, "west"), lambda c: renew_kit(c, "north")])
def test_no_kit_is_made_without_the_passphrase_and_nothing_is_lost(
    copied, tmp_path, monkeypatch, make
):
    know(monkeypatch, tmp_path)
    shutil.rmtree(copied.path / "kits" / "north")
    protect_key(copied.authority / consortium.ROOT_KEY)
    before = digests(copied.path)
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(LockedKeyError, match=rf"root.key: .*{VARIABLE}"):
        make(copied.path)
    know(monkeypatch, tmp_path, "another passphrase of ours")
    with pytest.raises(LockedKeyError, match="does not open the key"):
        make(copied.path)
    assert digests(copied.path) == before
    know(monkeypatch, tmp_path)
    assert make(copied.path).path.is_dir()


def test_a_damaged_root_key_is_a_damaged_authority(copied, tmp_path, monkeypatch):
    know(monkeypatch, tmp_path)
    root = protect_key(copied.authority / consortium.ROOT_KEY)
    root.write_bytes(root.read_bytes()[:-9])
    with pytest.raises(KitError, match="authority is missing or damaged"):
        add_site(copied.path, "west")


# --- the verbs ----------------------------------------------------------------------------


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_the_verbs_ask_for_each_passphrase_and_show_none(tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(
        passphrase, "_asked", lambda prompt, path, **_: asked.append(prompt) or SECRET
    )
    shared, out = tmp_path / "shared.key", tmp_path / "trial"
    founding = ("init", "trial", "--site", "a", "--host", "h", "--out", out, "--passphrase")
    for words, times, says in (
        (("key", "new", shared, "--passphrase"), 2, "give it to the other sites"),
        (("key", "unprotect", shared), 1, "is no longer encrypted"),
        (("key", "protect", shared), 2, "still be on the disk"),
        (("consortium", *founding), 2, "Keep it offline"),
        (("consortium", "add", out, "--site", "b"), 1, "kit"),
        (("key", "unprotect", out / "authority" / "root.key"), 1, "is no longer encrypted"),
    ):
        asked.clear()
        code, said = call(*words)
        said = " ".join(said.split())
        assert code == 0 and says in said and SECRET not in said
        assert len(asked) == times, words
        assert f"assphrase of {words[2] if words[0] == 'key' else out / 'authority'}" in asked[0]
    assert shared.read_bytes().startswith(b"confide-key-2 shared ")


def test_a_real_terminal_shows_nothing_of_what_is_typed(tmp_path):
    """`confide key new --passphrase`, with a terminal of its own, as a person has it."""
    command = [sys.executable, "-m", "confide", "key", "new", "k", "--passphrase"]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.environ.pop(VARIABLE, None)
        os.execv(command[0], command)
    shown = b""
    for prompt in (b"New passphrase of k: ", b"The same again: "):
        while prompt not in shown:
            shown += os.read(terminal, 1024)
        os.write(terminal, SECRET.encode() + b"\n")
    with contextlib.suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(terminal, 1024):
            shown += piece
    os.close(terminal)
    assert os.waitpid(process, 0)[1] == 0
    assert SECRET.encode() not in shown and b"give it to the other sites" in shown
    content = (tmp_path / "k").read_bytes()
    opened = passphrase.unseal(content, Path("k"), kind="shared", passphrase=SECRET.encode())
    assert opened.startswith(b"confide-key-1 ")


def test_a_verb_without_a_terminal_says_what_to_set(tmp_path):
    for words in (
        ("key", "new", tmp_path / "k", "--passphrase"),
        ("consortium", "init", "t", "--site", "a", "--host", "h", "--out", tmp_path / "t",
         "--passphrase"),
    ):  # fmt: skip
        code, said = call(*words)
        assert code == 2 and VARIABLE in said
    assert not list(tmp_path.iterdir())


def test_a_passphrase_is_no_argument(tmp_path):
    code, _ = call("key", "new", tmp_path / "k", f"--passphrase={SECRET}")
    assert code == 2 and not (tmp_path / "k").exists()


# --- a site -------------------------------------------------------------------------------


def test_a_site_with_an_encrypted_key_is_set_up_and_starts_only_with_its_passphrase(
    copied, tmp_path, monkeypatch
):
    kit = copied.kit("north")
    settings = tiny(tmp_path)
    site = settings.site[0].model_copy(update={"name": "north"})
    files = write_site_files(tmp_path / "homes", settings.model_copy(update={"site": (site,)}))
    protected = Path(str(settings.key))
    protected.unlink()
    new_key(protected, passphrase=SECRET.encode())
    with pytest.raises(LockedKeyError, match=VARIABLE):
        setup_site(kit, files["north"])
    know(monkeypatch, tmp_path)
    setup_site(kit, files["north"])
    monkeypatch.setattr(keys, "_OPENED", {})  # the next command is another process
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(LockedKeyError) as caught:
        processes.start(kit)
    assert "to the path of a file with the passphrase" in str(caught.value)
    assert str(protected) in str(caught.value)
    assert not processes.lives(kit)
    know(monkeypatch, tmp_path, "another passphrase of ours")
    with pytest.raises(LockedKeyError, match="does not open the key"):
        processes.start(kit)
    know(monkeypatch, tmp_path)
    processes._check(kit)


def test_the_processes_find_the_passphrase_from_their_own_folder(founded, tmp_path, monkeypatch):
    know(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "passphrase")
    given = processes._environment(founded.kit("north"))
    assert given[VARIABLE] == str(tmp_path / "passphrase")
    assert SECRET not in "".join(given.values())
