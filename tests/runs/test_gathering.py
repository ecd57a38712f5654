"""From settings to sites: what is read, held out, dealt and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cases import each
from confide.corpora.dealing import relations_by_type
from confide.errors import (
    ConfideError,
    DataError,
    FormatError,
    MissingDataError,
    SchemeError,
    SettingsError,
)
from confide.federation.engines import Hosting
from confide.runs.sites import Gathered, gather, pooled, public_only, public_set
from confide.settings import Settings, parse
from confide.text.document import Document, Entity
from confide.text.formats import write
from confide.training.batches import examples_from
from contract.corpus import sentences, tiny, write_conll, write_sites


def gathered(folder: Path, settings: Settings) -> Gathered:
    return gather(settings, folder / "run" / "sites", key_file=folder / "shared.key")


def one_site(folder: Path, text: str, **table: Any) -> Settings:
    """Settings of a single site with these lines to train on."""
    path = folder / "train.conll"
    path.write_text(text, encoding="utf-8")
    data = table.pop("data", {"format": "conll"})
    return parse({"data": data, "site": [{"name": "north", "train": str(path), **table}]})


def texts(documents: Any) -> list[str]:
    return [document.text for document in documents]


def test_every_site_gets_its_own_files(tmp_path: Path) -> None:
    found = gathered(tmp_path, tiny(tmp_path))
    assert [spec.name for spec in found.specs] == ["site-1", "site-2", "site-3"]
    for spec in found.specs:
        assert [len(part) for part in (spec.train, spec.dev, spec.test)] == [18, 6, 6]
        assert spec.folder == tmp_path / "run" / "sites" / spec.name
        assert spec.key_file == tmp_path / "shared.key"
        first = " ".join(token for token, _ in sentences(spec.name, "train", 1)[0])
        assert spec.train[0].text == first


def test_facts_are_counts(tmp_path: Path) -> None:
    found = gathered(tmp_path, tiny(tmp_path, sites=1)).facts()
    tags = [tag for one in sentences("site-1", "train", 18) for _, tag in one]
    assert found["sites"]["site-1"] == {
        "train": 18, "dev": 6, "test": 6,
        "entities": {"Drug": tags.count("B-Drug"), "Effect": tags.count("B-Effect")},
        "problems": {}, "words_cut": {"words": len(tags) - tags.count("O"), "cut": 0},
    }  # fmt: skip
    assert len(found["fingerprint"]) == 64


@each(
    ("kind", "left_out"),
    [("tagger", {"discontinuous": 1, "nested": 1}), ("spans", {"discontinuous": 1})],
)
def test_what_is_left_out_depends_on_what_the_kind_holds(
    tmp_path: Path, kind: str, left_out: dict[str, int]
) -> None:
    entities = tuple(
        Entity(f"T{number}", "Finding", fragments)
        for number, fragments in enumerate([((0, 10),), ((6, 10),), ((0, 5), (15, 20))])
    )
    write([Document("a", "chest pain and burns", entities)], tmp_path / "a.jsonl", "jsonl")
    table = {"name": "north", "train": str(tmp_path / "a.jsonl"), "dev": [], "test": []}
    found = gathered(tmp_path, parse({"model": {"kind": kind}, "site": [table]}))
    assert found.facts()["sites"]["north"]["problems"] == left_out


def test_the_fingerprint_is_that_of_text_and_annotation(tmp_path: Path) -> None:
    prints = [gathered(tmp_path, tiny(tmp_path)).fingerprint]
    prints.append(gathered(tmp_path / "elsewhere", tiny(tmp_path / "elsewhere")).fingerprint)
    assert len(set(prints)) == 1
    path = tmp_path / "data" / "site-2" / "test.conll"
    text = path.read_text()
    for changed in (text.replace("B-Drug", "B-Drag", 1), text.replace("the", "thee", 1)):
        path.write_text(changed)
        settings = tiny(tmp_path, site=list(_tables(tmp_path)))
        prints.append(gathered(tmp_path, settings).fingerprint)
    assert len(set(prints)) == 3


def _tables(folder: Path) -> list[dict[str, Any]]:
    return [
        {"name": s.name, **{p: str(s / f"{p}.conll") for p in ("train", "dev", "test")}}
        for s in sorted((folder / "data").iterdir())
    ]


# --- holding out ------------------------------------------------------------------------------


def test_a_site_without_held_out_files_holds_out_a_share(tmp_path: Path) -> None:
    path = write_conll(tmp_path / "all.conll", sentences("north", "train", 40))
    site = {"name": "north", "train": str(path)}
    settings = parse({"data": {"format": "conll"}, "site": [site]})
    (spec,) = gathered(tmp_path, settings).specs
    assert [len(part) for part in (spec.train, spec.dev, spec.test)] == [28, 4, 8]
    everything = texts([*spec.train, *spec.dev, *spec.test])
    whole = [" ".join(token for token, _ in one) for one in sentences("north", "train", 40)]
    assert sorted(everything) == sorted(whole)
    assert everything != whole
    (again,) = gathered(tmp_path, settings).specs
    assert texts(again.test) == texts(spec.test)
    (other,) = gathered(tmp_path, settings.model_copy(update={"seed": 2})).specs
    assert texts(other.test) != texts(spec.test)


def test_only_what_is_missing_is_held_out(tmp_path: Path) -> None:
    (table,) = write_sites(tmp_path / "data", 1, train=20)
    del table["dev"]
    (spec,) = gathered(tmp_path, tiny(tmp_path, site=[table])).specs
    assert [len(part) for part in (spec.train, spec.dev, spec.test)] == [18, 2, 6]


@each("count", [1, 2, 3])
def test_a_tiny_site_keeps_something_to_train_on(tmp_path: Path, count: int) -> None:
    write_conll(tmp_path / "train.conll", sentences("north", "train", count))
    text = (tmp_path / "train.conll").read_text()
    settings = one_site(tmp_path, text)
    half = settings.data.model_copy(update={"test_share": 0.5, "dev_share": 0.5})
    for data in (settings.data, half):
        (spec,) = gathered(tmp_path, settings.model_copy(update={"data": data})).specs
        assert len(spec.train) >= 1
        assert len(spec.train) + len(spec.dev) + len(spec.test) == count


# --- tags ----------------------------------------------------------------------------------------


TAGGED = "aspirin\tB-ADR\nthen\tO\nrash\tB-Misc\n\npain\tB-ADE\n"


def test_a_tag_map_makes_their_tags_ours(tmp_path: Path) -> None:
    settings = one_site(
        tmp_path, TAGGED, tags={"ADR": "ADE", "Misc": "", "Spelt": "ADE"}, test=[], dev=[]
    )
    (spec,) = gathered(tmp_path, settings).specs
    types = {e.type for part in (spec.train, spec.dev, spec.test) for d in part for e in d.entities}
    assert types == {"ADE"}
    assert gathered(tmp_path, settings).facts()["sites"]["north"]["problems"] == {
        "tag-not-found": 1
    }


def test_a_tag_outside_the_declared_set_is_refused_with_file_and_line(tmp_path: Path) -> None:
    settings = one_site(tmp_path, TAGGED, data={"format": "conll", "types": ["ADE", "ADR"]})
    with pytest.raises(DataError, match=r"train\.conll:1 \[13:17\].*ADE or ADR.*'Misc'"):
        gathered(tmp_path, settings)
    mapped = one_site(
        tmp_path, TAGGED, tags={"Misc": "ADE"}, data={"format": "conll", "types": ["ADE", "ADR"]}
    )
    assert gathered(tmp_path, mapped).specs


# --- one corpus dealt to simulated sites ----------------------------------------------


def dealt(folder: Path, **split: Any) -> Settings:
    files = {
        part: str(write_conll(folder / f"{part}.conll", sentences("all", part, count)))
        for part, count in (("train", 40), ("dev", 10), ("test", 10))
    }
    table = {"sites": 4, **files, **split}
    return parse({"data": {"format": "conll"}, "split": table})


def test_a_corpus_is_dealt_whole_and_to_the_same_sites_again(tmp_path: Path) -> None:
    found = gathered(tmp_path, dealt(tmp_path))
    assert [len(spec.train) for spec in found.specs] == [10, 10, 10, 10]
    whole = [" ".join(token for token, _ in one) for one in sentences("all", "train", 40)]
    assert sorted(t for spec in found.specs for t in texts(spec.train)) == sorted(whole)
    again = gathered(tmp_path, dealt(tmp_path))
    assert again.fingerprint == found.fingerprint
    assert gathered(tmp_path, dealt(tmp_path, seed=2)).fingerprint != found.fingerprint


def test_a_patient_is_at_one_site_in_every_part(tmp_path: Path) -> None:
    files = {}
    for part, patients in (("train", "abcd"), ("test", "edb")):
        rows = [{"text": f"{who} coughs .", "patient": who, "spans": []} for who in 4 * patients]
        files[part] = str(tmp_path / f"{part}.jsonl")
        Path(files[part]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = {"sites": 2, "by": "attribute", "attribute": "patient", **files}
    specs = gathered(tmp_path, parse({"data": {"format": "jsonl"}, "split": table})).specs
    found = [[{t[0] for t in texts(part)} for part in (s.train + s.dev, s.test)] for s in specs]
    assert found == [[{"a", "c"}, {"e"}], [{"b", "d"}, {"b", "d"}]]


def test_all_text_in_one_place(tmp_path: Path) -> None:
    found = gathered(tmp_path, tiny(tmp_path))
    spec = pooled(found, tmp_path)
    assert [len(part) for part in (spec.train, spec.dev, spec.test)] == [54, 18, 18]
    assert texts(spec.train) == [t for one in found.specs for t in texts(one.train)]


# --- bad input ------------------------------------------------------------------------------------


def test_a_wrong_path_is_named(tmp_path: Path) -> None:
    tables = write_sites(tmp_path / "data", 2)
    tables[1]["train"] = str(tmp_path / "nowhere.conll")
    with pytest.raises(MissingDataError, match=r"nowhere\.conll"):
        gathered(tmp_path, tiny(tmp_path, site=tables))


@each("text", ["", "\n\n\n", " \n"])
def test_an_empty_file_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"train\.conll|north"):
        gathered(tmp_path, one_site(tmp_path, text))


def test_settings_without_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="name no text"):
        gather(parse({"method": "fedavg"}), tmp_path, key_file=None)


def test_an_unknown_scheme_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfideError, match=r"iob2.*'iob9'|'iob9'.*iob2"):
        gathered(tmp_path, one_site(tmp_path, TAGGED, scheme="iob9"))


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfideError, match=r"conll.*'conl'"):
        gathered(tmp_path, one_site(tmp_path, TAGGED, format="conl"))


def test_tags_of_no_scheme_are_refused_or_counted(tmp_path: Path) -> None:
    settings = one_site(tmp_path, "a\tQ-X\nb\tO\n", data={"format": "conll", "scheme": "iob2"})
    with pytest.raises((SchemeError, FormatError), match=r"train\.conll:1"):
        gathered(tmp_path, settings)


def test_offsets_beyond_the_text_are_counted_or_refused_by_line(tmp_path: Path) -> None:
    lines = [
        {"id": 1, "text": "took aspirin", "label": [[5, 12, "Drug"]]},
        {"id": 2, "text": "took", "label": [[5, 12, "Drug"], [0, 4, "Act"]]},
    ]
    path = tmp_path / "n.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    settings = parse({"site": [{"name": "north", "train": str(path)}]})
    found = gathered(tmp_path, settings)
    assert sum(found.facts()["sites"]["north"]["problems"].values()) == 1
    (problem,) = found.problems["north"]
    assert "n.jsonl:2" in problem.where
    assert problem.lost


def test_a_file_of_mixed_encodings_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.conll"
    path.write_bytes("Gärung\tO\nja\tB-X\n".encode() + "Übel\tO\n".encode("latin-1"))
    site = {"name": "north", "train": str(path)}
    with pytest.raises(FormatError, match=r"train\.conll:3"):
        gathered(tmp_path, parse({"data": {"format": "conll"}, "site": [site]}))
    latin = parse({"data": {"format": "conll", "encoding": "latin-1"}, "site": [site]})
    assert gathered(tmp_path, latin).specs


def test_a_line_of_50000_tokens_is_one_sentence_of_50000_tokens(tmp_path: Path) -> None:
    tokens = [f"w{n % 97}" for n in range(50_000)]
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"text": " ".join(tokens), "label": [[0, 2, "Drug"]]}))
    settings = parse({"site": [{"name": "north", "train": str(path)}]})
    (spec,) = gathered(tmp_path, settings).specs
    examples, _ = examples_from(spec.train)
    assert sum(len(example.tokens) for example in examples) == 50_000


def test_a_share_of_the_training_text_holds_what_a_smaller_one_holds(tmp_path: Path) -> None:
    whole = gathered(tmp_path, tiny(tmp_path)).specs[0]
    parts = {
        share: gathered(tmp_path, tiny(tmp_path, f"data.train_share={share}")).specs[0]
        for share in (0.01, 0.25, 0.5)
    }
    assert [len(part.train) for part in parts.values()] == [1, 5, 9]
    assert set(texts(parts[0.25].train)) <= set(texts(parts[0.5].train)) <= set(texts(whole.train))
    assert texts(parts[0.5].test) == texts(whole.test)


def test_common_entities_are_hidden_in_training_text_only(tmp_path: Path) -> None:
    found = gathered(tmp_path, tiny(tmp_path, "data.mask_common=1.0"))
    plain = gathered(tmp_path, tiny(tmp_path))
    assert found.fingerprint != plain.fingerprint
    for spec, before in zip(found.specs, plain.specs, strict=True):
        assert texts(spec.test) == texts(before.test)
        for one, other in zip(spec.train, before.train, strict=True):
            assert len(one.text) == len(other.text) and one.entities == other.entities
            for entity in one.entities:
                assert set(one.text[entity.start : entity.end]) <= {"x", " "}


# --- relations: the public set, held out of the corpus ---------------------------------------


def table(folder: Path, name: str, size: int, *, of: int = 3) -> str:
    """A file of BioBERT's: one of `of` pairs is not related."""
    lines = [f"{name} {n} : @GENE$ and @DISEASE$ .\t{int(n % of != 0)}" for n in range(size)]
    path = folder / f"{name}.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def related(folder: Path, split: dict[str, Any] | None = None, **tables: Any) -> Gathered:
    """A corpus of 100 pairs dealt to 4 sites."""
    dealing = {"sites": 4, "train": table(folder, "train", 100), **(split or {})}
    return gathered(folder, parse({"task": "re", "split": dealing, **tables}))


