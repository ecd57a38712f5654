"""A site: its text, its key, its guards; and the host that answers asks for it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from confide.errors import ConfideError, LockedKeyError, MessageError, SmallBatchError, printable
from confide.federation.broadcast import CACHED, CachedWeights, Uploading, whole
from confide.federation.failures import Refusal, failure_from
from confide.federation.guards import (
    Guards,
    check_bounded,
    check_expected,
    check_open,
    check_reply,
    clipped,
)
from confide.federation.keys import read_key
from confide.federation.memory import MemoryStore
from confide.federation.messages import Arrays, decode, encode, limits_of, pieces, values_of
from confide.federation.replies import KeptReplies
from confide.federation.seals import digest
from confide.federation.steps import Step, Turn
from confide.privacy.accountant import PrivacyBudget
from confide.seeds import derive_seed
from confide.text.document import Document
from confide.text.segment import segmented
from confide.training.batches import covering
from confide.training.encoder import is_encoder_name

if TYPE_CHECKING:
    from confide.federation.secure.site import Member

MOST_LOG = 4 * 2**20
"""Bytes after which a site's own log is set aside."""
T = TypeVar("T")
Scratch = dict[Hashable, Any]
"""Things that can be made again, by name."""


@dataclass
class Site:
    """A site: plain data before any process holds it, and then a step's view of it.

    Attributes:
        name: the site's name.
        train: its training documents; `dev` and `test` likewise.
        folder: where its memory and its log are.
        key_file: the file with the key that the sites share.
        vectors: the site's file of word vectors.
        context: its frozen encoder.
        tag_scheme: its own tag scheme, if it has chosen one.
        annotates: the relations or entity types that it annotates; empty means all.
        test_annotates: those that are annotated only in its test text.
        types: the entity types that it wants in its text; empty means all.
        guards: its own limits.
        member: the site's side of sums that the server cannot open; None where it sums otherwise.
        draws: gives the first weights of the model at hand, by seed.
        size: counts the training examples of the model at hand.
        budget: its run keys and its account of sums under noise; None where none are made.
        remote: the server is elsewhere, so the site opens no path that the server names.
        under_noise: noise hides its training text, and nothing of the text leaves without.
        log: its own log, for its own eyes.
        files: digests of the files that its model is made of, by what they are: the same at all
            sites.
        cache: what can be made again from text and memory, such as encoded batches.
        scratch: what all sites of one process share, such as one model instance. Neither `cache`
            nor `scratch` is saved or travels.
    """

    name: str
    train: Sequence[Document]
    folder: Path = Path()
    dev: Sequence[Document] = ()
    test: Sequence[Document] = ()
    key_file: Path | None = None
    vectors: Path | None = None
    context: str | None = None
    tag_scheme: str | None = None
    annotates: tuple[str, ...] = ()
    test_annotates: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    guards: Guards = Guards()
    remote: bool = False
    member: Member | None = None
    budget: PrivacyBudget | None = None
    draws: Callable[[int], Arrays] | None = None
    size: Callable[[], int] | None = None
    under_noise: bool = False
    log: Path | None = None
    files: dict[str, str] = field(default_factory=dict)
    cache: Scratch = field(default_factory=dict)
    scratch: Scratch = field(default_factory=dict)

    @property
    def weight(self) -> int:
        """The site's load: characters of its training text."""
        return sum(len(document.text) for document in self.train)

    def in_process(self, scratch: Scratch) -> Site:
        """Copy the site for one process, whose sites share `scratch`."""
        return replace(self, files={}, cache={}, scratch=scratch)

    def documents(self, part: str) -> Sequence[Document]:
        """The documents of `part`: "train", "dev" or "test"."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[part]

    @property
    def sentences(self) -> int:
        """The number of training sentences with a token, counted once."""
        if "sentences" not in self.cache:
            self.cache["sentences"] = sum(
                bool(one.tokens) for each in self.train for one in segmented(each).sentences
            )
        found: int = self.cache["sentences"]
        return found

    def check_sentences(self) -> None:
        """Raise Refusal if there are fewer training sentences than the site's guard says."""
        if self.guards.min_sentences > 1 and 0 < self.sentences < self.guards.min_sentences:
            raise Refusal("too-few-sentences")

    def without_text(self) -> Site:
        """Copy the site without its training text, and with a cache of its own."""
        return replace(self, train=(), cache=self.cache.setdefault("without text", {}))

    def once(self, *place: Hashable, make: Callable[[], T]) -> T:
        """Share a value among the sites of one process by name; the first site to ask makes it."""
        if place not in self.scratch:
            self.scratch[place] = make()
        found: T = self.scratch[place]
        return found

    def heard(self, data: bytes, kind: object, open: Callable[[], T]) -> T:
        """The ask of a `kind` in these bytes, opened once for all sites of a process with them."""
        kept = self.scratch.get("heard")
        if kept is not None and kept[0] is data and kept[1] == kind:
            found: T = kept[2]
            return found
        found = open()
        if not self.remote:
            self.scratch["heard"] = (data, kind, found)
        return found

    def whole(self, ask: Any) -> Any:
        """The ask with whole weights, however they were given. Raises Refusal (`whole`)."""
        return whole(ask, self.scratch.setdefault(CACHED, CachedWeights()), draws=self.draws)

    def model_place(self, name: str) -> str:
        """Where to find the model that the server calls `name`: the site's own folder, or the name.

        Raises Refusal if a remote server names a path.
        """
        if self.context:
            return self.context
        if self.remote and not is_encoder_name(name):
            raise Refusal("own-folder")
        return name

    @property
    def run(self) -> bytes:
        """The identity of this run in the site's privacy account: its name, and what came."""
        member = self.member
        return digest((member.run or "").encode(), member.binding) if member else b""

    @property
    def account(self) -> str:
        """The state of the site's account of noise, for its peers; empty if nothing was charged."""
        found = self.budget.status() if self.budget is not None else None
        return f"{found.charges} {found.head}" if found and found.charges else ""

    def forget(self) -> None:
        """Delete the key of the present run, so that nobody can draw its noise again."""
        if self.budget is not None:
            self.budget.forget(self.run)

    def key(self) -> bytes:
        """The secret key, from the site's own file. Raises Refusal if it is missing or locked."""
        if self.key_file is None:
            raise Refusal("no-key")
        try:
            return read_key(self.key_file)
        except LockedKeyError as error:
            raise Refusal("locked-key") from error
        except ConfideError as error:
            raise Refusal("no-key") from error


