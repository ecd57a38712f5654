"""A site behind an HTTP proxy: what its file may say, and what each kind of bad proxy is called.

tests/flare/test_real_proxies.py has the runs.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import json
import logging
import logging.config
import shutil
import socket
import ssl
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nvflare.fuel.f3.drivers.aio_http_driver import AioHttpDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo, Mode
from nvflare.fuel.f3.drivers.net_utils import parse_url

from confide.errors import ConfideError, EngineError, LockedKeyError, SettingsError
from confide.flare import proxies
from confide.flare.kit import Consortium, Kit, connection_problem
from confide.flare.nvidia import connecting, lead, processes
from confide.flare.nvidia.consortium import create_consortium
from confide.flare.sitekit import setup_site
from confide.settings import dump_site, load_site
from confide.settings.sitefile import Proxy, parse_proxy, parse_site
from contract.corpus import tiny
from flare.homes import write_site_files
from flare.proxying import ConnectProxy, Saying

SECRET = "murmeltierpfad"
ENCODED = base64.b64encode(f"north:{SECRET}".encode()).decode()


@pytest.fixture(scope="module")
def founded(tmp_path_factory) -> Consortium:
    out = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium("trial", sites=["site-1"], host="fl.invalid", out=out)


@pytest.fixture
def password(tmp_path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


def _hidden(text: object) -> str:
    """The text, which has no password in it."""
    assert SECRET not in str(text) and ENCODED not in str(text)
    return str(text)


# --- the site's file ------------------------------------------------------------------------


def test_the_address_of_a_proxy():
    assert parse_proxy("http://proxy:3128") == Proxy("proxy", 3128)
    assert parse_proxy("http://10.0.0.1:80/") == Proxy("10.0.0.1", 80)
    assert parse_proxy("http://[::1]:3128").at == "[::1]:3128"
    found = parse_proxy(r"http://WARD%5Cnorth@proxy:3128", "/run/secret")
    assert found == Proxy("proxy", 3128, "WARD\\north", Path("/run/secret"))
    assert parse_proxy(r"http://WARD\north@proxy:3128").user == "WARD\\north"


def test_a_proxy_that_cannot_be_is_refused_and_never_repeated(tmp_path):
    own = {"name": "north", "train": "n.conll", "key": "k"}
    for given, said in (
        (f"http://north:{SECRET}@proxy:3128", "holds a password"),
        (f"http://north:{SECRET}@", "holds a password"),
        (f"http://north%3A{SECRET}@proxy:3128", "holds a password"),
        (f"https://{SECRET}@proxy:3128", "not the address of an HTTP proxy"),
        (f"http://{SECRET}@proxy", "not the address"),
        (f"http://{SECRET}@proxy:70000", "not the address"),
        (f"http://{SECRET}@proxy:0", "not the address"),
        (f"http://{SECRET}%0d%0aX@proxy:1", "not the address"),
        (f"http://{SECRET}@pro xy:1", "not the address"),
        (f"http://{SECRET}@proxy:1\r\nX: y", "not the address"),
        (f"http://{SECRET}@proxy:1/?q", "not the address"),
        (SECRET, "not the address"),
        ([SECRET], "not the address"),
        ("", "not the address"),
    ):
        with pytest.raises(SettingsError, match=said) as caught:
            parse_site(own | {"proxy": given})
        _hidden(caught.value)
        assert caught.value.__cause__ is None, "pydantic's error would repeat what came"
    for alone in ({}, {"proxy": "http://proxy:3128"}):
        with pytest.raises(SettingsError, match="has no user"):
            parse_site(own | alone | {"proxy_password_file": "password"})
    with pytest.raises(SettingsError, match="did you mean 'proxy_password_file'") as caught:
        parse_site(own | {"proxy": "http://n@p:1", "proxy_password": SECRET})
    _hidden(caught.value)


def test_what_a_site_is_set_up_and_started_with(founded, password, tmp_path, monkeypatch):
    kit = founded.kit("site-1")
    own = {"proxy": "http://north@proxy.invalid:3128", "proxy_password_file": "../../password"}
    settings = tiny(tmp_path, sites=1)
    [file] = write_site_files(tmp_path / "homes", settings, consent={}, **own).values()
    password.chmod(0o640)
    with pytest.raises(LockedKeyError, match="others can read the password file"):
        setup_site(kit, file)
    password.chmod(0o600)
    setup_site(kit, file)
    held = tomllib.loads((kit.path / "local/site.toml").read_text())
    assert held["proxy"] == own["proxy"]
    assert Path(held["proxy_password_file"]).samefile(password)
    given = processes._environment(kit)
    assert given["CONFIDE_PROXY"] == own["proxy"]
    assert Path(given["CONFIDE_PROXY_PASSWORD_FILE"]).samefile(password)
    _hidden(json.dumps(given))
    password.unlink()
    with pytest.raises(LockedKeyError, match="password file cannot be read"):
        processes.start(kit)
    assert "CONFIDE_PROXY" not in processes._environment(founded.kit("server"))
    plain = load_site(file).model_copy(update={"proxy": None, "proxy_password_file": None})
    file.write_text(dump_site(plain))
    setup_site(kit, file)
    monkeypatch.setenv("CONFIDE_PROXY", "http://elsewhere:1")  # a lead's on the same machine
    assert "CONFIDE_PROXY" not in processes._environment(kit)
    (kit.path / "local/site.toml").write_text("torn = ")
    with pytest.raises(SettingsError, match="not TOML"):  # it may have a proxy, or none
        processes.start(kit)


# --- bad proxies ----------------------------------------------------------------------------


def _says(text: str) -> Callable[[socket.socket], object]:
    return lambda one: one.sendall(text.encode())


def _drips(one: socket.socket) -> None:
    """A head without an end, byte by byte."""
    while True:
        one.sendall(b"X")
        threading.Event().wait(0.02)


BASIC = "HTTP/1.1 407 \x1b[2JWho\r\nProxy-Authenticate: Basic realm=x\r\n\r\n"
NTLM = "HTTP/1.1 407 Who\r\nproxy-authenticate: Negotiate\r\nProxy-Authenticate: NTLM\r\n\r\n"
BAD: list[tuple[Callable[[socket.socket], object], bool, str, str]] = [
    (_says("HTTP/1.1 403 Forbidden\r\n\r\n<html>"), True, "refuses", "allow CONNECT to fl.invalid"),
    (_says("HTTP/1.0 302 Login\r\nLocation: x\r\n\r\n"), True, "refuses", "allow CONNECT"),
    (_says(BASIC), False, "asks for a user and a password", "proxy_password_file"),
    (_says(BASIC), True, "does not take this user and password", "proxy_password_file"),
    (_says(NTLM), True, "asks for NTLM or Negotiate", "without a password"),
    (
        _says("HTTP/1.1 504 Slow\r\n\r\n"),
        True,
        "does not reach the server at fl.inv",
        "server runs",
    ),
    (_says("SSH-2.0-x\r\n\r\n"), True, "is not an HTTP proxy", "which proxy"),
    (_says("HTTP/1.1 200 OK\r\nX: " + "y" * 20_000), True, "is not an HTTP proxy", "which proxy"),
    (_says("HTTP/1.1 200 OK\r\n\r\nearly"), True, "is not an HTTP proxy", "which proxy"),
    (_says("HTTP/1.1 20"), True, "gives no answer (it closed the connection)", "allow CONNECT"),
    (lambda one: threading.Event().wait(1), True, "does not answer within 0.1 s", "network team"),
    (_drips, True, "does not answer within 0.1 s", "network team"),
]


def test_the_probe_names_what_a_proxy_does(founded, password, monkeypatch):
    kit = founded.kit("site-1")
    for what, known, said, todo in BAD:
        monkeypatch.setattr(proxies, "WITHIN", 0.1 if "within" in said else 60.0)
        bad = Saying(what)
        proxy = bad.proxy("north", password) if known else bad.proxy()
        found = _hidden(connection_problem(kit, proxy))
        bad.close()
        assert said in found and todo in found and f"127.0.0.1:{bad.port}" in found, found
        assert found.isprintable()
    gone = Proxy("127.0.0.1", bad.port)
    assert f"no proxy answers at {gone.at} (Connection refused)" in connection_problem(kit, gone)
    assert "resolve the proxy's name, p.invalid" in connection_problem(kit, Proxy("p.invalid", 1))
    password.chmod(0o644)
    assert "others can read the password file" in connection_problem(kit, proxy)


def _connect(kit: Kit) -> None:
    """Let the engine's driver connect to the kit's server."""
    params = parse_url(f"https://{kit.host}:{kit.port}") | {
        "secure": True,
        "connection_security": "mtls",
        "ca_cert": str(kit.root),
        "client_cert": str(kit.certificate),
        "client_key": str(kit.key),
    }
    driver = AioHttpDriver()
    given = ("h", driver, params, Mode.ACTIVE, 0, 0, False, threading.Event())
    driver.connect(ConnectorInfo(*given))


def test_the_engine_says_the_same_and_tries_no_other_way(founded, password, monkeypatch, caplog):
    kit = founded.kit("site-1")
    monkeypatch.setattr(AioHttpDriver, "connect", AioHttpDriver.connect)
    monkeypatch.setenv("CONFIDE_PROXY", "http://127.0.0.1:1")
    path = kit.path / "local/log_config.json"  # which FLARE reads before it connects
    formatter = json.loads(path.read_text())["formatters"]["plain"]["()"]
    logging.config.DictConfigurator({}).resolve(formatter)()
    assert AioHttpDriver.connect is connecting.connect
    caplog.set_level(logging.DEBUG)
    by_status = ("refuses", "asks for", "does not take", "does not reach")
    for what, known, said, _ in BAD[:-1]:
        monkeypatch.setattr(proxies, "WITHIN", 0.1 if "within" in said else 60.0)
        bad = Saying(what)
        proxy = bad.proxy("north", password) if known else bad.proxy()
        monkeypatch.delenv("CONFIDE_PROXY_PASSWORD_FILE", raising=False)
        for name, value in proxies.in_environment(proxy).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(EngineError) as caught:
            _connect(kit)
        bad.close()
        found = _hidden(caught.value)
        assert said in found if said.startswith(by_status) else "site status" in found, found
        assert caught.value.__context__ is None, "the error of the engine holds the password"
        assert found in caplog.text
    _hidden(caplog.text)


@contextlib.contextmanager
def _serving(
    kit: Kit,
    *,
    certificate: Path,
    key: Path,
    says: Callable[[], str] = lambda: "HTTP/1.0 400 No\r\n\r\n",
) -> Iterator[int]:
    """A server of TLS with this certificate, which asks for one of the kit's consortium."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(kit.root)
    context.verify_mode = ssl.CERT_REQUIRED if certificate == kit.certificate else ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    raw, _ = listening.accept()
                except OSError:
                    return
                with (
                    contextlib.suppress(OSError),
                    raw,
                    context.wrap_socket(raw, server_side=True) as tls,
                ):
                    tls.recv(100)
                    tls.sendall(says().encode())

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def test_the_probe_goes_through_a_proxy_which_resolves_the_servers_name(founded, password):
    kit, server = founded.kit("site-1"), founded.kit("server")
    with _serving(server, certificate=server.certificate, key=server.key) as port:
        proxy = ConnectProxy({"fl.invalid:8002": port}, secret=f"north:{SECRET}")
        assert connection_problem(kit, proxy.proxy("north", password)) == ""
        assert proxy.opened == ["fl.invalid:8002"]
        assert "asks for a user" in connection_problem(kit, proxy.proxy())
        password.write_text("another\n")
        assert "does not take" in connection_problem(kit, proxy.proxy("north", password))
        other = dataclasses.replace(kit, host="other.invalid")
        password.write_text(SECRET)
        assert "refuses a connection to other.invalid:8002 (403 No other.invalid)" in (
            connection_problem(other, proxy.proxy("north", password))
        )
        proxy.close()


