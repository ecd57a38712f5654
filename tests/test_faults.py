"""Bad input and bad luck, from end to end: each ends in words, or in a run that goes on."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide.errors import (
    CheckpointError,
    ConfideError,
    DataError,
    FederationError,
    FormatError,
    LockedKeyError,
    MissingDataError,
    QuorumError,
)
from confide.federation import keys
from confide.federation import keys as passphrase
from confide.federation.keys import new_key
from confide.jobs.predict import predict
from confide.runs.folder import RunFolder
from confide.runs.loading import release
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import sentences, tiny, write_conll, write_sites
from contract.runs import Straight, same_run, states, stopping_at


def spoiled(folder: Path, spoil: Callable[[Path], Any], *overrides: str) -> Any:
    """Settings of three sites, the training file of the second of which was changed."""
    tables = write_sites(folder / "data", 3)
    spoil(Path(tables[1]["train"]))
    return tiny(folder, *overrides, site=tables)


# --- files ----------------------------------------------------------------------------


@each(
    ("spoil", "kind", "words"),
    [
        (lambda path: path.unlink(), MissingDataError, r"site-2/train\.conll"),
        (lambda path: path.write_text(""), DataError, r"site-2"),
        (lambda path: path.write_text("\n\n"), DataError, r"site-2"),
        (lambda path: path.write_text("a\tQ-X\n"), FormatError, r"train\.conll:1"),
        (lambda path: path.write_text("a\tB-Drug\nb\n"), FormatError, r"train\.conll:2"),
        (lambda path: path.write_bytes(b"a\tO\n\xff\xfe\xfd\tO\n"), FormatError, r"train\.conll:2"),
    ],
)
def test_a_bad_file_stops_the_run_before_it_begins(
    tmp_path: Path, spoil: Callable[[Path], Any], kind: type[ConfideError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        run(spoiled(tmp_path, spoil), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_offsets_beyond_the_text_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    tables = write_sites(tmp_path / "data", 2)
    path = tmp_path / "notes.jsonl"
    lines = [{"text": "took aspirin today .", "label": [[5, 12, "Drug"], [15, 99, "Effect"]]}]
    path.write_text("\n".join(map(json.dumps, lines * 3)))
    tables[1] = {"name": "site-2", "train": str(path), "test": str(path), "format": "jsonl"}
    found = run(tiny(tmp_path, "rounds=1", site=tables), out=tmp_path / "run").result
    facts = found.data.sites["site-2"]
    assert facts.entities["Drug"] == found.scores.sites["site-2"]["strict"]["support"]
    assert sum(facts.problems.values()) == 6  # train and test


def test_a_tag_outside_the_declared_set_is_refused(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "data.types=['Drug']")
    with pytest.raises(DataError, match=r"expected Drug; got 'Effect'"):
        run(settings, out=tmp_path / "run")


@pytest.mark.slow
def test_a_line_of_50000_tokens_is_trained_on_and_scored(tmp_path: Path) -> None:
    """In windows, so that memory stays small; every entity of it is still gold."""
    long: list[tuple[str, str]] = []
    count = 0
    while len(long) < 50_000:
        long += sentences("site-1", f"part {count}", 1)[0]
        count += 1
    tables = write_sites(tmp_path / "data", 2, train=4, held_out=2)
    for part in ("train", "test"):
        write_conll(Path(tables[0][part]), [long])
    settings = tiny(tmp_path, "rounds=1", "training.batch_size=32", site=tables)
    found = run(settings, out=tmp_path / "run").result
    gold = sum(tag.startswith("B-") for _, tag in long)
    assert found.scores.sites["site-1"]["strict"]["support"] == gold
    assert found.data.sites["site-1"].train == 1


def test_a_site_with_no_entity_takes_part(tmp_path: Path) -> None:
    def bare(path: Path) -> None:
        text = path.read_text()
        path.write_text("\n".join(line.split("\t")[0] + "\tO" if line else "" for line in
                                  text.split("\n")))  # fmt: skip

    found = run(spoiled(tmp_path, bare, "data.scheme=iob2"), out=tmp_path / "run").result
    assert found.data.sites["site-2"].entities == {}
    assert found.history[-1].failed == {}
    assert sorted(found.scores.sites) == ["site-1", "site-2", "site-3"]


def test_a_site_with_a_single_sentence_takes_part(tmp_path: Path) -> None:
    tables = write_sites(tmp_path / "data", 2)
    lonely = write_conll(tmp_path / "one.conll", sentences("site-1", "train", 1))
    tables[1] = {"name": "site-2", "train": str(lonely)}
    found = run(tiny(tmp_path, site=tables), out=tmp_path / "run").result
    facts = found.data.sites["site-2"]
    assert (facts.train, facts.dev, facts.test) == (1, 0, 0)
    assert found.scores.sites["site-2"]["sentences"] == 0
    assert found.scores.overall["sentences"] == 6


def test_a_site_may_refuse_by_its_own_guards(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "guards.min_sentences=30")
    with pytest.raises(QuorumError, match="fewer training sentences than its own guard"):
        run(settings, out=tmp_path / "run")
    settings = tiny(tmp_path, "guards.max_rounds=1")
    with pytest.raises(QuorumError, match=r"round 2: .*guard `max_rounds` is reached"):
        run(settings, out=tmp_path / "again")
    assert RunFolder(tmp_path / "again").store().rounds() == [1]


# --- keys -----------------------------------------------------------------------------


def test_a_missing_key_is_told_by_the_site(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "site.1.key=/nowhere/own.key")
    with pytest.raises(QuorumError, match=r"site-2.*the site has no key") as caught:
        run(settings, out=tmp_path / "run")
    assert "nowhere" not in str(caught.value)  # where a site keeps its key is its own affair


@each("content", ["", "confide-key-1 abcd\n", "not a key\n"])
def test_a_bad_key_is_told_by_the_site(tmp_path: Path, content: str) -> None:
    bad = tmp_path / "bad.key"
    bad.write_text(content)
    with pytest.raises(QuorumError, match=r"site-2.*the site has no key"):
        run(tiny(tmp_path, f"site.1.key={bad}"), out=tmp_path / "run")


def test_a_different_key_is_named_before_a_word_is_counted(tmp_path: Path) -> None:
    odd = new_key(tmp_path / "odd.key")
    with pytest.raises(FederationError, match="the key of site-2 differs from that of the other"):
        run(tiny(tmp_path, f"site.1.key={odd}"), out=tmp_path / "run")
    assert not list((tmp_path / "run" / "sites").glob("*/memory/*.memory"))


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings whose shared key is encrypted; nobody is at a terminal."""
    monkeypatch.setattr(passphrase, "LEAST_COST", 2**4)
    monkeypatch.setattr(passphrase, "COST", 2**4)
    monkeypatch.setattr(keys, "_OPENED", {})
    monkeypatch.setenv(passphrase.VARIABLE, str(tmp_path / "passphrase"))
    (tmp_path / "passphrase").write_text("five words that nobody joins")
    (tmp_path / "passphrase").chmod(0o600)
    settings = tiny(tmp_path)
    keys.protect_key(Path(str(settings.key)))
    return settings


