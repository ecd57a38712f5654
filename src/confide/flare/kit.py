"""Startup kits: a consortium's folder, and one kit each for the server, the sites and the lead.

```
OUT/consortium.toml              who takes part, and where the server is
OUT/authority/                   the root key: whoever has it can let anyone in
OUT/kits/server, LEAD, SITE…     a site's only for trials: others make their own keys
OUT/answers/SITE.json            what the founder approved, for the site to accept
```
A kit holds its owner's private key and certificates (`startup/`), our policies (`local/`, see
`policies`), and later what its processes leave. Only its owner gets it.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import pwd
import re
import shutil
import socket
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from cryptography import x509
from pydantic import AfterValidator, BaseModel, Field, Strict, TypeAdapter, ValidationError

from confide.errors import (
    ConfideError,
    EngineError,
    GuardError,
    KitError,
    MissingDataError,
    SettingsError,
    os_errors_as,
    printable,
)
from confide.federation.messages import MOST_BYTES
from confide.files import (
    Tree,
    decode_json,
    file_bytes,
    file_text,
    for_the_owner,
    plain_name,
    write_atomically,
)
from confide.flare.proxies import tunnel
from confide.settings.reading import expected
from confide.settings.sitefile import LauncherTable, Proxy
from confide.settings.toml import read_toml


def _is_a_line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("this holds a control character")
    return text


Word = Annotated[str, Field(max_length=1000), Strict(), AfterValidator(_is_a_line)]
D = TypeVar("D", "Kit", "Consortium")


def _described(kind: type[D], held: object, file: Path, *, path: Path) -> D:
    """The kit or consortium at `path`, as a file describes it.

    Raises KitError: no schema or a newer one, or a field that is missing or malformed.
    """
    schema = held.get("schema") if isinstance(held, dict) else None
    if not isinstance(held, dict) or not isinstance(schema, int):
        raise _damaged("this file does not say its schema", file, expected=f"schema {SCHEMA}")
    if schema > SCHEMA:
        raise KitError(
            "a newer version of confide wrote this file",
            expected=f"schema {SCHEMA}",
            got=printable(schema),
            where=str(file),
            fix="upgrade confide",
        )
    try:
        return TypeAdapter(kind).validate_python({**held, "path": path})
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        name = wrong["loc"][0]
        if wrong["type"] == "missing":
            raise _damaged(f"the file lacks {name!r}", file) from error
        raise _damaged(
            f"{name} is damaged in this description",
            file,
            expected=expected(wrong),
            got=printable(repr(wrong["input"])),
        ) from error


def _damaged(what: str, file: Path, **more: str) -> KitError:
    return KitError(what, where=str(file), fix="restore the file from a backup", **more)


# --- Names
#
# The rules for those of a consortium, its sites, its lead, its server and its runs.


SERVER = "server"
RESERVED = (SERVER, "client", "all", "admin")
"""Names with another meaning in NVIDIA FLARE."""

_TRUTHS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}")
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"({_LABEL}\.)*{_LABEL}")


def check_member_names(consortium: str, sites: Sequence[str], *, lead: str, host: str) -> None:
    """Raise KitError if a name is not allowed or is used twice, whatever its case.

    Unlike in a settings file, a site's name has no dot: FLARE makes addresses from names and dots.
    """
    members = [("lead", lead), *(("site", site) for site in sites)]
    for what, name in [("consortium", consortium), *members]:
        check_form(what, name)
    taken = {name: f"{name!r} means something else here" for name in RESERVED}
    taken[host.lower()] = f"{host!r} is the server's host"
    for what, name in members:
        if name.lower() in taken:
            raise KitError(
                f"the {what} cannot have this name: {taken[name.lower()]}",
                got=repr(name),
                fix="choose another name",
            )
        owner = "the lead" if what == "lead" else "another site"
        taken[name.lower()] = f"{owner} has that name"


def check_site(name: str, *, host: str) -> None:
    """Raise KitError if no site of a server at `host` can have that name."""
    check_form("site", name)
    if name.lower() in (*RESERVED, host.lower()):
        raise KitError("no site can have this name", got=repr(name), fix="check the spelling")


def check_peer(name: str) -> None:
    """Raise KitError if no peer (the server, a site or a lead) can have that name."""
    if name != SERVER:
        check_form("peer", name)


def check_form(what: str, name: str) -> None:
    """Raise KitError if nothing (a `what`: consortium, site, lead, peer) can have that name."""
    if not _NAME.fullmatch(name):
        raise KitError(
            f"a {what} cannot have this name",
            expected="a letter or digit, then up to 47 letters, digits, '-' or '_'",
            got=repr(name),
        )
    if what == "site" and _is_no_text(name):
        raise KitError(
            "FLARE would read this name as a number, or as yes or no",
            got=repr(name),
            fix=f"choose another name, such as {'site-' + name!r}",
        )


def _is_no_text(value: str) -> bool:
    """True if FLARE, which gets names on a command line, would read this as something else."""
    try:
        float(value)
    except ValueError:
        return value.lower() in _TRUTHS
    return True


def check_host(host: str) -> None:
    """Raise KitError if sites could not reach a server of that name, or FLARE would not take it."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host.strip("[]")).version == 6:
            raise KitError(
                "FLARE cannot listen on an IPv6 address", got=host, fix="give a host name"
            )
    if not _HOST.fullmatch(host) or len(host) > 253:
        raise KitError(
            "this is not the name of a host",
            expected="a name such as fl.example.org, or an IPv4 address; no port and no scheme",
            got=repr(host),
        )