def test_a_server_cannot_send_a_site_elsewhere(founded, monkeypatch):
    """The engine's WebSocket followed a redirect, to any address that proxy or site reaches."""
    kit, server = founded.kit("site-1"), founded.kit("server")
    away = ["https://ward.invalid:8443/"]

    def elsewhere() -> str:
        return f"HTTP/1.1 302 Found\r\nLocation: {away[-1]}\r\n\r\n"

    monkeypatch.setattr(AioHttpDriver, "connect", connecting.connect)
    with _serving(server, certificate=server.certificate, key=server.key, says=elsewhere) as port:
        proxy = ConnectProxy({"fl.invalid:8002": port, "ward.invalid:8443": port})
        monkeypatch.setenv("CONFIDE_PROXY", f"http://{proxy.proxy().at}")
        with pytest.raises(EngineError, match="no connection through the proxy"):
            _connect(kit)
        assert proxy.opened == ["fl.invalid:8002"]
        proxy.close()
        monkeypatch.delenv("CONFIDE_PROXY")
        trap = Saying(lambda one: one)
        direct = dataclasses.replace(kit, host="localhost", port=port)
        away.append(f"https://127.0.0.1:{trap.port}/")
        with pytest.raises(EngineError, match=f"no connection to the server at localhost:{port}"):
            _connect(direct)
        assert trap.taken == 0
        trap.close()