def everything(found: Gathered) -> list[str]:
    every = [text for spec in found.specs for part in (spec.train, spec.dev, spec.test)
             for text in texts(part)]  # fmt: skip
    return sorted([*every, *texts(found.public)])


def test_a_share_of_the_corpus_is_public_and_nothing_is_twice(tmp_path: Path) -> None:
    found = related(tmp_path, public={"share": 0.2})
    assert len(found.public) == 20
    assert [sum(map(len, (s.train, s.dev, s.test))) for s in found.specs] == [20] * 4
    assert everything(found) == sorted(f"train {n} : @GENE$ and @DISEASE$ ." for n in range(100))
    assert related(tmp_path, public={"share": 0.2}).public == found.public
    assert related(tmp_path, public={"share": 0.2}, seed=2).public != found.public
    more = set(texts(related(tmp_path, public={"share": 0.5}).public))
    assert len(more) == 50 and more > set(texts(found.public))


def test_what_is_held_out_of_the_corpus_does_not_hang_on_sites_or_the_public_set(
    tmp_path: Path,
) -> None:
    corpus = {"holdout_from": "corpus"}
    plain, shared, many = (
        related(tmp_path, corpus),
        related(tmp_path, corpus, public={"share": 0.3}),
        related(tmp_path, {**corpus, "sites": 30}),
    )
    assert [len(spec.train) for spec in plain.specs] == [18, 18, 17, 17]
    assert [len(spec.dev) for spec in many.specs] == [1] * 10 + [0] * 20
    assert [len(spec.test) for spec in many.specs] == [1] * 20 + [0] * 10
    assert all(spec.train for spec in many.specs)
    assert len(shared.public) == 21  # of the 70 that are for training
    for part in ("dev", "test"):
        held = [
            sorted(t for spec in found.specs for t in texts(getattr(spec, part)))
            for found in (plain, shared, many)
        ]
        assert held[0] == held[1] == held[2]
    for found in (plain, shared, many):
        assert len(everything(found)) == len(set(everything(found))) == 100


