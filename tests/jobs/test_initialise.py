"""`init`: what is found is said, and the settings that are written run."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from confide.corpora.distant import label, write_triples
from confide.corpora.synthetic import write_corpus
from confide.errors import (
    ConfideError,
    DataError,
    FormatError,
    MissingDataError,
    RunError,
    SettingsError,
)
from confide.flare.joining import check_suited
from confide.jobs.initialise import Amount, Wishes, init, rule
from confide.jobs.survey import survey
from confide.settings import load_settings, parse
from confide.settings.reading import OF_METHODS
from confide.text.document import Document, Entity
from confide.text.formats import Options, read, write

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
    load_settings(path)
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
    assert load_settings(report.path).split.train == (str(in_tmp / "notes" / "all.conll"),)


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
            "types": ["AE", "Drug"],
        },
        {
            "name": "south",
            "train": "south.conll",
            "format": "conll",
            "scheme": "iobes",
            "encoding": "windows-1252",
            "tags": {"ADE": "AE"},
            "types": ["AE", "Medication"],
        },
        {"name": "east", "train": "east", "format": "brat", "types": ["AE"]},
    ]
    kinds = [problem.kind for problem in report.problems]
    # one surface is too little to say that Medication is Drug; east may lack drugs by chance
    assert kinds == ["encoding-guessed", "beyond-text", *["types-differ"] * 2]
    assert "a.ann:2" in report.found


def test_sites_that_annotate_different_types_get_one_model_of_all(in_tmp):
    put("north.conll", conll({"AE": ""}))
    put("south.conll", conll({"Drug": "drugs"}))
    report = init(["north.conll", "south.conll"])
    found = plain(report.path)
    assert (found["method"], found["training"]["unannotated_types"]) == (
        "pseudo-complete",
        "ignore",
    )
    assert load_settings(report.path).options == {
        "rows": "seen", "distil": False, "instance_weights": False,
    }  # fmt: skip
    assert [site["types"] for site in found["site"]] == [["Drug"], ["AE", "Drug"]]
    put("south.conll", conll({"AE": "", "Drug": "drugs"}))
    alike = init(["north.conll", "south.conll"], force=True)
    assert plain(alike.path)["method"] == "fedavg"
    assert "outside" not in plain(alike.path)["training"]
    assert not any("types" in site for site in plain(alike.path)["site"])
    assert plain(alike.path)["site"][1]["tags"] == {"drugs": "Drug"}


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
    found = load_settings(init([Path(name)]).path).split.train
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
    assert (settings["task"], settings["method"]) == ("re", "fedavg")
    assert settings["split"] == {
        "sites": 1, "by": "iid", "train": "gad/train.tsv", "test": "gad/test.tsv",
        "holdout_from": "corpus",
    }  # fmt: skip
    assert settings["training"] == {"learning_rate": 0.0001, "local_epochs": 1}
    assert settings["rounds"] == 20
    assert "6 relations: related 6\n" in report.found
    assert [settings["data"], report.problems] == [{"format": "biobert"}, []]


def test_sites_of_relations(in_tmp):
    put("north/train.tsv", pairs(label="causes"))
    put("south/train.tsv", pairs(label="cause"))
    report = init(["north", "south"])
    settings = plain(report.path)
    assert (settings["task"], settings["method"]) == ("re", "fedavg")
    assert [site["name"] for site in settings["site"]] == ["north", "south"]
    assert load_settings(report.path).site[1].relations == {"cause": "causes"}
    assert "site south is read with common names: cause as causes" in report.why


def test_sites_of_different_relations_get_one_model_of_all(in_tmp):
    put("north/train.tsv", pairs(label="causes"))
    put("south/train.tsv", pairs(label="worsens"))
    settings = load_settings(init(["north", "south"]).path)
    assert (settings.task, settings.method) == ("re", "pseudo-complete")
    assert settings.training.unannotated_types == 1
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


def test_pairs_as_published_give_settings_of_a_relation_extractor(in_tmp):
    tokens = {"token": ["Bill", "of", "Acme"], "subj_start": 0, "subj_end": 0, "obj_start": 2}
    ends = {"obj_end": 2, "subj_type": "PERSON", "obj_type": "ORGANIZATION"}
    rows = [{"id": str(n), "relation": "works_for", **tokens, **ends} for n in range(9)]
    put("train.json", json.dumps(rows))
    assert plain(init(["train.json"]).path)["task"] == "re"


@pytest.mark.parametrize("missing", [{}, {"AE": ""}])
def test_the_settings_run(in_tmp, missing):
    pytest.importorskip("torch")
    from confide.runs.run import run

    for site, names in (("north", {}), ("south", missing)):
        put(f"{site}/train.conll", conll(names, times=6))
        put(f"{site}/test.conll", conll(names, times=2))
    report = init(["north", "south"])
    small = [
        "rounds=1",
        "workers=1",
        "model.word_dim=8",
        "model.bilstm_hidden=8",
        "training.local_epochs=1",
    ]
    result = run(report.path, overrides=small, out=Path("out")).result
    assert set(result.scores.sites) == {"north", "south"}


@pytest.mark.data
@pytest.mark.parametrize(
    ("corpus", "sites", "parts"),
    [
        ("wnut17", 0, {"train", "dev", "test"}),
        pytest.param("crossner", 5, {"train", "dev", "test"}, marks=pytest.mark.slow),
    ],
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
    settings = load_settings(out)
    assert (settings.task, settings.method) == ("bags", "lazy-mil")
    assert settings.split is not None and settings.split.holdout_from == "corpus"
    assert not settings.public.share


def test_files_that_label_wrote_give_settings_of_bags(tmp_path: Path) -> None:
    ends = (Entity("T1", "Drug", ((0, 3),), concepts=("C1",)),
            Entity("T2", "Effect", ((9, 13),), concepts=("D1",)))  # fmt: skip
    notes = [Document(f"d{n}", "Ace made rash.", ends) for n in range(12)]
    write_triples([("C1", "causes", "D1")], tmp_path / "kb.tsv")
    labelled = label(notes, tmp_path / "kb.tsv").documents
    write(labelled, tmp_path / "train.jsonl", "jsonl")
    init([tmp_path / "train.jsonl"], out=tmp_path / "bags.toml")
    assert load_settings(tmp_path / "bags.toml").task == "bags"


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
    assert "`confide personalise RUN`" in found
    assert "training.batch_size = 8" in found and "`min_batch`" in found  # init's are of four
    big = put("c.conll", conll(times=200))
    assert "`min_batch`" not in init([big], force=True).why
    assert "fewer than" not in init([big], force=True).why


def test_public_text_keeps_weights_at_home(in_tmp):
    one, two, public = (put(f"{name}.conll", conll()) for name in ("a", "b", "public"))
    found = init([one, two], wishes=Wishes(public=(public,)))
    settings = load_settings(found.path)
    assert settings.method == "feded"
    assert [Path(one).name for one in settings.public.files] == ["public.conll"]
    assert "sites send predictions on it, and no weights" in found.why


def test_sites_may_keep_their_own_types(in_tmp):
    one = put("a.conll", conll())
    two = put("b.conll", conll({"AE": "Sign", "Drug": "Place"}))
    assert plain(init([one, two]).path)["method"] == "pseudo-complete"
    own = init([one, two], force=True, wishes=Wishes(own_types=True))
    assert plain(own.path)["method"] == "fedner"
    assert not {"model", "training"} & plain(own.path).keys()
    assert (
        load_settings(own.path).rounds == OF_METHODS["fedner"]["rounds"]
    )  # a round is one mini-batch


def test_a_budget_is_kept_to(in_tmp):
    one, two = put("a.conll", conll()), put("b.conll", conll())
    found = init([one, two], wishes=Wishes(megabytes=40))
    assert load_settings(found.path).federation.max_upload_mb == 40
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


# --- one thing under two names ----------------------------------------------------------------

OF_THE_DEMO = {
    "DRUG": {"Medication", "med"}, "DOSE": {"Dosage", "amount"},
    "ADE": {"AdverseReaction", "side_effect"}, "REASON": {"Indication", "problem"},
}  # fmt: skip


def table(path, *sentences, times=6):
    """A file of sentences, in which `word/TYPE` marks a word."""
    rows = [[word.partition("/")[::2] for word in sentence.split()] for sentence in sentences]
    lines = [[f"{word}\t{f'B-{kind}' if kind else 'O'}" for word, kind in row] for row in rows]
    return put(path, "\n\n".join("\n".join(row) for row in lines * times) + "\n")


def mapped(*files, **more):
    """The names that `init` gives, by the site's own name."""
    maps = init(files, force=True, **more).maps
    return {match.name: match.common for match in maps}