def test_a_proxy_that_opens_tls_is_named_by_its_issuer(founded, tmp_path):
    """The same without a proxy: a firewall may do it too."""
    kit = founded.kit("site-1")
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    names = [
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in ("fl.invalid", "Inspecting Gateway CA\x1b")
    ]
    builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1])
    builder = builder.public_key(key.public_key()).serial_number(7).not_valid_before(now)
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    shown, secret = tmp_path / "shown.crt", tmp_path / "shown.key"
    pem = serialization.Encoding.PEM
    shown.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    secret.write_bytes(key.private_bytes(pem, *plain))
    with _serving(kit, certificate=shown, key=secret) as port:
        proxy = ConnectProxy({"fl.invalid:8002": port})
        direct = dataclasses.replace(kit, host="127.0.0.1", port=port)
        for found in (connection_problem(kit, proxy.proxy()), connection_problem(direct)):
            assert "is not from this consortium; its issuer is CN=Inspecting Gateway CA?" in found
            assert "pass unopened" in found
        proxy.close()
    closing = Saying(lambda one: (_says("HTTP/1.1 200 OK\r\n\r\n")(one), one.recv(1)))
    assert "breaks off before a certificate is shown" in connection_problem(kit, closing.proxy())
    talking = Saying(_later("HTTP/1.1 200 OK\r\n\r\n", "<html>Log in</html>"))
    assert "breaks off before a certificate is shown" in connection_problem(kit, talking.proxy())