def test_a_test_file_of_fewer_documents_than_sites(tmp_path: Path) -> None:
    found = related(tmp_path, {"test": table(tmp_path, "test", 3), "holdout_from": "corpus"})
    assert [texts(spec.test) for spec in found.specs] == [
        *([f"test {n} : @GENE$ and @DISEASE$ ."] for n in range(3)), [],
    ]  # fmt: skip
    assert [len(spec.dev) for spec in found.specs] == [3, 3, 2, 2]
    assert sum(len(spec.train) for spec in found.specs) == 90
    at_home = related(tmp_path, {"test": table(tmp_path, "test", 3)})
    assert [len(spec.test) for spec in at_home.specs] == [1, 1, 1, 0]
    assert [len(spec.train) + len(spec.dev) for spec in at_home.specs] == [25] * 4
    with pytest.raises(DataError, match="fewer documents than sites"):
        related(tmp_path, {"sites": 101})


def test_a_public_set_of_its_own_files(tmp_path: Path) -> None:
    files = {"files": [table(tmp_path, "known", 9)], "relations": {"related": "linked"}}
    found = related(tmp_path, public=files)
    assert texts(found.public) == [f"known {n} : @GENE$ and @DISEASE$ ." for n in range(9)]
    assert relations_by_type(found.public) == {"linked": 6}
    assert sum(len(s.train) + len(s.dev) + len(s.test) for s in found.specs) == 100
    settings = parse({"task": "re", "public": {**files, "labelled": False}})
    (*_, last) = unlabelled = public_set(settings)
    assert (len(unlabelled), relations_by_type(unlabelled)) == (9, {})
    assert last.entities and dict(last.attributes) == {"pair": "T1 T2"}
    assert public_set(parse({"task": "re"})) == ()
    problems: list[Any] = []
    public_set(parse({"task": "re", "public": {**files, "relations": {"relatd": "x"}}}), problems)
    assert [problem.kind for problem in problems] == ["relation-not-found"]


