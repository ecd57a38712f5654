"""What a site keeps for noise, on its own disk: a key for each run, and its account over all runs.

The run key decides who is drawn and which noise hides them; it never leaves the site, and is
deleted when the site leaves the run. It is kept with a digest of the text that it was made for: a
run that went on with other text would give two answers whose difference tells of the change.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from confide.errors import GuardError
from confide.privacy.spending import Account, Charge, Limit, Standing

PURSE, ACCOUNT = "privacy", "account.jsonl"
"""The folder, in a site's memory folder or its part of a run, and the account in it."""
_KEY = 32


class Purse:
    """A site's run keys and account, in a folder that only its owner can read.

    Args:
        folder: made when something is kept.
        limit: what the site allows over all runs.
        simulated: of a site of an experiment, what its run keys are made from instead of being
            drawn, so that a run can be repeated. They protect nothing.
    """

    def __init__(self, folder: Path, limit: Limit, *, simulated: bytes = b"") -> None:
        self._folder = folder
        self._simulated = simulated
        self.limit = limit
        self._account = Account(folder / ACCOUNT, limit)

    def key(self, run: bytes, *, text: bytes) -> bytes:
        """The key of a run on this text, made at the first ask: 32 bytes.

        Raises GuardError if the run began with other text.
        """
        path = self._path(run)
        said = hashlib.sha256(text).digest()
        if not path.exists():
            self._make(path, self._new(run) + said)
        kept = path.read_bytes()
        if len(kept) != 2 * _KEY:
            raise GuardError("a run key is damaged", where=str(path), fix="begin another run")
        if kept[_KEY:] != said:
            raise GuardError(
                "this run began with other text, and goes on with no other",
                fix="put the text back as it was, or begin another run",
            )
        return kept[:_KEY]

    def forget(self, run: bytes) -> None:
        """Delete a run's key: nobody can draw its noise again."""
        self._path(run).unlink(missing_ok=True)

    def spend(self, charge: Charge) -> bool:
        """As `Account.spend`."""
        return self._account.spend(charge)

    def standing(self) -> Standing:
        """As `Account.standing`."""
        return self._account.standing()

    def _new(self, run: bytes) -> bytes:
        if self._simulated:
            return hmac.digest(self._simulated, run, "sha256")
        return secrets.token_bytes(_KEY)

    def _path(self, run: bytes) -> Path:
        return self._folder / f"{hashlib.sha256(run).hexdigest()}.key"

    def _make(self, path: Path, content: bytes) -> None:
        """Write a new file whole; of two processes one wins, and both read what it wrote."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = self._folder / f".{secrets.token_hex(8)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(new, path)
        finally:
            new.unlink()
