"""Settings: read strictly, explained in words, written so that they read back the same."""

from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import each
from confide.errors import MissingDataError, SettingsError
from confide.methods import METHODS, method_named, method_of
from confide.recipes import recipe_path
from confide.recipes import recipes as known_recipes
from confide.settings import Settings, anchored, dump, load_settings, nearest, own_settings, parse
from confide.settings import Table as SettingsTable

SITE = {"name": "north", "train": "n.conll"}
SPLIT = {"sites": 2, "train": "x"}
SHORT: dict[str, Any] = {"site": [SITE]}


def test_a_short_file_trains_a_tagger_by_averaging() -> None:
    found = parse(SHORT)
    assert (found.method, found.kind, found.trained_by) == ("fedavg", "tagger", "fedavg-tagger")
    assert (found.seed, found.training.optimiser) == (1, "adam")
    assert found.site[0].train == ("n.conll",)
    assert found.federation.at_least == 0
    assert parse({}) == Settings()  # a default of this stands in one place


@each("name", ["ncbi-iid10-paper", "conll2003-iid10"])
def test_the_papers_settings_stand_in_their_recipes(name: str) -> None:
    """Luboshnikov & Makarov 2020, section 4, with the sizes of Ma & Hovy 2016."""
    found = load_settings(recipe_path(name))
    training = found.training
    assert (training.optimiser, training.learning_rate, training.momentum) == ("sgd", 0.015, 0.9)
    assert (training.decay, training.batch_size, training.local_epochs) == (0.95, 10, 10)
    assert (found.model.bilstm_hidden, found.model.character_filters) == (200, 30)


@each("method", ["fedner", "dp-fedsgd", "dp-fedner", "feded"])
def test_methods_with_settings_of_their_own_keep_them(method: str) -> None:
    """Those of averaging by whole passes are not for them."""
    found = parse({**SHORT, "method": method})
    assert found.model.bilstm_hidden == 200
    assert found.training.word_dropout == 0.05


@each(("given", "most"), [("", None), ("inf", None), ("2", 2.0), ("0.5", 0.5)])
def test_a_site_that_names_no_bound_or_an_endless_one_has_none(given: str, most: Any) -> None:
    found = parse(SHORT, [f"guards.max_norm={given}"] if given else [])
    assert found.guards.max_norm == most
    assert ("max_norm" in dump(found)) == (most is not None)
    assert parse(tomllib.loads(dump(found))) == found


@each(
    ("tree", "words"),
    [
        ({"rouns": 3}, r"unknown key 'rouns'; to fix it, did you mean 'rounds'\?"),
        ({"qqqq": 3}, r"unknown key 'qqqq'; to fix it, use one of "),
        ({"training": {"learning_rat": 1}}, r"'training.learning_rat'.*'learning_rate'"),
        ({"model": {"bilstm_hiden": 1}}, r"'model.bilstm_hiden'.*'bilstm_hidden'"),
        ({"site": [{**SITE, "trian": "x"}]}, r"'site.0.trian'.*'train'"),
        ({"split": {"sites": 2, "train": "x", "seeed": 1}}, r"'split.seeed'.*'seed'"),
        ({"rounds": 0}, "rounds is wrong"),
        ({"rounds": "many"}, "rounds is wrong.*'many'"),
        ({"rounds": 1.5}, "rounds is wrong"),
        ({"federation": {"fraction": 0}}, "federation.fraction is wrong"),
        ({"federation": {"fraction": 1.1}}, "federation.fraction is wrong"),
        ({"federation": {"at_least": -1}}, "federation.at_least is wrong"),
        ({"guards": {"max_norm": 0}}, "guards.max_norm is wrong"),
        ({"guards": {"max_norm": float("nan")}}, "guards.max_norm is wrong"),
        ({"model": {"dropout": 1.0}}, "model.dropout is wrong"),
        ({"model": {"character": "rnn"}}, "model.character is wrong.*'cnn'"),
        ({"training": {"optimiser": "lion"}}, "training.optimiser is wrong.*'sgd'"),
        ({"training": 3}, "training is wrong"),
        ({"task": "parsing"}, "task is wrong"),
        ({"site": [{"name": "a/b", "train": "x"}]}, "site.0.name is wrong"),
        ({"site": [{"name": "..", "train": "x"}]}, "site.0.name is wrong"),
        ({"site": [{"name": "north"}]}, "site.0.train is missing"),
        ({"site": [SITE, SITE]}, "two sites are called 'north'"),
        (
            {"site": [SITE], "split": {"sites": 2, "train": "x"}},
            r"either \[\[site\]\] tables or one \[split\] table",
        ),
        ({"split": {"sites": 2, "train": "x"}}, "table, not both"),
        ({"device": "auto", "devices": ["cuda:0"]}, "give either device or devices, not both"),
        ({"split": {**SPLIT, "by": "attribute"}}, "needs the attribute's name"),
        ({"split": {**SPLIT, "attribute": "ward"}}, 'attribute is for split.by = "attribute"'),
        ({"devices": ["cuda:0", "cuda:1"]}, "workers = 1 leave some of the 2 devices idle"),
        ({"devices": ["cuda:0", "meta"]}, "devices.1 is wrong"),
        ({"schema": 3}, "schema 3 is newer than this confide, which reads schema 2"),
    ],
)
def test_what_is_wrong_is_said_in_words(tree: dict[str, Any], words: str) -> None:
    if "split" in tree and "seeed" in tree["split"]:
        tree = {"site": [], **tree}
    with pytest.raises(SettingsError, match=words):
        parse({**SHORT, **tree})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
