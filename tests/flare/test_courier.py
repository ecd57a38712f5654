"""Runs whose messages are files: the numbers, the ledgers, and files that are refused."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cases import each
from confide import files
from confide.errors import QuorumError, RunError, SettingsError
from confide.federation.comparing import compare_ledgers
from confide.federation.engines import SequentialEngine
from confide.federation.failures import Refusal
from confide.federation.ledger import Ledger, read_lines
from confide.federation.messages import FieldSize
from confide.federation.secure.steps import GREET, MEET
from confide.federation.steps import Delivery
from confide.flare.courier import CourierSite, begin, begun_in, copy_to, go_on
from confide.flare.envelope import MAGIC, MOST_FILE, Head, Part, write_envelope
from confide.flare.kit import Consortium, Kit, open_kit
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.peers import list_peers, open_signer
from confide.flare.sitekit import agree_to, settings_asked, setup_site, withdraw_from
from confide.jobs.personalise import personalise
from confide.runs.run import run
from confide.settings import Settings
from contract.corpus import tiny
from contract.runs import differences, states, use_engine
from flare.homes import as_toml, write_site_files
from flare.test_conducting import numbers

NAMES = ["site-1", "site-2", "site-3"]


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    """A consortium of three sites; each test works on its own copy."""
    folder = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium("trial", sites=NAMES, host="localhost", out=folder)


class Trip:
    """A run by courier: `carry` takes all files once to the sites and back."""

    def __init__(self, folder: Path, founded: Consortium, settings: Settings, *more: str) -> None:
        self.folder, self.settings = folder, settings
        self.names = [site.name for site in settings.site]
        shutil.copytree(founded.path, folder / "consortium")
        self.kits = folder / "consortium" / "kits"
        (folder / "run.toml").write_text(as_toml(settings))
        asked = settings_asked(folder / "run.toml")
        for name, path in write_site_files(folder / "homes", settings, consent={}).items():
            setup_site(self.kit(name), path)
            agree_to(self.kit(name), settings.trained_by, asked=asked, bounds=("runs=1000",))
        for public in settings.public.files:
            (self.kits / "server" / "public").mkdir(exist_ok=True)
            shutil.copy(public, self.kits / "server" / "public")
        self.run = folder / "server"
        self.usb = folder / "usb"
        self.cards = [self.kits / name / "identity" / "card.json" for name in self.names]
        begin(
            self.run,
            folder / "run.toml",
            kit=self.kits / "server",
            lead=self.kits / "lead",
            cards=self.cards,
            overrides=more,
        )
        self.called = begun_in(self.run).run
        self.trips = 0

    def kit(self, name: str) -> Kit:
        return open_kit(self.kits / name)

    def site(self, name: str) -> CourierSite:
        return CourierSite(self.kits / name)

    def answered(self, asks: dict[str, Path]) -> dict[str, Path]:
        return {name: self.site(name).answer(path, to=self.usb) for name, path in asks.items()}

    def asks(self, **given: Any) -> dict[str, Path]:
        """What the server now wants of each site, on the medium; empty when the run is over."""
        now = go_on(self.run, sorted(self.usb.glob("*.reply")), **given)
        for path in self.usb.glob("*"):
            path.unlink()
        return dict(zip(sorted(now.waiting), copy_to(now, self.usb), strict=True))

    def to_the_end(self, answer: Callable[[str, Path], Path] | None = None) -> int:
        """How many exchanges it takes; every answer is a process of its own."""
        answer = answer or (lambda name, path: self.site(name).answer(path, to=self.usb))
        while asks := self.asks():
            self.trips += 1
            for name, path in asks.items():
                answer(name, path)
        return self.trips

    def memory(self, name: str) -> Path:
        (found,) = (self.folder / "homes" / name / "memory" / "runs").iterdir()
        return found


def exchanges(settings: Settings, out: Path) -> Counter[int]:
    """By round, the exchanges of files that a run takes: as often as its sites are asked on one
    machine. `join` travels with what comes first, `leave` and `close` with what comes last."""
    found: Counter[int] = Counter()

    class Counting(SequentialEngine):
        def deliver(
            self, step: str, round: int, *, asks: Mapping[str, bytes], timeout: float | None
        ) -> Iterator[Delivery]:
            found[0 if step in (GREET.name, MEET.name) else round] += 1
            yield from super().deliver(step, round, asks=asks, timeout=timeout)

    with pytest.MonkeyPatch.context() as patch:
        use_engine(patch, Counting)
        run(settings, out=out)
    if settings.method == "alone":  # all sites at once
        found = Counter({n: count // len(settings.site) for n, count in found.items()})
    return found


def test_the_page_says_how_many_exchanges_there_are(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/courier.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| `([a-z]+)`.* \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    found = []
    for number, (name, _, _) in enumerate(said):
        method = {"feded": "feded-tagger", "chain": "chain-bags"}.get(name, name)
        settings = tiny(tmp_path / str(number), f"method={method}", "rounds=2")
        by_round = exchanges(settings, tmp_path / str(number) / "run")
        more = by_round[1]
        assert by_round[2] == more + 1  # the test text
        found.append((name, str(by_round[0] + more + 1), str(more)))
    assert found == said and len(said) == 4
    settings = tiny(tmp_path, "method=fedavg-linear", "rounds=1")
    plain = exchanges(settings, tmp_path / "plain")
    masked = tiny(tmp_path, "method=fedavg-linear", "rounds=1", "federation.sums=masked")
    assert exchanges(masked, tmp_path / "masked")[1] == plain[1] + 3 * 3  # train, dev, test


def same_as_on_one_machine(trip: Trip, *, more: int = 0) -> None:
    assert trip.trips == exchanges(trip.settings, trip.folder / "one").total() + more
    assert not list(differences(numbers(trip.folder / "one"), numbers(trip.run)))
    assert not list(differences(states(trip.folder / "one"), states(trip.run)))
    for name in trip.names:
        found = compare_ledgers(trip.run, trip.memory(name))
        assert found.agree and found.verified > 10 and not found.unheard, found
        assert not found.again


def test_feded_in_five_exchanges_has_the_numbers_of_one_machine(
    tmp_path: Path, founded: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("confide.federation.messages.WHOLE", 0)  # every ask is a large one
    trip = Trip(tmp_path, founded, tiny(tmp_path, "method=feded-tagger", "rounds=1", sites=2))
    assert trip.to_the_end() == 5
    same_as_on_one_machine(trip)
    left = [path.name for path in (trip.run / "courier").rglob("*.*") if path.suffix != ".json"]
    assert not left  # nothing of the messages is kept when the run is over
    assert go_on(trip.run).result is not None


@pytest.mark.slow
@each(
    ("method", "more"),
    [
        ("feded-relations", ["rounds=3", "select.every=3"]),
        ("fedavg-tagger", ["rounds=2"]),
        ("feddf-tagger", ["rounds=2"]),
        ("chain-bags", ["rounds=2"]),
        ("alone", ["rounds=2"]),
    ],
)
def test_the_numbers_are_those_of_one_machine(
    tmp_path: Path, founded: Consortium, method: str, more: list[str]
) -> None:
    trip = Trip(tmp_path, founded, tiny(tmp_path, f"method={method}", *more))
    trip.to_the_end()
    if method != "alone":
        same_as_on_one_machine(trip)
    else:
        assert trip.trips == exchanges(trip.settings, tmp_path / "one").total()
        assert not list(differences(numbers(tmp_path / "one"), numbers(trip.run)))
        for name in trip.names:
            found = compare_ledgers(trip.run / "alone" / name, trip.memory(name))
            assert found.agree and not found.again, found
    if method in ("alone", "fedavg-tagger"):  # what `confide personalise` does at a site
        (ours,) = personalise(trip.memory("site-2"), passes=1).values()
        theirs = personalise(tmp_path / "one", site="site-2", passes=1)["site-2"]
        assert (ours.kept, ours.round) == (theirs.kept, theirs.round)
        for way, one in ours.candidates.items():
            other = theirs.candidates[way]
            assert (one.passes, one.dev, one.test) == (other.passes, other.dev, other.test)


@pytest.mark.slow
def test_under_masks_the_numbers_are_those_of_one_machine(
    tmp_path: Path, founded: Consortium
) -> None:
    settings = tiny(tmp_path, "method=fedavg-linear", "rounds=1", "federation.sums=masked")
    trip = Trip(tmp_path, founded, settings)
    resident = {name: CourierSite(trip.kits / name, stays=True) for name in trip.names}
    trip.to_the_end(lambda name, path: resident[name].answer(path, to=trip.usb))
    same_as_on_one_machine(trip, more=1)  # a sum is over before the sites leave


@pytest.mark.slow
def test_masked_sums_need_processes_that_stay_and_greet_anew_if_one_ends(
    tmp_path: Path, founded: Consortium
) -> None:
    settings = tiny(tmp_path, "method=fedavg-linear", "rounds=1", "federation.sums=masked")
    trip = Trip(tmp_path, founded, settings)
    resident = {name: CourierSite(trip.kits / name, stays=True) for name in trip.names}
    refused: list[SettingsError] = []

    def answer(name: str, path: Path) -> Path:
        if (trip.trips, name) in ((9, "site-2"), (14, "site-3")):  # it ends, in the midst of sums
            resident[name] = CourierSite(trip.kits / name, stays=True)
        if not refused:
            try:
                trip.site(name).answer(path, to=trip.usb)
            except SettingsError as error:
                refused.append(error)
        return resident[name].answer(path, to=trip.usb)

    for _ in range(3):
        with contextlib.suppress(QuorumError):
            trip.to_the_end(answer)
    assert refused and "--watch" in str(refused[0])
    run(trip.settings, out=tmp_path / "one")
    assert not list(differences(numbers(tmp_path / "one"), numbers(trip.run)))
    for name in trip.names:
        assert compare_ledgers(trip.run, trip.memory(name)).agree


@pytest.mark.slow
def test_processes_that_watch_one_folder_run_under_masks_to_the_same_numbers(
    tmp_path: Path, founded: Consortium
) -> None:
    settings = tiny(tmp_path, "method=fedavg-linear", "rounds=1", "federation.sums=masked")
    trip = Trip(tmp_path, founded, settings)
    trip.usb.mkdir()

    def start(*words: str | Path) -> subprocess.Popen[str]:
        line = [sys.executable, "-X", "faulthandler", "-m", "confide", "courier", *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(line, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def end(site: subprocess.Popen[str]) -> str:
        site.send_signal(signal.SIGINT)
        try:
            return site.communicate(timeout=30)[0]
        except subprocess.TimeoutExpired:
            site.send_signal(signal.SIGABRT)  # it says where each thread is
            pytest.fail(f"Ctrl-C did not end it: {site.communicate(timeout=30)[0]}")

    (trip.usb / f"{trip.called}.site-1.0001.ask").write_bytes(b"half a file")
    watch = ("--watch", trip.usb)
    sites = [start("answer", "--kit", trip.kits / name, *watch) for name in trip.names]
    try:
        server = start("collect", trip.run, *watch)
        said, _ = server.communicate(timeout=200)
        assert server.returncode == 0, said
    finally:
        try:
            told = [end(site) for site in sites]
        finally:
            for site in sites:
                site.kill()
    assert f"run folder: {trip.run}" in said and not list(trip.usb.glob("*.reply"))
    assert all("for the server" in one for one in told), told
    run(trip.settings, out=tmp_path / "one")
    assert not list(differences(numbers(tmp_path / "one"), numbers(trip.run)))


# --- files that are refused --------------------------------------------------------------------


@pytest.fixture(scope="module")
def under_way(tmp_path_factory: pytest.TempPathFactory, founded: Consortium) -> Trip:
    """A run of three sites in its second exchange: `usb` has the first files of both sides."""
    folder = tmp_path_factory.mktemp("under_way")
    trip = Trip(folder, founded, tiny(folder, "method=fedavg-linear", "rounds=1"))
    first = trip.asks()
    kept = folder / "first"
    kept.mkdir()
    for path in [*first.values(), *trip.answered(first).values()]:
        shutil.copy(path, kept)
    trip.asks()
    return trip


def code_of(work: Callable[[], object]) -> str:
    """The code with which a file is refused."""
    with pytest.raises(Refusal) as raised:
        work()
    return raised.value.code


def test_files_at_a_site_that_are_not_its_next_one_are_refused_by_code(
    tmp_path: Path, founded: Consortium, under_way: Trip
) -> None:
    trip, first = under_way, sorted((under_way.folder / "first").glob("*.ask"))
    asks = sorted(trip.usb.glob("*.ask"))
    site, state = trip.site("site-1"), trip.folder / "homes/site-1/memory/courier"

    def answer(path: Path) -> Path:
        return site.answer(path, to=tmp_path)

    shown = site.question(first[0]).settings  # a method's and a kind's own defaults are no news
    assert "training.learning_rate = 0.02" in shown
    assert not any(line.startswith(("training.decay", "training.word_dropout")) for line in shown)
    reply = answer(first[0])  # the very same file: the very same reply
    assert reply.read_bytes() == (under_way.folder / "first" / reply.name).read_bytes()
    assert code_of(lambda: answer(asks[1])) == "file-foreign"  # swapped sites
    assert code_of(lambda: answer(reply)) == "file-foreign"  # a reply
    data = asks[0].read_bytes()
    head = data.index(b"\n", len(MAGIC)) + 1
    odd = {
        "empty": b"",
        "cut": data[:-1],
        "cut in its head": data[: head - 9],
        "longer": data + b"x",
        "of something else": b"PK" + data,
        "far too large a head": MAGIC + b'{"' + b"x" * 2**20,
        "nested": MAGIC + b"[" * 5000 + b"\n",
    }
    for name, made in odd.items():
        (tmp_path / "odd").write_bytes(made)
        assert code_of(lambda: answer(tmp_path / "odd")) == "file-cut", name
    for at in (head + 5, len(data) - 3, data.index(b'"before"') + 13, data.index(b'"key"') + 9):
        flipped = bytearray(data)
        flipped[at] = ord("0") if flipped[at] != ord("0") else ord("1")
        (tmp_path / "odd").write_bytes(flipped)
        assert code_of(lambda: answer(tmp_path / "odd")) == "bad-signature", at
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(MOST_FILE + 1)
    assert code_of(lambda: answer(tmp_path / "huge")) == "file-cut"
    assert code_of(lambda: answer(tmp_path)) == "file-cut"
    asked = site.question(asks[0])
    shutil.copy(first[0], tmp_path / "odd")
    assert code_of(lambda: site.answer(tmp_path / "odd", to=tmp_path, seen=asked)) == "file-foreign"
    before = {path: path.read_bytes() for path in state.rglob("*.*")}
    other = Trip(tmp_path / "other", founded, trip.settings)  # same root, another server
    theirs = other.asks()["site-1"]
    assert code_of(lambda: answer(theirs)) == "other-identity"
    assert {path: path.read_bytes() for path in state.rglob("*.*")} == before
    assert [path.name for path in state.iterdir()] == [trip.called]


def forged(trip: Trip, folder: Path, exchange: int, before: str, *parts: Part) -> Path:
    """A file to site-1 that the pinned server signs."""
    server = open_signer(trip.kit("server"))
    head = Head("ask", trip.called, "site-1", exchange, before)
    card = open_signer(trip.kit("site-1")).card
    return write_envelope(
        folder, head, parts or [Part("train", 1, b"x", b"y")], sender=server, to=card
    )


def test_what_a_pinned_server_signs_must_still_be_next_and_whole(
    tmp_path: Path, under_way: Trip, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = under_way.site("site-1")

    def code(*given: Any) -> str:
        path = forged(under_way, tmp_path, *given)
        return code_of(lambda: site.answer(path, to=tmp_path))

    assert code(1, "") == "file-old"
    assert code(2, "ab" * 32) == "file-early"  # a reply that this site does not know
    assert code(2, "", *[Part("train", 1, b"", b"")] * 17) == "file-cut"
    assert code(2, "", Part("train", 1, b"", b"x" * 70_000)) == "file-cut"
    for index in ("{}", "[]", '[{"step": "a", "round": 0, "bytes": -1, "seal": 0}]', "[[]]", "x"):

        def dumps(tree: object, index: str = index) -> str:
            return index if isinstance(tree, list) else json.dumps(tree)

        monkeypatch.setattr("confide.flare.envelope.json", SimpleNamespace(dumps=dumps))
        assert code(2, "") == "file-cut", index
        monkeypatch.undo()


def test_a_card_that_somebody_copied_pins_nothing(
    tmp_path: Path, founded: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card is no secret: what is pinned is the key that signed the file. Nor is a file held that
    nobody who may has signed: it can be large."""
    trip = Trip(tmp_path, founded, tiny(tmp_path, "method=fedavg-linear", "rounds=1"))
    path = trip.asks()["site-1"]
    (tmp_path / "odd").write_bytes(path.read_bytes()[:-64] + bytes(64))
    head = Head("ask", trip.called, "site-1", 1, "")
    other, card = open_signer(trip.kit("site-2")), open_signer(trip.kit("site-1")).card
    parts = [Part("join", 0, b"x", b"y")]
    insider = write_envelope(tmp_path / "other", head, parts, sender=other, to=card)
    site = trip.site("site-1")
    with monkeypatch.context() as patch:
        patch.delattr("confide.flare.envelope.read_file")
        assert code_of(lambda: site.answer(tmp_path / "odd", to=tmp_path)) == "bad-signature"
        assert code_of(lambda: site.answer(insider, to=tmp_path)) == "uncertified"
    assert "server" not in list_peers(trip.kit("site-1")).peers
    site.answer(path, to=tmp_path)
    assert "server" in list_peers(trip.kit("site-1")).peers