def test_sites_of_the_demo_call_the_same_four_things_differently(in_tmp):
    write_corpus("corpus", seed=1)
    places = [f"corpus/{site}" for site in ("cardiology", "oncology", "practice")]
    report = init(places)
    right = {name: common for common, names in OF_THE_DEMO.items() for name in names}
    assert {match.name: match.common for match in report.maps} == right
    settings = plain(report.path)
    assert settings["method"] == "fedavg"
    assert [len(site.get("tags", {})) for site in settings["site"]] == [0, 4, 4]


@pytest.mark.parametrize("seed", range(2, 6))
def test_little_text_gives_fewer_names_but_no_wrong_one(in_tmp, seed):
    write_corpus("corpus", seed=seed)
    found = mapped("corpus/cardiology", "corpus/oncology")
    assert found.items() >= {"Medication": "DRUG", "Dosage": "DOSE"}.items()
    assert all(name in OF_THE_DEMO[common] for name, common in found.items())


def test_names_of_the_file_and_not_of_its_text_are_the_same(in_tmp):
    one = table("a.conll", "xa/Adverse_Event or xb/PER", "xc/PER or xd/Cell")
    two = table("b.conll", "ya/adverse-events or yb/per", "yc/per or yd/Cells", "ye/Place or yf")
    assert mapped(one, two) == {
        "adverse-events": "Adverse_Event", "per": "PER", "Cells": "Cell",
    }  # fmt: skip


