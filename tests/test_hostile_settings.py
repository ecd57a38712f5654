"""Settings that attack their reader: always a SettingsError, with the file and what to do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cases import each
from confide.errors import ConfideError, KitError, MissingDataError, SettingsError
from confide.flare.kit import open_consortium, open_kit
from confide.settings import load_settings, load_site, parse
from confide.settings.reading import parse_assignment
from confide.settings.sitefile import load_consent
from confide.settings.toml import MOST_BYTES, parse_toml

READERS = {"settings": load_settings, "site": load_site, "consent": load_consent}
ATTACKS = {
    "brackets": ("a = " + "[" * 5000, "nested more than 32 deep"),
    "closed brackets": ("a = " + "[" * 40 + "]" * 40, "nested more than 32 deep"),
    "inline tables": ("a = " + "{a = " * 5000, "nested more than 32 deep"),
    "dotted key": ("a" + ".a" * 5000 + " = 1", "nested more than 32 deep"),
    "dotted table": ("[" + "a . " * 100_000 + "a]", "nested more than 32 deep"),
    "short dotted key": ("a" + ".a" * 40 + " = 1", "nested more than 32 deep"),
    "digits": ("rounds = " + "9" * 5000, "not TOML: Exceeds the limit"),
    "hexadecimal digits": ("rounds = 0x" + "f" * 9000, "more than 64 bits"),
    "control character": ('name = "a\\u001b[2J"', "holds the control character U\\+001B"),
    "NUL in extends": ('extends = "\\u0000"', "control character U\\+0000"),
    "raw control character": ('name = "\x00"', "not TOML"),
    "long key": ("a" * 5000 + " = 1", "a key has 5,000 characters"),
    "ten megabytes": ("# \n" * (MOST_BYTES // 3 + 1), "larger than 512 KiB"),
    "ten thousand lists": ("a = [" + "[]," * 100_000 + "]", ""),
}


def refused(act: Callable[[], object], kind: type[ConfideError] = SettingsError) -> ConfideError:
    """The refusal: in less than two seconds of the processor, short, printable, with a remedy."""
    start = time.process_time()
    with pytest.raises(kind) as caught:
        act()
    assert time.process_time() - start < 6.0  # on a busy machine
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 1500
    return caught.value


@each("name", READERS)
@each("attack", ATTACKS)
def test_a_file_that_attacks(tmp_path: Path, name: str, attack: str) -> None:
    text, said = ATTACKS[attack]
    path = tmp_path / "s.toml"
    path.write_text(text)
    error = refused(lambda: READERS[name](path))
    assert error.where == str(path)
    if said:
        assert error.fix
        with pytest.raises(SettingsError, match=said):
            READERS[name](path)


@each("name", READERS)
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    """A named pipe was waited for, and a device read, for ever."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    for path, said in (
        (tmp_path / "pipe", "a named pipe, not a file"),
        (tmp_path / "zero", "a device, not a file"),
        (tmp_path, "a folder, not a file"),
        (tmp_path / "loop", "cannot be read"),
        (tmp_path / ("x" * 300), "cannot be read"),
        (Path("a\0b"), "cannot be read"),
    ):
        assert said in refused(lambda path=path: READERS[name](path)).what
    refused(lambda: READERS[name](tmp_path / "none"), MissingDataError)


def test_files_that_extend_each_other(tmp_path: Path) -> None:
    def write(name: str, below: str) -> Path:
        (tmp_path / name).write_text(f'extends = "{below}"\n')
        return tmp_path / name

    write("b.toml", "./c.toml")
    write("c.toml", f"../{tmp_path.name}/a.toml")
    assert "in a circle" in refused(lambda: load_settings(write("a.toml", "b.toml"))).what
    assert "in a circle" in refused(lambda: load_settings(write("a.toml", "a.toml"))).what
    (tmp_path / "link.toml").symlink_to("a.toml")
    assert "in a circle" in refused(lambda: load_settings(write("a.toml", "link.toml"))).what
    for number in range(9):
        write(f"{number}.toml", f"{number + 1}.toml")
    assert "more than 4 files extend" in refused(lambda: load_settings(tmp_path / "0.toml")).what
    for below, said in (("/dev/zero", "a device"), ("", "not the name"), ("..", "a folder")):
        error = refused(lambda below=below: load_settings(write("a.toml", below)))
        assert said in error.what
        assert "a.toml" in str(error)
    (tmp_path / "d.toml").write_text("training = 3\n")
    (tmp_path / "a.toml").write_text('extends = "d.toml"\n[training]\nbatch = 2\n')
    assert "does not fit" in refused(lambda: load_settings(tmp_path / "a.toml")).what