Expects = Callable[[str, int], Mapping[str, object]]
"""Gives the values that the settings prescribe for an ask of a step in a round
(`guards.check_expected`)."""
Work = Callable[[Step, object, int], tuple[Any, Callable[[], None]]]
"""Does a step's work: the step, its ask and the round give the reply, and what settles it."""
Common = Callable[[int, str], bytes]
"""The digest of what a site holds in common with the others before the turn of a round and step."""


class AnswersSums(Protocol):
    """A site's part in sums that are opened without its own numbers (`secure.steps.SumHost`)."""

    def answer(
        self, name: str, step: Step | None, data: bytes, *, round: int, work: Work, common: Common
    ) -> bytes | None:
        """The encoded reply; None if the step is neither an exchange nor summed."""
        ...


class SiteHost:
    """The site's side of the wall: bytes come in, bytes go out, and nothing else leaves.

    Whatever a step raises becomes a `Failure` without text; the traceback goes to the site's
    own log. Here the site's guards are kept, for every step alike; what they bound is declared on
    the steps and on the fields of their messages. `expects` says what an ask must hold. Finished
    replies of rounds go to `kept`, if it is given, and the same ask is answered from there; the
    memory must then be written in every round. In a run
    under noise no reply or failure without noise may depend on the training text, so steps that
    add none are answered as by a site that has no text; those that add some ask
    `Site.check_sentences` where they read the text.
    """

    def __init__(
        self,
        site: Site,
        steps: Mapping[str, Step],
        *,
        memory: MemoryStore[object],
        seed: int,
        uploading: Uploading | None = None,
        sums: AnswersSums | None = None,
        expects: Expects | None = None,
        kept: KeptReplies | None = None,
    ) -> None:
        self.kept = kept
        self._sums = sums
        self._expects = expects
        self._uploading = uploading or Uploading()
        self.site = site
        self._steps = steps
        self._memory = memory
        self._seed = seed
        site.under_noise = any(step.noisy for step in steps.values())

    def answer(self, step: str, round: int, data: bytes) -> bytes:
        """The encoded reply, or the encoded failure; of a sum under noise in its own time."""
        begun = time.monotonic()
        try:
            found = self._answer(step, round, data)
        except Exception as error:
            if self.site.log is not None:
                note_traceback(self.site.log, step, round)
            found = encode(failure_from(error))
        if step in self._steps and self._steps[step].noisy:
            taken = time.monotonic() - begun
            time.sleep(until_due(taken, every=self.site.guards.reply_every))
        return found

    def _answer(self, name: str, round: int, data: bytes) -> bytes:
        if round < 0:
            raise Refusal("bad-ask")
        if round > self.site.guards.max_rounds:
            raise Refusal("too-many-rounds")
        if self.site.guards.masked and not self.site.member:
            raise Refusal("only-masked")
        step = self._steps.get(name)
        if self._sums is not None:
            said = self._sums.answer(
                name, step, data, round=round, work=self._worked, common=self._common
            )
            if said is not None:
                return said
        if step is None:
            raise Refusal("unknown-step")
        if self.site.guards.masked and (step.summed or step.learnt is not None):
            raise Refusal("only-masked")
        ask = self.site.heard(data, step.ask, lambda: self.site.whole(ask_in(step.ask, data)))
        asked = b""
        if self.kept is not None and round:
            asked = digest(*pieces(ask))
            self.kept.drop_up_to(round - 1)
            again = self.kept.find(round, name, asked)
            if again is not None and self._back_after(step, round):
                return again
            self.kept.drop(round, name)  # before its memory is: this turn is computed anew
        reply, settle = self._worked(step, ask, round)
        check_open(reply, self.site.guards)
        seed = self._turn(step, round).seed
        sent, settle_codes = self._uploading.sent(step, ask, reply, round=round, seed=seed)
        encoded = encode(sent)
        settle()
        settle_codes()
        if self.kept is not None and asked:
            self.kept.keep(round, name, asked, reply=encoded)
        return encoded

    def _back_after(self, step: Step, round: int) -> bool:
        """Return whether all that the site remembers is there as this turn left it."""
        return self._memory.after(round, step.name) and self._uploading.after(round, step)

    def _worked(self, step: Step, ask: object, round: int) -> tuple[Any, Callable[[], None]]:
        """The checked reply to an ask, and what keeps the memory after it."""
        guards = self.site.guards
        check_bounded(values_of(ask), guards)
        if self._expects is not None:
            check_expected(ask, self._expects(step.name, round))
        if not self.site.under_noise:
            self.site.check_sentences()
        before: Any = self._memory.before(round, step.name)

        # No part of the model that this site keeps to itself may leave. Every part that its guard
        # names must be one that its memory keeps: a name that the model does not have would protect
        # nothing.
        sent = step.parts(ask)
        kept = set(guards.private) <= set(getattr(before, "private", ()))
        if (sent and not kept) or any(map(guards.keeps, sent)):
            raise Refusal("private-part")

        hidden = self.site.under_noise and not step.noisy
        site = self.site.without_text() if hidden else self.site
        with covering(1 if step.noisy else guards.min_batch):  # noise hides a unit by itself
            reply, after = step.answer(site, before, ask, self._turn(step, round))
        self.site.draws = site.draws

        # The model at hand must have enough examples of the training text. That depends on the
        # text, so where replies are summed unseen it is not refused in the open.
        least = max(guards.min_sentences, guards.min_batch)
        if self.site.size is not None and not self.site.under_noise and least > 1:
            size = self.site.size()
            if 0 < size < guards.min_sentences:
                raise Refusal("too-few-sentences")
            if step.learnt is not None and size < guards.min_batch:
                raise SmallBatchError("the site has too few examples to learn from")

        reply = clipped(step, ask, reply, most=guards.max_norm)
        check_reply(step, ask, reply)
        check_bounded(values_of(reply), guards)

        def settle() -> None:
            if after is before:
                self._memory.unchanged(round, step.name)
                return
            memory: Any = after
            if self.site.member is not None:  # every memory is kept with the digests of its asks
                given = {} if before is None else dict(before.given)
                if step.gives:  # at the start the files that the site found go with the ask
                    files = () if round else _texts(self.site.files)
                    given[step.name] = digest(encode(ask), *files).hex()
                memory = replace(memory, given=given)
            self._memory.commit(round, step.name, memory)

        return reply, settle

    def _common(self, round: int, step: str) -> bytes:
        """Digest what every sum's keys are made for: what this site was given before, and read."""
        memory: Any = self._memory.as_of(round, step)
        given = {} if memory is None else memory.given
        member = self.site.member
        assert member is not None, "only sites that sum under masks have something in common"
        return digest(member.binding, *_texts(given))

    def _turn(self, step: Step, round: int) -> Turn:
        seed = derive_seed(self._seed, round, self.site.name, step.drawn or step.name)
        return Turn(round, self.site.name, step.name, seed)


