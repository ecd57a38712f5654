"""Why a site is not connected: knock at the server's port with the kit's own certificate."""

from __future__ import annotations

import datetime
import socket
import ssl

from confide.flare.kits.startup import Kit, expires

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
