"""Failures of a site: a code from this page, never a word of its text."""

from __future__ import annotations

import builtins
import contextlib
import errno
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confide import errors
from confide.errors import ConfideError, SiteFault, printable
from confide.federation.messages import carries

CODES = {
    "no-key": "the site has no key; put the sites' key file where its settings name it (`confide"
    " key new` makes one)",
    "locked-key": "the site's key is encrypted, and its passphrase is wrong or missing; at the"
    " site, set CONFIDE_PASSPHRASE_FILE",
    "other-key": "the site's key is not the one that the sites agreed on",
    "no-training-text": "the site has no training sentence",
    "too-few-sentences": "the site has fewer training sentences than its own guard `min_sentences`",
    "not-agreed": "the ask differs from the settings with which the site joined; compare the"
    " versions of confide, then ask who else speaks for the server",
    "other-unit": "noise would hide another unit, or read patients otherwise, than the site's own"
    " guards `unit` and `patients` say",
    "too-many-rounds": "the site's own guard `max_rounds` is reached",
    "small-batch": "a gradient would cover fewer examples than the site's own guard `min_batch` (8"
    " by default); set training.batch_size to at least that, or join with more text",
    "private-part": "the method would share a part of the model that the site's own guard"
    " `private` keeps",
    "no-bound": "the method cannot keep this upload within the site's own guard `max_norm`",
    "few-sites": "the run has fewer sites than the site's own guard `min_sites`",
    "memory-missing": "the site has no memory of this run: it was left out at the start, or its"
    " folder is gone; restore it, or start again",
    "weights-missing": "the site lacks the weights that the ask starts from: its process was"
    " restarted; the server sends them whole",
    "not-joined": "the site was asked before it joined the run; start again",
    "no-consent": "the site did not agree to this; at the site, run `confide site consent`",
    "other-wire": "the site agreed to something other than what this method sends; at the site,"
    " review it with `confide site consent`",
    "outside-consent": "the run is outside what the site agreed to; at the site, `confide site"
    " consent --for` shows the difference",
    "other-version": "the site and the server run different versions of confide",
    "site-file": "the site's own file cannot be used; its own log says why",
    "unknown-step": "the site does not know this step of this method",
    "bad-signature": "the pinned server, or for a run the lead, did not sign this ask for this"
    " run, site, round and step; compare the versions of confide, then ask who else speaks for the"
    " server",
    "forged-reply": "the signature of the reply does not fit the site's identity key or this ask;"
    " nothing of it was used",
    "other-identity": "an identity key is not the one that was pinned; compare fingerprints by"
    " telephone, and if the new one is right, `confide peers KIT --pin NAME FINGERPRINT` where it"
    " was refused, then resume",
    "uncertified": "an identity key is not certified by a kit of this consortium; restart its"
    " owner with the newest kit",
    "not-compared": "the site takes part only with peers whose fingerprints have been compared;"
    " compare by telephone, then `confide peers KIT --compared NAME` at the site",
    "bad-ask": "the site could not read the ask; compare the versions of confide",
    "guard": "the site's own guard held back its reply",
    "tag-outside-set": "the site's text has an entity type outside the declared `types`",
    "type-unknown": "the site wants an entity type (`types` in its table) that no site annotates",
    "vectors-missing": "the site cannot read its file of word vectors",
    "vectors-dimension": "the dimension of the site's word vectors is not `word_dim`",
    "tag-scheme": "the site's own `tag_scheme` is not the common one, but the CRF is shared",
    "encoder-missing": "the site cannot use the frozen encoder that the settings name; its own log"
    " says why",
    "own-folder": "the run names an encoder by its folder, which no site opens; at the site, name"
    " its own copy with `context`",
    "other-encoder": "the site's encoder is not the one that the run began with; restore its"
    " files, or start again",
    "relation-outside-set": "the site's training text has a relation that it did not have when the"
    " run began, or that its own `annotates` does not name; correct `relations` or `annotates`,"
    " and start again",
    "other-public-set": "the site was asked about a public set other than the one it was given;"
    " start again",
    "not-bid": "the site was told of winning sentences that it did not bid for in this round",
    "features": "the site could not compute or keep the encoder's features; its own log says why",
    "device-memory": "the site's device ran out of memory; at the site, set `micro_batch_size`"
    " below training.batch_size, or another `device`",
    "device-missing": "the site has no such device; at the site, set `device` to auto or cpu",
    "not-met": "the site has not met the others of this sum: its process was restarted, or the"
    " server means other sites",
    "other-roster": "the run's sites or their identity keys are not the pinned ones; at the site,"
    " compare them with `confide peers KIT`, by telephone",
    "near-roster": "the run's sites differ by few from an earlier run's, so that two sums could"
    " tell of these few; a site that wants that names its sites in its agreement (`confide site"
    " consent KIT METHOD --bound sites=...`)",
    "bad-greeting": "a site's greeting is not signed by its identity key",
    "other-binding": "the sites did not all receive the same settings and wire table",
    "no-sum": "the site knows nothing of this sum: its process was restarted since its offer",
    "early-ask": "the site was asked for a later part of a sum before an earlier one",
    "second-ask": "the site was asked twice for the same part of a sum, with other content",
    "bad-set": "a sum would be over too few sites, over strangers, or without the site itself",
    "bad-offer": "a site's offer to a sum is not signed by that site",
    "few-signatures": "too few sites signed the set of a sum; it stays closed",
    "other-set": "the site has helped to open this sum for another set, or an earlier sum lacked"
    " one of these sites; see `sums` in its memory folder",
    "only-masked": "the site's own guard `masked` forbids replies that the server can read",
    "older-account": "a site's account of noise is older than in an earlier run, as from a backup;"
    " find the newest one, or leave the site out",
    "spent": "another sum under noise would pass the site's own guard `max_epsilon`, or this ask"
    " was answered with other noise before; its own log says which",
    "other-text": "the site's text is not the one that the run began with, which noise requires;"
    " put it back, or begin another run",
    "disk-full": "the site could not write its memory: no space left on its disk",
    "disk-read-only": "the site could not write its memory: its disk is read-only, so its log may"
    " say nothing either",
    "absent": "the site is not connected; it joins once it is, when a round starts",
    "file-cut": "the file is cut off, too large, or not one that confide wrote; copy it again from"
    " where it was made",
    "file-foreign": "the file is of another run, another site or another kit; take the one that"
    " has this site's name",
    "file-old": "the file was answered or collected before, or another has taken its place; take"
    " the newest",
    "file-early": "a file between this one and the last one is missing here; bring the newest"
    " file of the other side, or restore the folder that was taken back to an older state",
    "lost": "no reply came: the site's process died twice on this ask, or its connection was cut",
    "timeout": "the site did not answer in time",
    "error": "the site raised an error; its own log holds the traceback",
}


