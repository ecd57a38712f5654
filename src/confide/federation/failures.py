"""How a site says that it could not answer: a code from this page, and no word of its text."""

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
from confide.errors import (
    ConfideError,
    EngineError,
    GuardError,
    MessageError,
    QuorumError,
    RunError,
    SiteFault,
    printable,
)
from confide.federation.messages import carries

CODES = {
    "no-key": "the site has no key; put the key file that the sites share where the site's"
    " settings name it (`confide key new` makes one)",
    "locked-key": "the site's key is encrypted, and its passphrase is wrong or not at hand; at the"
    " site, CONFIDE_PASSPHRASE_FILE names the file with the passphrase, and its own log says more",
    "other-key": "the site's key is not the one that the sites agreed on at the start of the run",
    "no-training-text": "the site has no training sentence",
    "too-few-sentences": "the site has fewer training sentences than its own guard `min_sentences`",
    "too-many-rounds": "the site's own guard `max_rounds` is reached",
    "small-batch": "a gradient would be of fewer sentences than the site's own guard `min_batch`",
    "private-part": "the method would share a part of the model that the site's own guard"
    " `private` keeps",
    "no-bound": "the method does not say how what this step uploads can be kept within the site's"
    " own guard `max_norm`",
    "few-sites": "the run has fewer sites than the site's own guard `min_sites`",
    "memory-missing": "the site has no memory of this run: it was left out at the start, or its"
    " memory folder is gone; start the run again, or bring the folder back",
    "not-joined": "the site was asked before it joined the run; start the run again",
    "no-consent": "the site did not agree to this; at the site, `confide site consent` shows what"
    " would leave it, and agrees",
    "other-wire": "what the site agreed to is not what this method would send; at the site, look at"
    " `confide site consent` again",
    "outside-consent": "the run is outside what the site agreed to; at the site, `confide site"
    " consent` with `--for` shows the difference",
    "other-version": "the site runs another version of confide than the server; install the same"
    " version at all places",
    "site-file": "the site's own file cannot be used; its own log says why",
    "unknown-step": "the site does not know this step of this method",
    "bad-signature": "the site refused an ask: its signature does not fit the server's identity"
    " key, the lead did not sign this run, or it was signed for another run, site, round or step;"
    " see that both sides run the same version of confide, then who else can speak for the server",
    "forged-reply": "the signature of the reply does not fit the site's identity key, or this ask;"
    " nothing of the reply was used",
    "other-identity": "an identity key is not the one that was pinned; compare the fingerprints by"
    " telephone, and if the new one is right, pin it where it was refused, with `confide peers KIT"
    " --pin NAME FINGERPRINT`, then resume",
    "uncertified": "an identity key is not certified by a kit of this consortium; at its owner's,"
    " start the place again with its newest kit",
    "not-compared": "the site takes part only where fingerprints have been compared; do it by"
    " telephone, then note it at the site with `confide peers KIT --compared NAME`",
    "bad-ask": "the ask could not be read; do both sides run the same version of confide?",
    "guard": "the site's guard held its own reply back",
    "tag-outside-set": "the site's text has an entity type outside the declared `types`",
    "vectors-missing": "the site cannot read its file of word vectors",
    "vectors-dimension": "the site's word vectors have another dimension than `word_dim`",
    "tag-scheme": "the site's own `tag_scheme` is not the common one, but the CRF is shared",
    "encoder-missing": "the site cannot use the frozen encoder that the settings name; its own log"
    " says why",
    "own-folder": "the run names a folder of an encoder, and the site opens none that others name;"
    " at the site, name its own copy with `context` in its own file",
    "other-encoder": "the site's encoder is not the one that the run began with; bring its files"
    " back, or start the run again",
    "relation-outside-set": "the site's training text has a relation that it did not have when the"
    " run began, or that its own `knows` does not name; mend its `relations` or `knows`, and start"
    " the run again",
    "other-public-set": "the site was asked about another public set than the one that it was"
    " given; start the run again",
    "other-model": "the site does not have the model that a difference is to; the next round sends"
    " it whole",
    "not-bid": "the site was told of winning sentences that it did not bid for in this round",
    "features": "the site could not compute or keep the encoder's features of its text; its own"
    " log says why",
    "disk-full": "the site could not write its memory: no space left on its disk",
    "disk-read-only": "the site could not write its memory: its disk is read-only, so its log may"
    " say nothing either",
    "lost": "no reply came back: the site's process died, and again when it was asked once more, or"
    " its connection to the server was cut",
    "timeout": "the site did not answer in time",
    "error": "the site raised an error; its own log holds the traceback",
}


BY_THE_ENGINE = ("lost", "timeout", "forged-reply")
"""Codes that only the engine says of a site: no message of it came, or none to be taken."""


class Refusal(ConfideError):
    """Raised inside a step: the site will not or cannot answer, for a reason of `CODES`."""

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
    """What may travel of an error: code, class, line of our code; never its message."""
    kind = type(error).__name__
    code, detail = "error", ""
    if isinstance(error, Refusal):
        code, detail = error.code, error.detail
    elif isinstance(error, GuardError):
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

    A site may send anything: of its words stay those that our own code could have said.
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
    """The fault of a site whose reply the server does not take."""
    what = f"the server refused the site's reply: {printable(why)}"
    return SiteFault(site=site, step=step, round=round, code=code, what=what)


@contextlib.contextmanager
def blaming(site: str, *, step: str, round: int) -> Iterator[None]:
    """Inside, a site's reply is looked at: whatever that raises becomes this site's fault.

    Raises SiteFault. What the engine itself could not do is nobody's fault and passes, as does
    what is no error (Ctrl-C).
    """
    try:
        yield
    except (SiteFault, EngineError, QuorumError, RunError):
        raise
    except (MessageError, GuardError) as error:
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