def test_replies_at_the_server_that_are_not_the_next_are_refused_by_code(
    tmp_path: Path, founded: Consortium, under_way: Trip
) -> None:
    trip, first = under_way, sorted((under_way.folder / "first").glob("*.reply"))
    before = go_on(trip.run).waiting

    def collect(path: Path) -> object:
        return go_on(trip.run, [path])

    collect(first[0])  # once more the same: nothing happens
    data = bytearray(first[0].read_bytes())
    data[-1] ^= 1
    (tmp_path / "odd").write_bytes(data)
    assert code_of(lambda: collect(tmp_path / "odd")) == "bad-signature"
    (tmp_path / "odd").write_bytes(bytes(data)[:-30])
    assert code_of(lambda: collect(tmp_path / "odd")) == "file-cut"
    assert code_of(lambda: collect(sorted(trip.usb.glob("*.ask"))[0])) == "file-foreign"
    other = Trip(tmp_path / "other", founded, trip.settings)
    (theirs,) = other.answered({"site-1": other.asks()["site-1"]}).values()
    assert code_of(lambda: collect(theirs)) == "file-foreign"  # of another run
    site = open_signer(trip.kit("site-2"))
    server = open_signer(trip.kit("server")).card
    sent = (trip.run / "courier/site-1/0002.json").read_text()
    before_it = json.loads(sent)["file"]
    head = Head("reply", trip.called, "site-1", 2, before_it)
    made = write_envelope(tmp_path, head, [Part("a", 0, b"", b"")], sender=site, to=server)
    assert code_of(lambda: collect(made)) == "uncertified"  # a site that speaks for another
    own = open_signer(trip.kit("site-1"))
    made = write_envelope(tmp_path, head, [Part("a", 0, b"", b"")], sender=own, to=server)
    assert code_of(lambda: collect(made)) == "file-foreign"  # it answers something else
    assert go_on(trip.run).waiting == before