KEYS = st.sampled_from([*Settings.model_fields, "schema", "other"])


@given(st.dictionaries(KEYS, JSON, max_size=4))
def test_no_tree_does_more_than_be_refused(tree: dict[str, Any]) -> None:
    with contextlib.suppress(SettingsError):
        parse({**SHORT, **tree})


@given(st.lists(st.text(max_size=12) | st.builds("{}={}".format, KEYS, st.text(max_size=6))))
def test_no_override_does_more_than_be_refused(overrides: list[str]) -> None:
    with contextlib.suppress(SettingsError):
        parse(SHORT, overrides)


# --- overrides, references, methods -------------------------------------------------------------


def test_overrides_go_before_the_file() -> None:
    found = parse(
        {**SHORT, "rounds": 3},
        ["rounds=5", "training.optimiser=adam", "data.types=['A', 'B']", "site.0.scheme=iob2",
         "name = with words", "site.0.tags.X=", "training.decay=1"],
    )  # fmt: skip
    assert (found.rounds, found.training.optimiser) == (5, "adam")
    assert found.data.types == ("A", "B")
    assert found.site[0].scheme == "iob2"
    assert found.site[0].tags == {"X": ""}
    assert found.name == "with words"
    assert found.training.decay == 1.0


@each("text", ["rounds", "=3", "rounds.deep=3", "site.7.name=x", "site.x=3"])
def test_an_override_that_fits_nowhere_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse({**SHORT, "rounds": 3}, [text])


def test_references_have_settings_of_their_own() -> None:
    when = {"alone": {"rounds": 9, "training": {"decay": 0.5}}, "pooled": {"rounds": 7}}
    tree = {**SHORT, "rounds": 3, "when": when}
    assert parse(tree).rounds == 3
    alone = parse(tree, ["method=alone"])
    assert (alone.rounds, alone.training.decay, alone.training.momentum) == (9, 0.5, 0.9)
    assert alone.trained_by == "fedavg-tagger"
    assert parse({**tree, "method": "pooled"}).rounds == 7
    assert parse(tree, ["method=pooled", "rounds=1"]).rounds == 1
    with pytest.raises(SettingsError, match="unknown key 'rouns'"):
        parse({**SHORT, "when": {"alone": {"rouns": 1}}}, ["method=alone"])


def test_an_unknown_method_names_the_nearest() -> None:
    for name, near in (("fedavgg", "fedavg"), ("pooling", "pooled"), ("alon", "alone")):
        with pytest.raises(SettingsError, match=f"no method '{name}'.*did you mean '{near}'"):
            method_named(name)
    assert nearest("zzz", ["b", "a"]) == "use one of a, b"


