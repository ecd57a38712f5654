"""Every error of confide, on one page.

An error says what is wrong, what was expected, what came, where, and what to do.
Errors that travel between a site and the server (`SiteFault`) carry codes and never text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self


def printable(text: object, most: int = 200) -> str:
    r"""Words from elsewhere made safe to show: on one line, and at most `most` characters.

    Anything unprintable becomes `?`: escape sequences, line breaks, marks that change the direction
    of writing.

    >>> printable("a\x1b[2Jb\n")
    'a?[2Jb?'
    """
    said = str(text)
    shown = "".join(c if c.isprintable() else "?" for c in said[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


class ConfideError(Exception):
    """The root of all errors that confide raises on purpose.

    All parts but the first are optional; the message joins those that are given:

    >>> str(ConfideError("the tag is unknown", expected="B- or I-", got="X-AE", where="a.tsv:3"))
    'a.tsv:3: the tag is unknown; expected B- or I-; got X-AE'
    """

    def __init__(
        self,
        what: str,
        *,
        expected: str | None = None,
        got: str | None = None,
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.what, self.expected, self.got, self.where, self.fix = what, expected, got, where, fix
        parts = [what]
        if expected is not None:
            parts.append(f"expected {expected}")
        if got is not None:
            parts.append(f"got {got}")
        if fix is not None:
            parts.append(f"to fix it, {fix}")
        super().__init__((f"{where}: " if where else "") + "; ".join(parts))

    def at(self, where: str) -> Self:
        """Copy the complaint for another place."""
        found = type(self).__new__(type(self))
        found.__dict__ |= self.__dict__
        ConfideError.__init__(
            found, self.what, expected=self.expected, got=self.got, where=where, fix=self.fix
        )
        return found


@contextmanager
def os_errors_as(
    kind: type[ConfideError], what: str, *, where: object, fix: str | None = None
) -> Iterator[None]:
    """Raise the system's errors of a block as `kind`, with the system's reason in brackets."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} ({error.strerror or error})", where=str(where), fix=fix) from error


class Note(UserWarning):
    """Something that a caller should know about a result; the command line prints it."""


# --- what a user hands in ---------------------------------------------------------------


class SettingsError(ConfideError):
    """A settings file, a `--set` or an argument is wrong. `parts` are the faults, if several."""

    parts: tuple[str, ...] = ()


def together(errors: Sequence[SettingsError]) -> SettingsError:
    """One error that says all of these and what to do about each; they are its `parts`.

    >>> str(together([SettingsError("no site"), SettingsError("no key", fix="make one")]))
    '2 things are missing or wrong: (1) no site; (2) no key; to fix it, make one'
    """
    if len(errors) == 1:
        return errors[0]
    said = tuple(str(error) for error in errors)
    listed = "; ".join(f"({n}) {one}" for n, one in enumerate(said, start=1))
    found = SettingsError(f"{len(said)} things are missing or wrong: {listed}")
    found.parts = said
    return found


class FormatError(ConfideError):
    """A file does not follow its format. `where` is `file:line`."""


class SchemeError(FormatError):
    """Tags do not follow the stated tag scheme (IOB1, IOB2, IOBES, BILOU, IO)."""


class DataError(ConfideError):
    """Documents cannot be used as asked: no sentence, a tag outside the declared set, ..."""


class MissingDataError(DataError):
    """A file or a published corpus is not where confide looked for it."""


class KeyFileError(ConfideError):
    """A site's secret key is missing, too short or unreadable."""


class DeviceError(ConfideError):
    """A device ran out of memory, or failed while it computed."""


class LockedKeyError(KeyFileError):
    """A key is encrypted and its passphrase wrong or missing, or a secret's file is unsafe."""


# --- the wall between sites and server --------------------------------------------------


class FederationError(ConfideError):
    """Something went wrong between the server and its sites."""


class MessageError(FederationError):
    """A message cannot be encoded, or bytes are not the expected message."""


class GuardError(FederationError):
    """A guard refused a message: not finite, the wrong shape, too few, an absurd count."""


class SmallBatchError(GuardError):
    """A gradient would cover fewer rows than a site's guard `min_batch` allows."""


class SiteFault(FederationError):
    """A site could not answer. Holds the site, step, round and a code, never text of the site."""

    def __init__(self, *, site: str, step: str, round: int, code: str, what: str) -> None:
        self.site, self.step, self.round, self.code = site, step, round, code
        where = f"site {printable(site)}, step {step}, round {round}"
        super().__init__(printable(what, 500), where=where)


class QuorumError(FederationError):
    """Fewer sites answered than `at_least` requires. `faults` are those of the others."""

    faults: tuple[SiteFault, ...] = ()


class KitError(ConfideError):
    """A startup kit cannot be used, or the processes started from it cannot."""


class EngineError(FederationError):
    """The distributed engine is not installed, cannot be reached, or ended the run."""


class Waiting(EngineError):
    """Not a fault: replies come in files that are not here yet. `sites` are those waited for."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites = tuple(sorted(sites))
        super().__init__(f"waiting for {', '.join(map(printable, self.sites))}")


# --- what lies on disk ------------------------------------------------------------------


class RunError(ConfideError):
    """A run folder cannot be used: missing parts, a newer schema, other settings."""


class CheckpointError(RunError):
    """A checkpoint is damaged, was changed after it was written, or cannot be written."""