# --- what goes wrong on the way ------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_goes_on_without_a_site_and_asks_again_where_one_failed(
    tmp_path: Path, founded: Consortium
) -> None:
    settings = tiny(tmp_path, "method=fedavg-linear", "rounds=1", "federation.at_least=2")
    trip = Trip(tmp_path, founded, settings)
    withdraw_from(trip.kit("site-2"), settings.trained_by)
    trip.answered(trip.asks())
    withdraw_from(trip.kit("site-3"), settings.trained_by)
    with pytest.raises(SettingsError, match="nothing is waited for"):
        trip.asks(without=["site-2"])
    asks = trip.asks()
    assert sorted(asks) == ["site-1", "site-3"]  # site-2 did not agree, and two are enough
    with pytest.raises(Refusal, match="did not agree"):
        trip.answered({"site-3": asks["site-3"]})
    trip.answered({"site-1": asks["site-1"]})
    with pytest.raises(QuorumError, match="no reply came"):
        trip.asks(without=["site-3"])
    agree_to(trip.kit("site-3"), settings.trained_by, bounds=("runs=1000",))
    asks = trip.asks(again=True)
    assert sorted(asks) == ["site-2"]  # first, to join; site-3 is asked again after that
    agree_to(trip.kit("site-2"), settings.trained_by, bounds=("runs=1000",))
    trip.answered(asks)
    trip.to_the_end()
    assert sorted(go_on(trip.run).result.scores.sites) == trip.names
    for name in trip.names:
        found = compare_ledgers(trip.run, trip.memory(name))
        assert found.agree, found


