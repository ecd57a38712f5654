"""A real site's own file, where its text and limits are, and its agreements; both stay there.

It never leaves the site.

name = "north"
format = "conll"
train = "notes/train.conll"
test = "notes/test.conll"
key = "shared.key"
memory = "memory"

[guards]
min_sentences = 50

The site's agreements are in a file beside it (`confide.settings.sitefile`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import AwareDatetime, BeforeValidator, Field, ValidationError, model_validator

from confide.errors import SettingsError
from confide.files import must_not_be_newer
from confide.settings import tables
from confide.settings.reading import anchored, explained, read_tree
from confide.settings.tables import Table
from confide.settings.toml import read_toml

SCHEMA = 3
"""The schema of a site's file. In schema 1, guards at the defaults of that time count as unset,
because `confide site setup` then wrote all of them down. In schemas 1 and 2 `micro_batch_size` was
called `at_once`."""


class SiteGuards(tables.GuardsTable):
    """A real site's own limits. The defaults are strict; the site's file may relax them.

    `max_norm` is far above any change seen in honest training (docs/site-file.md).
    """

    min_sentences: tables.Positive = 20
    min_batch: tables.Positive = 8
    min_sites: tables.Positive = 3
    max_norm: tables.Norm | None = 1000.0
    masked: bool = True
    unit: Literal["any", "document", "sentence", "patient"] = "document"
    reply_every: Annotated[float, Field(ge=0, le=600)] = 2.0


_KEYS_OF = {
    "process": ("starts_within",),
    "slurm": ("image", "host", "port", "sbatch", "gpus", "cpus", "memory", "starts_within"),
    "docker": ("gpus", "cpus", "memory", "starts_within"),
    "k8s": ("gpus", "cpus", "memory", "starts_within"),
}
"""The launchers, and what else may be said of each."""
_STARTS_WITHIN = {"process": 300, "slurm": 1800, "docker": 300, "k8s": 1800}
"""Seconds until the process of a run must have started: a cluster lets it wait."""
_SBATCH = ("partition", "account", "qos", "time", "constraint", "reservation")


class LauncherTable(Table):
    """Where the process of a run starts: beside the site's own, or in a place of its own.

    `gpus`, `cpus` and `memory` are what it asks for; 0 or nothing leaves that to the place. Under
    Slurm, `sbatch` holds options of that command, `image` is an Apptainer image to run in, and a
    compute node reaches the site's own process at `host` and `port`. `starts_within` are the
    seconds until the process must have started, with all that it waits for.
    """

    by: Literal["process", "slurm", "docker", "k8s"] = "process"
    image: Annotated[str, Field(pattern=r"^(/[^\s:,'\"\\]+)?$")] = ""
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]{0,253}$")] = ""
    port: Annotated[int, Field(ge=1024, le=65535)] = 8102
    sbatch: dict[str, Annotated[str, Field(pattern=r"^[^\s\x00-\x1f\x7f]+$")]] = {}
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    cpus: Annotated[int, Field(ge=0, le=4096)] = 0
    memory: Annotated[str, Field(pattern=r"^([1-9][0-9]{0,5}(Mi|Gi|Ti))?$")] = ""
    starts_within: Annotated[int, Field(ge=0, le=604_800)] = 0

    @property
    def patience(self) -> int:
        """`starts_within`, or what suits the place."""
        return self.starts_within or _STARTS_WITHIN[self.by]

    @model_validator(mode="after")
    def _fits(self) -> LauncherTable:
        known = _KEYS_OF[self.by]
        given = {name for name, value in self if value != type(self).model_fields[name].default}
        if odd := sorted(given - {"by", *known}):
            takes = f"; it takes {', '.join(known)}" if known else ""
            raise ValueError(f"by = {self.by!r} takes no {', '.join(odd)}{takes}")
        if odd := sorted(set(self.sbatch) - set(_SBATCH)):
            raise ValueError(f"sbatch takes {', '.join(_SBATCH)}, not {', '.join(odd)}")
        return self


class ConsentTable(Table):
    """An agreement from before agreements had bounds: still read, never written.

    The digest of a method's wire table and the steps agreed to, or all of them if `steps` is empty.
    """

    wire: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    steps: tuple[str, ...] = ()


class SiteFile(tables.SiteTable):
    """A site's own file. `memory` is the folder where it keeps its part of every run.

    `compared`: take part only if the fingerprints of server and lead have been compared.
    `colluding`: how many sites of a secure sum may be in league with the server, whatever the lead
    says; unless it is named, a third of them, rounded up, less one, and at least one. `proxy` is
    the site's only way to the server, if its network has no other (`parse_proxy`). `device`,
    `precision` and `micro_batch_size` say where and how this site computes, whatever the run's
    settings say; `launcher` what starts the process of a run.
    """

    schema_: Annotated[int, Field(alias="schema")] = SCHEMA
    key: Annotated[str, tables.PATH]
    memory: Annotated[str, tables.PATH] = "memory"
    compared: bool = False
    colluding: tables.Positive | None = None
    proxy: str | None = None
    proxy_password_file: Annotated[str | None, tables.PATH] = None
    device: tables.Device = "cpu"
    precision: tables.Precision = "auto"
    micro_batch_size: tables.NotNegative = 0
    launcher: LauncherTable = LauncherTable()
    guards: SiteGuards = SiteGuards()
    consent: Annotated[dict[str, ConsentTable], Field(default_factory=dict)]

    @property
    def way_out(self) -> Proxy | None:
        """The proxy, if the site has one. Raises SettingsError."""
        if self.proxy is None and self.proxy_password_file is None:
            return None
        return parse_proxy(self.proxy, self.proxy_password_file)


_PROXY = re.compile(
    r"http://(?:(?P<user>[A-Za-z0-9._~!$&'()*+,;=%\\-]{1,256})@)?"
    r"(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[1-9][0-9]{0,4})/?"
)


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy between a site and the server, and whom it knows the site as."""

    host: str
    port: int
    user: str = ""
    password_file: Path | None = None

    @property
    def at(self) -> str:
        """Its host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_proxy(address: object, password_file: object = None) -> Proxy:
    """The proxy at an address, such as `http://user@proxy.example.org:3128`.

    Raises SettingsError, which never repeats the address: it may hold a password.
    """
    text = address if isinstance(address, str) else ""
    found = _PROXY.fullmatch(text)
    user = unquote(found["user"] or "") if found else ""
    if ":" in text.partition("://")[2].rpartition("@")[0] or ":" in user:
        raise SettingsError(
            "proxy holds a password",
            expected="http://user@host:port",
            fix="write the password alone into a file that only this user can read (chmod 600), and"
            " name that file with proxy_password_file",
        )
    if password_file is not None and (address is None or (found and not user)):
        raise SettingsError(
            "proxy_password_file has no user",
            expected="proxy = http://user@host:port",
            fix="name the user, or remove proxy_password_file",
        )
    if found is None or int(found["port"]) > 65535 or not user.isprintable():
        raise SettingsError(
            "proxy is not the address of an HTTP proxy",
            expected="http://host:port or http://user@host:port",
            fix="ask the network team which proxy opens connections by CONNECT",
        )
    own = Path(password_file) if isinstance(password_file, str) else None
    return Proxy(found["host"].strip("[]"), int(found["port"]), user, own)


def load_site(path: Path) -> SiteFile:
    """Read a site's file; relative paths start at its folder.

    Raises MissingDataError, SettingsError.
    """
    tree = read_tree(path, old=True)
    try:
        return anchored(parse_site(tree), path.parent.resolve())
    except SettingsError as error:
        raise error.at(str(path)) from error.__cause__


def parse_site(tree: Mapping[str, object]) -> SiteFile:
    """A site's file from plain values. Raises SettingsError."""
    plain = dict(tree)
    schema, guards = plain.get("schema"), plain.get("guards")
    if schema == 1 and isinstance(guards, Mapping):
        plain["guards"] = _without_old_defaults(guards)
    if schema in (1, 2):
        plain = _renamed(plain, "at_once", "micro_batch_size") | {"schema": SCHEMA}
    if {"proxy", "proxy_password_file"} & plain.keys():  # pydantic's errors repeat what came
        parse_proxy(plain.get("proxy"), plain.get("proxy_password_file"))
    try:
        site = SiteFile.model_validate(plain)
    except ValidationError as error:
        raise explained(error, SiteFile) from error
    must_not_be_newer(site.schema_, SCHEMA, kind=SettingsError, what="the site's file")
    return site