def test_two_of_a_site_s_own_names_are_never_one(in_tmp):
    one = table("a.conll", "ab/X or cd/X")
    two = table("b.conll", "ab/Xs or cd/Xs", "ab/x or cd/x")
    assert mapped(one, two) == {}


def test_a_surface_in_common_is_little_and_two_will_do(in_tmp):
    one = table("a.conll", "took aspirin/Drug today", "took heparin/Drug today")
    two = table("b.conll", "took aspirin/Med today", "took warfarin/Med today")
    assert mapped(one, two) == {}
    two = table("b.conll", "took aspirin/Med today", "took heparin/Med today")
    assert mapped(one, two) == {"Med": "Drug"}
    assert init([one, two], force=True).maps[0].shared == ("aspirin", "heparin")


def test_what_a_site_leaves_alone_it_does_not_annotate(in_tmp):
    one = table("a.conll", "a tumour/Sick and cancer/Sick", "gout/Sick acne/Sick flu/Sick of lungs")
    two = table(
        "b.conll", "a tumour/Part and cancer/Part", "gout acne flu of lungs/Part",
        "gout acne flu of livers/Part", "gout acne flu of hearts/Part",
    )  # fmt: skip
    assert mapped(one, two) == {}


def test_a_part_is_not_the_whole(in_tmp):
    words = ("mice", "rats", "men", "oats", "rice", "corn", "figs", "yeast")
    one = table("a.conll", *(f"the {word}/Organism grew" for word in words))
    two = table(
        "b.conll", *(f"the {word}/{('Animal', 'Plant', 'Fungus')[n % 3]} grew"
                     for n, word in enumerate(words[:6])),
    )  # fmt: skip
    assert mapped(one, two) == {}


