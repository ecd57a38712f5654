"""A kit as a service: its systemd unit, and why a site is not connected.

The unit runs a kit as one user, without rights, and with few folders to write in.

The text of a unit is settings line by line, so a path could smuggle one in. A path is written
between quotes, with the signs that systemd would expand doubled, and refused if it holds a control
character. What the options mean: systemd.exec(5).
"""

from __future__ import annotations

import datetime
import os
import pwd
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path

from confide.errors import KitError, os_errors_as, printable
from confide.flare.kits.kit import Kit, expires

_UNIT = """\
[Unit]
Description=confide, {who}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
# only where a key is encrypted:
# Environment=CONFIDE_PASSPHRASE_FILE=/run/confide/passphrase
ExecStart={command}
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=10
UMask=0077

# It may write here and nowhere else; home folders can be read, because the text may be in one.
ProtectSystem=strict
ProtectHome=read-only
{writable}
PrivateTmp=yes
# A site that trains on a GPU needs its devices: then set this to no.
PrivateDevices=yes

NoNewPrivileges=yes
CapabilityBoundingSet=
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
LockPersonality=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""


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
    words: list[str | Path] = [
        Path(sys.executable),
        "-m",
        "confide",
        kit.kind,
        "start",
        path,
    ]
    return _UNIT.format(
        who="the server" if kit.kind == "server" else f"site {_plain(kit.name)}",
        user=_user(owner),
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


def _user(number: int) -> str:
    """The user's name; the number, if it has none here."""
    try:
        return _plain(pwd.getpwuid(number).pw_name)
    except KeyError:
        return str(number)


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


def ended(kit: Kit) -> str:
    """A sentence saying that the kit's certificate has expired; "" while it is valid."""
    end = expires(kit)
    if end > datetime.datetime.now(datetime.UTC):
        return ""
    return (
        f"the certificate of {kit.name} expired on {end:%Y-%m-%d}, and the server refuses it; ask "
        "the founder of the consortium for a new kit (`confide consortium renew`)"
    )


def trouble_with(kit: Kit) -> str:
    """A sentence on what keeps this kit from its server; "" if the server answers."""
    at = f"{kit.host}:{kit.port}"
    try:
        raw = socket.create_connection((kit.host, kit.port), timeout=SECONDS)
    except socket.gaierror:
        return f"this machine cannot resolve the server's name, {kit.host}"
    except OSError as error:
        return f"no server answers at {at} ({error.strerror or 'no answer in time'})"
    with raw:
        try:
            return _greeting(kit, raw)
        except ssl.SSLCertVerificationError as error:
            said = "is not from this consortium"
            if "expired" in error.verify_message:
                said = "has expired, by the clock of this machine"
            elif "not yet valid" in error.verify_message:
                said = "is not valid yet, by the clock of this machine: set the clock"
            return f"something answers at {at}, but its certificate {said}"
        except TimeoutError:
            return f"something answers at {at}, but too slowly"
        except OSError:
            return _refused(at)


def _greeting(kit: Kit, raw: socket.socket) -> str:
    """Connect with TLS; "" if the server answers and lets us in, else what is wrong."""
    at = f"{kit.host}:{kit.port}"
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False  # the kit says which name the server has, below
    context.load_cert_chain(kit.certificate, kit.key)
    with context.wrap_socket(raw, server_hostname=kit.host) as tls:
        subject = (tls.getpeercert() or {}).get("subject", ())
        if ("commonName", kit.identity) not in [pair for group in subject for pair in group]:
            return f"something answers at {at}, but it is not the server"
        tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return "" if tls.recv(1) else _refused(at)


def _refused(at: str) -> str:
    return (
        f"the server at {at} refuses this kit's certificate: the kit is from another consortium, "
        "or its certificate is not valid today by the server's clock"
    )
