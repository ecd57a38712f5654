"""Signed runs over the sites' homes: same numbers, ledgers that vouch for each other."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cases import each
from confide import __version__
from confide.errors import FederationError, QuorumError, RunError
from confide.federation.comparing import compare_ledgers
from confide.federation.events import unwatched
from confide.federation.failures import Refusal
from confide.federation.federation import Delivery
from confide.federation.ledger import START, read_lines
from confide.federation.messages import decode, encode
from confide.federation.replies import KeptReplies
from confide.federation.seals import AskSeal, inner_digest
from confide.federation.site import SiteHost
from confide.federation.steps import Step
from confide.flare.joining import Join, Order, wire_digest, wire_of
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.peers import Pins, make_identity, open_signer, read_identity
from confide.flare.server import Conductor, ServerEvidence, SignedEngine, server_evidence
from confide.flare.site import SiteHome
from confide.methods.fedavg import Train
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import differences, states
from flare.homes import SealedHomes, SealedStops, as_toml, ordered, place_in, write_site_files
from flare.test_conducting import numbers


def evidence(folder: Path, settings: Settings, engine: SealedHomes) -> ServerEvidence:
    lead = place_in(folder / "lead", "lead", "lead")
    order = ordered(as_toml(settings), engine.sites, lead)
    return ServerEvidence(place_in(folder / "kit", "server", "server"), order)


def conduct(folder: Path, settings: Settings, engine: SealedHomes, **changes: Any) -> Any:
    """A signed run: the server's folder is `folder/server`."""
    given = {
        "version": __version__,
        "engine": engine,
        "folder": folder / "server",
        "evidence": evidence(folder, settings, engine),
        **changes,
    }
    return Conductor("trial", as_toml(settings), **given).conduct(unwatched)


def site_folder(folder: Path, site: str) -> Path:
    return folder / "homes" / site / "memory/runs/trial"


def test_a_signed_run_has_the_numbers_of_one_machine_and_its_ledgers_agree(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    run(settings, out=tmp_path / "one")
    engine = SealedHomes(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path, settings, engine)
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))
    for site in engine.sites:
        found = compare_ledgers(tmp_path / "server", site_folder(tmp_path, site))
        assert found.agree, found
        assert found.verified > 10 and not found.again and not found.unheard
        for other in engine.sites:
            if other != site:
                two = compare_ledgers(site_folder(tmp_path, other), site_folder(tmp_path, site))
                assert two.agree and not two.unheard and two.verified > 10, two


# --- what is found in ledgers afterwards -----------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed run of two sites, and its three ledgers."""
    folder = tmp_path_factory.mktemp("signed")
    settings = tiny(folder, "rounds=1", sites=2)
    conduct(folder, settings, SealedHomes(write_site_files(folder / "homes", settings)))
    return folder


def ledgers(folder: Path) -> dict[str, bytes]:
    places = {"server": folder / "server"}
    places |= {name: site_folder(folder, name) for name in ("site-1", "site-2")}
    return {name: (path / "ledger.jsonl").read_bytes() for name, path in places.items()}


def agrees(work: Path, books: dict[str, bytes]) -> bool:
    """Whether nobody finds anything who compares the server's ledger with each site's."""
    for name, data in books.items():
        (work / f"{name}.jsonl").write_bytes(data)
    try:
        return all(
            compare_ledgers(work / "server.jsonl", work / f"{site}.jsonl").agree
            for site in ("site-1", "site-2")
        )
    except RunError:
        return False


def perturbed(tree: dict[str, Any], key: str) -> dict[str, Any]:
    value = tree[key]
    if isinstance(value, bool):
        return {**tree, key: not value}
    if isinstance(value, int):
        return {**tree, key: value + 1}
    if isinstance(value, list):
        return {**tree, key: value[:-1]}
    swapped = "0" if value[:1] != "0" else "1"
    return {**tree, key: swapped + value[1:]}