def test_a_wrong_value_is_not_repeated_whole() -> None:
    error = refused(lambda: parse({"rounds": "\x1b[2J" + "x" * 100_000}))
    assert "rounds is wrong" in str(error)
    error = refused(lambda: parse({"schema": 10**4000}))
    assert "is newer than this confide" in str(error)
    assert len(str(error)) < 300


def test_overrides() -> None:
    refused(lambda: parse_assignment("a" + ".a" * 400 + "=1"))
    refused(lambda: parse_assignment("[" * 5000))
    refused(lambda: parse({}, ["site.\u00b2.name=x"]))
    deep = "[" * 5000
    assert parse_assignment(f"name={deep}") == (["name"], deep)


@each("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "#" * MOST_BYTES * 2])
def test_settings_that_a_lead_sends_to_a_site(text: str) -> None:
    """The one error that a site turns into a refusal, `bad-ask`."""
    with pytest.raises(SettingsError):
        parse_toml(text)


def test_what_settings_say_stays() -> None:
    text = 'a = "line\\nand\\ttab"\nb = 0x7fffffffffffffff\nc.d.e = [[1]]\n# a.b.c\n'
    plain = {"a": "line\nand\ttab", "b": 2**63 - 1, "c": {"d": {"e": [[1]]}}}
    assert parse_toml(text) == plain


KIT = {
    **dict.fromkeys(("name", "consortium", "host", "identity", "user"), "north"),
    "schema": 1,
    "port": 8002,
    "kind": "site",
}


@each(
    "raw",
    [
        "[" * 100_000,
        '{"schema": ' + "9" * 5000 + "}",
        json.dumps(KIT | {"port": [1]}),
        json.dumps(KIT | {"port": True}),
        json.dumps(KIT | {"name": {}}),
        json.dumps(KIT | {"host": "a\x1b[2J"}),
        json.dumps(KIT | {"kind": ["site"]}),
        json.dumps(list(KIT)),
        " " * (1 << 21),
        "\udcff",
    ],
)
def test_a_kit_whose_description_attacks(tmp_path: Path, raw: str) -> None:
    (tmp_path / "local").mkdir()
    path = tmp_path / "local" / "confide.json"
    path.write_bytes(raw.encode("utf-8", "surrogateescape"))
    assert refused(lambda: open_kit(tmp_path), KitError).where == str(path)
    path.unlink()
    os.mkfifo(path)
    assert refused(lambda: open_kit(tmp_path), KitError).where == str(path)


@each("more", ["port = [1]", "sites = [1]", 'sites = "north"', 'host = "a\\u001b"', "days = true"])
def test_a_consortium_whose_file_attacks(tmp_path: Path, more: str) -> None:
    lines = {"schema": "1", "name": '"n"', "host": '"h"', "port": "1", "lead": '"l"',
             "sites": '["a"]', "days": "1.0"}  # fmt: skip
    key, _, value = more.partition(" = ")
    path = tmp_path / "consortium.toml"
    path.write_text("".join(f"{name} = {said}\n" for name, said in lines.items()))
    assert open_consortium(tmp_path).sites == ("a",)
    lines[key] = value
    path.write_text("".join(f"{name} = {said}\n" for name, said in lines.items()))
    assert refused(lambda: open_consortium(tmp_path), KitError).where == str(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert refused(lambda: open_consortium(tmp_path), KitError).where == str(path)
