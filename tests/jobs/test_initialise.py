"""`init`: what is found is said, and the settings that are written run."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from confide.errors import ConfideError, DataError, FormatError, MissingDataError, SettingsError
from confide.jobs.initialise import Wishes, init
from confide.settings import load

SENTENCES = ["Mild rash after aspirin .", "No fever today .", "She took aspirin again ."]
TAGS = {"rash": "AE", "fever": "AE", "aspirin": "Drug"}


def conll(names=None, scheme="B", times=4):
    """A small corpus; `names` renames types."""
    lines = []
    for sentence in SENTENCES * times:
        for word in sentence.split():
            kind = TAGS.get(word)
            kind = (names or {}).get(kind, kind)
            lines.append(f"{word}\t{scheme}-{kind}" if kind else f"{word}\tO")
        lines.append("")
    return "\n".join(lines) + "\n"


def put(path, content):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def plain(path):
    """The settings as plain values, and that they are short and valid."""
    text = Path(path).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 32
    load(path)
    return tomllib.loads(text)


def test_one_file_is_dealt_to_three_sites(in_tmp):
    put("notes/all.conll", conll())
    report = init(["notes/all.conll"])
    assert report.path == Path("confide.toml")
    assert report.settings == report.path.read_text(encoding="utf-8")
    settings = plain(report.path)
    assert settings["split"] == {"sites": 3, "by": "iid", "train": "notes/all.conll"}
    assert settings["data"] == {"format": "conll", "scheme": "iob2"}
    for words in ("CoNLL columns", "scheme iob2", "12 sentences", "AE 8, Drug 8"):
        assert words in report.found
    assert "3 simulated" in report.why
    assert report.problems == []
    assert load(report.path).split.train == (str(in_tmp / "notes" / "all.conll"),)


def test_parts_of_one_corpus(in_tmp):
    for part in ("train", "devel", "test"):
        put(f"ncbi/{part}.tsv", conll())
    settings = plain(init(["ncbi"], out="here/a.toml").path)
    assert settings["split"] == {
        "sites": 3,
        "by": "iid",
        "train": "../ncbi/train.tsv",
        "dev": "../ncbi/devel.tsv",
        "test": "../ncbi/test.tsv",
    }


def test_sites_with_other_names_schemes_formats_and_encodings(in_tmp):
    put("north-train.conll", conll())
    put("north-test.conll", conll())
    put("south.conll", conll({"AE": "ADE", "Drug": "Medication"}, "S").replace("today", "déjà")
        .encode("latin-1"))  # fmt: skip
    put("east/a.txt", "Mild rash")
    put("east/a.ann", "T1\tAE 5 9\trash\nT2\tDrug 5 90\trash\n")
    report = init(["north-train.conll", "north-test.conll", "south.conll", "east"])
    settings = plain(report.path)
    assert "data" not in settings
    assert settings["site"] == [
        {
            "name": "north",
            "train": "north-train.conll",
            "test": "north-test.conll",
            "format": "conll",
            "scheme": "iob2",
        },
        {
            "name": "south",
            "train": "south.conll",
            "format": "conll",
            "scheme": "iobes",
            "encoding": "windows-1252",
        },
        {"name": "east", "train": "east", "format": "brat"},
    ]
    assert '# tags = { ADE = "AE" }' in report.settings
    kinds = [problem.kind for problem in report.problems]
    assert kinds == ["encoding-guessed", "beyond-text", *["types-differ"] * 3]
    assert "a.ann:2" in report.found
    # the comment, uncommented, is a valid tag map
    put("mapped.toml", report.settings.replace("# tags", "tags"))
    assert load("mapped.toml").site[1].tags == {"ADE": "AE"}


def test_sites_that_annotate_different_types_get_one_model_of_all(in_tmp):
    put("north.conll", conll({"AE": ""}))
    put("south.conll", conll({"Drug": "drugs"}))
    report = init(["north.conll", "south.conll"])
    found = plain(report.path)
    assert (found["method"], found["training"]["outside"]) == ("pseudo-complete", 1)
    assert load(report.path).options == {"distil": False, "instance_weights": False}
    put("south.conll", conll({"AE": "", "Drug": "drugs"}))
    alike = init(["north.conll", "south.conll"], force=True)
    assert plain(alike.path)["method"] == "fedavg"
    assert "outside" not in plain(alike.path)["training"]
    assert '# tags = { drugs = "Drug" }' in alike.settings


def test_the_settings_of_many_sites_stay_short(in_tmp):
    for number in range(12):
        put(f"site {number}/train.conll", conll({"AE": f"type {number}"} if number else None))
    report = init([f"site {number}" for number in range(12)])
    settings = plain(report.path)
    assert [site["name"] for site in settings["site"]] == [f"site-{n}" for n in range(12)]
    assert settings["data"] == {"format": "conll", "scheme": "iob2"}


@pytest.mark.parametrize("name", ['a"b.conll', "a'b\\c.conll", "~x.conll", "$x.conll", "ü .conll"])
def test_strange_names_of_files(in_tmp, name):
    put(in_tmp / name, conll())
    found = load(init([Path(name)]).path).split.train
    assert [os.path.normpath(path) for path in found] == [str(in_tmp / name)]


def test_a_doubtful_scheme_is_left_to_the_reader(in_tmp):
    put("a.conll", "a\tI-X\nb\tB-Y\nc\tO\n")
    report = init(["a.conll"])
    assert "scheme" not in plain(report.path)["data"]
    assert plain(report.path)["split"]["sites"] == 1
    assert "doubtful-scheme" in report.found


def test_files_without_entities_are_named(in_tmp):
    put("a.conll", "a\tO\nb\tO\n")
    put("b.conll", conll())
    report = init(["a.conll", "b.conll"])
    assert "no-entity" in [problem.kind for problem in report.problems]


def test_an_existing_file_is_not_overwritten_unless_forced(in_tmp):
    put("a.conll", conll())
    put("confide.toml", "mine")
    with pytest.raises(SettingsError, match=r"already.*--force"):
        init(["a.conll"])
    assert Path("confide.toml").read_text() == "mine"
    init(["a.conll"], force=True)
    plain("confide.toml")


def test_what_cannot_be_used_is_an_error_and_nothing_is_written(in_tmp):
    put("note.txt", "The patient was well.\n")
    put("empty.conll", "")
    put("a.xml", "<a>I</a>")
    put("empty/README.md", "x")
    for files, error in [
        ([], SettingsError),
        (["nothing.conll"], MissingDataError),
        (["note.txt"], DataError),
        (["empty.conll"], DataError),
        (["a.xml"], FormatError),
        (["empty"], MissingDataError),
    ]:
        with pytest.raises(error) as caught:
            init(files)
        assert isinstance(caught.value, ConfideError)
        assert not Path("confide.toml").exists()


PAIRS = ["the @GENE$ and @DISEASE$ .\t1", "no @GENE$ or @DISEASE$ .\t0"]


def pairs(times=6, label=None):
    """A table of relations, which may have a name of their own."""
    lines = "\n".join(PAIRS * times) + "\n"
    return lines.replace("\t1", f"\t{label}") if label else lines


def test_files_of_relations_give_settings_of_a_relation_extractor(in_tmp):
    put("gad/train.tsv", pairs())
    put("gad/test.tsv", "index\tsentence\tlabel\n0\t" + PAIRS[0] + "\n")
    report = init(["gad"])
    settings = plain(report.path)
    assert (settings["task"], settings["method"]) == ("re", "feded")
    assert settings["split"] == {
        "sites": 1, "by": "iid", "train": "gad/train.tsv", "test": "gad/test.tsv",
        "hold_out": "corpus",
    }  # fmt: skip
    assert settings["public"] == {"share": 0.2}
    assert "6 relations: related 6\n" in report.found
    assert [settings["data"], report.problems] == [{"format": "biobert"}, []]


def test_sites_of_relations(in_tmp):
    put("north/train.tsv", pairs(label="causes"))
    put("south/train.tsv", pairs(label="cause"))
    report = init(["north", "south"])
    settings = plain(report.path)
    assert (settings["task"], settings["method"]) == ("re", "fedavg")
    assert [site["name"] for site in settings["site"]] == ["north", "south"]
    assert '# relations = { cause = "causes" }' in report.settings
    put("mapped.toml", report.settings.replace("# relations", "relations"))
    assert load("mapped.toml").site[1].relations == {"cause": "causes"}
    assert "site south has relations that not every site has: cause" in report.found


def test_sites_of_different_relations_get_one_model_of_all(in_tmp):
    put("north/train.tsv", pairs(label="causes"))
    put("south/train.tsv", pairs(label="worsens"))
    settings = load(init(["north", "south"]).path)
    assert (settings.task, settings.method) == ("re", "pseudo-complete")
    assert settings.training.outside == 1
    assert settings.options == {"distil": False, "instance_weights": False}


def test_the_order_of_interacting_drugs_means_nothing(in_tmp):
    drugs = "".join(
        f'<entity id="e{n}" charOffset="{offsets}" type="drug" text="{text}"/>'
        for n, (offsets, text) in enumerate((("0-2", "abc"), ("4-4;6-6", "a c")))
    )
    pair = '<pair id="p0" e1="e0" e2="e1" ddi="true" type="effect"/>'
    inside = f'<sentence id="s0" text="abc abc">{drugs}{pair}</sentence>'
    for number in range(3):
        put(f"ddi/{number}.xml", f'<document id="d{number}">{inside}</document>')
    report = init(["ddi"])
    assert report.problems == []  # though a flat tagger could not learn one drug of two fragments
    settings = plain(report.path)
    assert settings["pairs"] == {"direction": "undirected"}
    assert settings["data"] == {"format": "ddi"}
    assert settings["split"]["sites"] == 3


def test_relations_of_a_format_for_both_are_mentioned(in_tmp):
    put("east/a.txt", "rash of aspirin")
    put("east/a.ann", "T1\tAE 0 4\trash\nT2\tDrug 8 15\taspirin\nR1\tby Arg1:T1 Arg2:T2\t\n")
    report = init(["east"])
    assert plain(report.path)["task"] == "ner"
    assert 'entities; "re": the relations between them' in report.settings
    assert '1 relations: by 1 (a tagger does not use them; task = "re" does)' in report.found


@pytest.mark.parametrize("missing", [{}, {"AE": ""}])
def test_the_settings_run(in_tmp, missing):
    pytest.importorskip("torch")
    from confide.runs.run import run

    for site, names in (("north", {}), ("south", missing)):
        put(f"{site}/train.conll", conll(names, times=6))
        put(f"{site}/test.conll", conll(names, times=2))
    report = init(["north", "south"])
    small = ["rounds=1", "model.word_dim=8", "model.bilstm_hidden=8", "training.local_epochs=1"]
    result = run(report.path, overrides=small, out=Path("out")).result
    assert set(result.scores.sites) == {"north", "south"}


@pytest.mark.data
@pytest.mark.parametrize(
    ("corpus", "sites", "parts"),
    [("wnut17", 0, {"train", "dev", "test"}), ("crossner", 5, {"train", "dev", "test"})],
)
def test_published_corpora(in_tmp, corpora, corpus, sites, parts):
    settings = plain(init([corpora / corpus]).path)
    assert len(settings.get("site", [])) == sites
    tables = settings.get("site") or [settings["split"]]
    assert all(parts <= set(table) for table in tables)


def test_files_of_bags_give_settings_of_bags(tmp_path: Path) -> None:
    line = "m.{0}\tm.{1}\tAnn_{0}\tOslo_{1}\t{2}\tAnn {0} lives in Oslo {1} .\t###END###\n"
    labels = ("/people/person/place_lived", "NA")
    for part, count in (("train", 12), ("test", 4)):
        rows = [line.format(n, n % 3, labels[n % 2]) for n in range(count)]
        (tmp_path / f"{part}.txt").write_text("".join(rows))
    out = tmp_path / "bags.toml"
    init([tmp_path / "train.txt", tmp_path / "test.txt"], out=out)
    settings = load(out)
    assert (settings.task, settings.method) == ("bags", "lazy-mil")
    assert settings.split is not None and settings.split.hold_out == "corpus"
    assert not settings.public.share


def test_files_without_annotation_are_refused_before_settings_are_written(in_tmp):
    put("o.conll", "Rash\tO\nafter\tO\n")
    with pytest.raises(DataError, match="nothing is annotated in these files"):
        init(["o.conll"])
    assert not Path("confide.toml").exists()


# --- which method, and why --------------------------------------------------------------------


def test_the_report_says_why(in_tmp):
    one, two = put("a.conll", conll()), put("b.conll", conll())
    found = init([one, two]).why
    assert "proposes fedavg, because all sites annotate the same types" in found
    assert "a, b: fewer than 300 training sentences; `confide capacity`" in found
    assert "`confide home RUN`" in found
    big = put("c.conll", conll(times=200))
    assert "fewer than" not in init([big], force=True).why


def test_public_text_keeps_weights_at_home(in_tmp):
    one, two, public = (put(f"{name}.conll", conll()) for name in ("a", "b", "public"))
    found = init([one, two], wishes=Wishes(public=(public,)))
    settings = load(found.path)
    assert settings.method == "feded"
    assert [Path(one).name for one in settings.public.files] == ["public.conll"]
    assert "sites send predictions on it, and no weights" in found.why


def test_sites_may_keep_their_own_types(in_tmp):
    one = put("a.conll", conll())
    two = put("b.conll", conll({"AE": "Sign", "Drug": "Place"}))
    assert plain(init([one, two]).path)["method"] == "pseudo-complete"
    own = init([one, two], force=True, wishes=Wishes(own_types=True))
    assert plain(own.path)["method"] == "fedner"
    assert "outside" not in plain(own.path)["training"]


def test_a_budget_is_kept_to(in_tmp):
    one, two = put("a.conll", conll()), put("b.conll", conll())
    found = init([one, two], wishes=Wishes(megabytes=40))
    assert load(found.path).federation.megabytes == 40
    assert "confide budget RUN --megabytes N" in found.why


def test_wishes_that_contradict_each_other_are_refused(in_tmp):
    one, public = put("a.conll", conll()), put("public.conll", conll())
    with pytest.raises(SettingsError, match="--own-types does not go with a public set"):
        init([one], wishes=Wishes(public=(public,), own_types=True))
    assert not Path("confide.toml").exists()


@pytest.mark.parametrize("megabytes", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_makes_no_sense_writes_nothing(in_tmp, megabytes):
    with pytest.raises(SettingsError, match="--megabytes above 0"):
        init([put("a.conll", conll())], wishes=Wishes(megabytes=megabytes))
    assert not Path("confide.toml").exists()