BY_THE_ENGINE = ("absent", "lost", "timeout", "forged-reply")
"""Codes that the engine gives for a site: no message came from it, or none that may be used."""


class Refusal(ConfideError):
    """Raised inside a step: the site will not or cannot answer, for a reason in `CODES`."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code = code
        self.detail = detail
        super().__init__(CODES[code])


@dataclass(frozen=True)
class Failure:
    """The reply of a site that could not answer."""

    code: str = carries("a code from a fixed list")
    kind: str = carries("the class of the error, from a fixed list")
    place: str = carries("file and line of confide's own code")
    detail: str = carries("names of fields that a guard held back")


_KINDS = frozenset(
    [name for name, thing in vars(builtins).items() if isinstance(thing, type)]
    + [name for name, thing in vars(errors).items() if isinstance(thing, type)]
)


_DISKS = {errno.ENOSPC: "disk-full", errno.EDQUOT: "disk-full", errno.EROFS: "disk-read-only"}


def failure_from(error: BaseException) -> Failure:
    """The part of an error that may travel: code, class, line of our code; never its message."""
    kind = type(error).__name__
    code, detail = "error", ""
    if isinstance(error, Refusal):
        code, detail = error.code, error.detail
    elif isinstance(error, errors.DeviceError):
        code = "device-memory"
    elif isinstance(error, errors.SmallBatchError):
        code = "small-batch"
    elif isinstance(error, errors.GuardError):
        code, detail = "guard", error.what
    else:
        for one in _causes(error):
            code = _DISKS.get(getattr(one, "errno", None) or 0, code)
    return Failure(code, kind if kind in _KINDS else "Exception", _place(error), detail)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


_PLACE = re.compile(r"[\w./]{1,100}:[0-9]{1,6}", re.ASCII)
_ODD = re.compile(r"[^A-Za-z0-9_./?, :;()'-]")


def fault(failure: Failure, *, site: str, step: str, round: int) -> SiteFault:
    """The error that the server raises or notes for a failure that a site sent.

    A site may send anything, so only words that our own code could have said are kept.
    """
    code = failure.code if failure.code in CODES else "error"
    what = CODES[code]
    if failure.detail:
        what += f" ({_ODD.sub('?', printable(failure.detail))})"
    if code == "error":
        kind = failure.kind if failure.kind in _KINDS else "Exception"
        what += f" ({kind} at {failure.place if _PLACE.fullmatch(failure.place) else '?'})"
    return SiteFault(site=site, step=step, round=round, code=code, what=what)


def refused(why: str, *, site: str, step: str, round: int, code: str = "refused") -> SiteFault:
    """The fault of a site whose reply the server refuses."""
    what = f"the server refused the site's reply: {printable(why)}"
    return SiteFault(site=site, step=step, round=round, code=code, what=what)


@contextlib.contextmanager
def blaming(site: str, *, step: str, round: int) -> Iterator[None]:
    """Turn whatever handling a site's reply raises into this site's fault.

    Raises SiteFault. Failures of the engine itself pass through, and so does Ctrl-C.
    """
    try:
        yield
    except (SiteFault, errors.EngineError, errors.QuorumError, errors.RunError):
        raise
    except (errors.MessageError, errors.GuardError) as error:
        raise refused(error.what, site=site, step=step, round=round) from error
    except Exception as error:
        why = f"it cannot be used ({type(error).__name__} at {_place(error)})"
        raise refused(why, site=site, step=step, round=round) from error


def _place(error: BaseException) -> str:
    ours = Path(__file__).parent.parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(ours):
            return f"{path.relative_to(ours)}:{frame.lineno}"
    return "?"