def dump_site(site: SiteFile) -> str:
    """The file as TOML, with only what its tables set themselves: a default stays a default."""
    import tomli_w

    tree = site.model_dump(mode="json", by_alias=True, exclude_none=True)
    said = site.guards.model_dump(exclude_unset=True)
    tree["guards"] = {
        name: math.inf if value is None else list(value) if isinstance(value, tuple) else value
        for name, value in said.items()
    }
    tree["launcher"] = site.launcher.model_dump(exclude_unset=True)
    return tomli_w.dumps({key: value for key, value in tree.items() if value not in ({}, [])})


def _renamed(table: Mapping[str, object], old: str, new: str) -> dict[str, object]:
    return {new if name == old else name: value for name, value in table.items()}


def _without_old_defaults(guards: Mapping[str, object]) -> dict[str, object]:
    before = tables.GuardsTable().model_dump(mode="json")
    return {
        name: value for name, value in guards.items() if name not in before or value != before[name]
    }


# --- A site's agreements
#
# A small file beside its own settings, to read, print and sign.
#
# It stays at the site. `confide site consent` writes it, with an explanation on every line:
#
# [method.fedavg]
# wire = "0f3a..."
# rounds = 12
# until = 2027-11-23
# ...


CONSENT_SCHEMA = 2
"""The schema of agreements. In schema 1 `max_norm_ratio` was called `most_norm`."""
ANYONE = "*"
"""Any lead, as the lead of an agreement."""