def _texts(named: Mapping[str, str]) -> list[bytes]:
    """Names and what they stand for, as parts of a digest."""
    return [text.encode() for pair in sorted(named.items()) for text in pair]


def until_due(seconds: float, *, every: float) -> float:
    """Seconds to the next whole multiple of `every` seconds; 0 if that is 0.

    >>> until_due(0.5, every=2), until_due(2.5, every=2), until_due(2.5, every=0)
    (1.5, 1.5, 0.0)
    """
    return -seconds % every if every else 0.0


def ask_in(kind: type[T], data: bytes | memoryview) -> T:
    """The ask in these bytes, no larger than its fields allow. Raises Refusal."""
    try:
        return decode(kind, data, limits=limits_of(kind))
    except MessageError as error:
        raise Refusal("bad-ask") from error


def note_traceback(log: Path, step: str, round: int) -> None:
    """Append the error being handled to a site's own log, for the site's eyes only.

    A log that has grown long is set aside, in place of the one before it.
    """
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > MOST_LOG:
            log.replace(log.with_suffix(".old.log"))
        with open(log, "a", encoding="utf-8") as file:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
            asked = f"round {round} step {printable(step, 100)}"
            file.write(f"{stamp} {asked}\n{traceback.format_exc()}\n")
    except OSError:
        pass  # a full disk must not turn a clear failure into a second one