class Killed(BaseException):
    """As if the process were killed."""


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_ends_with_the_same_numbers(
    tmp_path: Path, founded: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    trip = Trip(tmp_path, founded, tiny(tmp_path, "method=fedavg-linear", "rounds=2", sites=2))
    whole, left, kills = files.write_of_run, [0], [0]

    def dies(path: Path, data: bytes) -> None:
        left[0] -= 1
        if left[0] == 0:
            kills[0] += 1
            raise Killed
        whole(path, data)
        if left[0] == 1:
            left[0] = 0
            kills[0] += 1
            raise Killed

    monkeypatch.setattr(files, "write_of_run", dies)

    def insists(work: Callable[[], Any]) -> Any:
        """Kill it at its first, second, third ... write until it has fewer."""
        for at in range(1, 100):
            left[0] = at
            try:
                return work()
            except Killed:
                continue
            finally:
                left[0] = 0
        raise AssertionError("it never ends")

    while asks := insists(trip.asks):
        for name, path in asks.items():
            insists(lambda name=name, path=path: trip.site(name).answer(path, to=trip.usb))
    assert kills[0] > 30
    run(trip.settings, out=tmp_path / "one")
    assert not list(differences(numbers(tmp_path / "one"), numbers(trip.run)))
    assert not list(differences(states(tmp_path / "one"), states(trip.run)))
    for name in trip.names:
        found = compare_ledgers(trip.run, trip.memory(name))
        assert found.agree, found


def test_settings_that_files_cannot_carry_are_refused_before_anything_is_asked(
    tmp_path: Path, founded: Consortium
) -> None:
    settings = tiny(tmp_path, "method=fedavg-linear", "rounds=1")
    trip = Trip(tmp_path, founded, settings)
    given: dict[str, Any] = {"kit": trip.kits / "server", "lead": trip.kits / "lead"}
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "open.toml").write_text(text.replace('sums = "plain"\n', ""))

    def refused(name: str, *overrides: str, **changes: Any) -> str:
        with pytest.raises((SettingsError, RunError)) as raised:
            begin(
                tmp_path / "new",
                tmp_path / name,
                overrides=overrides,
                **{"cards": trip.cards, **given, **changes},
            )
        assert not (tmp_path / "new").exists()
        return str(raised.value)

    assert "do not say how replies are summed" in refused("open.toml")
    assert "federation.down" in refused("run.toml", "federation.down=int8")
    assert "once" in refused("run.toml", cards=[trip.cards[0]] * 2)
    assert "no card" in refused("run.toml", cards=[])
    with pytest.raises(RunError, match="already a run"):
        begin(trip.run, tmp_path / "run.toml", cards=trip.cards, **given)
    with pytest.raises(RunError, match="no run by courier"):
        go_on(tmp_path / "nowhere")