Combine = Literal["mean", "trimmed", "median", "clipped"]
RowsAgreed = Literal["all", "seen"]
Name = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63}|\*)$")]
Site = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


def _several(value: object) -> object:
    """Split a text at its commas; leave anything else as it is."""
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


class Agreement(Table):
    """A site's agreement to one method, and how far its settings may go.

    `wire` is the digest of the method's wire table; `steps` are the steps agreed to, or all of them
    if empty. A run may have up to `rounds` rounds of up to `local_epochs` passes over the text, or
    `local_steps` steps where the method counts these, in batches of at least `batch_size`
    sentences. Each round takes at least a `fraction` of the sites, and a sum covers at least
    `at_least`. A word counts if at least `word_sites` sites have it; `rows` says whether a site may
    be asked which words it has, and `max_norm_ratio` how far off an update may be and still count.
    All of `sites` must take part; further sites may only if `others`. Up to `runs` runs are allowed
    from `agreed` until the end of the day `until`.
    """

    wire: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    steps: tuple[Word, ...] = ()
    rounds: tables.Positive
    local_epochs: tables.Positive
    local_steps: tables.Positive = 1
    batch_size: tables.Positive
    fraction: Annotated[float, Field(gt=0, le=1)]
    at_least: tables.Positive
    combine: Annotated[tuple[Combine, ...], BeforeValidator(_several), Field(min_length=1)]
    max_norm_ratio: Annotated[float, Field(gt=1, allow_inf_nan=True)] = 5.0
    rows: Annotated[tuple[RowsAgreed, ...], BeforeValidator(_several), Field(min_length=1)] = (
        "all",
    )
    word_sites: tables.Positive = 1
    lead: Annotated[tuple[Name, ...], BeforeValidator(_several), Field(min_length=1)]
    sites: Annotated[tuple[Site, ...], BeforeValidator(_several)]
    others: bool
    runs: tables.Positive
    until: date
    agreed: AwareDatetime

    @model_validator(mode="after")
    def _fits(self) -> Agreement:
        if not self.sites and not self.others:
            raise ValueError("name sites that must take part, or set others = true")
        return self


