"""The engine of worker processes: the same numbers as one process, whatever dies in between."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cases import each
from confide.errors import FederationError, QuorumError
from confide.federation import engines
from confide.federation.engines import WorkerEngine, _deal, _placed, _taken, _Worker
from confide.federation.messages import Pieces, encode, pieces
from confide.federation.site import Site
from confide.text.document import Document
from confide.training.devices import Place, here
from federation.toys import MULTIPLY, TELL, ask, federation, hosting, sequential, specs

THREADS = 3
"""Of each process; few machines that run tests would take as many by themselves."""


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where toy sites note that they have died once."""
    folder = tmp_path_factory.mktemp("marks")
    os.environ["TOY_MARKS"] = str(folder)
    yield folder
    del os.environ["TOY_MARKS"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, marks: Path) -> Iterator[WorkerEngine]:
    """Three sites in two processes, shared by the tests: spawning one takes seconds."""
    found = WorkerEngine(
        specs(tmp_path_factory.mktemp("workers"), 3), hosting(), workers=2, threads=THREADS
    )
    yield found
    found.close()


def replies(
    engine: object, mood: str, round: int, data: bytes | Pieces | None = None
) -> dict[str, bytes]:
    data = data or encode(ask(mood))
    asks = dict.fromkeys(engine.sites, data)  # type: ignore[attr-defined]
    found = engine.deliver("multiply", round, asks=asks, timeout=None)  # type: ignore[attr-defined]
    return {delivery.site: delivery.reply for delivery in found}


def test_workers_take_the_places_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Place] = []
    monkeypatch.setattr(engines, "_Worker", lambda *given: taken.append(given[-1]))
    places = [Place(micro_batch_size=size) for size in (1, 2)]
    WorkerEngine(specs(tmp_path, 3), hosting(), workers=3, places=places)
    WorkerEngine(specs(tmp_path, 3), hosting(), workers=2)
    assert taken == [places[0], places[1], places[0], here(), here()]


def test_both_engines_give_the_same_bytes(engine: WorkerEngine, tmp_path: Path) -> None:
    one = sequential(tmp_path)
    for round in (1, 2):
        assert replies(engine, "", round) == replies(one, "", round)
    large = Pieces(pieces(ask("")))
    assert replies(engine, "", 2, large) == replies(one, "", 2, large) == replies(one, "", 2)
    assert one.sites == engine.sites == ("site-1", "site-2", "site-3")


def test_a_worker_takes_no_more_threads_than_it_is_given(engine: WorkerEngine) -> None:
    found = federation(engine).ask(TELL, ask("threads"), round=3)
    assert {reply.words[-1] for reply in found.values()} == {str(THREADS)}


def test_a_worker_that_dies_is_started_again_and_nothing_changes(
    engine: WorkerEngine, tmp_path: Path, marks: Path
) -> None:
    expected = replies(sequential(tmp_path), "", 1)
    mood = "site-1=die-once"
    assert replies(engine, mood, 1) == expected
    assert (marks / "site-1").exists()


@pytest.mark.slow
def test_a_worker_that_was_killed_between_two_asks(engine: WorkerEngine, tmp_path: Path) -> None:
    before = replies(engine, "", 3)
    process = engine._workers[0].process
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert replies(engine, "", 3) == before


def test_who_dies_twice_is_lost_and_the_others_go_on(engine: WorkerEngine) -> None:
    sites = federation(engine, at_least=2)
    total = sites.sum(MULTIPLY, ask("site-2=die"), round=5)
    assert np.allclose(total.weights["b"], 4 * ask().weights["b"])
    (fault,) = sites.take_faults()
    assert (fault.site, fault.code) == ("site-2", "lost")
    assert federation(engine).sum(MULTIPLY, ask(), round=6).count == 3


@pytest.mark.slow
def test_who_takes_too_long_is_given_up(engine: WorkerEngine) -> None:
    sites = federation(engine, at_least=2, timeout=5.0)  # a process may take longer to start
    total = sites.sum(MULTIPLY, ask("site-3=sleep"), round=8)
    assert total.count == 2
    assert [(f.site, f.code) for f in sites.take_faults()] == [("site-3", "timeout")]
    assert federation(engine).sum(MULTIPLY, ask(), round=9).count == 3


def test_a_fault_at_every_site_is_told_for_each(engine: WorkerEngine) -> None:
    with pytest.raises(QuorumError) as caught:
        federation(engine).ask(TELL, ask("raise"), round=10)
    assert [site in str(caught.value) for site in engine.sites] == [True] * 3