def changes(lines: list[bytes], *, every: int) -> Iterator[tuple[str, int, list[bytes]]]:
    """Every change of every so-many-th line, and of the last ones: another value, taken out,
    twice, swapped with the next, cut off behind it."""
    for at, line in enumerate(lines):
        if at % every and at < len(lines) - 3:
            continue
        tree = json.loads(line)
        keys = [key for key in tree if key != "before"]
        for key in keys[at % 4 :: 4]:
            changed = json.dumps(perturbed(tree, key), separators=(",", ":")).encode()
            yield f"{key} of line {at + 1}", at, [*lines[:at], changed, *lines[at + 1 :]]
        yield f"without line {at + 1}", at, [*lines[:at], *lines[at + 1 :]]
        yield f"line {at + 1} twice", at, [*lines[: at + 1], *lines[at:]]
        if at + 1 < len(lines):
            swapped = [*lines[:at], lines[at + 1], line, *lines[at + 2 :]]
            yield f"line {at + 1} after the next", at, swapped
            yield f"cut after line {at + 1}", at, lines[: at + 1]


def chained(lines: list[bytes]) -> list[bytes]:
    """The same lines in a chain that is sound: what an owner can always make of its own ledger."""
    head, found = START, []
    for line in lines:
        tree = {**json.loads(line), "before": head}
        found.append(json.dumps(tree, separators=(",", ":")).encode())
        head = hashlib.sha256(found[-1]).hexdigest()
    return found


EVERY = pytest.mark.parametrize("every", [41, pytest.param(1, marks=pytest.mark.slow)])
"""Of how many lines one is changed in turn; all of them take minutes."""


def last_signed(books: dict[str, bytes], who: str) -> int:
    """How many lines of a ledger its owner has signed, by a head that another place holds."""
    digests = [hashlib.sha256(line).hexdigest() for line in books[who].splitlines()]
    key = "own" if who == "server" else "head"
    others = [name for name in books if (name == "server") != (who == "server")]
    trees = [json.loads(line) for name in others for line in books[name].splitlines()]
    heads = {tree[key] for tree in trees if tree.get("field") == "(seal)" and tree.get(key)}
    return max(at for at, digest in enumerate(digests, 1) if digest in heads)


@EVERY
@pytest.mark.parametrize("who", ["server", "site-1"])
def test_every_change_of_a_line_is_found(
    finished: Path, tmp_path: Path, who: str, every: int
) -> None:
    books = ledgers(finished)
    lines = books[who].splitlines()
    assert len(lines) > 25 and agrees(tmp_path, books)
    for name, _, changed in changes(lines, every=every):
        data = b"".join(line + b"\n" for line in changed)
        assert not agrees(tmp_path, {**books, who: data}), name


@EVERY
@pytest.mark.parametrize("who", ["server", "site-1"])
def test_every_change_is_found_also_where_the_owner_makes_its_chain_anew(
    finished: Path, tmp_path: Path, who: str, every: int
) -> None:
    books = ledgers(finished)
    lines, known = books[who].splitlines(), last_signed(ledgers(finished), who)
    assert known == len(lines) if who != "server" else known > 0.8 * len(lines)
    for name, at, changed in changes(lines, every=every):
        if at >= known and not name.startswith(("without", "cut", "digest", "head", "reply")):
            continue  # after the last line that the server has signed nothing but messages counts
        data = b"".join(line + b"\n" for line in chained(changed))
        assert not agrees(tmp_path, {**books, who: data}), name