def organisation(consortium: str) -> str:
    """The consortium's name as it stands in certificates: the organisation of all participants."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", consortium)
    return f"{name}_" if _is_no_text(name) else name


MOST_SITES = 1000
LONGEST_CARD = 20_000
LONGEST_SETTINGS = 200_000
"""Characters of a run's settings as TOML; the longest recipe has about 2,000."""


Name = Annotated[str, Strict(), AfterValidator(partial(plain_name, what="a run, site or version"))]


class Submission(BaseModel, strict=True, frozen=True):
    """A run as a lead submits it: `lead` is its card and its signature of the order."""

    run: Name
    settings: Annotated[str, Field(max_length=LONGEST_SETTINGS)]
    sites: Annotated[list[Name], Field(min_length=1, max_length=MOST_SITES)]
    version: Name
    lead: Annotated[str, Field(max_length=LONGEST_CARD)]

    @staticmethod
    def read(given: Tree) -> Submission:
        """The submission in values of whatever types. Raises EngineError if it cannot be a run."""
        try:
            found = Submission.model_validate(given)
            if len(set(found.sites)) < len(found.sites):
                raise GuardError("a site is named twice")
        except (ValidationError, GuardError) as error:
            said = str(error)
            if isinstance(error, ValidationError):  # pydantic would repeat what came
                wrong = error.errors(include_url=False)[0]
                said = f"{wrong['loc'][0]} is wrong; expected {expected(wrong)}"
            raise EngineError(
                f"the server does not take this submission: {said}",
                fix="submit runs with `confide coordinate` of the server's version",
            ) from error
        return found


# --- Policies of startup kits
#
# They lie in `policies/`, and in a kit's `local/`, where NVIDIA FLARE reads them.
#
# The defaults of FLARE 2.9 let a lead ship code, let anyone with a role read a site's files, and
# send each site's error log to the server. Here only what a run needs is allowed:
#
# - no code travels, and only our two classes can be built from what a lead submits;
# - a lead may submit, watch, abort and download its own runs, and see which sites are connected;
# - no log leaves a site, and no log holds the content of messages;
# - what the server stores lies in its kit; it notices within half a minute that a site is gone;
# - processes on the same machine also use TLS with each other;
# - a message that declares more than `LARGEST` bytes is refused before memory is allocated for it.
#
# In `authorization.json` every role has every right: `none`, `n:submitter` (only the lead that
# submitted the run) or `o:site` (every lead of this consortium: its certificate and this kit name
# the same organisation). `site_config`, which a site would tell the server, is empty. The numbers
# that code needs, too, are below.


Kind = Literal["server", "site", "lead"]

CLASSES = (
    "confide.flare.nvidia.components.ConfideController",
    "confide.flare.nvidia.components.ConfideExecutor",
)
"""The only classes that a run may build, at the server and at a site."""

HEARTBEAT_EVERY = 5
HEARTBEAT_TIMEOUT = 25
"""Seconds between a site's heartbeats, and without one until the server counts it as gone."""
MESSAGE_TIMEOUT = 10.0
"""Seconds that a site waits for the answer to a heartbeat."""

LARGEST = MOST_BYTES + 64 * 2**20
"""The most bytes of one message, everywhere: the weights of one model, and some more."""

