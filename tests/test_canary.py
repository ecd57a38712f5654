"""Canaries: unique strings planted in every site's text, looked for in every byte that leaves.

What belongs to a site (its own folder under `sites/`) is exempt, and so is settings.toml, which
names files of the machine that runs the simulation.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import confide
from cases import each
from confide.errors import ConfideError
from confide.federation.engines import Hosting, SequentialEngine
from confide.federation.federation import Delivery
from confide.federation.messages import carries, decode, encode
from confide.federation.site import Site
from confide.kinds.agreement import CheckKey
from confide.kinds.linear import TABLE
from confide.kinds.tagger.model import Marks, rows_read
from confide.methods import METHODS
from confide.runs.folder import RunFolder
from confide.runs.loading import release
from confide.runs.run import run
from confide.text.document import NO_RELATION, Document, Entity
from confide.text.formats import read
from confide.training.batches import Example
from confide.training.vocabulary import DIGEST_BYTES, keyed_digest, normalise
from contract.bags import bag_documents
from contract.corpus import KEY, sentences, tiny, write_conll
from contract.entries import ANSWERED, ENTRIES, METHOD, pairs
from contract.relations import documents, write_documents
from contract.runs import breaking, use_engine

SITES = ("site-1", "site-2", "site-3")
WORDS = {
    "word": "Canary{n}wortqx",
    "entity": "Zylo{n}profaneqx",
    "umlaut": "Kanarien{n}vögelchenqx",
    "rare": "ﬀ𝔠𝔞𝔫{n}𝔞𝔯𝔶qx",
    "number": "8675309{n}4711",
}
IDS = {
    "document": "patient-Xan{n}thippeqx",
    "file": "ward-Ygg{n}drasilqx",
    "note": "T9Quet{n}zalqx",
    "concept": "MESH:Oze{n}lotqx",
    "raised": "RaisedWom{n}batqx",
}


def canaries(site: str) -> dict[str, str]:
    letter = "_abc"[int(site.rpartition("-")[2])]
    return {name: form.format(n=letter) for name, form in {**WORDS, **IDS}.items()}


ALL = sorted({text for site in SITES for text in canaries(site).values()})


def disguises(text: str) -> set[bytes]:
    """The ways in which a string might hide in bytes."""
    found: set[bytes] = set()
    for form in {text, text.lower(), text.upper(), normalise(text, "lower-digits"), text[::-1]}:
        raw = form.encode()
        found |= {raw, form.encode("utf-16-le"), form.encode("utf-16-be"), form.encode("utf-32-le")}
        found |= {raw.hex().encode(), raw.hex().upper().encode()}
        found |= {json.dumps(form)[1:-1].encode(), ascii(form)[1:-1].encode()}
        for shift in range(3):  # base64 of the string at any place within other bytes
            coded = base64.b64encode(b"\0" * shift + raw)
            found.add(coded[[0, 2, 3][shift] : len(coded) - 4].rstrip(b"="))
    return {form for form in found if len(form) >= 6}


NEEDLES = {form: text for text in ALL for form in disguises(text)}


HEADS_N2 = np.array(
    [[int.from_bytes(form[at : at + 3], "little") for at in (0, 3)] for form in NEEDLES]
)
"""The first and the next three bytes of each form, as numbers."""


def sightings(data: bytes) -> list[str]:
    """The strings whose forms are in the data.

    Of long data, only forms whose first six bytes are there by threes are looked for.
    """
    wanted = list(NEEDLES.items())
    if len(data) > 100_000:
        bytes_N = np.frombuffer(data, np.uint8).astype(np.uint32)
        there = np.zeros(1 << 24, bool)
        there[bytes_N[:-2] | bytes_N[1:-1] << 8 | bytes_N[2:] << 16] = True
        wanted = [wanted[number] for number in np.flatnonzero(there[HEADS_N2].all(1))]
    return sorted({text for form, text in wanted if form in data})


def plant(folder: Path) -> list[dict[str, Any]]:
    """Every site's files, with its canaries as words, entities, ids and names of files."""
    tables = []
    for site in SITES:
        here = canaries(site)
        files = {}
        for part, count in (("train", 18), ("dev", 6), ("test", 6)):
            tagged = sentences(site, part, count)
            for one in tagged[:6]:
                one[0:0] = [(here["word"], "O"), (here["entity"], "B-Drug"), (here["umlaut"], "O")]
            tagged[0] += [(here["rare"], "I-Effect"), (here["number"], "O")]
            path = folder / site / f"{part}-{here['file']}.conll"
            write_conll(path, tagged)
            mark = f"# doc_id = {here['document']}\n"
            path.write_text(mark + path.read_text(encoding="utf-8"), encoding="utf-8")
            files[part] = str(path)
        extra = folder / site / f"{here['file']}.jsonl"
        text = f"{here['note']} took {here['entity']} today ."
        start = text.index(here["entity"])
        span = {"id": here["note"], "label": "Drug"}
        span |= {"start_offset": start, "end_offset": start + len(here["entity"])}
        extra.write_text(json.dumps({"id": here["document"], "text": text, "entities": [span]}))
        train = [files["train"], str(extra)]
        tables.append({"name": site, **files, "train": train})
    return tables


