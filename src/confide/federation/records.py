"""A sealed ledger, read for comparison: its identities, its messages, and its own faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from confide.errors import MessageError
from confide.federation.digests import EMPTY, is_digest
from confide.federation.ledger import CLOSED, MET, OPENED, SEAL, Entry, Line, read_lines
from confide.federation.seals import AskSeal, ReplySeal, seal_of, verifies
from confide.userfiles import Tree

_NONE = "0" * 64


@dataclass(frozen=True)
class Sealed:
    """A message in a ledger, from the line of its seal. `refused`: the code, if it was refused."""

    line: Line
    seal: AskSeal | ReplySeal
    refused: str = ""

    @property
    def words(self) -> str:
        """The message in words."""
        way = "ask" if isinstance(self.seal, AskSeal) else "reply"
        return f"round {self.seal.round}, {self.seal.step}, {way}, attempt {self.seal.attempt}"

    @property
    def turn(self) -> tuple[int, str, int]:
        """Round, step and attempt of the ask, or of the ask that it replies to."""
        return self.seal.round, self.seal.step, self.seal.attempt


@dataclass
class Record:
    """A ledger. `at`: whose it is ("server", a site, or "" if it holds no identities).

    `keys`: for each peer, every identity key that the ledger names, the newest last. `asks` and
    `replies` are those of all sites, in the order of the file. `signatures` were checked.
    """

    path: Path
    lines: list[Line]
    at: str = ""
    run: str = ""
    order: str = ""
    lead: str = ""
    sites: tuple[str, ...] = ()
    keys: dict[str, list[bytes]] = field(default_factory=dict)
    asks: list[Sealed] = field(default_factory=list)
    replies: list[Sealed] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    signatures: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def heads(self) -> dict[str, int]:
        """The number of each line, by its digest."""
        return {line.digest: line.number for line in self.lines}

    @property
    def is_sealed(self) -> bool:
        """Whether it says whose it is, or holds seals."""
        return bool(self.at or self.asks or self.replies)

    def of(self, site: str) -> tuple[list[Sealed], list[Sealed]]:
        """Asks to and replies of one site."""
        return (
            [one for one in self.asks if one.seal.site == site],
            [one for one in self.replies if one.seal.site == site],
        )


def read_record(path: Path) -> Record:
    """A ledger, with its signatures verified. Raises RunError if it cannot be read."""
    record = Record(path, read_lines(path))
    for line in record.lines:
        if line.chained is False:
            changed = "this line, or the one before it, was changed"
            record.faults.append(_at(path, line.number, changed))
        try:
            _take(record, line)
        except (MessageError, KeyError, TypeError, ValueError):
            record.faults.append(_at(path, line.number, "not a line of a signed ledger"))
    return record


def faults_of(record: Record) -> list[str]:
    """What is wrong in a ledger taken by itself, the first line first."""
    faults = list(record.faults)
    first = record.lines[0].tree if record.lines else {}
    if first.get("note") != OPENED:
        faults.insert(0, _at(record.path, 1, "the first line does not say whose ledger it is"))
    closing = [one.line.number for one in record.asks if one.seal.step == "close"]
    ended = [line.number for line in record.lines if line.tree.get("note") == CLOSED]
    if record.at == "server" and closing and not (ended and ended[-1] > closing[-1]):
        number = record.lines[-1].number
        faults.append(_at(record.path, number, "the end of the ledger is missing after this line"))
    return faults


def _take(record: Record, line: Line) -> None:
    """Add what one line says to the record."""
    tree = line.tree
    if tree.get("note") == OPENED:
        _open(record, tree)
    elif tree.get("note") == MET:
        record.keys.setdefault(str(tree["peer"]), []).append(_key(tree["identity"]))
    elif tree.get("field") == SEAL:
        _take_seal(record, line)
    if line.entry:
        record.entries.append(line.entry)


def _open(record: Record, tree: Tree) -> None:
    if record.at:
        raise ValueError("a ledger is opened only once")
    record.at, record.run, record.order = (str(tree[name]) for name in ("at", "run", "order"))
    record.sites = tuple(map(str, tree["sites"]))
    record.lead = str(tree["lead_identity"])
    record.keys[record.at] = [_key(tree["identity"])]
    if record.at != "server":
        record.keys["server"] = [_key(tree["server_identity"])]


def _take_seal(record: Record, line: Line) -> None:
    tree = {"run": record.run, **line.tree, "nonce": _NONE}
    sealed: Sealed
    if tree["direction"] == "down":
        audience = tree.get("audience", list(record.sites))
        seal = seal_of(AskSeal, {**tree, "audience": audience})
        sealed = Sealed(line, seal, refused=str(tree.get("refused", "")))
        record.asks.append(sealed)
        signer = "" if record.at == "server" else "server"
    else:
        sealed = Sealed(line, seal_of(ReplySeal, tree))
        record.replies.append(sealed)
        signer = str(tree["site"]) if record.at == "server" else ""
    if not signer or sealed.refused:
        return
    record.signatures += 1
    keys = record.keys.get(signer, [])
    if not keys or not verifies(sealed.seal, keys[-1]):
        unfit = f"the signature of {signer} does not fit ({sealed.words})"
        record.faults.append(_at(record.path, line.number, unfit))


def _key(text: str) -> bytes:
    if not is_digest(text):
        raise ValueError("not a key")
    return bytes.fromhex(text)


def _at(path: Path, number: int, what: str) -> str:
    return f"{path}:{number}: {what}"


def is_before_joining(one: Sealed) -> bool:
    """Whether a reply came before the site had a ledger of the run: the site refused to join."""
    return isinstance(one.seal, ReplySeal) and one.seal.head == EMPTY
