"""What is said to somebody who still writes a name that confide had once."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from confide import api
from confide.cli.verbs import app
from confide.errors import SettingsError
from confide.removed import FUNCTIONS, SETTINGS, UNREAD, VALUES, VERBS
from confide.settings import Settings, load, parse

SITE = {"name": "north", "train": "n.conll"}


@pytest.mark.parametrize(("key", "value"), sorted(VALUES))
def test_a_removed_value_says_what_to_do_instead(key: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse({key: value, "site": [SITE]})
    assert f"{key} = {value!r} was removed" in str(caught.value)
    assert VALUES[key, value] in str(caught.value)


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_a_removed_table_or_key_says_what_to_do_instead(key: str) -> None:
    for tree, more in (({}, [f"{key}.any=1"]), ({key: {"any": 1}}, [])):
        with pytest.raises(SettingsError) as caught:
            parse({"site": [SITE], **tree}, more)
        assert f"{key} was removed" in str(caught.value)
        assert SETTINGS[key] in str(caught.value)


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('task = "text"\n')
    with pytest.raises(SettingsError, match=r"settings\.toml: task = 'text' was removed"):
        load(file)


def test_the_settings_of_an_older_run_are_read() -> None:
    """They state each setting of then, read or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse({"site": [SITE], **UNREAD}) == parse({"site": [SITE]})
    other = {"denoising": {**UNREAD["denoising"], "masked": 0.1}}
    with pytest.raises(SettingsError, match="denoising was removed"):
        parse({"site": [SITE], **other})


def test_nothing_that_there_is_counts_as_removed() -> None:
    assert not {*SETTINGS, *UNREAD} & {*Settings.model_fields}
    assert not {*FUNCTIONS} & {*api.__all__}
    assert not {*VERBS} & {one.name for one in app.registered_groups}


@pytest.mark.parametrize("words", [["pretrain", "notes", "--out", "bart"], ["pretrain", "--help"]])
def test_a_removed_verb_says_what_to_do_instead(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "confide pretrain was removed" in done.output
    assert "small_bart.py" in done.output.replace("\n", " ")


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_removed_function_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(AttributeError, match=f"{name} was removed: .*small_bart"):
        getattr(api, name)