def plant_relations(folder: Path) -> list[dict[str, Any]]:
    """The same for text with relations: of each site's documents, every other has its canaries."""
    tables = []
    for site in SITES:
        here, files = canaries(site), {}
        for part, count in (("train", 18), ("dev", 6), ("test", 12)):
            found = documents(site, part, count)
            found[::2] = [with_canaries(one, here) for one in found[::2]]
            files[part] = write_documents(folder / site / f"{part}-{here['file']}.jsonl", found)
        tables.append({"name": site, **files})
    return tables


def plant_assertions(folder: Path) -> list[dict[str, Any]]:
    """The same, where what holds is an attribute of the second entity, and of it alone."""
    tables = plant_relations(folder)
    for table in tables:
        for part in ("train", "dev", "test"):
            found = []
            for one in read(table[part]).documents:
                said = {relation.tail: relation.type for relation in one.relations}
                head, tail = one.entities
                mark = (("assertion", said.get(tail.id, "present")),)
                both = (head, replace(tail, attributes=mark))
                found.append(replace(one, entities=both, relations=()))
            write_documents(Path(table[part]), found)
    return tables


def with_canaries(one: Document, here: dict[str, str]) -> Document:
    """The document with an entity, words and ids that are a site's own."""
    head, tail = one.entities
    name = f"{here['entity']} {here['number']}"
    start = f"{here['word']} {here['umlaut']} {here['rare']} {here['note']} "
    moved = len(start) + len(name) - len(one.surface(head))
    text = f"{start}{one.text[: head.start]}{name}{one.text[head.end :]}"
    entities = (
        Entity(here["note"], head.type, ((len(start) + head.start, head.end + moved),)),
        Entity(here["document"], tail.type, ((tail.start + moved, tail.end + moved),)),
    )
    return Document(
        id=f"{here['document']} {one.id}",
        text=text,
        entities=entities,
        relations=tuple(
            replace(relation, id=here["note"], head=entities[0].id, tail=entities[1].id)
            for relation in one.relations
        ),
        attributes=(("ward", here["word"]),),
    )


def plant_bags(folder: Path) -> list[dict[str, Any]]:
    """The same for bags, all of test text: what is planted is also the identifier of an entity."""
    tables = []
    for site in SITES:
        here, files = canaries(site), {}
        for part, count in (("train", 18), ("dev", 6), ("test", 12)):
            found = bag_documents(site, part, count)
            for place in range(0, count, 1 if part == "test" else 2):
                one = with_canaries(found[place], here)
                head, tail = one.entities
                entities = (replace(head, concepts=(here["concept"],)), tail)
                found[place] = replace(one, entities=entities)
            files[part] = write_documents(folder / site / f"{part}-{here['file']}.jsonl", found)
        tables.append({"name": site, **files})
    return tables


PLANT = {
    "ner": plant, "re": plant_relations, "bags": plant_bags, "assertion": plant_assertions,
}  # fmt: skip
"""What plants, by task; or by an attribute of entities."""


def test_planted_relations_are_those_of_the_corpus() -> None:
    for one in documents("site-1", "train", 18):
        other = with_canaries(one, canaries("site-1"))
        assert [r.type for r in other.relations] == [r.type for r in one.relations]
        assert other.surface(other.entities[0]).startswith("Zylo")
        assert other.surface(other.entities[1]) == one.surface(one.entities[1])


class Tapped(SequentialEngine):
    """An engine that keeps every byte that crosses the wall."""

    taken: list[tuple[str, str, bytes]]

    def deliver(
        self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
    ) -> Iterator[Delivery]:
        for site, data in asks.items():
            self.taken.append((step, f"ask to {site}", data))
        for found in super().deliver(step, round, asks=asks, timeout=timeout):
            self.taken.append((step, f"reply of {found.site}", found.reply))
            yield found


