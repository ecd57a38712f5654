"""The rounds of one federation: train, score development text, checkpoint, resume after a crash."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confide.errors import CheckpointError, FederationError, MessageError, SiteFault
from confide.federation.events import Watcher
from confide.federation.federation import DIFFERS, Federation
from confide.federation.ledger import Ledger
from confide.federation.memory import Checkpoint, CheckpointStore, as_array
from confide.federation.messages import Arrays, decode, encode
from confide.federation.steps import LARGEST, odd_part
from confide.files import Tree
from confide.methods.method import Method
from confide.runs.status import round_event
from confide.scoring.calibration import AS_IS, fitted
from confide.scoring.counts import Scored
from confide.settings import Settings
from confide.tasks import TASKS, Counts


@dataclass(frozen=True)
class Attendance:
    """Who of a run's real sites is there.

    `there`: by site that joined, a fingerprint of its text. `missing`: the others, by their faults.
    `recheck` is called between rounds with the sites that may still join, and raises EngineError if
    the run is to go on with one of them.
    """

    there: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[SiteFault] = ()
    recheck: Callable[[Sequence[str]], None] = lambda sites: None


ALL_THERE = Attendance()
"""On one machine no site is ever away."""


@dataclass
class Progress:
    """The progress of a run; saved in every checkpoint, so nothing counts twice.

    `left_out` holds the sites that failed at the start, with the code of their failure; `sites` the
    real sites that have had a part in the run, with fingerprints of their text;
    `calibrator` is that of the best round's confidences. Where sums show no single reply,
    `examples` is what all sites' weights are measured by, `gone` are sites that a sum lost, and
    `rooms` is how large changes may be in narrow lanes.
    """

    history: list[Tree] = field(default_factory=list)
    best_round: int = 0
    best_score: float = -2.0
    best_dev: Scored = field(default_factory=dict)
    seconds: float = 0.0
    compute_seconds: float = 0.0
    left_out: dict[str, str] = field(default_factory=dict)
    calibrator: list[float] = field(default_factory=lambda: [*AS_IS])
    examples: float = 0.0
    gone: list[str] = field(default_factory=list)
    rooms: dict[str, dict[str, float]] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Selected:
    """The state of the selected round, and how it was reached."""

    state: Any
    progress: Progress


class RunningMean:
    """The mean of the common weights after about the last `rounds` rounds.

    The plain mean of all rounds until there are that many; from then on the mean moves by 1 /
    `rounds` of the way to each round's weights, so that it takes the memory of one model. Averaging
    along the way: Polyak & Juditsky, "Acceleration of Stochastic Approximation by Averaging", SIAM
    J. Control Optim. 30(4), 1992; Izmailov et al., "Averaging Weights Leads to Wider Optima and
    Better Generalization", UAI 2018. Training goes on from the weights themselves.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds, self._count = rounds, 0
        self._weights: Arrays = {}

    def go_on(self, weights: Arrays, *, rounds: int) -> None:
        """Continue from the mean that was reached after N `rounds`."""
        self._weights, self._count = weights, rounds

    def add(self, weights: Arrays) -> None:
        """Take in a round's weights."""
        if self._rounds == 1:
            return
        self._count += 1
        share = np.float32(1 / min(self._count, self._rounds))
        self._weights = {
            name: array + share * (new - array) if (array := self._weights.get(name)) is not None
            else new
            for name, new in weights.items()
        }  # fmt: skip

    def of(self, state: Any) -> Any:
        """The state with the mean in place of its weights; the state itself if there is none."""
        return replace(state, weights=self._weights) if self._weights else state