def test_words_around_tell_two_types_of_the_same_surfaces_apart(in_tmp):
    sick = ("rash", "fever", "cough", "gout")
    one = table("a.conll", *(f"took it against {w}/REASON , got {w}/ADE from it" for w in sick))
    two = table("b.conll", *(f"took it against {w}/why , got {w}/side from it" for w in sick))
    assert mapped(one, two) == {"why": "REASON", "side": "ADE"}


def test_names_may_be_declined_and_sites_that_keep_their_own_get_none(in_tmp):
    one = table("a.conll", "took aspirin/Drug and heparin/Drug today")
    two = table("b.conll", "took aspirin/Med and heparin/Med today")
    asked = []
    report = init([one, two], accept=lambda *given: asked.append(given))
    assert "a, train:" in asked[0][0] and asked[0][1][0].common == "Drug"
    assert report.maps == [] and "tags =" not in report.settings.replace("; tags =", "")
    assert plain(report.path)["method"] == "pseudo-complete"
    assert mapped(one, two, wishes=Wishes(own_types=True)) == {}


@pytest.mark.parametrize(("tty", "answer", "tags"), [(0, "", 1), (1, "y\n", 1), (1, "n\n", 0)])
def test_a_person_is_asked_at_a_terminal(in_tmp, monkeypatch, tty, answer, tags):
    from typer.testing import CliRunner, _NamedTextIOWrapper

    from confide.cli.verbs import app

    monkeypatch.setattr(_NamedTextIOWrapper, "isatty", lambda _: bool(tty), raising=False)
    one = table("a.conll", "took aspirin/Drug and heparin/Drug today")
    two = table("b.conll", "took aspirin/Med and heparin/Med today")
    done = CliRunner().invoke(app, ["init", str(one), str(two)], input=answer)
    assert done.exit_code == 0, done.output
    assert "aspirin, heparin" in done.output
    assert ("Write these common names" in done.output) == bool(tty)
    assert ("tags" in plain("confide.toml")["site"][1]) == bool(tags)
    again = CliRunner().invoke(app, ["init", str(one), str(two), "--no-map", "--force"])
    assert "aspirin, heparin" not in again.output
    assert "tags" not in plain("confide.toml")["site"][1]


@pytest.mark.data
@pytest.mark.parametrize(
    ("one", "two", "right"),
    [
        ("ncbi_disease_ner/devel.tsv", "bc5cdr_ner/devel.tsv", {"Disease": "Other"}),
        pytest.param(
            "wnut17/wnut17train.conll",
            "uner_ewt/en_ewt-ud-dev.iob2",
            {"LOC": "location"},
            marks=pytest.mark.slow,
        ),
        ("crossner/politics/train.txt", "crossner/literature/train.txt", {}),
        ("crossner/science/train.txt", "crossner/ai/train.txt", {}),
        *(
            pytest.param(one, two, {}, marks=pytest.mark.slow)
            for one, two in (
                ("ncbi_disease_ner/devel.tsv", "anatem_ner/devel.tsv"),
                ("bc5cdr_ner/devel.tsv", "linnaeus_ner/devel.tsv"),
            )
        ),
    ],
)
def test_names_of_published_corpora(in_tmp, corpora, one, two, right):
    documents = read(corpora / one).documents
    if "ncbi" in one:
        from confide.text.checking import retag

        documents, _ = retag(documents, {"Disease": "Other"})
    write(documents, Path("one.conll"), "conll")
    assert mapped("one.conll", corpora / two) == right


# --- which types sites annotate ---------------------------------------------------------------


def test_types_are_those_of_training_text(in_tmp):
    for name in ("a", "b"):
        put(f"{name}-train.conll", conll())
        put(f"{name}-test.conll", conll({"AE": "AE"}))
    put("b-test.conll", conll({"AE": "Place"}))
    report = init(["a-train.conll", "a-test.conll", "b-train.conll", "b-test.conll"])
    assert plain(report.path)["method"] == "fedavg"
    assert [problem.kind for problem in report.problems] == ["types-untrained"]
    assert "its training text teaches nothing: Place" in report.why