COUNTING = ("count_vocabulary", "count_bags")
"""Steps in which words are counted."""
COUNTED = {
    name: any(step.name in COUNTING for step in pair.steps)
    for name, pair in METHODS.items()
    if pair.keyed
}
FAST = {*METHOD.values(), "fedavg-linear"}
KEYED = pairs(fast=FAST, of=[name for name, counted in COUNTED.items() if counted])
"""Pairs under which words travel as keyed digests."""
HASHED = pairs(fast=FAST, of=[name for name, counted in COUNTED.items() if not counted])
"""Pairs under which no word is counted: a keyed hash of a feature says which weights are its."""


@pytest.fixture(scope="module", params=pairs(fast=FAST))
def planted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[tuple[str, str, bytes]]]:
    """A run over planted text, all that crossed the wall, and all that was watched."""
    folder = tmp_path_factory.mktemp("canary")
    taken: list[tuple[str, str, bytes]] = []
    put = PLANT[METHODS[request.param].task]
    small = ["linear.bits=15"] * request.param.endswith("-linear")  # each byte is searched
    settings = tiny(folder, f"method={request.param}", *small, site=put(folder / "data"), data={})
    with pytest.MonkeyPatch.context() as patch:
        use_engine(patch, Tapped, taken=taken)
        events: list[Any] = []
        run(settings, out=folder / "run", on_event=events.append)
    taken += [("event", event.kind, str(event).encode()) for event in events[:-1]]
    return folder / "run", taken


def leaving(folder: Path) -> list[Path]:
    """Every file of a run that is not a site's own; settings.toml names files of this machine."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.relative_to(folder).parts[0] != "sites"
        and path.name != "settings.toml"
    ]


def test_the_search_finds_what_it_should() -> None:
    for text in ALL:
        raw = text.encode()
        for hidden in (
            raw,
            text.lower().encode(),
            text.encode("utf-16-le"),
            raw.hex().encode(),
            base64.b64encode(b"some " + raw + b" text"),
            base64.b64encode(b"other " + raw + b" text"),
            base64.b64encode(b"more.. " + raw + b" text"),
            json.dumps({"a": text}).encode(),
        ):
            assert text in sightings(b"..." + hidden + b"..."), hidden
            assert text in sightings(bytes(100_000) + hidden), hidden
    assert sightings(b"nothing of the kind") == []


def test_the_canaries_are_alive(planted: tuple[Path, Any]) -> None:
    """They are in the sites' text, so that finding none elsewhere says something."""
    folder, _ = planted
    settings = RunFolder(folder).settings()
    for table in settings.site:
        text = "".join(Path(file).read_text() for file in (*table.train, *table.dev, *table.test))
        here = canaries(table.name)
        assert all(here[name] in text for name in (*WORDS, "document", "note"))
    errors = (folder / "sites" / "site-1" / "errors.json").read_text()
    if json.loads(errors)["worst"] or not ENTRIES[settings.trained_by].crossed:
        assert canaries("site-1")["entity"] in errors  # at the site itself text may be seen


@pytest.mark.parametrize("planted", KEYED, indirect=True)
def test_digests_of_the_canaries_are_sent(planted: tuple[Path, Any]) -> None:
    """They are in the sites' vocabulary too."""
    _, taken = planted
    replies = b"".join(data for step, who, data in taken if step in COUNTING)
    word = normalise(canaries("site-1")["word"], "lower-digits")
    assert keyed_digest(KEY, "word", word) in replies


@pytest.mark.parametrize("planted", ["lazy-mil-bags"], indirect=True)
def test_digests_of_planted_triples_are_bid(planted: tuple[Path, Any]) -> None:
    """A bag whose head is a planted identifier is bid for, by digest."""
    _, taken = planted
    nonces = {
        decode(CheckKey, data).nonce
        for step, what, data in taken
        if step == "check_key" and what.startswith("ask")
    }
    (nonce,) = nonces
    bids = b"".join(data for step, what, data in taken if step == "bid" and "reply" in what)
    for one in bag_documents("site-1", "train", 18)[::2]:
        relation = one.relations[0].type if one.relations else NO_RELATION
        triple = [nonce, canaries("site-1")["concept"], one.surface(one.entities[1]), relation]
        assert keyed_digest(KEY, "triple", json.dumps(triple)) in bids


def test_no_message_holds_text(planted: tuple[Path, list[tuple[str, str, bytes]]]) -> None:
    _, taken = planted
    assert len({step for step, _, _ in taken}) > 3
    found = {data: sightings(data) for data in {data for _, _, data in taken}}
    assert not [(step, what, found[data]) for step, what, data in taken if found[data]]