class Rounds:
    """Runs a method over a federation, with a checkpoint whenever development text is scored.

    `binding` is a digest of everything that decides the numbers; a checkpoint with another binding
    belongs to another run and is refused.
    """

    def __init__(
        self,
        method: Method,
        federation: Federation,
        *,
        settings: Settings,
        store: CheckpointStore,
        ledger: Ledger,
        binding: str,
        watch: Watcher,
        attendance: Attendance = ALL_THERE,
    ) -> None:
        self._attendance = attendance
        away = [fault.site for fault in attendance.missing]
        if federation.summing is not None:
            away = federation.summing.leave_out(away)
        federation.go_on_without(away)
        self._method = method
        self._federation = federation
        self._settings = settings
        self._store = store
        self._ledger = ledger
        self._binding = binding
        self._watch = watch
        self._clock = time.perf_counter()
        self._before = Progress()
        self._mean = RunningMean(settings.select.average)
        self._spent = False
        self._state: Any = None
        self._good: Any = None  # held only where a round may be undone

    def run(self) -> Selected:
        """Run all remaining rounds; gives the state of the best round by development counts."""
        settings, rounds = self._settings, self._store.rounds()
        last = rounds[-1] if rounds else 0
        progress = self._go_on(last) if rounds else self._begin()
        self._before = Progress(seconds=progress.seconds, compute_seconds=progress.compute_seconds)
        for number in range(last + 1, settings.rounds + 1):
            stale = number - 1 - progress.best_round  # rounds since the best one
            if self._spent or (0 < settings.select.patience <= stale and progress.best_round):
                break
            start, computed = time.perf_counter(), self._federation.compute_seconds
            worked = dict(self._federation.seconds_by_site)
            sent = {way: sum(sites.values()) for way, sites in self._ledger.totals.items()}
            self._federation.took_part.clear()
            state, facts = self._method.round(self._state, self._federation, number)
            self._check(state, number)
            before = self._state.weights
            self._state = state = _with(
                state, self._federation.broadcast.rounded(before, state.weights)
            )
            del before
            self._mean.add(state.weights)
            trained = time.perf_counter() - start
            record: Tree = {"round": number, **facts, "train_seconds": trained}
            self._spent = self._no_more(number)
            scored = number % settings.select.every == 0 or number == settings.rounds
            if scored and self._develop(self._mean.of(state), progress, record, number):
                self._state = state = self._undone(state, record)
            if scored:
                self._note_good()
            if progress.best_round == number:
                self._federation.broadcast.keep(state.weights)
            faults = [*self._attendance.missing, *self._federation.take_faults()]
            record["failed"] = {fault.site: fault.code for fault in faults}
            record["faults"] = [
                {"site": one.site, "step": one.step, "code": one.code, "why": one.what}
                for one in faults
            ]
            record["bytes"] = {
                way: sum(sites.values()) - sent[way] for way, sites in self._ledger.totals.items()
            }
            record["seconds"] = time.perf_counter() - start
            record["compute_seconds"] = self._federation.compute_seconds - computed
            record["slowest_seconds"] = max(
                seconds - worked[site] for site, seconds in self._federation.seconds_by_site.items()
            )
            if facts.get("sentences"):
                record["sentences_per_second"] = facts["sentences"] / max(trained, 1e-9)
            progress.history.append(record)
            self._tell(progress, record)
            if scored:
                self._save(state, progress, number)
            if scored and number < settings.rounds:
                self._attendance.recheck(self._may_join(progress))
        if progress.best_round in (0, self._store.rounds()[-1]):
            return Selected(self._mean.of(self._state), progress)
        self._state = None
        return Selected(self._restore(progress.best_round)[1], progress)

    def _begin(self) -> Progress:
        """Agree on the state before round 1."""
        state = self._method.start(self._federation)
        faults = [*self._attendance.missing, *self._federation.take_faults()]
        left_out = {fault.site: fault.code for fault in faults}
        there = self._attendance.there.items()
        sites = {site: mark for site, mark in there if site not in left_out}
        seed = self._method.first_drawn(self._federation)
        self._state = _with(state, self._federation.broadcast.begin(state.weights, seed=seed))
        return Progress(left_out=left_out, sites=sites)

    def _go_on(self, last: int) -> Progress:
        """Go on from the checkpoint of round `last`."""
        checkpoint, kept, progress = self._restore(last)
        self._state = kept
        if checkpoint.next.size:
            self._state = self._decoded(checkpoint, checkpoint.next)
            self._mean.go_on(kept.weights, rounds=last)
        differ = [site for site, code in progress.left_out.items() if code == DIFFERS]
        self._federation.go_on_without([*differ, *progress.gone])
        self._let_in(progress)
        self._note_good()
        self._federation.broadcast.go_on(self._state.weights, residual=checkpoint.left)
        self._spent = self._no_more(last)
        self._store.prune(last, best=progress.best_round)
        if self._federation.summing is not None:
            self._federation.summing.examples = progress.examples
            self._federation.summing.ranges = progress.rooms
        self._tell(progress, progress.history[-1])  # listeners may have missed its end
        return progress

    def _let_in(self, progress: Progress) -> None:
        """Give the sites that missed the start what the others were given there."""
        late = [site for site in self._federation.sites if site not in progress.sites]
        if not self._attendance.there or not late:
            return
        given = self._method.entry(self._state)
        if given is None or self._federation.summing is not None:
            self._federation.go_on_without(late)
            return
        step, ask = given
        replies = self._federation.admit(step, ask, sites=late)
        idle = [site for site, reply in replies.items() if not reply.size]
        self._state = replace(self._state, idle=sorted({*self._state.idle, *idle}))
        for site in replies:
            progress.sites[site] = self._attendance.there[site]
            progress.left_out.pop(site, None)

    def _may_join(self, progress: Progress) -> list[str]:
        """The sites that are not there and could take part again, or from now on."""
        if self._federation.summing is not None:
            return []
        late = self._method.entry(self._state) is not None
        out = {site for site, code in progress.left_out.items() if code == DIFFERS}
        there = {*self._attendance.there, *(fault.site for fault in self._attendance.missing)}
        return sorted(site for site in there - out if late or site in progress.sites)

    def score(self, state: object, part: str, round: int) -> Mapping[str, Counts]:
        """Every site's counts on its own held-out text."""
        return self._method.score(state, self._federation, part=part, round=round)

    def _no_more(self, number: int) -> bool:
        """True if the rounds up to the next scoring would take a site beyond what it may upload.

        They are taken to cost what the `number` rounds before them did, each. Raises
        FederationError if not even one scoring is within the bound.
        """
        own, most = self._settings, self._settings.sharing.max_upload_mb
        up = max(self._ledger.totals["up"].values(), default=0) / 1e6
        scored = number // own.select.every * own.select.every == number
        ahead = own.select.every if scored else 1
        over = 0 < most < up * (number + ahead) / number
        if over and number < min(own.select.every, own.rounds):
            raise FederationError(
                "no round can be kept within federation.max_upload_mb: development text is first"
                f" scored after round {min(own.select.every, own.rounds)}",
                expected=f"at least {up / number * min(own.select.every, own.rounds):.3g} MB",
                got=f"{most:g} MB",
                fix="raise federation.max_upload_mb, or lower select.every",
            )
        return over and scored

    def _note_good(self) -> None:
        if self._settings.federation.roll_back > 0:
            self._good = self._state

    def _check(self, state: object, number: int) -> None:
        """Raise FederationError, before the state is saved, if no site could train from it."""
        odd = odd_part(state)
        if odd is None:
            return
        sites = ", ".join(sorted(self._federation.took_part)) or "none"
        raise FederationError(
            f"round {number} led to a state that no site could train from: {odd};"
            f" it combines replies of {sites}",
            expected=f"finite numbers of at most {LARGEST:.0f}",
            where=f"round {number}",
            fix="leave out the site that sends such numbers, or lower training.learning_rate, then"
            " resume: the checkpoint before this round is sound",
        )

    def _undone(self, state: Any, record: Tree) -> Any:
        """The state after the last scoring that was good enough, in place of this one."""
        if self._good is None:
            return state
        record["rolled_back"] = True
        if self._settings.select.average > 1:
            self._mean.go_on(self._good.weights, rounds=record["round"])
        self._federation.broadcast.go_on(self._good.weights)
        return self._good

    def _develop(self, state: object, progress: Progress, record: Tree, number: int) -> bool:
        """Score development text, and note whether this round is the best so far.

        Gives whether the score has fallen so far that the round is to be undone.
        """
        counts = self.score(state, "dev", number)
        task, own = TASKS[self._settings.task], self._settings.select
        total = task.sum(counts.values())
        overall = task.scores(total)
        record["dev"] = task.values(overall)
        first = task.kinds[0]
        record["dev_sites"] = {
            site: task.value(task.scores(count), first) for site, count in counts.items()
        }
        has_text = overall[task.unit] > 0
        later = -1 / number  # grows from round to round and stays below every score
        value = later if own.by == "last" or not has_text else record["dev"][own.by]
        if value > progress.best_score:
            progress.best_score, progress.best_round = value, number
            progress.best_dev = overall if has_text else {}
            progress.calibrator = [*(fitted(total.sure) if own.calibrate else AS_IS)]
        most = self._settings.federation.roll_back
        return 0 < most < progress.best_score - value

    def _tell(self, progress: Progress, record: Tree) -> None:
        done = [round["seconds"] for round in progress.history[-5:]]
        left, sites = self._settings.rounds - record["round"], self._federation.sites
        best = [next(iter(one["dev"].values())) for one in progress.history if "dev" in one]
        event = round_event(
            TASKS[self._settings.task],
            record,
            rounds=self._settings.rounds,
            best=max(best, default=None),
            moved={way: sum(own.values()) for way, own in self._ledger.totals.items()},
        )
        site = sites[0] if len(sites) == 1 else None
        self._watch(replace(event, site=site, seconds_left=left * sum(done) / len(done)))

    def _save(self, state: Any, progress: Progress, number: int) -> None:
        progress.seconds = self._before.seconds + time.perf_counter() - self._clock
        progress.compute_seconds = self._before.compute_seconds + self._federation.compute_seconds
        summing = self._federation.summing
        if summing is not None:
            progress.examples, progress.rooms = summing.examples, summing.ranges
            progress.gone = sorted(set(summing.sites) - set(self._federation.sites))
        kept = self._mean.of(state)
        checkpoint = Checkpoint(
            round=number,
            state=as_array(encode(kept)),
            binding=self._binding,
            progress=json.dumps(vars(progress)),
            ledger=self._ledger.flush(),
            next=as_array(b"" if kept is state else encode(state)),
            left=self._federation.broadcast.residual,
        )
        self._store.save(checkpoint, best=progress.best_round)

    def _restore(self, round: int) -> tuple[Checkpoint, Any, Progress]:
        checkpoint = self._store.load(round)
        if checkpoint.binding != self._binding:
            raise CheckpointError(
                "the checkpoint was made with other settings or other data",
                where=str(self._store.path(round)),
                fix="resume with the run's settings and data, or start in another folder",
            )
        state = self._decoded(checkpoint, checkpoint.state)
        progress = Progress(**json.loads(checkpoint.progress))
        there, before = self._attendance.there, progress.sites
        other = sorted(site for site in there if before.get(site, there[site]) != there[site])
        if other:
            raise CheckpointError(
                f"the checkpoint was made with other data at {', '.join(other)}",
                where=str(self._store.path(round)),
                fix="bring back the text with which the run began, or start in another folder",
            )
        return checkpoint, state, progress

    def _decoded(self, checkpoint: Checkpoint, state: NDArray[np.uint8]) -> Any:
        try:
            return decode(self._method.pair.State, state.tobytes())
        except MessageError as error:
            raise CheckpointError(
                f"another version of confide wrote this checkpoint: {error.what}",
                where=str(self._store.path(checkpoint.round)),
                fix="finish the run with the version that environment.json names",
            ) from error


def _with(state: Any, weights: Arrays) -> Any:
    """The state with these common weights."""
    return state if weights is state.weights else replace(state, weights=weights)


def checkpointed_ledger(store: CheckpointStore) -> tuple[int, int]:
    """The round of the newest checkpoint, and the ledger's length then; 0 without a checkpoint."""
    rounds = store.rounds()
    return (rounds[-1], store.load(rounds[-1]).ledger) if rounds else (0, 0)
