"""Cards of real kits: certified once by the kit's key, and believed only within a consortium."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cases import each
from confide.cli.verbs import app
from confide.errors import KeyFileError, KitError
from confide.federation.failures import Refusal
from confide.flare.kit import Consortium, open_consortium
from confide.flare.nvidia.consortium import ROOT_KEY, create_consortium
from confide.flare.nvidia.consortium import renew_kit as renew_kit
from confide.flare.peers import (
    Card,
    fingerprint_of,
    grouped_fingerprint,
    list_peers,
    open_signer,
    pin_peer,
    read_identity,
    renew_identity,
)


@pytest.fixture
def trial(made: Consortium, tmp_path: Path) -> Consortium:
    """A consortium of the test's own."""
    return open_consortium(shutil.copytree(made.path, tmp_path / "trial"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Consortium:
    folder = tmp_path_factory.mktemp("consortium")
    made = create_consortium(
        "trial", sites=["north", "south"], host="localhost", out=folder / "trial"
    )
    for kit in made.kits():
        assert not (kit.path / "identity").exists()  # the founder makes no identity of anybody
        open_signer(kit, make=True)
    return made


def _changed(pem: str, old: str, new: str) -> str:
    der = ssl.PEM_cert_to_DER_cert(pem)
    assert bytes.fromhex(old) in der
    return ssl.DER_cert_to_PEM_cert(der.replace(bytes.fromhex(old), bytes.fromhex(new)))


def of_no_version(pem: str) -> str:
    """The certificate as one of version 8, which there is not."""
    return _changed(pem, "a003020102", "a003020107")


def of_no_algorithm(pem: str) -> str:
    """The certificate as one that is signed by an algorithm that nobody knows."""
    return _changed(pem, "06092a864886f70d01010b", "06092a864886f70d01017f")


def test_every_place_believes_the_cards_of_its_consortium_only(
    trial: Consortium, tmp_path: Path
) -> None:
    places = {kit.name: open_signer(kit) for kit in trial.kits()}
    kinds = {"server": "server", "lead": "lead", "north": "site", "south": "site"}
    for one in places.values():
        for other in places.values():
            card = Card.decode(other.card.encode())
            assert one.vouched(card)
            if one is not other:
                assert not one.meet(card, kinds[other.name], other.name).compared
    stranger = create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "other")
    foreign = open_signer(stranger.kit("north"), make=True).card
    assert not places["server"].vouched(foreign)
    north, south = places["north"].card, places["south"].card
    forged = [
        dataclasses.replace(north, key=south.key),
        dataclasses.replace(north, name="south"),
        dataclasses.replace(north, kind="lead"),
        dataclasses.replace(north, kind="server"),
        dataclasses.replace(north, certificate=south.certificate),
        dataclasses.replace(north, certificate=""),
        dataclasses.replace(north, certificate=(trial.kit("north").root).read_text()),
        dataclasses.replace(north, certificate=of_no_version(north.certificate)),
        dataclasses.replace(north, certificate=of_no_algorithm(north.certificate)),
        dataclasses.replace(north, signature="00" * 256),
        dataclasses.replace(north, signature="nonsense"),
        dataclasses.replace(south, name="north"),
    ]
    for card in forged:
        assert not places["server"].vouched(card)
        with pytest.raises(Refusal) as refused:
            places["server"].meet(card, "site", "north")
        assert refused.value.code == "uncertified"
    with pytest.raises(Refusal):
        places["server"].meet(south, "site", "north")


@each("kind", ["relay", ""])
@each("names", [[], ["north"], ["relay"]])
def test_no_card_of_an_unknown_kind_is_believed_whatever_its_certificate_is_called(
    trial: Consortium, kind: str, names: list[str]
) -> None:
    server, kit = open_signer(trial.kit("server")), trial.kit("north")
    root = x509.load_pem_x509_certificate(kit.root.read_bytes())
    root_key = serialization.load_pem_private_key(
        (trial.authority / ROOT_KEY).read_bytes(), password=None
    )
    assert isinstance(root_key, rsa.RSAPrivateKey)
    own, now = rsa.generate_private_key(65537, 2048), datetime.datetime.now(datetime.UTC)
    called = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name) for name in names]
    certificate = (
        x509.CertificateBuilder(root.subject, x509.Name(called), own.public_key(), 7)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .sign(root_key, hashes.SHA256())
    )
    card = dataclasses.replace(
        open_signer(kit).card,
        kind=kind,
        certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
    )
    pss = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)
    for made in (card, dataclasses.replace(card, kind="site")):
        signature = own.sign(made.said(), pss, hashes.SHA256()).hex()
        believed = server.vouched(dataclasses.replace(made, signature=signature))
        assert believed == (made.kind == "site" and names == ["north"])