class ConsentFile(Table):
    """All agreements of a site, by the full names of their methods."""

    schema_: Annotated[int, Field(alias="schema")] = CONSENT_SCHEMA
    site: Site
    method: dict[Word, Agreement] = {}

    @model_validator(mode="after")
    def _is_among_them(self) -> ConsentFile:
        for method, agreement in self.method.items():
            if not agreement.others and self.site not in agreement.sites:
                raise ValueError(f"{method}: this site, {self.site!r}, is missing from sites")
        return self


BOUNDS = {
    "rounds": "rounds of a run, at most",
    "local_epochs": "passes over the site's text in a round, at most",
    "local_steps": "steps in a round, at most, where the method counts steps",
    "batch_size": "sentences in a batch, at least",
    "fraction": "share of the sites that take part in a round, at least",
    "at_least": "sites in the sum of a round, at least",
    "combine": "how the server may combine what sites send",
    "max_norm_ratio": "times the usual size that an update may have and still count, at most",
    "rows": 'whose rows are averaged; "seen" tells which words the site has',
    "word_sites": "sites that must have a word for it to count, at least",
    "lead": f'who may lead; "{ANYONE}" is anyone with a kit of the lead',
    "sites": "who must take part",
    "others": "whether further sites may take part",
    "runs": "how many runs; a resumed run counts once",
    "until": "the last day",
}
"""The lines of an agreement that a site may choose, and what each means."""

_TOLD = {
    "wire": "the number of the table of everything that leaves the site",
    "steps": "the steps of that table that the site agrees to",
    **BOUNDS,
    "agreed": "when the site agreed; runs count from here on",
}
_HEAD = """\
# What the site {site} agrees to. This page stays at the site.
# confide checks every run against it before reading any text, and again at every ask. It refuses
# whatever is outside; the lead learns the name of the line, but not its value.
# `confide site consent KIT` shows it as a table. To sign it on paper, print it:
#
# for the site: ........................................   date: ..................
# for the lead: ........................................   date: ..................

"""


def load_consent(path: Path) -> ConsentFile:
    """Read a site's agreements. Raises MissingDataError, SettingsError."""
    try:
        tree = read_toml(path)
    except SettingsError as error:
        raise SettingsError(
            f"the site's agreements cannot be read: {error.what}",
            expected="TOML, as `confide site consent` writes it",
            where=error.where,
            fix="restore the file from a backup, or move it away and agree again",
        ) from error
    try:
        return parse_consent(tree)
    except SettingsError as error:
        raise error.at(str(path)) from error.__cause__


def parse_consent(tree: Mapping[str, object]) -> ConsentFile:
    """Agreements from plain values. Raises SettingsError."""
    plain, methods = dict(tree), tree.get("method")
    if plain.get("schema") == 1 and isinstance(methods, Mapping):
        plain["method"] = {
            name: _renamed(one, "most_norm", "max_norm_ratio") if isinstance(one, Mapping) else one
            for name, one in methods.items()
        }
    if plain.get("schema") == 1:
        plain["schema"] = CONSENT_SCHEMA
    try:
        held = ConsentFile.model_validate(plain)
    except ValidationError as error:
        raise explained(error, ConsentFile) from error
    must_not_be_newer(held.schema_, CONSENT_SCHEMA, kind=SettingsError, what="these agreements")
    return held


def dump_consent(held: ConsentFile) -> str:
    """The file: TOML with the meaning of each line beside it, and room to sign."""
    lines = [_HEAD.format(site=held.site), f"schema = {held.schema_}\n", f'site = "{held.site}"\n']
    for method, agreement in sorted(held.method.items()):
        lines.append(f"\n[method.{method}]\n")
        for name, told in _TOLD.items():
            if name != "steps" or agreement.steps:
                line = f"{name} = {_toml(getattr(agreement, name))}"
                lines.append(f"{line:<34} # {told}\n")
    return "".join(lines)


def _toml(value: object) -> str:
    """A value of an agreement as TOML. Names contain neither quotes nor backslashes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return value.isoformat() if isinstance(value, date) else repr(value)
