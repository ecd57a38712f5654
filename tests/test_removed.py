"""What is said to somebody who still writes a name that confide had once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cases import each
from confide import api
from confide.cli.verbs import app
from confide.errors import SettingsError
from confide.methods import METHODS
from confide.removed import FUNCTIONS, VERBS
from confide.settings import Settings, load_settings, parse
from confide.settings.upgrade import REMOVED

SITES: dict[str, Any] = {"site": [{"name": "north", "train": "n.conll"}]}
FEDED = {"task": "re", "method": "feded"}


def refused(tree: dict[str, Any], *overrides: str) -> str:
    """What is said of settings, by the method that they name or by their tables."""
    with pytest.raises(SettingsError) as caught:
        settings = parse({**SITES, **tree}, overrides)
        METHODS[settings.trained_by](settings)
    return str(caught.value)


@each(
    ("named", "tree", "override"),
    [
        ('federation.sums = "integers"', {}, "federation.sums=integers"),
        ('task = "text"', {}, "task=text"),
        ("denoising", {}, "denoising.masked=0.2"),
        ("options.download", FEDED, "options.download=difference"),
        ("options.label_share", FEDED, "options.label_share=0.5"),
        ("options.label_decay", FEDED, "options.label_decay=0.5"),
        ("options.distil_on", FEDED, "options.distil_on=rest"),
        ("options.adversary", {"method": "pseudo-complete"}, "options.adversary=dann"),
        ("options.reversal", {"method": "pseudo-complete"}, "options.reversal=0.5"),
        ("options.sparse", {"method": "fedner"}, "options.sparse=true"),
        ("options.wire_dtype", {"method": "fedner"}, "options.wire_dtype=float16"),
    ],
)
def test_a_removed_setting_says_what_to_do_instead(
    named: str, tree: dict[str, Any], override: str
) -> None:
    said = refused(tree, override)
    assert REMOVED[named] in said
    assert "is no longer a setting" in said


def test_other_wrong_values_are_told_as_ever() -> None:
    assert "no longer" not in refused({}, "federation.sums=whole")
    assert "no longer" not in refused({}, "federation.bums=integers")


def test_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('task = "text"\n')
    with pytest.raises(SettingsError, match=r"settings\.toml: .*task = 'text' is no longer"):
        load_settings(file)


def test_nothing_that_there_is_counts_as_removed() -> None:
    assert not {*REMOVED} & {*Settings.model_fields}
    assert not {*FUNCTIONS} & {*dir(api)}
    assert not {*VERBS} & {one.name for one in app.registered_groups}


@each("words", [["pretrain", "notes", "--out", "bart"], ["pretrain", "--help"]])
def test_a_removed_verb_says_what_to_do_instead(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "confide pretrain was removed" in done.output
    assert "small_bart.py" in done.output.replace("\n", " ")


@each("name", sorted(FUNCTIONS))
def test_a_removed_function_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(api, name)
    assert str(caught.value).endswith(f"{name} was removed: {FUNCTIONS[name]}")