def test_a_ledger_that_is_replayed_holds_each_message_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"

    def note(ledger: Ledger, round: int, step: str, *, bytes: int = 5) -> int:
        size = FieldSize("words", "array", bytes, 1)
        ledger.record([size], round=round, step=step, direction="up", site="a", seen="sum")
        return ledger.flush()

    def totals(ledger: Ledger) -> int:
        return ledger.totals["up"]["a"]

    first = Ledger.replayed(path, length=0, always=["join"])
    note(first, 0, "join")
    length = note(first, 1, "train")
    note(first, 1, "score")
    assert totals(first) == 15
    again = Ledger.replayed(path, length=length, always=["join"])
    assert totals(again) == 10
    before = path.read_bytes()
    note(again, 0, "join")
    note(again, 1, "score")
    assert path.read_bytes() == before and totals(again) == 15
    note(again, 1, "score", bytes=6)  # the second of this turn
    assert len(read_lines(path)) == 4 and totals(again) == 21
    seal = {"round": 3, "step": "score", "direction": "up", "site": "a", "digest": "d", "ask": "b"}
    again.seal(7, seal)
    note(again, 3, "score")  # the reply whose seal this is; its ask is then made anew
    anew = Ledger.replayed(path, length=length, always=["join"], without=[("a", "b")])
    lines, bytes = len(read_lines(path)), totals(anew)
    note(anew, 3, "score")
    assert len(read_lines(path)) == lines + 1 and totals(anew) == bytes + 5
    with open(path, "ab") as file:
        file.write(b'{"torn')
    torn = Ledger.replayed(path, length=length, always=["join"])
    note(torn, 2, "train")
    assert read_lines(path)[-1].chained and totals(torn) == 15