def test_the_public_set_as_a_reference(tmp_path: Path) -> None:
    found = related(tmp_path, public={"share": 0.2})
    alone, whole = public_only(found, tmp_path), pooled(found, tmp_path)
    assert (alone.name, alone.folder) == ("public-only", tmp_path / "public-only")
    assert texts(alone.train) == texts(found.public)
    assert texts(alone.test) == texts(whole.test)
    assert len(whole.test) == 16
    assert sorted(texts([*whole.train, *whole.dev, *whole.test])) == everything(found)
    hidden = related(tmp_path, public={"share": 0.2, "labelled": False})
    assert texts(hidden.public) == texts(found.public)
    assert not set(texts(pooled(hidden, tmp_path).train)) & set(texts(hidden.public))
    for given in (hidden, related(tmp_path)):
        with pytest.raises(SettingsError, match="public-only has nothing to learn from"):
            public_only(given, tmp_path)


def test_facts_of_relations(tmp_path: Path) -> None:
    found = related(tmp_path, {"sites": 1, "holdout_from": "corpus"}, public={"share": 0.2})
    facts = found.facts()
    train = found.specs[0].train
    assert facts["sites"]["site-01"]["relations"] == relations_by_type(train)
    assert facts["sites"]["site-01"]["entities"] == {"DISEASE": len(train), "GENE": len(train)}
    assert facts["public"] == {
        "documents": len(found.public),
        "relations": relations_by_type(found.public),
        "problems": {},
    }
    assert "public" not in related(tmp_path).facts()