def test_the_first_line_that_differs_is_named(finished: Path, tmp_path: Path) -> None:
    books = ledgers(finished)
    lines = books["server"].splitlines()
    at = next(n for n, line in enumerate(lines) if b'"weights"' in line)
    lines[at] = lines[at].replace(b'"count":', b'"count":1')
    (tmp_path / "server.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    site = site_folder(finished, "site-1")
    found = compare_ledgers(tmp_path / "server.jsonl", site)
    assert found.faults[0].startswith(
        f"{tmp_path / 'server.jsonl'}:{at + 2}: this line, or the one"
    )
    (tmp_path / "server.jsonl").write_bytes(b"\n".join(chained(lines)) + b"\n")
    found = compare_ledgers(tmp_path / "server.jsonl", site)
    assert "the server signed something that is not in its ledger" in found.faults[0]
    assert str(site) in found.faults[0]


def test_a_signature_that_somebody_else_made_is_found(finished: Path, tmp_path: Path) -> None:
    books = ledgers(finished)
    lines = [json.loads(line) for line in books["site-1"].splitlines()]
    seals = [one for one in lines if "signature" in one]
    seals[1]["signature"] = seals[2]["signature"]
    data = b"\n".join(chained([json.dumps(one).encode() for one in lines])) + b"\n"
    (tmp_path / "site.jsonl").write_bytes(data)
    found = compare_ledgers(finished / "server", tmp_path / "site.jsonl")
    assert any("the signature of server does not fit" in one for one in found.faults)
    asked = [one for one in seals if one["direction"] == "down"]
    replied = [one for one in map(json.loads, books["server"].splitlines())
               if "signature" in one and one["direction"] == "up"]  # fmt: skip
    assert found.verified == len(asked) + len(replied)


def test_ledgers_of_two_runs_are_not_of_one(finished: Path, tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1", sites=2)
    conduct(tmp_path, settings, SealedHomes(write_site_files(tmp_path / "homes", settings)))
    for here in (finished / "server", site_folder(finished, "site-2")):
        found = compare_ledgers(here, site_folder(tmp_path, "site-1"))
        assert not found.agree
        assert any("other server" in one or "different servers" in one or "another server" in one
                   for one in found.faults)  # fmt: skip
    (tmp_path / "plain").mkdir()
    run(settings, out=tmp_path / "plain" / "run")
    with pytest.raises(RunError, match="does not say whose it is"):
        compare_ledgers(tmp_path / "plain" / "run", site_folder(tmp_path, "site-1"))


# --- a server that lies ----------------------------------------------------------------------


class Lying(SignedEngine):
    """Asks the first site something else, and signs that all get the same."""

    def _sealed(self, step: str, round: int, asks: Any) -> dict[str, AskSeal]:
        found = super()._sealed(step, round, asks)
        everybody = tuple(sorted(asks))
        return {
            site: dataclasses.replace(seal, audience=everybody).sign(self._place.identity.key)
            for site, seal in found.items()
        }

    def deliver(self, step: str, round: int, *, asks: Any, timeout: Any) -> Any:
        if step == "train":
            asked = decode(Train, asks["site-1"])
            halved = {name: array / 2 for name, array in asked.weights.items()}
            other = dataclasses.replace(asked, weights=halved)
            asks = {**asks, "site-1": encode(other)}
        yield from super().deliver(step, round, asks=asks, timeout=timeout)


def test_two_sites_that_compare_find_a_server_that_asked_them_different_things(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confide.flare.server.SignedEngine", Lying)
    settings = tiny(tmp_path, "rounds=1")
    engine = SealedHomes(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path, settings, engine)
    one, two, three = (site_folder(tmp_path, site) for site in engine.sites)
    found = compare_ledgers(one, two)
    assert [fault for fault in found.faults if "round 1, train, ask" in fault] == list(found.faults)
    assert "asked the two different things" in found.faults[0]
    assert compare_ledgers(two, three).agree  # these two were asked the same


def test_an_ask_that_goes_to_one_site_says_so_in_its_ledger(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1", "federation.fraction=0.4", "federation.at_least=1")
    engine = SealedHomes(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path, settings, engine)
    trained = [site for site, step, _ in engine.asked if step == "train"]
    assert len(trained) == 1
    lines = (site_folder(tmp_path, trained[0]) / "ledger.jsonl").read_text().splitlines()
    seals = [one for one in map(json.loads, lines) if one.get("field") == "(seal)"]
    audiences = {one["step"]: one.get("audience") for one in seals if one["direction"] == "down"}
    assert audiences["train"] == trained and audiences["join"] is None


# --- a run that dies and resumes ---------------------------------------------------------------


def test_a_signed_run_that_dies_anywhere_resumes_and_its_ledgers_agree(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=3", sites=2)
    files = write_site_files(tmp_path / "homes", settings)
    whole = SealedHomes(write_site_files(tmp_path / "other" / "homes", settings))
    conduct(tmp_path / "other", settings, whole)
    kept = b""
    for asks in (1, 6, len(whole.asked) // 2, 9, 8, 11, len(whole.asked) - 1):
        with contextlib.suppress(KeyboardInterrupt):
            conduct(tmp_path, settings, SealedStops(files, asks))
        now = (tmp_path / "server" / "ledger.jsonl").read_bytes()
        assert now.startswith(kept)  # nothing is ever taken out
        kept = now
    conduct(tmp_path, settings, SealedHomes(files))
    assert not list(
        differences(numbers(tmp_path / "other" / "server"), numbers(tmp_path / "server"))
    )
    assert not list(differences(states(tmp_path / "other/server"), states(tmp_path / "server")))
    notes = [line.tree.get("note") for line in read_lines(tmp_path / "server" / "ledger.jsonl")]
    assert notes.count("resumed") > 3 and notes.count("opened") == 1
    for site in files:
        found = compare_ledgers(tmp_path / "server", site_folder(tmp_path, site))
        assert found.agree, found
        assert found.again > 0
    two = compare_ledgers(*(site_folder(tmp_path, site) for site in files))
    assert two.agree and two.unheard > 0, two


def worked(patch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """Every turn that a site computes from now on."""
    found = []
    plain = SiteHost._worked

    def noted(host: SiteHost, step: Step, ask: object, round: int) -> Any:
        found.append((host.site.name, step.name, round))
        return plain(host, step, ask, round)

    patch.setattr(SiteHost, "_worked", noted)
    return found


@pytest.mark.parametrize(
    ("method", "step"),
    [("fedavg", "train"), pytest.param("fedner", "improve", marks=pytest.mark.slow)],
)
def test_a_round_that_broke_is_sent_from_the_disk_of_those_that_had_finished(
    tmp_path: Path, method: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Breaks(SealedHomes):
        """Dies before the server hears the second site, and before the third is asked."""

        def deliver(self, name: str, round: int, **asked: Any) -> Iterator[Delivery]:
            for found in super().deliver(name, round, **asked):
                if (name, round, found.site) == (step, 2, "site-2"):
                    raise KeyboardInterrupt
                yield found

    settings = tiny(tmp_path, f"method={method}")
    run(settings, out=tmp_path / "one")
    files = write_site_files(tmp_path / "homes", settings)
    done = worked(monkeypatch)
    with contextlib.suppress(KeyboardInterrupt):
        conduct(tmp_path, settings, Breaks(files))
    assert done[-2:] == [("site-1", step, 2), ("site-2", step, 2)]
    folders = [site_folder(tmp_path, site) / "replies" for site in files]
    kept = [sorted(path.stem for path in folder.iterdir()) for folder in folders]
    assert kept[:2] == 2 * [[f"round-000002.{step}"]], "round 1 has a checkpoint"
    assert kept[2] == sorted(f"round-000001.{name}" for name in ("score", step))
    (folders[1] / f"round-000002.{step}.reply").write_bytes(b"nothing that it sealed")
    done.clear()
    conduct(tmp_path, settings, SealedHomes(files))
    again = [site for site, name, round in done if (name, round) == (step, 2)]
    assert again == ["site-2", "site-3"]
    assert not [path for one in folders for path in one.iterdir()], "the run is over"
    assert not list(differences(numbers(tmp_path / "one"), numbers(tmp_path / "server")))
    assert not list(differences(states(tmp_path / "one"), states(tmp_path / "server")))


@pytest.mark.slow
def test_no_reply_of_a_masked_sum_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are never on a site's disk before they are masked, and a mask serves once."""
    for name in ("clear", "drop", "drop_up_to"):
        monkeypatch.setattr(KeptReplies, name, lambda *_: None)
    for sums, kept in (("masked", False), ("plain", True)):
        settings = tiny(tmp_path / sums, f"federation.sums={sums}")
        files = write_site_files(tmp_path / sums / "homes", settings)
        conduct(tmp_path / sums, settings, SealedHomes(files))
        assert bool(list((tmp_path / sums).rglob("*.reply"))) == kept


# --- the wire between them ----------------------------------------------------------------------


class Meddling(SealedHomes):
    """Something between server and sites that changes what it carries of one step to one site."""

    def __init__(self, files: dict[str, Path], **how: Callable[[Any], Any]) -> None:
        super().__init__(files)
        self.how = how
        self.kept: list[Any] = []

    def deliver(self, step: str, round: int, *, asks: Any, timeout: Any, seals: Any = None) -> Any:
        asks, seals = dict(asks), dict(seals)
        mine = step == "train" and round == 2
        if mine and "ask" in self.how:
            asks["site-2"] = self.how["ask"](asks["site-2"])
        if mine and "seal" in self.how:
            seals["site-2"] = self.how["seal"](seals)
        for found in super().deliver(step, round, asks=asks, timeout=timeout, seals=seals):
            changed = found
            if found.site == "site-2":
                self.kept.append(found)
                if mine and "delivery" in self.how:
                    changed = self.how["delivery"](self.kept)
            yield changed


def other_learning_rate(data: bytes) -> bytes:
    ask = decode(Train, data)
    return encode(
        dataclasses.replace(ask, config=dataclasses.replace(ask.config, learning_rate=9.0))
    )


def reshaped(**changes: Any) -> Callable[[Any], bytes]:
    """The seal of the ask to site-2 with other values, not signed anew."""
    return lambda seals: dataclasses.replace(AskSeal.decode(seals["site-2"]), **changes).encode()


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ({"ask": other_learning_rate}, "bad-signature"),
        ({"seal": lambda seals: seals["site-1"]}, "bad-signature"),
        ({"seal": lambda seals: b""}, "forged-reply"),  # what cannot be read gets no seal back
        ({"seal": lambda seals: b"{}"}, "forged-reply"),
        ({"seal": reshaped(round=1)}, "bad-signature"),
        ({"seal": reshaped(run="other")}, "bad-signature"),
        ({"seal": reshaped(step="score")}, "bad-signature"),
        ({"seal": reshaped(head="33" * 32)}, "bad-signature"),
        ({"seal": reshaped(signature="00" * 64)}, "bad-signature"),
        ({"delivery": lambda kept: Delivery("site-2", kept[-1].reply, 0.0)}, "forged-reply"),
        ({"delivery": lambda kept: kept[-2]}, "forged-reply"),
        (
            {"delivery": lambda kept: dataclasses.replace(kept[-1], reply=kept[-2].reply)},
            "forged-reply",
        ),
        ({"delivery": lambda kept: dataclasses.replace(kept[-1], seal=b"\xff")}, "forged-reply"),
    ],
)
def test_what_is_changed_on_the_way_is_refused_and_the_site_is_named(
    tmp_path: Path, how: dict[str, Any], code: str
) -> None:
    settings = tiny(tmp_path)
    engine = Meddling(write_site_files(tmp_path / "homes", settings), **how)
    with pytest.raises(QuorumError) as raised:
        conduct(tmp_path, settings, engine)
    assert [(one.site, one.round, one.step) for one in raised.value.faults] == [
        ("site-2", 2, "train")
    ]
    assert raised.value.faults[0].code == code
    if code == "bad-signature":
        lines = (site_folder(tmp_path, "site-2") / "ledger.jsonl").read_text()
        assert not [
            one
            for one in map(json.loads, lines.splitlines())
            if one.get("round") == 2 and one.get("step") == "train" and one["field"] == "weights"
            and one["direction"] == "up"
        ]  # fmt: skip


def test_a_site_whose_signature_does_not_fit_costs_nobody_else_the_round(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "federation.at_least=2")
    forge = {"delivery": lambda kept: kept[0]}
    done = conduct(
        tmp_path, settings, Meddling(write_site_files(tmp_path / "h", settings), **forge)
    )
    assert [one.failed for one in done.history] == [{}, {"site-2": "forged-reply"}]


# --- who is who -----------------------------------------------------------------------------------


def refused(
    folder: Path, settings: Settings, engine: SealedHomes, **changes: Any
) -> dict[str, str]:
    """The codes with which a run is refused, by site."""
    with pytest.raises(QuorumError) as raised:
        conduct(folder, settings, engine, **changes)
    assert {fault.step for fault in raised.value.faults} == {"join"}
    return {fault.site: fault.code for fault in raised.value.faults}


def test_a_key_that_changed_is_refused_on_either_side(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1")
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path, settings, SealedHomes(files))
    shutil.rmtree(tmp_path / "server")
    for site in files:
        shutil.rmtree(site_folder(tmp_path, site))
    make_identity(tmp_path / "homes/site-2/identity/identity.key")
    codes = refused(tmp_path, settings, SealedHomes(files))
    assert codes == {"site-2": "other-identity"}
    shutil.rmtree(tmp_path / "server")
    make_identity(tmp_path / "kit/identity/identity.key")
    Pins(tmp_path / "kit/identity/peers.json").forget("site-2")
    codes = refused(tmp_path, settings, SealedHomes(files))
    assert codes == dict.fromkeys(files, "other-identity")
    for site in files:
        Pins(tmp_path / "homes" / site / "identity/peers.json").forget("server")
    shutil.rmtree(tmp_path / "server")
    conduct(tmp_path, settings, SealedHomes(files))


def test_a_site_can_demand_that_fingerprints_were_compared(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1")
    files = write_site_files(tmp_path / "homes", settings, compared=True)
    assert refused(tmp_path, settings, SealedHomes(files)) == dict.fromkeys(files, "not-compared")
    for site in files:
        pins = Pins(tmp_path / "homes" / site / "identity/peers.json")
        for name, kind in (("server", "kit"), ("lead", "lead")):
            own = read_identity(tmp_path / kind / "identity/identity.key")
            pins.pin(name, own.fingerprint, compared=name == "server")
    assert refused(tmp_path, settings, SealedHomes(files)) == dict.fromkeys(files, "not-compared")
    for site in files:
        pins = Pins(tmp_path / "homes" / site / "identity/peers.json")
        pins.pin("lead", pins.read()["lead"].fingerprint, compared=True)
    conduct(tmp_path, settings, SealedHomes(files))


def test_a_server_cannot_begin_what_the_lead_did_not_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny(tmp_path, "rounds=1")
    files = write_site_files(tmp_path / "homes", settings)
    engine = SealedHomes(files)
    true = evidence(tmp_path, settings, engine)
    stranger = ordered(as_toml(settings), engine.sites, place_in(tmp_path / "x", "x", "site"))
    forged = {
        "settings": true.order.settings.replace("rounds = 1", "rounds = 2"),
        "sites": ("site-1", "site-2", "site-3", "site-4"),
        "run": "other",
        "version": "0.0.0",
        "signature": "00" * 64,
        "card": stranger.card,
    }
    for name, value in forged.items():
        assert getattr(true.order, name) != value
        order = dataclasses.replace(true.order, **{name: value})
        odd = dataclasses.replace(true, order=order)
        with pytest.raises(FederationError, match="the lead's order is refused"):
            odd.check()
        with monkeypatch.context() as lying:  # a server that does not look
            lying.setattr(ServerEvidence, "check", lambda self: None)
            lying.setattr(Conductor, "_join", joining_with(order, settings))
            codes = refused(tmp_path, settings, SealedHomes(files), evidence=true)
        assert set(codes.values()) <= {"bad-signature", "uncertified"}, (name, codes)
        shutil.rmtree(tmp_path / "server")


def joining_with(order: Order, settings: Settings) -> Any:
    def joining(self: Conductor, chosen: Settings, sites: Any) -> Join:
        wire = wire_digest(wire_of(settings.trained_by))
        return Join(
            order.version, order.run, order.settings, list(sites), wire, "lead", order.pack()
        )

    return joining


def test_the_lead_is_pinned_and_named(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "rounds=1")
    files = write_site_files(tmp_path / "homes", settings)
    conduct(tmp_path, settings, SealedHomes(files))
    lead = read_identity(tmp_path / "lead/identity/identity.key")
    for site in files:
        pins = Pins(tmp_path / "homes" / site / "identity/peers.json").read()
        assert {name: pin.compared for name, pin in pins.items()} == {
            "lead": False,
            "server": False,
        }
        assert pins["lead"].fingerprint == lead.fingerprint
        first = read_lines(site_folder(tmp_path, site) / "ledger.jsonl")[0].tree
        assert (first["at"], first["run"], first["lead"]) == (site, "trial", "lead")
        assert first["lead_identity"] == lead.public.hex()


def test_a_large_ask_is_hashed_once_for_all_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confide.flare import server

    hashed: list[int] = []

    def counted(data: bytes) -> bytes:
        hashed.append(len(data))
        return inner_digest(data)

    at_the_server = SimpleNamespace(**{**vars(server.seals), "inner_digest": counted})
    monkeypatch.setattr(server, "seals", at_the_server)
    settings = tiny(tmp_path, "rounds=1", "select.every=9")
    engine = SealedHomes(write_site_files(tmp_path / "homes", settings))
    conduct(tmp_path, settings, engine)
    asks = len({(step, round) for _, step, round in engine.asked})
    broadcasts = asks if asks < len(engine.asked) else 0
    assert len(hashed) <= broadcasts * 2 + len(engine.asked)
    assert sorted(hashed)[-1] > 1000
    assert hashed.count(max(hashed)) <= 2


def test_a_signed_order_travels_as_one_plain_word_and_no_other_is_taken(tmp_path: Path) -> None:
    settings = tiny(tmp_path)
    order = ordered(as_toml(settings), ["site-1"], place_in(tmp_path / "lead", "lead", "lead"))
    given = {"run": order.run, "settings": order.settings, "version": order.version}
    assert Order.unpack(order.pack(), **given) == order
    for odd in ("", "zz", "{}", "[]", '{"card": 1, "signature": "x", "sites": []}', 5, None):
        with pytest.raises(Refusal):
            Order.unpack(odd, **given)  # type: ignore[arg-type]
    made = create_consortium("trial", sites=["a"], host="localhost", out=tmp_path / "c")
    kit = made.kit("server")
    open_signer(kit, make=True)
    word = order.pack().encode().hex()
    assert word.isalnum()  # FLARE resolves names in braces, and builds classes from tables
    assert server_evidence(kit, word, sites=["site-1"], **given).order == order
    for odd, sites in (("", ["site-1"]), ("zz", ["site-1"]), ("7b7d", ["site-1"]), (word, ["b"])):
        with pytest.raises(FederationError, match="lead has not signed"):
            server_evidence(kit, odd, sites=sites, **given)


@each("step", ["join", "train"])
def test_a_site_that_cannot_note_its_reply_is_named_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    settings = tiny(tmp_path)
    engine = SealedHomes(write_site_files(tmp_path / "homes", settings))
    real, left = SiteHome._note, ["site-2"]

    def failing(self: SiteHome, name: str, *rest: Any) -> None:
        if name == step and self._file.name in left:
            left.remove(self._file.name)
            raise ValueError("no room")
        real(self, name, *rest)

    monkeypatch.setattr(SiteHome, "_note", failing)
    with pytest.raises(QuorumError) as raised:
        conduct(tmp_path, settings, engine)
    assert not left
    (fault,) = raised.value.faults
    assert (fault.site, fault.code) == ("site-2", "error")
    assert "ValueError" in fault.what