def test_a_method_is_named_with_its_kind_or_alone() -> None:
    assert all(method_named(name) is pair for name, pair in METHODS.items())
    firsts: dict[str, Any] = {}
    for pair in METHODS.values():
        firsts.setdefault(pair.method, pair)
    assert {name: method_named(name) for name in firsts} == firsts


@each("name", METHODS)
def test_settings_name_the_pair_that_they_run(name: str) -> None:
    pair = METHODS[name]
    model = {"model": {"kind": pair.kind.name}} if pair.task == "ner" else {}
    if pair.private:
        model |= {"federation": {"sums": "masked"}, "privacy": {"unit": "document"}}
    settings = parse({**SHORT, "task": pair.task, "method": pair.method, **model})
    assert (settings.kind, settings.trained_by) == (pair.kind.name, name)
    assert method_of(settings) is pair
    if pair.task == "re" or pair.private:
        return  # a reference may be of a method that has a public set; none is under noise
    alone = parse({**SHORT, "task": pair.task, "method": "alone", "base": pair.method, **model})
    assert method_of(alone) is pair


def test_a_method_that_does_not_train_a_kind_says_which_it_trains() -> None:
    for tree, words in (
        ({"method": "fedner", "task": "bags"}, "fedner does not train bags.*tagger, encoder"),
        (
            {"method": "lazy-mil"},
            "lazy-mil does not train tagger.*expected one of the kinds it trains: bags;",
        ),
        ({"method": "alone", "base": "lazy-mil"}, "lazy-mil does not train tagger"),
        ({"method": "fedavgg"}, "no method 'fedavgg'.*did you mean 'fedavg'"),
    ):
        with pytest.raises(SettingsError, match=words):
            method_of(parse({**SHORT, **tree}))


def test_a_methods_own_settings_are_as_strict() -> None:
    class Own(SettingsTable):
        rate: float = 1.0

    assert own_settings(Own, {"rate": 2}).rate == 2.0
    with pytest.raises(SettingsError, match=r"unknown key 'rat'.*'rate'"):
        own_settings(Own, {"rat": 2})


# --- files ---------------------------------------------------------------------------


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text)
    return path


FILE = """
key = "keys/shared.key"
rounds = 4
[model]
vectors = "glove.txt"
[pcnn]
vectors = "skipgram.txt"
[[site]]
name = "north"
train = ["a.conll", "$CONFIDE_DATA/b.conll"]
test = "/abs/c.conll"
tags = { ADR = "ADE", Misc = "" }
key = "own.key"
[when.alone]
rounds = 30
"""


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    found = load_settings(write(tmp_path, FILE))
    assert found.key == str(tmp_path / "keys" / "shared.key")
    assert found.model.vectors == str(tmp_path / "glove.txt")
    assert found.pcnn.vectors == str(tmp_path / "skipgram.txt")
    assert found.site[0].train == (str(tmp_path / "a.conll"), "$CONFIDE_DATA/b.conll")
    assert found.site[0].test == ("/abs/c.conll",)
    assert found.site[0].key == str(tmp_path / "own.key")
    assert anchored(found, Path("/elsewhere")) == found


@each("overrides", [[], ["method=alone"], ["site.0.format=conll"]])
def test_what_is_written_reads_back_the_same(tmp_path: Path, overrides: list[str]) -> None:
    found = load_settings(write(tmp_path, FILE), overrides)
    again = load_settings(write(tmp_path, dump(found)))
    assert again == found.model_copy(update={"when": {}})
    assert dump(again) == dump(found)


@each("name", [found.name for found in known_recipes()])
@each("method", ["fedavg", "pooled", "alone"])
def test_every_recipe_reads_back_the_same(tmp_path: Path, name: str, method: str) -> None:
    found = load_settings(recipe_path(name), [f"method={method}"])
    assert load_settings(write(tmp_path, dump(found))) == found.model_copy(update={"when": {}})


def test_a_wrong_path_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", write(tmp_path, "") / "deeper.toml"):
        with pytest.raises(MissingDataError, match="no such settings file"):
            load_settings(path)