def test_the_fingerprint_covers_relations_and_the_public_set(tmp_path: Path) -> None:
    prints = [
        related(tmp_path, public={"files": [table(tmp_path, name, size)], "labelled": labelled})
        for name, size, labelled in (
            ("p", 3, True),
            ("p", 4, True),
            ("q", 3, True),
            ("q", 3, False),
        )
    ]
    plain = related(tmp_path)
    path = tmp_path / "train.tsv"
    path.write_text(path.read_text().replace("\t1", "\t0", 1))
    split = {"sites": 4, "train": str(path)}
    other = gathered(tmp_path, parse({"task": "re", "split": split}))
    assert texts(plain.specs[0].train) == texts(other.specs[0].train)
    assert len({one.fingerprint for one in (*prints, plain, other)}) == 6


def test_sites_say_how_their_relations_are_called_and_which_they_know(tmp_path: Path) -> None:
    north = {"name": "north", "train": table(tmp_path, "n", 20), "annotates": ["linked"]}
    south = {"name": "south", "train": table(tmp_path, "s", 20), "relations": {"related": ""}}
    maps = {"relations": {"related": "linked"}}
    found = gathered(tmp_path, parse({"task": "re", "site": [{**north, **maps}, south]}))
    facts = found.facts()["sites"]
    assert [spec.annotates for spec in found.specs] == [("linked",), ()]
    hosting = Hosting({}, object, seed=1)
    assert [hosting.host(spec, {}).site.annotates for spec in found.specs] == [("linked",), ()]
    assert list(facts["north"]["relations"]) == ["linked"]
    assert facts["south"]["relations"] == {}
    assert facts["south"]["problems"] == {"relation-dropped": 13}