def test_no_card_is_believed_when_its_certificate_has_ended(tmp_path: Path) -> None:
    made = create_consortium(
        "short", sites=["north"], host="localhost", out=tmp_path / "c", days=1e-9
    )
    card = open_signer(made.kit("north"), make=True).card
    assert not open_signer(made.kit("server"), make=True).vouched(card)


def test_an_identity_survives_the_renewal_of_its_kit(trial: Consortium, tmp_path: Path) -> None:
    kit = trial.kit("south")
    before = open_signer(kit)
    moved = tmp_path / "old"
    shutil.move(kit.path, moved)
    fresh = renew_kit(trial.path, "south")
    with pytest.raises(KeyFileError, match="move the folder `identity` to the new kit"):
        open_signer(fresh)
    shutil.move(moved / "identity", fresh.path / "identity")
    after = open_signer(fresh)
    assert after.identity.public == before.identity.public
    assert after.card.certificate != before.card.certificate
    assert open_signer(trial.kit("server")).vouched(after.card)
    archived = [path.name for path in (fresh.path / "identity" / "archive").iterdir()]
    assert len(archived) == 1 and archived[0].startswith("card-")
    renewed = renew_identity(fresh)
    assert renewed.identity.public != before.identity.public
    keys = list((fresh.path / "identity" / "archive").glob("identity-*.key"))
    assert [read_identity(one).public for one in keys] == [before.identity.public]


def test_two_people_compare_fingerprints(trial: Consortium) -> None:
    north, server = trial.kit("north"), trial.kit("server")
    call = CliRunner().invoke
    said = call(app, ["peers", str(north.path), "--json"])
    own = json.loads(said.stdout)["fingerprint"]
    assert own == fingerprint_of(open_signer(north).identity.public)
    done = call(app, ["peers", str(server.path), "--pin", "north", grouped_fingerprint(own)])
    assert done.exit_code == 0, done.output
    assert list_peers(server).peers["north"].compared
    assert list_peers(server).peers["north"].fingerprint == own
    open_signer(server).meet(open_signer(north).card, "site", "north", only_compared=True)
    assert grouped_fingerprint(own)[:39] in done.stdout and "compared" in done.stdout
    call(app, ["peers", str(server.path), "--forget", "north"])
    assert "north" not in list_peers(server).peers
    open_signer(server).meet(open_signer(north).card, "site", "north")
    assert not list_peers(server).peers["north"].compared
    call(app, ["peers", str(server.path), "--compared", "north"])
    assert list_peers(server).peers["north"].compared
    for words in (["--forget", "west"], ["--compared", "west"], ["--pin", "west", "12"]):
        failed = call(app, ["peers", str(server.path), *words])
        assert failed.exit_code == 2
    for name in ("server", "../x", "a" * 100):
        with pytest.raises(KitError):
            pin_peer(server, name, own)
    status = call(app, ["server", "status", str(server.path)])
    assert "peers" in status.stdout


def test_nothing_but_the_key_itself_is_secret_and_nothing_is_open(trial: Consortium) -> None:
    for kit in trial.kits():
        if kit.name == "south":
            continue
        for path in (kit.path / "identity").rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
        key = (kit.path / "identity" / "identity.key").read_bytes()
        shared = [
            path for path in kit.path.rglob("*") if path.is_file() and path.name != "identity.key"
        ]
        assert not [path for path in shared if key in path.read_bytes()]