STORE = Path("store")
"""The folder in the server's kit for submissions and their outcomes."""


OUTCOME = "outcome.json"
"""The outcome of a submission: in the run's folder, and in what FLARE keeps of it."""
SUBMITTED_AGAIN = "submitted again"


def gone_from(sites: Sequence[str]) -> str:
    """Why a run is submitted again: the process of the run at these sites has ended."""
    return f"{', '.join(sites)}: the process of the run is gone; {SUBMITTED_AGAIN}"


LAUNCHERS = {
    "slurm": "confide.flare.nvidia.launchers.SlurmLauncher",
    "docker": "confide.flare.nvidia.launchers.DockerLauncher",
    "k8s": "confide.flare.nvidia.launchers.PodLauncher",
}
"""The classes that start the process of a run elsewhere, by their names in a site's own file."""


def write_policies(folder: Path, kind: Kind, *, launcher: LauncherTable | None = None) -> None:
    """Write our policies into a kit's `local/`, in place of those of an earlier release.

    A site whose runs start elsewhere gets that launcher, and can be reached by their processes:
    with TLS on both sides, as on one machine.
    """
    policies = Path(__file__).with_name("policies")
    shared = sorted((policies / "common").iterdir()) if kind != "lead" else []
    for file in (*sorted((policies / kind).iterdir()), *shared):
        data = file_bytes(file)
        if launcher is not None and launcher.by != "process":
            held = decode_json(data)
            if file.name == "resources.json":
                (part,) = [one for one in held["components"] if one["id"] == "process_launcher"]
                given = launcher.model_dump(exclude={"by", "starts_within"}, exclude_defaults=True)
                part |= {"path": LAUNCHERS[launcher.by], "args": {"kit": str(folder), **given}}
            elif file.name == "comm_config.json":
                port = {"port": launcher.port} if launcher.by == "slurm" else {}
                held["internal"]["resources"] |= {"host": "0.0.0.0", **port}
            data = json.dumps(held, indent=2).encode() + b"\n"
        write_atomically(folder / "local" / file.name, data)


SCHEMA = 1
LEADS = "confide.lead"
"""The domain of leads in certificates of confide's own consortia."""
PORT = 8002
DAYS = 365

DESCRIPTION, PROJECT, _AUTHORITY, KITS = "confide.json", "consortium.toml", "authority", "kits"
ROOT_KEY = Path(_AUTHORITY, "root.key")
"""In the consortium's folder."""
ASKING = "request"
"""The folder in a kit for a new key, and for what asks the founder to certify it."""


@dataclass(frozen=True)
class Kit:
    """A startup kit. `identity` is the server's name in its certificate, `user` the lead's.

    In the kit of a server or site, `user` is empty if the consortium is confide's own.
    """

    path: Path
    kind: Kind
    name: Word
    consortium: Word
    host: Word
    port: Annotated[int, Strict()]
    identity: Word
    user: Word

    @property
    def certificate(self) -> Path:
        """The certificate that its owner shows to the others."""
        return self.path / "startup" / f"{'server' if self.kind == SERVER else 'client'}.crt"

    @property
    def key(self) -> Path:
        """The private key."""
        return self.certificate.with_suffix(".key")

    @property
    def root(self) -> Path:
        """The certificate of the consortium's authority."""
        return self.path / "startup" / "rootCA.pem"


@dataclass(frozen=True)
class Consortium:
    """A consortium's folder. `days` is how long a new kit's certificate is valid."""

    path: Path
    name: Word
    host: Word
    port: Annotated[int, Strict()]
    lead: Word
    sites: tuple[Word, ...]
    days: Annotated[float, Strict()]

    @property
    def authority(self) -> Path:
        """The folder of the root key."""
        return self.path / _AUTHORITY

    def answer(self, site: str) -> Path:
        """The founder's answer to a site that makes its own keys."""
        return self.path / "answers" / f"{site}.json"

    def kit(self, name: str) -> Kit:
        """The kit of `server`, a site or the lead. Raises KitError."""
        return open_kit(self.path / KITS / name)

    def kits(self) -> tuple[Kit, ...]:
        """All kits: the server's, the sites', the lead's. Raises KitError if one is gone."""
        return tuple(self.kit(name) for name in (SERVER, *self.sites, self.lead))


