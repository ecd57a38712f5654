import importlib
from pathlib import Path

import pytest

from cases import each
from confide.errors import MissingDataError, SettingsError
from confide.methods import method_of
from confide.recipes import RecipeInfo, recipe_path, recipes
from confide.runs.sites import gather
from confide.settings import load_settings
from confide.text.checking import check
from confide.text.formats import Options, read
from confide.text.published.catalogue import CORPORA, VARIABLE, locate

NAMES = [recipe.name for recipe in recipes()]
PARTS = ("train", "dev", "test")
LICENSED = (
    "conll2003-iid10",
    "feded-i2b2-paper",
    "lazymil-nyt10-paper",
    "lazymil-mirgene-paper",
    "tags-ontonotes-paper",
)
"""Recipes for text that only its owner may hand on, or that is not at hand."""


def files(name):
    settings = load_settings(recipe_path(name))
    tables = settings.site or (settings.split,)
    return [file for table in tables for part in PARTS for file in getattr(table, part)]


def test_the_recipes_of_the_experiments_are_there():
    expected = {"ncbi-iid10", "ncbi-iid10-paper", "bc5cdr-iid10", "wnut-iid10",
                "crossner-domains", "conll2003-iid10", "fedner-medical", "fedner-medical-full",
                "fedner-cnn-crf", "fedner-lstm-crf", "fedner-gram-cnn", "fedner-cnn-lstm-crf",
                "fedner-s-lstm-crf", "fedner-cnn-clstm-crf", "feded-gad", "feded-euadr",
                "feded-chemprot", "feded-gad-paper", "feded-euadr-paper",
                "feded-i2b2-paper", "lazymil-gids", "lazymil-pgr", "lazymil-nyt10-paper",
                "lazymil-mirgene-paper", "tags-medical", "tags-crossner",
                "tags-ontonotes-paper", "notas-es", "npj-ncbi", "npj-bc2gm", "npj-jnlpba",
                "npj-bc5cdr-disease", "npj-gad", "npj-euadr"}  # fmt: skip
    assert expected <= set(NAMES)
    assert sorted(NAMES) == NAMES


def test_what_is_said_about_one():
    found = next(recipe for recipe in recipes() if recipe.name == "crossner-domains")
    assert isinstance(found, RecipeInfo)
    assert (found.method, found.sites, found.corpora) == ("fedavg", 5, "crossner")
    assert found.title.startswith("CrossNER")


@each("name", NAMES)
@each("method", ["fedavg", "pooled", "alone"])
def test_a_recipe_loads_with_every_reference(name, method):
    settings = load_settings(recipe_path(name), [f"method={method}"])
    assert (settings.name, settings.method) == (name, method)
    assert method_of(settings).kind.name == settings.kind
    method_of(settings)(settings)


TRAINED = {"lazy-mil": {"bags"}, "feded": {"relations", "tagger", "encoder"}}


@each("name", NAMES)
@each("method", TRAINED)
def test_a_recipe_loads_with_no_method_that_does_not_train_its_kind(name, method):
    settings = load_settings(recipe_path(name), [f"method={method}"])
    if settings.kind in TRAINED[method]:
        assert method_of(settings).method == method
        return
    with pytest.raises(SettingsError, match=f"{method} does not train {settings.kind}, the kind"):
        method_of(settings)


@each("name", [name for name in NAMES if name.startswith("feded")])
@each("method", ["feded", "fedatt", "public-only"])
def test_a_recipe_of_relations_loads_with_every_method(name, method):
    settings = load_settings(recipe_path(name), [f"method={method}"])
    assert (settings.task, settings.public.share, settings.select.by) == ("re", 0.2, "micro")
    method_of(settings)(settings)


@each("name", [name for name in NAMES if name.startswith("lazymil")])
@each("method", ["lazy-mil", "fedavg", "chain", "pooled"])
def test_a_recipe_of_bags_loads_with_every_method(name, method):
    settings = load_settings(recipe_path(name), [f"method={method}", "bags.denoise=att-ra"])
    assert (settings.task, settings.select.by, settings.split.holdout_from) == (
        "bags", "auc", "site" if "nyt10" in name else "corpus",
    )  # fmt: skip
    method_of(settings)(settings)


@each("name", NAMES)
def test_a_recipe_is_short_and_commented(name):
    lines = recipe_path(name).read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 34
    assert lines[0].startswith("# ")


@each("name", NAMES)
def test_its_files_are_those_of_a_known_corpus(name):
    for file in files(name):
        root, corpus, inside = file.split("/", 2)
        assert root == f"${VARIABLE}"
        assert inside in [f for parts in CORPORA[corpus].files.values() for f in parts]