@each("raw", [b"rounds = ", b"\xff\xfe\x00", b"a = 1\na = 2", b"[[[x"])
def test_what_is_not_toml_is_said_with_its_file(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(raw)
    with pytest.raises(SettingsError, match=r"settings\.toml: this is not TOML"):
        load_settings(path)


def test_a_mistake_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"settings\.toml: unknown key 'rouns'"):
        load_settings(write(tmp_path, "rouns = 3\n" + FILE))


@each(
    ("model", "optimiser"),
    [({}, "adam"), ({"kind": "encoder"}, "adamw"), ({"dropout": 0.1}, "adam")],
)
def test_a_kind_of_model_has_defaults_of_its_own(model: dict[str, Any], optimiser: str) -> None:
    found = parse({"method": "pseudo-complete", "model": model})
    assert (found.training.optimiser, found.rounds) == (optimiser, 25)
    assert found.trained_by.endswith(model.get("kind", "tagger"))


def test_a_method_has_defaults_of_its_own() -> None:
    settings = parse({**SHORT, "method": "fedner"})
    assert (settings.rounds, settings.select.every, settings.training.optimiser) == (
        3000, 50, "adam",
    )  # fmt: skip
    assert (settings.model.cnn_filters, settings.model.tag_scheme) == (200, "iob2")
    assert parse({**SHORT, "method": "fedner", "rounds": 7}).rounds == 7
    alone = parse({**SHORT, "method": "alone", "base": "fedner", "model": {"dropout": 0.4}})
    assert (alone.model.dropout, alone.model.cnn_filters) == (0.4, 200)
    assert parse(SHORT).model.cnn_filters == 0


def test_a_file_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "whole.toml").write_text(
        "rounds = 5\n[model]\nword_dim = 7\ndropout = 0.3\n"
        "[[site]]\nname = 'a'\ntrain = 'a.conll'\n"
    )
    (tmp_path / "short.toml").write_text("extends = 'whole.toml'\n[model]\nword_dim = 9\n")
    found = load_settings(tmp_path / "short.toml", ["rounds=6"])
    assert (found.rounds, found.model.word_dim, found.model.dropout) == (6, 9, 0.3)
    assert found.site[0].train == (str(tmp_path / "a.conll"),)
    (tmp_path / "round.toml").write_text("extends = 'round.toml'\n")
    with pytest.raises(SettingsError, match="in a circle"):
        load_settings(tmp_path / "round.toml")
    (tmp_path / "lost.toml").write_text("extends = 'nowhere.toml'\n")
    with pytest.raises(MissingDataError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "lost.toml")


@each("widths", ["[2]", "[3, 4]"])
def test_widths_of_a_word_cnn_are_odd(widths: str) -> None:
    with pytest.raises(SettingsError, match="odd"):
        parse(SHORT, [f"model.cnn_widths={widths}"])


def test_the_two_ends_of_outside_have_names() -> None:
    for said, read in (("negative", 0.0), ("ignore", 1.0), (0.3, 0.3)):
        assert (
            parse(
                {"method": "fedavg", "training": {"unannotated_types": said}}
            ).training.unannotated_types
            == read
        )
    for wrong in ("ajar", 1.5, -0.1, ["open"]):
        with pytest.raises(SettingsError, match=r"training\.unannotated_types"):
            parse({"method": "fedavg", "training": {"unannotated_types": wrong}})


def test_everything_that_is_wrong_is_said_at_once() -> None:
    """Single values, missing ones, unknown keys, and what does not go together."""
    tree = {
        "rouns": 3,
        "rounds": 0,
        "privacy": {"epsilon": 8},
        "split": {"sites": 3},
        "public": {"files": ["p.txt"], "share": 0.2},
    }
    with pytest.raises(SettingsError) as caught:
        parse(tree)
    said = str(caught.value)
    for words in (
        "rounds is wrong",
        "did you mean 'rounds'",
        "split.train is missing",
        "privacy.unit is missing",
        "--set privacy.unit=document",
        "either public.files or public.share",
        "federation.sums",
    ):
        assert words in said, words
    assert len(caught.value.parts) == 6 and said.isprintable()
    many = {f"odd{n}": n for n in range(50)}
    with pytest.raises(SettingsError, match="and 42 more"):
        parse(many)