def test_a_reply_that_nobody_waited_for_does_not_answer_the_next_ask(
    engine: WorkerEngine, tmp_path: Path
) -> None:
    """The server may stop listening in the middle of a step; the next step starts clean."""
    asks = {site: encode(ask()) for site in engine.sites}
    some = engine.deliver("tell", 11, asks=asks, timeout=None)
    next(some)
    some.close()
    assert replies(engine, "", 11) == replies(sequential(tmp_path), "", 11)


def test_the_largest_sites_go_to_whoever_has_least_to_do(tmp_path: Path) -> None:
    sizes = {"a": 1, "b": 10, "c": 3, "d": 6, "e": 2}
    sites = [
        Site(name, [Document("d", "x" * size)], tmp_path / name) for name, size in sizes.items()
    ]
    shares = [[spec.name for spec in share] for share in _deal(sites, 2)]
    assert shares == [["b", "e"], ["d", "c", "a"]]
    assert [len(share) for share in _deal(sites, 5)] == [1] * 5


_SCRIPT = """
import sys
from pathlib import Path
print("once")
from confide.federation.messages import encode
from confide.federation.engines import WorkerEngine
from federation.toys import ask, hosting, specs
engine = WorkerEngine(specs(Path(sys.argv[1]), 2), hosting(), workers=2)
asks = {site: encode(ask()) for site in engine.sites}
print(sorted(d.site for d in engine.deliver("tell", 1, asks=asks, timeout=None)))
engine.close()
print(__file__.endswith("script.py"))
"""


@pytest.mark.slow
def test_a_plain_script_needs_no_main_guard_and_leaves_nothing_behind(
    tmp_path: Path, root: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(root / "tests")},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.stdout == "once\n['site-1', 'site-2']\nTrue\n", done.stderr
    assert done.stderr == ""


@each("size", [1, 5_000_000])
def test_a_message_lies_in_no_memory_with_a_name(size: int) -> None:
    """Blocks with names stay in /dev/shm when all processes are killed."""
    data = os.urandom(size)
    handle = _placed(data)
    assert os.fstat(handle).st_nlink == 0
    assert _taken(handle, size) == data
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


class Gone:
    """A process that has ended, and its pipe; notes whether the pipe was closed first."""

    closed_first: bool | None = None
    closed = False

    def poll(self, timeout: float) -> bool:
        raise EOFError

    def close(self) -> None:
        self.closed = True

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        if self.closed_first is None:
            self.closed_first = self.closed


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Gone:
    """What every worker has in place of a process and a pipe."""
    found = Gone()

    def spawn(worker: _Worker) -> None:
        worker.pipe = worker.process = found  # type: ignore[assignment]
        worker._busy = False

    monkeypatch.setattr(_Worker, "_spawn", spawn)
    monkeypatch.setattr(_Worker, "_send", lambda worker: None)
    return found


@each("every", [1, 2, 5])
def test_a_process_is_asked_again_only_where_its_sites_remember_every_round(
    gone: Gone, every: int
) -> None:
    worker = _Worker([], replace(hosting(), every=every), 1, here())
    worker.begin("tell", 1, site="site-1", block=(0, 0))
    if every == 1:
        assert worker.finish() is None
    else:
        with pytest.raises(FederationError, match="--resume"):
            worker.finish()


def test_a_worker_is_told_to_end_before_it_is_waited_for(gone: Gone) -> None:
    _Worker([], hosting(), 1, here()).end()
    assert gone.closed_first


@pytest.mark.slow
def test_a_death_between_checkpoints_ends_the_run_in_words(tmp_path: Path, marks: Path) -> None:
    """What the process remembered is gone, so its sites could not answer as before."""
    kept = replace(hosting(), every=5)
    found = WorkerEngine(specs(tmp_path, 2), kept, workers=2, threads=1)
    try:
        with pytest.raises(FederationError, match="--resume"):
            replies(found, "site-2=die", 3)
    finally:
        found.close()


def test_steps_go_to_a_process_whatever_was_asked_of_them_before() -> None:
    from confide.methods import METHODS

    for pair in METHODS.values():
        for step in pair.steps:
            _ = step.learnt, step.parts, step.like
            assert pickle.loads(pickle.dumps(step)).reply == step.reply  # noqa: S301