def test_no_file_of_the_run_holds_text(planted: tuple[Path, Any]) -> None:
    folder, _ = planted
    files = leaving(folder)
    names = {path.name for path in files}
    assert {"result.json", "environment.json", "ledger.jsonl", "round-000002.ckpt"} <= names
    seen = [(path, found) for path in files if (found := sightings(path.read_bytes()))]
    assert not seen
    assert not any(sightings(str(path.relative_to(folder)).encode()) for path in files)


def test_memory_of_a_site_holds_digests_and_no_text(planted: tuple[Path, Any]) -> None:
    folder, _ = planted
    files = list((folder / "sites").glob("*/memory/*"))
    assert files
    assert not [path for path in files if sightings(path.read_bytes())]


def test_the_key_never_crosses_the_wall(planted: tuple[Path, Any]) -> None:
    folder, taken = planted
    forms = [KEY, KEY.hex().encode(), KEY.hex().upper().encode(), base64.b64encode(KEY)[:40]]
    forms += [KEY[:16], KEY[16:], KEY[::-1]]
    everything = [data for _, _, data in taken]
    everything += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not [form for form in forms for data in everything if form in data]


@pytest.mark.parametrize("planted", KEYED, indirect=True)
def test_digests_cannot_be_made_without_the_key(planted: tuple[Path, Any]) -> None:
    """A server with a list of all words tries what it has: plain hashes, and its own keys."""
    folder, taken = planted
    nonces = {
        decode(CheckKey, data).nonce
        for step, what, data in taken
        if step == "check_key" and what.startswith("ask")
    }
    assert nonces
    words = sorted({word.lower() for word in ALL} | {"aspirin", "the", "patient", ".", "e", "a"})
    wrong: dict[bytes, str] = {}
    for word in words:
        for raw in (word.encode(), b"word\0" + word.encode(), b"character\0" + word.encode()):
            for name in ("sha256", "sha1", "md5", "sha512", "blake2b", "sha3_256"):
                hashed = hashlib.new(name, raw).digest()
                wrong[hashed[:DIGEST_BYTES]] = wrong[hashed[-DIGEST_BYTES:]] = word
        guesses = [b"", bytes(32), b"confide", b"\xff" * 32, KEY[:31], KEY[::-1]]
        guesses += [nonce.encode() for nonce in nonces]
        for guess in guesses:
            for kind in ("word", "character"):
                wrong[keyed_digest(guess, kind, word)] = word
    right = keyed_digest(KEY, "word", "aspirin")
    everything = [data for _, _, data in taken]
    everything += [path.read_bytes() for path in leaving(folder)]
    assert any(right in data for data in everything)
    assert not [wrong[mark] for mark in wrong for data in everything if mark in data]


def share_moved(folder: Path, key: bytes) -> float:
    """Of the rows that features of a site's planted words have under a key: how many have moved."""
    run = RunFolder(folder)
    state = decode(METHODS[run.settings().trained_by].State, run.store("").load(2).state)
    trainer = state.form.trainer(Marks(key))
    text = trainer.prepared([Example(0, 0, tuple(canaries("site-1")[name] for name in WORDS))])
    rows = rows_read(trainer.initial(0), text)
    return float(state.weights[TABLE][rows].any(1).mean())


def features_key(key: bytes, nonce: str) -> bytes:
    """The key of a run's features, as a site makes it of the common key."""
    return keyed_digest(key, "features", nonce)


def nonce_of(taken: list[tuple[str, str, bytes]]) -> str:
    (nonce,) = {
        decode(CheckKey, data).nonce
        for step, what, data in taken
        if step == "check_key" and what.startswith("ask")
    }
    return nonce


@pytest.mark.parametrize("planted", HASHED, indirect=True)
def test_rows_of_words_cannot_be_told_without_the_key(planted: tuple[Path, Any]) -> None:
    """Who has the key can guess words by the rows that moved; any other key finds chance."""
    folder, taken = planted
    nonce = nonce_of(taken)
    assert share_moved(folder, features_key(KEY, nonce)) > 0.5
    guesses = [b"", bytes(32), b"confide", b"\xff" * 32, KEY[:31], KEY[::-1], nonce.encode()]
    for guess in guesses:
        for key in (guess, features_key(guess, nonce)):
            assert share_moved(folder, key) < 0.15
    # nor do the sites' key without the nonce, and that of another run
    for key in (KEY, features_key(KEY, ""), features_key(KEY, nonce[::-1])):
        assert share_moved(folder, key) < 0.15


@pytest.mark.parametrize("planted", HASHED, indirect=True)
def test_the_key_of_the_features_leaves_a_site_with_a_release_alone(
    planted: tuple[Path, Any], tmp_path: Path
) -> None:
    """A release holds no word, but its key: anyone who has it can guess the words of any site."""
    folder, taken = planted
    key = features_key(KEY, nonce_of(taken))
    everything = [data for _, _, data in taken]
    everything += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    forms = [key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key)[:-4]]
    assert not [form for form in forms for data in everything if form in data]
    out = release(folder, out=tmp_path / "released", site="site-1")
    written = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert key.hex().encode() in written
    assert KEY not in written
    assert KEY.hex().encode() not in written