def no_engine() -> EngineError:
    """The error to raise if NVIDIA FLARE is not installed."""
    return EngineError(
        "NVIDIA FLARE is not installed, and real sites need it",
        fix="install it with: pip install 'confide[flare]'",
    )


def open_consortium(path: Path) -> Consortium:
    """Read a consortium's project file. Raises KitError: missing, damaged, or too new."""
    file = path / PROJECT
    try:
        held = read_toml(file)
    except MissingDataError as error:
        raise KitError(
            "this is not a consortium's folder",
            expected=f"a file {PROJECT} in it",
            where=str(path),
            fix="make one with `confide consortium init`",
        ) from error
    except SettingsError as error:
        raise KitError(f"this is not a project file ({error.what})", where=str(file)) from error
    return _described(Consortium, held, file, path=path)


def open_kit(path: Path, kind: Kind | None = None) -> Kit:
    """Open a startup kit. Raises KitError if it is missing, damaged or not of this `kind`."""
    file = path / "local" / DESCRIPTION
    try:
        held = decode_json(file_text(file))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise KitError(
            "there is no startup kit" if path.exists() else "there is no such folder",
            expected="a folder that `confide site accept` or `confide consortium init` has made",
            where=str(path),
            fix="accept the founder's answer first" if (path / ASKING).exists() else None,
        ) from error
    except (OSError, ValueError) as error:
        raise _damaged("the kit's description is damaged", file) from error
    kit = _described(Kit, held, file, path=path.resolve())
    if kind is not None and kit.kind != kind:
        owner = "the server" if kit.kind == SERVER else f"{kit.kind} {kit.name}"
        verb = "`confide coordinate --kit`"
        if kit.kind != "lead":
            verb = f"`confide {kit.kind} start|stop|status`"
        raise KitError(
            f"this is the kit of {owner}",
            expected=f"a {kind}'s kit",
            where=str(path),
            fix=f"use {verb} with it, or take the right kit",
        )
    for part in (kit.certificate, kit.key, kit.root):
        if not part.is_file():
            raise KitError(
                "a part of the kit is missing",
                expected=part.name,
                where=str(part.parent),
                fix="restore the kit from a backup, or ask the founder for a new one",
            )
    return kit


_FLARES = {"fed_server.json": "server", "fed_client.json": "site", "fed_admin.json": "lead"}
"""FLARE's own description of a startup kit, and whose kit has it."""