def sentences_with(kinds):
    """A corpus of sentences, as many with each type as `kinds` says."""
    rows = [f"w{n}\tB-{kind}\n" for kind, count in kinds.items() for n in range(count)]
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("there", "here", "apart"),
    [
        ({"A": 990, "B": 9}, {"A": 2000}, False),  # rare, though its absence is improbable
        ({"A": 900, "B": 100}, {"A": 20}, False),  # (1 - 0.1) ** 20 = 0.12
        ({"A": 900, "B": 100}, {"A": 60}, True),  # (1 - 0.1) ** 60 = 0.002
    ],
)
def test_a_type_that_a_site_happens_to_lack_changes_nothing(in_tmp, there, here, apart):
    put("there.conll", sentences_with(there))
    put("here.conll", sentences_with(here))
    report = init(["there.conll", "here.conll"])
    assert plain(report.path)["method"] == ("pseudo-complete" if apart else "fedavg")
    assert ("site here has no B, which may be chance" in report.why) != apart
    assert ("types-differ" in [problem.kind for problem in report.problems]) == apart


def sentences(numbers):
    """A corpus of one sentence of six words for each number."""
    return "\n".join(
        f"no rash\tO\n{n}\tB-AE\n".replace(" ", "\tO\n") + "of\tO\nthe\tO\n.\tO\n" for n in numbers
    )


@pytest.mark.parametrize(("common", "told"), [(19, False), (20, True), (100, True)])
def test_text_that_is_there_twice_is_told(in_tmp, common, told):
    """Two sites with the same sentences, and test sentences that are trained on."""
    put("all-train.conll", sentences(range(100)))
    put("part-train.conll", sentences(range(100 - common, 160)))
    put("part-test.conll", sentences(range(160 - common, 260 - common)))
    report = init(["all-train.conll", "part-train.conll", "part-test.conll"])
    kinds = [problem.kind for problem in report.problems]
    assert kinds == ["text-repeated"] * 2 * told
    said = f"sites all and part have {common} training sentences in common, of 100 and"
    assert (said in report.why) == told
    tested = f"{common} of the 100 sentences of part-test.conll are in training text"
    assert (tested in report.why) == told


def test_a_small_share_of_the_same_sentences_is_chance(in_tmp):
    put("train.conll", sentences(range(500)))
    put("test.conll", sentences(range(480, 980)))  # 20 of 500: 4 %
    assert not init(["train.conll", "test.conll"]).problems


def test_few_documents_of_many_mentions_tell_by_mentions(in_tmp):
    for site, kinds in (("a", ("X", "Y")), ("b", ("X",))):
        marks = [f"T{n}\t{kinds[n % len(kinds)]} {n * 2} {n * 2 + 1}\tw" for n in range(40)]
        put(f"{site}/note.txt", "w " * 40)
        put(f"{site}/note.ann", "\n".join(marks) + "\n")
    assert plain(init(["a", "b"]).path)["method"] == "pseudo-complete"


def test_small_sites_are_told_by_their_training_text(in_tmp):
    for part, times in (("train", 10), ("test", 200)):
        for site in ("a", "b"):
            put(f"{site}-{part}.conll", conll(times=times))
    files = [f"{site}-{part}.conll" for site in ("a", "b") for part in ("train", "test")]
    assert "a, b: fewer than 300 training sentences" in init(files).why


# --- a survey in the place of files --------------------------------------------------------------