# --- errors --------------------------------------------------------------------------------


def errors_with_text(text: str) -> dict[str, Exception]:
    """Errors as real code raises them, all with a site's text in them."""
    named = type(text, (ValueError,), {})
    chained = ConfideError("wrapped", got=text, where=text, fix=text)
    chained.__cause__ = KeyError(text)
    return {
        "plain": ValueError(text),
        "key": KeyError(text),
        "unicode": UnicodeDecodeError("utf-8", text.encode(), 0, 1, text),
        "file": FileNotFoundError(2, text, text),
        "full": OSError(28, text, text),
        "ours": chained,
        "class": named(text),
        "arguments": RuntimeError({"tokens": [text]}, text.encode()),
    }


@each(("method", "step"), sorted(ANSWERED))
def test_an_error_inside_a_step_leaves_its_text_at_the_site(
    method: str, step: str, tmp_path: Path
) -> None:
    text = canaries("site-2")["raised"]
    for kind, error in errors_with_text(text).items():
        reply = failing_reply(tmp_path / kind, (method, step), error)
        assert b"Failure" in reply, kind
        assert sightings(reply) == [], kind
        log = (tmp_path / kind / "site-2" / "site.log").read_text()
        assert text in log or kind == "unicode"


@dataclass(frozen=True)
class Nothing:
    """An ask that holds nothing."""

    number: int = carries("nothing")


def failing_reply(folder: Path, step: tuple[str, str], error: Exception) -> bytes:
    """What a site replies whose step raises, to an ask that can be read."""

    def raising(*_: object) -> None:
        raise error

    method, name = step
    kind = METHODS[method]
    declared = next(one for one in kind.steps if one.name == name)
    steps = {name: replace(declared, ask=Nothing, reply=Nothing, answer=raising)}
    host = Hosting(steps, kind.Memory, 1).host(Site("site-2", [], folder / "site-2"), {})
    return host.answer(name, 1, encode(Nothing(0)))


def test_a_run_that_ends_in_an_error_holds_no_text_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = plant(tmp_path / "data")
    breaking(monkeypatch, "site-2", "train", ValueError(canaries("site-2")["raised"]))
    settings = tiny(tmp_path, "federation.at_least=2", site=tables, data={})
    events: list[Any] = []
    run(settings, out=tmp_path / "run", on_event=lambda event: events.append(str(event)))
    assert not [event for event in events[:-1] if sightings(event.encode())]
    assert not [path for path in leaving(tmp_path / "run") if sightings(path.read_bytes())]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["history"][0]["failed"] == {"site-2": "error"}


# --- the one act that does show words ------------------------------------------------------


def test_a_release_shows_the_words_of_the_site_that_releases_and_of_no_other(
    planted: tuple[Path, Any], tmp_path: Path
) -> None:
    folder, _ = planted
    out = release(folder, out=tmp_path / "released", site="site-1")
    seen = sightings(b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file()))
    if not COUNTED.get(RunFolder(folder).settings().trained_by):
        assert not seen  # what reads pieces of a public encoder, or hashes, has no words
        return
    mine = canaries("site-1")
    assert set(seen) <= set(mine.values())
    assert {mine["word"], mine["entity"]} <= set(seen)
    assert not {mine["document"], mine["file"]} & set(seen)


def test_nothing_is_sent_home() -> None:
    """The library opens no connection: no module of it imports a way to.

    Two rooms know sockets: that of real sites, to see whether a port is free or a server there, and
    `serve`, which listens. `urllib.parse` takes addresses apart, and connects to none.
    """
    root = Path(confide.__file__).parent
    found = [
        f"{path.relative_to(root)}: {name}"
        for path in root.rglob("*.py")
        if path.relative_to(root).parts[0] not in ("flare", "serve")
        for name in ("socket", "urllib", "http", "requests", "httpx", "ftplib", "smtplib")
        if re.search(rf"^\s*(import|from) {name}\b(?!\.parse)", path.read_text(), re.MULTILINE)
    ]
    assert not found
    calls = r"\.connect\(|create_connection|open_connection|urllib\.request|http\.client|httpx"
    listens = [
        path for path in (root / "serve").rglob("*.py") if re.search(calls, path.read_text())
    ]
    assert not listens
    assert not os.environ.get("CONFIDE_TELEMETRY")
