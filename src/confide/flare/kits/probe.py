"""Why a site is not connected: knock at the server's port with the kit's own certificate."""

from __future__ import annotations

import datetime
import socket
import ssl

from confide.flare.kits.startup import Kit, expires

SECONDS = 3.0


def ended(kit: Kit) -> str:
    """In words, that the kit's certificate has ended; nothing while it is good."""
    end = expires(kit)
    if end > datetime.datetime.now(datetime.UTC):
        return ""
    return (
        f"the certificate of {kit.name} ended on {end:%Y-%m-%d}, and nobody is let in with it; ask "
        "the founder of the consortium for a new kit (`confide consortium renew`)"
    )


def trouble_with(kit: Kit) -> str:
    """In words, what stands between this kit and its server; nothing where the server answers."""
    at = f"{kit.host}:{kit.port}"
    try:
        raw = socket.create_connection((kit.host, kit.port), timeout=SECONDS)
    except socket.gaierror:
        return f"the name {kit.host} is not known here"
    except OSError as error:
        return f"no server answers at {at} ({error.strerror or 'no answer in time'})"
    with raw:
        try:
            return _greeting(kit, raw)
        except ssl.SSLCertVerificationError as error:
            ended = "expired" in error.verify_message
            said = "has ended" if ended else "is not of this consortium"
            return f"the certificate of what answers at {at} {said}"
        except TimeoutError:
            return f"what answers at {at} does not speak in time"
        except OSError:
            return _refused(at)


def _greeting(kit: Kit, raw: socket.socket) -> str:
    """Speak TLS with what answers, and see that it is the server and lets us in."""
    at = f"{kit.host}:{kit.port}"
    context = ssl.create_default_context(cafile=str(kit.root))
    context.check_hostname = False  # the kit says which name the server has, below
    context.load_cert_chain(kit.certificate, kit.key)
    with context.wrap_socket(raw, server_hostname=kit.host) as tls:
        subject = (tls.getpeercert() or {}).get("subject", ())
        if ("commonName", kit.identity) not in [pair for group in subject for pair in group]:
            return f"what answers at {at} is not the server"
        tls.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return "" if tls.recv(1) else _refused(at)


def _refused(at: str) -> str:
    return (
        f"the server at {at} does not take this kit's certificate: the kit is of another "
        "consortium, or its certificate has ended"
    )
