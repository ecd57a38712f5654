"""From settings to sites: what is read, held out, dealt and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from confide.data.examples import examples_from
from confide.errors import (
    ConfideError,
    DataError,
    FormatError,
    MissingDataError,
    SchemeError,
    SettingsError,
)
from confide.gathering import Gathered, gather, pooled
from confide.settings import Settings, parse
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
        "problems": {},
    }  # fmt: skip
    assert len(found["fingerprint"]) == 64


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


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tiny_site_keeps_something_to_train_on(tmp_path: Path, count: int) -> None:
    write_conll(tmp_path / "train.conll", sentences("north", "train", count))
    text = (tmp_path / "train.conll").read_text()
    (spec,) = gathered(tmp_path, one_site(tmp_path, text)).specs
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


@pytest.mark.parametrize("text", ["", "\n\n\n", " \n"])
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