@pytest.mark.parametrize("workers", [1, 2])
def test_an_encrypted_key_stops_a_run_before_it_begins(
    sealed: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Or somebody would be asked by a worker, or in the middle of the night."""
    asked: list[str] = []

    def ask(prompt: str, path: Path, *, otherwise: str) -> str:
        asked.append(prompt)
        raise passphrase._unasked(otherwise, path)

    monkeypatch.setattr(passphrase, "_asked", ask)
    monkeypatch.delenv(passphrase.VARIABLE)
    settings = sealed.model_copy(update={"workers": workers})
    with pytest.raises(LockedKeyError, match=passphrase.VARIABLE):
        run(settings, out=tmp_path / "run")
    assert not (tmp_path / "run" / "settings.toml").exists()
    assert len(asked) == (workers == 1)


def test_a_model_with_an_encrypted_key_needs_its_passphrase(
    sealed: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(sealed, out=tmp_path / "run")
    text = [sealed.site[0].test[0]]
    assert predict(tmp_path / "run", text)
    monkeypatch.setattr(keys, "_OPENED", {})
    (tmp_path / "passphrase").write_text("another passphrase of ours")
    with pytest.raises(LockedKeyError, match="does not open the key"):
        predict(tmp_path / "run", text)
    with pytest.raises(LockedKeyError, match="does not open the key"):
        release(tmp_path / "run", out=tmp_path / "out", key=Path(str(sealed.key)))


def test_a_key_that_stays_shut_is_told_by_the_site_without_its_place(
    sealed: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confide.runs.run.unlock", lambda *_, **__: None)
    (tmp_path / "passphrase").write_text("another passphrase of ours")
    with pytest.raises(QuorumError, match="its passphrase is wrong or missing") as caught:
        run(sealed, out=tmp_path / "run")
    assert str(tmp_path) not in str(caught.value) and "of ours" not in str(caught.value)


# --- the disk -------------------------------------------------------------------------


def filling_up(monkeypatch: pytest.MonkeyPatch, name: str, after: int) -> None:
    """From the n-th write of a file whose path holds `name` the disk is full."""
    from confide import files
    from confide.federation import memory
    from confide.federation import memory as checkpoints

    seen: list[Path] = []
    real = files.write_atomically

    def write(path: Path, *parts: bytes) -> None:
        if name in str(path):
            seen.append(path)
            if len(seen) > after:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, *parts)

    for module in (checkpoints, files, memory):
        monkeypatch.setattr(module, "write_atomically", write)


@pytest.mark.parametrize(
    ("name", "after", "kind", "words"),
    [
        (".ckpt", 0, CheckpointError, "checkpoint of round 1 could not be written"),
        (".ckpt", 2, CheckpointError, "checkpoint of round 3 .*that of round 2 is safe.*--resume"),
        (".memory", 1, QuorumError, "site-2.*no space left on its disk"),
        ("result.json", 0, ConfideError, r"result\.json could not be written.*--resume"),
        ("errors.json", 1, ConfideError, r"errors\.json could not be written"),
        ("settings.toml", 0, ConfideError, "could not be written"),
    ],
)
def test_a_full_disk_is_told_and_the_run_resumes_to_the_same_numbers(
    tmp_path: Path,
    straight: Callable[..., Straight],
    name: str,
    after: int,
    kind: type[ConfideError],
    words: str,
) -> None:
    settings, whole = (one := straight("rounds=3")).settings, one.folder
    with pytest.MonkeyPatch.context() as patch:
        filling_up(patch, name, after)
        with pytest.raises(kind, match=words):
            run(settings, out=tmp_path / "run")
    out = tmp_path / "run"
    if name == ".ckpt":
        assert RunFolder(out).store().rounds() == list(range(1, after + 1))
    run(settings, out=out, resume=(out / "settings.toml").exists())
    same_run(whole, out)


# --- checkpoints ----------------------------------------------------------------------


def stopped(folder: Path) -> tuple[Any, Path]:
    """A run that stopped in its third round."""
    settings = tiny(folder, "rounds=3")
    events: list[Any] = []
    run(settings, out=folder / "straight", on_event=events.append)
    third = next(n for n, event in enumerate(events) if event.kind == "ask" and event.round == 3)
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=folder / "run", on_event=stopping_at(third))
    return settings, folder / "run"


def test_a_tampered_checkpoint_is_refused_and_an_older_one_goes_on(tmp_path: Path) -> None:
    settings, out = stopped(tmp_path)
    store = RunFolder(out).store()
    assert store.rounds() == [1, 2]
    path = store.path(2)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match=r"damaged or was changed.*delete the file to cont"):
        run(settings, out=out, resume=True)
    path.unlink()
    run(settings, out=out, resume=True)
    same_run(tmp_path / "straight", out)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    settings, out = stopped(tmp_path)
    other = run(tiny(tmp_path, "seed=9"), out=tmp_path / "other").folder
    path = RunFolder(out).store().path(2)
    path.write_bytes(RunFolder(other).store().path(2).read_bytes())
    with pytest.raises(CheckpointError, match="other settings or other data"):
        run(settings, out=out, resume=True)


def test_a_ledger_that_was_lost_is_not_made_up(tmp_path: Path) -> None:
    settings, out = stopped(tmp_path)
    (out / "ledger.jsonl").unlink()
    with pytest.raises(ConfideError, match="a part of the ledger is missing"):
        run(settings, out=out, resume=True)


def test_a_site_that_lost_its_memory_says_so(tmp_path: Path) -> None:
    settings, out = stopped(tmp_path)
    before = states(out)
    for path in (out / "sites" / "site-3" / "memory").iterdir():
        path.unlink()
    with pytest.raises(QuorumError, match=r"site-3.*no memory of this run"):
        run(settings, out=out, resume=True)
    assert states(out) == before