@for_the_owner()
def adopt_kit(folder: Path, *, lead: str) -> Kit:
    """Describe a kit that `nvflare provision` made, so that confide's commands take it.

    `lead` is the person who starts runs, by the name in FLARE's project. Nothing of FLARE's own in
    the kit is changed. Raises KitError.
    """
    found = [name for name in _FLARES if (folder / "startup" / name).is_file()]
    if len(found) != 1 or (folder / "local" / DESCRIPTION).exists():
        raise KitError(
            "this kit is described already" if found else "this is not a startup kit of FLARE",
            expected=f"a folder startup with one of {', '.join(_FLARES)}, and no {DESCRIPTION}",
            where=str(folder),
        )
    file, kind = folder / "startup" / found[0], _FLARES[found[0]]
    certificate = file.with_name(f"{'server' if kind == SERVER else 'client'}.crt")
    who, _, domain = lead.partition("@")
    try:
        shown = certificate_in(file_bytes(certificate)).subject
        own = str(shown.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
        held = decode_json(file_text(file))
        if kind == "lead":
            at = held["admin"]
            place = (at["project_name"], at["host"], at["port"], at["server_identity"])
        else:
            at = held["servers"][0]
            host, _, port = at["service"]["target"].rpartition(":")
            place = (at["name"], host, int(port), own if kind == SERVER else at["identity"])
        consortium, host, port, identity = place
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _damaged("this part of the kit cannot be read", file) from error
    check_form("lead", who)
    check_host(domain)
    if kind == "lead" and own != lead:
        raise KitError("this is another person's kit", expected=lead, got=own, where=str(folder))
    if kind == "site":
        check_site(own, host=str(host))
    name = {"server": SERVER, "site": own, "lead": who}[kind]
    held = {"kind": kind, "name": name, "consortium": consortium, "host": host, "port": port,
            "identity": identity, "user": lead}  # fmt: skip
    path = folder / "local" / DESCRIPTION
    _described(Kit, {"schema": SCHEMA, **held}, file, path=folder)
    write_atomically(path, (json.dumps({"schema": SCHEMA, **held}, indent=2) + "\n").encode())
    return open_kit(folder)


def certificate_in(pem: bytes) -> x509.Certificate:
    """The certificate in PEM. Raises ValueError for anything else."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except x509.InvalidVersion as error:
        raise ValueError("a certificate of no version that there is") from error


def expires(kit: Kit) -> datetime.datetime:
    """When the kit's certificate expires, in UTC. Raises KitError if it cannot be read."""
    try:
        return certificate_in(file_bytes(kit.certificate)).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise KitError(
            "the kit's certificate cannot be read", where=str(kit.certificate)
        ) from error


# --- Cleanup of kits
#
# NVIDIA FLARE leaves folders of runs and a growing audit log; they are removed.
#
# To be called before any process of the kit runs, when every run has ended. The outcome of runs
# lies in `runs`, `store` and a site's memory, which nothing here touches.


_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
KEPT = 5
"""The number of folders of runs that stay, the newest ones: they hold the logs of the runs'
processes."""
AUDIT = Path("audit.log")
AUDIT_BYTES = 5_000_000
AUDITS_KEPT = 4
"""An audit log that grows longer than this is set aside; this many old ones are kept."""


def tidy_kit(kit: Path) -> None:
    """Remove what old runs left in a kit, and set a long audit log aside; ignores failures."""
    for folder in _runs(kit)[KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in _runs(kit / "transfer"):
        with contextlib.suppress(OSError):  # removes only empty ones
            folder.rmdir()
    with contextlib.suppress(OSError):
        if (kit / AUDIT).stat().st_size > AUDIT_BYTES:
            RotatingFileHandler(kit / AUDIT, backupCount=AUDITS_KEPT, delay=True).doRollover()


def _runs(folder: Path) -> list[Path]:
    """The folders with names that FLARE gives to runs and transfers, the newest first."""
    try:
        found = [
            path
            for path in folder.iterdir()
            if _UUID.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
        ]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)
    except OSError:
        return []


# --- A kit as a service: its systemd unit, and why a site is not connected
#
# The unit, `unit.service`, runs a kit as one user, without rights; it can write in few folders.
#
# The text of a unit is settings line by line, so a path could smuggle one in. A path is written
# between quotes, with the signs that systemd would expand doubled, and refused if it holds a
# control character. What the options mean: systemd.exec(5).


def unit_text(kit: Kit, *, writable: Sequence[Path] = ()) -> str:
    """The unit that runs this kit with this Python, as the user who owns the kit.

    `writable` are folders to write in beside the kit: a site's MEMORY. Raises KitError if a path
    holds a control character, or if the kit belongs to root.
    """
    path = kit.path.resolve()
    owner = _owner(path)
    if owner == 0:
        raise KitError(
            "this kit belongs to root, and a unit runs as the user who owns the kit",
            expected="a user of its own, such as confide",
            where=str(path),
            fix="give the kit and MEMORY to that user (chown -R), and ask again as that user",
        )
    try:
        user = _plain(pwd.getpwuid(owner).pw_name)
    except KeyError:  # the user has no name here
        user = str(owner)
    words: list[str | Path] = [Path(sys.executable), "-m", "confide", kit.kind, "start", path]
    template = file_text(Path(__file__).with_name("unit.service"))
    return template.format(
        who="the server" if kit.kind == "server" else f"site {_plain(kit.name)}",
        user=user,
        command=" ".join(_quoted(word, dollars=True) for word in words),
        writable="\n".join(
            f"ReadWritePaths={_quoted(folder)}"
            for folder in dict.fromkeys([path, *(one.resolve() for one in writable)])
        ),
    )


def write_unit(kit: Kit, file: Path, *, writable: Sequence[Path] = ()) -> None:
    """Write `unit_text` to a new file. Raises KitError, also if the file is there already."""
    text = unit_text(kit, writable=writable)
    with (
        os_errors_as(KitError, "the unit cannot be written", where=file, fix="name a new file"),
        open(file, "x", encoding="utf-8") as new,
    ):
        new.write(text)


def _owner(path: Path) -> int:
    return path.stat().st_uid


def _plain(text: str) -> str:
    """Text that stands on a line of its own meaning: nothing to expand, no second line."""
    if not text.isprintable():
        raise KitError(
            "a path or name holds a control character, which no unit may",
            got=printable(text),
            fix="rename it",
        )
    return text.replace("%", "%%")


def _quoted(word: str | Path, *, dollars: bool = False) -> str:
    """A word between quotes, as systemd.syntax(7) reads it; in a command a dollar is doubled."""
    text = _plain(os.fspath(word)).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text.replace("$", "$$") if dollars else text}"'