def _later(first: str, then: str) -> Callable[[socket.socket], object]:
    """Says more once the other side has begun TLS."""
    return lambda one: (one.sendall(first.encode()), one.recv(1), one.sendall(then.encode()))


def test_status_and_lead_say_what_the_proxy_does(founded, tmp_path, monkeypatch):
    bad = Saying(_says("HTTP/1.1 403 Forbidden\r\n\r\n"))
    kit = dataclasses.replace(founded.kit("site-1"), path=tmp_path / "kit")
    shutil.copytree(founded.kit("site-1").path, kit.path)
    file = kit.path / "local/site.toml"
    own = f'name = "site-1"\ntrain = "x"\nkey = "k"\nproxy = "http://127.0.0.1:{bad.port}"\n'
    file.write_text(own)
    (kit.path / "run").mkdir(exist_ok=True)
    (kit.path / processes.STATE).write_text(json.dumps({"refused": True}))
    assert f"proxy at 127.0.0.1:{bad.port} refuses" in processes.status(kit).trouble
    file.write_text("torn = ")
    assert "not TOML" in processes.status(kit).trouble
    monkeypatch.setenv("CONFIDE_PROXY", f"http://127.0.0.1:{bad.port}")
    assert f"got the proxy at 127.0.0.1:{bad.port} refuses" in str(
        lead._unreachable(founded.kit("lead"))
    )
    monkeypatch.setenv("CONFIDE_PROXY", f"http://a:{SECRET}@proxy:1")
    with pytest.raises(ConfideError, match="CONFIDE_PROXY: proxy holds a password") as caught:
        lead._connected(founded.kit("lead"), 1.0)
    _hidden(caught.value)
    bad.close()