def test_relations_are_dealt_by_relation(tmp_path: Path) -> None:
    def spread(by: str) -> float:
        """Between the sites with the largest and the smallest share of related pairs."""
        facts = related(tmp_path, {"by": by, "holdout_from": "corpus"}).facts()["sites"].values()
        shares = [site["relations"].get("related", 0) / site["train"] for site in facts]
        return max(shares) - min(shares)

    assert spread("dirichlet") > 2 * spread("iid")


def test_whole_domains_are_not_torn_between_parts(tmp_path: Path) -> None:
    files = [table(tmp_path, name, size) for name, size in (("a", 40), ("b", 1))]
    split = {"sites": 2, "by": "file", "train": files}
    with pytest.raises(DataError, match=r"no document of the file '.*b\.tsv' is left for"):
        related(tmp_path, {**split, "holdout_from": "corpus"})
    assert related(tmp_path, split).specs


@each("alone", [True, False])
def test_text_without_any_relation_is_refused(tmp_path: Path, alone: bool) -> None:
    nothing = write_conll(tmp_path / "n.conll", sentences("north", "train", 10))
    tables = [{"name": "north", "train": str(nothing)}]
    if not alone:
        tables.append({"name": "south", "train": table(tmp_path, "s", 20, of=1)})
    with pytest.raises(DataError, match=r"no training document has a relation.*confide data stats"):
        gathered(tmp_path, parse({"task": "re", "site": tables}))


def test_a_real_site_may_have_pairs_without_a_relation_only(tmp_path: Path) -> None:
    tables = [{"name": "south", "train": table(tmp_path, "s", 20, of=1)}]
    assert gathered(tmp_path, parse({"task": "re", "site": tables})).specs


def test_the_public_set_of_entities_is_bare_where_nobody_looks_at_it(tmp_path: Path) -> None:
    overrides = ("method=feded-tagger",)
    labelled = gathered(tmp_path, tiny(tmp_path, *overrides))
    bare = gathered(tmp_path, tiny(tmp_path, *overrides, "public.labelled=false"))
    assert [one.text for one in bare.public] == [one.text for one in labelled.public]
    assert any(one.entities for one in labelled.public)
    assert not any(one.entities for one in bare.public)
    types = [found.facts()["public"]["entities"] for found in (labelled, bare)]
    assert (sorted(types[0]), types[1]) == (["Drug", "Effect"], {})
    assert labelled.fingerprint != bare.fingerprint


def test_bags_have_no_use_for_a_public_set(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "method=fedavg-bags").model_copy(
        update={"public": parse({"public": {"files": ["a.conll"]}}).public}
    )
    with pytest.raises(SettingsError, match="this method uses no public set"):
        gathered(tmp_path, settings)