# --- Diagnosis of a missing connection
#
# It knocks at the server's port with the kit's own certificate.


SECONDS = 3.0


def expiry_message(kit: Kit) -> str:
    """A sentence saying that the kit's certificate has expired; "" while it is valid."""
    end = expires(kit)
    if end > datetime.datetime.now(datetime.UTC):
        return ""
    how = "`confide site request KIT`" if kit.kind == "site" else "`confide consortium renew`"
    return f"the certificate of {kit.name} expired on {end:%Y-%m-%d}; renew it with {how}"


def connection_problem(kit: Kit, proxy: Proxy | None = None) -> str:
    """A sentence on what keeps this kit from its server; "" if the server answers.

    Knocks through the `proxy` if the site has one.
    """
    at = f"{kit.host}:{kit.port}" + (f" (through the proxy at {proxy.at})" if proxy else "")
    try:
        raw = _reached(kit, proxy)
    except socket.gaierror:
        return f"this machine cannot resolve the server's name, {kit.host}"
    except OSError as error:
        return f"no server answers at {at} ({error.strerror or 'no answer in time'})"
    except ConfideError as error:  # of the proxy
        return str(error)
    with raw:
        try:
            return _greeting(kit, raw, at)
        except ssl.SSLCertVerificationError as error:
            if "expired" in error.verify_message:
                said = "has expired, by the clock of this machine"
            elif "not yet valid" in error.verify_message:
                said = "is not valid yet, by the clock of this machine: set the clock"
            else:
                said = f"is not from this consortium{_issued(kit, proxy)}"
            return f"something answers at {at}, but its certificate {said}"
        except TimeoutError:
            return f"something answers at {at}, but too slowly"
        except OSError:
            return _refused(at)


def _reached(kit: Kit, proxy: Proxy | None) -> socket.socket:
    """A connection to the server's port. Raises OSError; EngineError, LockedKeyError of a proxy."""
    if proxy is None:
        return socket.create_connection((kit.host, kit.port), timeout=SECONDS)
    return tunnel(proxy, kit.host, kit.port)


def _greeting(kit: Kit, raw: socket.socket, at: str) -> str:
    """Connect with TLS; "" if the server answers and lets us in, else what is wrong."""
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False  # the kit says which name the server has, below
    context.load_cert_chain(kit.certificate, kit.key)
    raw.settimeout(SECONDS)
    try:
        greeted = context.wrap_socket(raw, server_hostname=kit.host)
    except (ssl.SSLError, ConnectionError) as error:
        why = getattr(error, "reason", None) or ""
        if isinstance(error, ssl.SSLCertVerificationError) or "ALERT" in why:
            raise
        return (
            f"the connection to {at} breaks off before a certificate is shown; if the server runs,"
            f" ask the network team to let TLS to {kit.host}:{kit.port} pass unopened"
        )
    with greeted as tls:
        subject = (tls.getpeercert() or {}).get("subject", ())
        if ("commonName", kit.identity) not in [pair for group in subject for pair in group]:
            return f"something answers at {at}, but it is not the server"
        tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return "" if tls.recv(1) else _refused(at)


def _issued(kit: Kit, proxy: Proxy | None) -> str:
    """Who issued the certificate that is shown in place of the server's, and what to do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _reached(kit, proxy) as raw:
            raw.settimeout(SECONDS)
            with context.wrap_socket(raw, server_hostname=kit.host) as tls:
                der = tls.getpeercert(binary_form=True) or b""
        shown = certificate_in(ssl.DER_cert_to_PEM_cert(der).encode())
        issuer = printable(shown.issuer.rfc4514_string())
    except (OSError, ValueError, ConfideError):
        return ""
    return (
        f"; its issuer is {issuer}. If that is your own network's, it opens TLS: ask the network"
        f" team to let connections to {kit.host}:{kit.port} pass unopened"
    )


def _refused(at: str) -> str:
    return (
        f"the server at {at} refuses this kit's certificate: the kit is from another consortium, "
        "or its certificate is not valid today by the server's clock"
    )