def test_a_survey_stands_in_for_files_that_are_elsewhere(in_tmp):
    drug = {"sites": 3, "entities": 900}
    counts = {
        "sites": 3, "documents": 60, "sentences": 1200, "tokens": 20_000,
        "languages": {"en": 3}, "types": {"Drug": drug},
    }  # fmt: skip

    def written(wishes=None, options=Options(), **changed):  # noqa: B008
        put("survey.json", json.dumps(counts | changed))
        given = {"wishes": wishes or Wishes(), "options": options, "force": True}
        report = init([], survey="survey.json", out="study.toml", **given)
        check_suited(parse(plain(report.path)))  # real sites take them
        assert (report.command, report.problems) == ("confide coordinate --kit KIT", [])
        return plain(report.path), report.why

    found, why = written()
    assert (found["method"], found["rounds"]) == ("fedavg", rule(Amount("entities", 3, 1200, 240,
        "en")).rounds)  # fmt: skip
    assert found["training"] == {"learning_rate": 0.008, "local_epochs": 1, "batch_size": 8}
    assert "workers" not in found and "on 3 cores" in why
    assert "400 a site on average; assumed" in why and "fewer than 300" not in why
    assert "fewer than 300" in written(sentences=600)[1]
    found, why = written(types={"Drug": drug, "Person": {"sites": 1, "entities": None}})
    assert found["method"] == "pseudo-complete" and "Person is kept back; assumed" in why
    assert found["training"]["local_epochs"] == 2
    found, why = written(types={"Drug": drug, "Dose": {"sites": 2, "entities": 3}})
    assert found["method"] == "fedavg" and "2 of 3 sites have it, which may be chance" in why
    found, why = written(languages={"de": 2})
    assert found["model"] == {"kind": "linear"} and "de at 2, not told at 1" in why
    found, why = written(languages={}, options=Options(language="en"))
    assert "context" in found["model"] and "languages" not in why
    wishes = Wishes(public=(Path("there/public.conll"),), megabytes=7.5)
    found, why = written(wishes)
    assert (found["method"], found["public"]) == ("feded", {"files": "public.conll"})
    assert found["federation"] == {"max_upload_mb": 7.5} and "the server's kit" in why
    put("a.conll", conll())
    for files, what, error in (
        (["a.conll"], "survey.json", SettingsError), ([], "a.conll", RunError),
        ([], "none.json", RunError), ([], ".", RunError),
    ):  # fmt: skip
        with pytest.raises(error):
            init(files, survey=what, out="other.toml")
    with pytest.raises(DataError, match="no site has an entity"):
        written(types={"Drug": {"sites": 3, "entities": 0}})


def test_a_survey_of_simulated_sites_says_where_their_text_is(in_tmp):
    for name in ("north", "south", "east"):
        put(f"{name}.conll", conll())
    first = init(["north.conll", "south.conll", "east.conll"], out="first.toml")
    more = ["vocabulary.min_sites=3", "federation.at_least=3", "key=simulated"]
    survey(first.path, overrides=more, out=Path("survey"))
    report = init([], survey="survey", out="ours.toml")
    found, before = load_settings(report.path), load_settings(first.path)
    assert report.command == "confide run" and found.vocabulary.min_sites == 3
    assert (found.key, found.federation.at_least, found.federation.sums) == ("simulated", 3, None)
    for name in ("site", "data", "method", "rounds", "model", "training", "workers"):
        assert getattr(found, name) == getattr(before, name), name


# --- how files are read -----------------------------------------------------------------------


def test_what_is_said_about_reading_is_written_too(in_tmp):
    from typer.testing import CliRunner

    from confide.cli.verbs import app

    rows = [["x", word, "y", tag] for word, tag in (("Träume", "B-X"), ("heute", "O"))] * 20
    for name in ("a", "b"):
        lines = "\n\n".join("\t".join(row) for row in rows)
        put(f"{name}.dat", lines.encode("latin-1"))
    words = "--format conll --scheme iob2 --encoding latin-1 --columns 1,3 --language de"
    done = CliRunner().invoke(app, ["init", "a.dat", "b.dat", *words.split()])
    assert done.exit_code == 0, done.output
    assert plain("confide.toml")["data"] == {
        "format": "conll", "scheme": "iob2", "encoding": "latin-1", "columns": [1, 3],
        "language": "de",
    }  # fmt: skip
    assert "encoding-guessed" not in done.output


def test_columns_without_tags_teach_nothing(in_tmp):
    with pytest.raises(SettingsError, match="teaches nothing"):
        init([put("a.conll", conll())], options=Options(columns=(0, None)))
    assert not Path("confide.toml").exists()