@each("name", [name for name in NAMES if name != "notas-es"])
def test_missing_data_is_explained(name, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(MissingDataError, match=r"Licence: .* Published: "):
        locate(files(name)[0])


def test_spanish_notes_come_with_confide(monkeypatch, tmp_path):
    """They are found without data of one's own; a file of one's own in its place comes first."""
    monkeypatch.delenv(VARIABLE, raising=False)
    own = f"${VARIABLE}/notas_es/primaria-dev.jsonl"
    shipped = locate(own)
    assert shipped.is_file()
    with pytest.raises(MissingDataError, match="is not set"):
        locate(f"${VARIABLE}/notas_es/other.jsonl")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert locate(own) == shipped
    (tmp_path / "notas_es").mkdir()
    (tmp_path / "notas_es" / "primaria-dev.jsonl").write_text("x")
    assert locate(own) == tmp_path / "notas_es" / "primaria-dev.jsonl"


def test_spanish_notes_are_what_their_program_writes(root, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(root / "benchmarks" / "papers" / "spanish"))
    make = importlib.import_module("make")
    shipped = {path.name: path.read_bytes() for path in make.FOLDER.iterdir()}
    assert {path.name: path.read_bytes() for path in make.make(tmp_path)} == shipped
    assert set(shipped) == {Path(file).name for file in files("notas-es")}


def test_spanish_notes_need_the_rules_of_spanish():
    """By those of English, every second street crosses the end of a "sentence"."""
    paths = [locate(file) for file in files("notas-es") if file.endswith("-train.jsonl")]
    streets = ("CALLE", "direccion", "STREET")
    spanish, english = (check(paths, options=Options(language=one)) for one in ("es", "en"))
    count = sum(spanish.types[street] for street in streets)
    assert spanish.counts["lost"] == 0 and spanish.counts["trainable"] == sum(
        spanish.types.values()
    )
    assert not spanish.crossings
    assert english.counts["lost"] > count // 2
    assert set(english.crossings) == set(streets)
    for path in paths:
        assert check(path).details[str(path)].count("language es") == 1  # the text tells it


def test_the_spanish_recipe_reads_all_names_as_one_set(monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    settings = load_settings(recipe_path("notas-es"))
    gathered = gather(settings, tmp_path, key_file=None)
    assert [spec.name for spec in gathered.specs] == ["cardiologia", "primaria", "urgencias"]
    for spec in gathered.specs:
        types = {entity.type for document in spec.train for entity in document.entities}
        assert types == set(settings.data.types)
        assert not gathered.problems[spec.name]
        assert all(document.sentences for document in spec.train)


@pytest.mark.slow
@pytest.mark.data
@each("name", [name for name in NAMES if name not in LICENSED])
def test_its_files_can_be_read(name, corpora):
    settings = load_settings(recipe_path(name))
    for table in settings.site or (settings.split,):
        format = getattr(table, "format", None) or settings.data.format
        for part in PARTS:
            for file in getattr(table, part):
                assert read(locate(file), format, scheme=settings.data.scheme).documents


@pytest.mark.data
def test_the_tag_map_of_the_domains_leaves_no_type_outside(corpora):
    settings = load_settings(recipe_path("crossner-domains"))
    for site in settings.site:
        for part in PARTS:
            for file in getattr(site, part):
                documents = read(locate(file), "conll", scheme="iob2").documents
                types = {entity.type for document in documents for entity in document.entities}
                assert {site.tags.get(type_, type_) for type_ in types} <= set(settings.data.types)
                assert set(site.tags) & set(settings.data.types) == set()


def test_an_unknown_recipe():
    with pytest.raises(SettingsError, match=r"no recipe 'ncbi-iid'.*did you mean 'ncbi-iid10'"):
        recipe_path("ncbi-iid")
    with pytest.raises(SettingsError, match="one of bc5cdr-iid10, conll2003-iid10"):
        recipe_path("zzz")


AVERAGED = {  # Luboshnikov & Makarov 2020, and Ma & Hovy 2016, whose model it is
    "training.optimiser": "sgd", "training.learning_rate": 0.015, "training.momentum": 0.9,
    "training.decay": 0.95, "training.local_epochs": 10, "training.batch_size": 10,
    "training.clip": 5.0, "training.word_dropout": 0.0, "training.optimiser_state": "reset",
    "split.sites": 10, "split.by": "iid", "federation.fraction": 1.0,
    "options.rows": "all", "model.kind": "tagger", "model.character": "none",
    "model.word_dim": 100, "model.bilstm_hidden": 200, "model.bilstm_layers": 1,
    "model.dropout": 0.5, "model.tag_scheme": "iobes", "model.vectors": None,
}  # fmt: skip
DISTILLED = {  # Sui et al. 2020, 4.2
    "training.learning_rate": 2.5e-5, "training.decay": 1.0, "training.batch_size": 4,
    "training.local_epochs": 2, "classifier.encoder": "emilyalsentzer/Bio_ClinicalBERT",
    "classifier.dropout": 0.1, "encoder.tune": "all", "classifier.blind": True,
    "classifier.pool": "sum", "federation.fraction": 0.1, "public.share": 0.2,
    "public.labelled": True, "options.upload": "logits", "options.average": "all",
    "options.temper_student": False, "options.past_weight": 0.0, "options.holdout_share": 0.0,
}  # fmt: skip
BIDDING = {  # Sui et al. 2021, 4.2; what it searched is the first of its grid that is here
    "split.sites": 100, "federation.fraction": 0.1, "training.optimiser": "sgd",
    "training.momentum": 0.0, "training.learning_rate": 0.1, "training.decay": 0.99,
    "training.weight_decay": 1e-5, "training.batch_size": 32, "training.local_epochs": 3,
    "pcnn.position_dim": 5, "pcnn.filters": 230, "pcnn.width": 3, "pcnn.dropout": 0.5,
    "pcnn.activation": "tanh", "options.weighting": "examples", "options.factor": 1.0,
    "options.warmup_rounds": 0, "options.temperature": 0.0, "options.levels": 0,
}  # fmt: skip
PAPERS = {
    "conll2003-iid10": AVERAGED,
    "ncbi-iid10-paper": AVERAGED,
    "feded-i2b2-paper": {**DISTILLED, "split.sites": 100},
    "feded-gad-paper": {**DISTILLED, "split.sites": 50},
    "feded-euadr-paper": {**DISTILLED, "split.sites": 50},
    "lazymil-nyt10-paper": {
        **BIDDING, "pcnn.word_dim": 50, "pcnn.vectors": "$CONFIDE_DATA/nre_vectors/vec.txt",
    },
    "lazymil-mirgene-paper": {
        **BIDDING, "pcnn.word_dim": 200, "data.dev_share": 0.1,
        "pcnn.vectors": "$CONFIDE_DATA/biowordvec/BioWordVec_PubMed_MIMICIII_d200.vec.txt",
    },
    "tags-ontonotes-paper": {  # Wang et al. 2023, 5.2 and App. C
        "rounds": 25, "training.learning_rate": 3e-5, "training.decay": 1.0,
        "training.batch_size": 8, "training.local_epochs": 1, "training.unannotated_types": 0.0,
        "model.kind": "lightner", "lightner.bart": "facebook/bart-base", "lightner.prompts": 10,
        "lightner.hidden": 400, "lightner.prompts_in": "both", "lightner.tune": "prompts",
        "lightner.constrained": False, "lightner.adversary": "none", "options.warmup_rounds": 0,
        "options.distil": True, "options.confidence": 0.0, "options.instance_weights": True,
        "options.momentum": 0.9, "options.centred": False, "options.weighting": "equal",
    },
    "fedner-medical-full": {  # Ge et al. 2020, 4.1; MiniLM in ELMo's place, other corpora
        "training.optimiser": "adam", "training.learning_rate": 0.001, "training.decay": 1.0,
        "training.batch_size": 64, "training.word_dropout": 0.0, "model.word_dim": 300,
        "model.character": "cnn", "model.character_dim": 100, "model.character_filters": 200,
        "model.character_width": 3, "model.cnn_filters": 200, "model.cnn_widths": [3],
        "model.bilstm_hidden": 200, "model.bilstm_layers": 1, "model.dropout": 0.2,
        "model.tag_scheme": "iob2", "options.local_steps": 1,
        "data.train_share": 1.0,
    },
}  # fmt: skip
"""What a recipe of a paper resolves to: all that the paper gives a number or a name."""


@each("name", PAPERS)
def test_a_recipe_of_a_paper_is_literal(name):
    settings = load_settings(recipe_path(name))
    own = method_of(settings).of.Settings(**settings.options)
    tree = {**settings.model_dump(mode="json"), "options": own.model_dump(mode="json")}
    found = {}
    for key in PAPERS[name]:
        table, _, field = key.rpartition(".")
        found[key] = (tree[table] if table else tree)[field]
    assert found == PAPERS[name]


def test_every_recipe_of_a_paper_is_among_them():
    assert {name for name in NAMES if name.endswith("-paper")} <= set(PAPERS)
