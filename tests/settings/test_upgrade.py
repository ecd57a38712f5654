"""Settings of release 0.2: refused with the command that rewrites them, and rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from confide.cli.verbs import app
from confide.errors import SettingsError
from confide.settings import Settings, load_settings, parse
from confide.settings.reading import _table
from confide.settings.toml import parse_toml
from confide.settings.upgrade import RENAMED, upgraded, upgraded_text

OLD = """\
# Three sites that annotate differently
name = "north and south"   # about knows = 3
task = "re"
method = "feded"
at_once = 4
site = [
  { name = "a", train = "k", knows = ["A"], test_knows = ["B"] },  # knows = 5
]
options = { past = 0.5, hold_out=0.25, most = 3.0 }
training.outside = "open"   # outside

[classifier]
longest = 33
typed = true # typed
[federation]
down = 'once'
[when.pooled]
training = { moments = "kept", outside = 1 }
[when.alone.training]
moments = "fresh"
[vocabulary]
"how" = "lower"
"""
NEW = """\
# Three sites that annotate differently
schema = 2
name = "north and south"   # about knows = 3
task = "re"
method = "feded"
micro_batch_size = 4
site = [
  { name = "a", train = "k", annotates = ["A"], test_annotates = ["B"] },  # knows = 5
]
options = { past_weight = 0.5, holdout_share=0.25, max_logit = 3.0 }
training.unannotated_types = "ignore"   # outside

[classifier]
max_length = 33
typed_markers = true # typed
[federation]
down = "cached"
[when.pooled]
training = { optimiser_state = "keep", unannotated_types = 1 }
[when.alone.training]
optimiser_state = "reset"
[vocabulary]
"normalise" = "lower"
"""


def test_a_file_is_rewritten_with_its_comments() -> None:
    text, changes = upgraded_text(OLD)
    assert text == NEW
    assert "federation.down = 'once' -> federation.down = 'cached'" in changes
    assert "site.knows -> site.annotates" in changes
    assert upgraded_text(OLD.replace("task =", "schema = 1\ntask ="))[0].count("schema") == 1
    assert parse(parse_toml(NEW)).site[0].test_annotates == ("B",)


def test_unusual_keys_lose_their_comments_and_nothing_else() -> None:
    text, changes = upgraded_text('"at\\u005fonce" = 4  # the batch\n')
    assert parse_toml(text) == {"schema": 2, "micro_batch_size": 4}
    assert changes == ["at_once -> micro_batch_size", "all comments are lost"]


def test_every_new_name_is_a_key_and_no_old_one_is() -> None:
    for old, (new, values) in RENAMED.items():
        table, _, last = old.rpartition(".")
        if table != "options":
            fields = _table((table, ""), Settings).model_fields
            assert new in fields and (values or last not in fields), old


def test_options_of_other_methods_stay() -> None:
    tree = {"method": "mine", "options": {"most": 3}, "when": {"feded": {"options": {"most": 4}}}}
    options, when = {"most": 3}, {"feded": {"options": {"max_logit": 4}}}
    found = {"method": "mine", "options": options, "when": when, "schema": 2}
    assert upgraded(tree)[0] == found


def test_old_settings_are_refused_with_the_command(tmp_path: Path) -> None:
    file = tmp_path / "old.toml"
    file.write_text(f"schema = 1\n{OLD}")
    with pytest.raises(SettingsError, match=rf"schema 1.*confide settings upgrade {file}"):
        load_settings(file)
    (tmp_path / "above.toml").write_text('schema = 2\nextends = "old.toml"\n')
    with pytest.raises(SettingsError, match=r"upgrade .*old\.toml"):
        load_settings(tmp_path / "above.toml")
    with pytest.raises(SettingsError, match="confide settings upgrade FILE"):
        parse({"schema": 1})
    for override, wanted in (
        ("training.outside=1", "write training.unannotated_types;"),
        ("at_once=3", "write micro_batch_size;"),
        ("site.0.knows=[]", "write site.0.annotates;"),
        ("federation.down=once", 'write "cached";'),
    ):
        with pytest.raises(SettingsError, match=r"no longer a setting.*confide settings") as caught:
            parse({"site": [{"name": "a", "train": "b"}]}, [override])
        assert wanted in str(caught.value)


def test_the_verb(tmp_path: Path) -> None:
    file, runner = tmp_path / "old.toml", CliRunner()
    file.write_text(OLD)
    done = runner.invoke(app, ["settings", "upgrade", str(file)])
    assert done.exit_code == 0 and "site.knows -> site.annotates" in done.output
    assert (tmp_path / "old.schema2.toml").read_text() == NEW and file.read_text() == OLD
    assert runner.invoke(app, ["settings", "upgrade", str(file)]).exit_code == 2  # it is there
    assert runner.invoke(app, ["settings", "upgrade", str(file), "--in-place"]).exit_code == 0
    assert file.read_text() == NEW
    again = runner.invoke(app, ["settings", "upgrade", str(file)])
    assert again.exit_code == 2 and "need no upgrade" in again.output
