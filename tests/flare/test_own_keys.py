"""Kits whose owners make their own keys: request, approval, acceptance, and what goes wrong."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cases import each
from confide.cli.verbs import app
from confide.errors import ConfideError, KeyFileError, KitError
from confide.flare.kit import Consortium, expires, open_consortium, open_kit
from confide.flare.nvidia import certificates, consortium
from confide.flare.nvidia.certificates import SigningRequest, accept, approve, ask_to_join
from confide.flare.nvidia.consortium import create_consortium, renew_kit
from confide.flare.peers import grouped_fingerprint, list_peers, open_signer, read_identity

ALTERNATIVE = x509.ExtensionOID.SUBJECT_ALTERNATIVE_NAME
NOW, DAY = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True)
class Place:
    """A consortium without sites, and a site's kit whose request is made and answered."""

    consortium: Consortium
    kit: Path
    asked: Path
    answer: Path


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """One that no test changes."""
    folder = tmp_path_factory.mktemp("own")
    made = create_consortium("trial", sites=(), host="fl.example.org", out=folder / "trial")
    asked = ask_to_join(folder / "north", site="north", consortium="trial")
    approval = approve(made.path, asked.file, compared=True)
    assert approval.file is not None and approval.fingerprint == asked.fingerprint
    return Place(made, folder / "north", asked.file, approval.file)


@pytest.fixture
def place(answered: Place, tmp_path: Path) -> Place:
    """One of the test's own."""
    return copied(answered, tmp_path / "own")


def copied(answered: Place, to: Path) -> Place:
    there = answered.kit.parent
    shutil.copytree(there, to)
    paths = (answered.kit, answered.asked, answered.answer)
    return Place(open_consortium(to / "trial"), *(to / path.relative_to(there) for path in paths))


def files(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in folder.rglob("*.*")
            if one.is_file()}  # fmt: skip


def bodies(folder: Path) -> set[bytes]:
    """A line out of the middle of each private key of a folder."""
    found = [one.read_bytes().splitlines() for one in folder.rglob("*.key")]
    return {lines[len(lines) // 2] for lines in found}


# --- as it should go ------------------------------------------------------------------------


def test_no_private_key_of_a_site_is_anywhere_else(place: Place) -> None:
    """The founder's folder and both files on their way hold public keys only."""
    before = bodies(place.kit)
    assert len(before) == 2 and place.consortium.sites == ("north",)
    assert {one.name for one in place.consortium.path.glob("kits/*")} == {"server", "lead"}
    asked = place.asked.read_bytes()
    assert accept(place.kit, place.answer).kit is None  # not before a call
    assert not (place.kit / "startup").exists()
    with pytest.raises(KitError, match="accept the founder's answer first"):
        open_kit(place.kit)
    kit = accept(place.kit, place.answer, compared=True).kit
    assert kit == open_kit(place.kit, "site")
    assert (kit.name, kit.consortium) == ("north", "trial")
    assert (kit.host, kit.port) == ("fl.example.org", 8002)
    assert bodies(kit.path) == before
    elsewhere = asked + b"".join(files(place.consortium.path).values())
    assert not [body for body in before if body in elsewhere]
    assert {one.stat().st_mode & 0o077 for one in place.kit.rglob("*")} == {0}
    assert not (place.kit / "request").exists()
    root = x509.load_pem_x509_certificate(kit.root.read_bytes())
    shown = x509.load_pem_x509_certificate(kit.certificate.read_bytes())
    shown.verify_directly_issued_by(root)
    assert shown.subject.rfc4514_string() == "O=trial,CN=north"
    assert open_signer(kit).vouched(open_signer(kit).card)


def test_a_kit_has_what_a_kit_of_the_founder_has(place: Place, tmp_path: Path) -> None:
    founder = consortium.add_site(place.consortium.path, "south")
    kit = accept(place.kit, place.answer, compared=True).kit
    assert kit is not None
    mine, other = files(kit.path), files(founder.path)
    assert set(mine) - set(other) == {"identity/identity.key"}
    for name in set(other) - {"startup/client.key", "startup/client.crt", "README.txt"}:
        assert mine[name] == other[name].replace(b"south", b"north"), name
    assert b"trials only" in other["README.txt"] and b"trials" not in mine["README.txt"]


def test_a_renewal_needs_no_call_and_touches_nothing_of_the_site(place: Place) -> None:
    kit = accept(place.kit, place.answer, compared=True).kit
    assert kit is not None
    (kit.path / "local" / "site.toml").write_text("name = 'north'")
    fingerprint = list_peers(kit).fingerprint
    before, keys = files(kit.path), bodies(kit.path)
    asked = ask_to_join(kit.path)
    old = place.answer.read_bytes()
    found = approve(place.consortium.path, asked.file)
    assert found.before == found.fingerprint == asked.fingerprint == fingerprint
    assert found.file is not None
    assert accept(kit.path, found.file).kit == kit
    assert len(bodies(kit.path) & keys) == 1  # that of the identity
    after = files(kit.path)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"startup/client.crt", "startup/client.key"} and set(after) == set(before)
    assert open_signer(kit).vouched(open_signer(kit).card)
    new = place.answer.read_bytes()
    place.answer.write_bytes(old)
    with pytest.raises(KitError, match="for another key than this site's"):
        accept(kit.path, place.answer)
    asked = ask_to_join(kit.path)  # while it waits, answers to the key in use change nothing
    waiting = (kit.path / "request" / "client.key").read_bytes()
    place.answer.write_bytes(new)
    assert accept(kit.path, place.answer).kit == kit
    assert (kit.path / "request" / "client.key").read_bytes() == waiting
    place.answer.write_text(by(place, certificate=ended(place, "north", 9, ago=1)))
    with pytest.raises(KitError, match="older than the kit's certificate"):
        accept(kit.path, place.answer)
    with pytest.raises(KitError, match="makes its own keys"):
        renew_kit(place.consortium.path, "north")


def test_server_and_lead_make_their_own_keys(tmp_path: Path) -> None:
    made = create_consortium(
        "trial", sites=None, host="fl.example.org", lead="ada", out=tmp_path / "trial"
    )
    assert not (made.path / "kits").exists()
    names = {"server": "CN=fl.example.org", "ada": "CN=ada@confide.lead"}
    for name, kind in (("server", "server"), ("ada", "lead")):
        other = renew_kit(made.path, name)  # one with the founder's key, for trials
        asked = ask_to_join(tmp_path / name, site=name, consortium="trial", kind=kind)
        before = bodies(tmp_path / name)
        assert approve(made.path, asked.file).file is None  # not before a call
        found = approve(made.path, asked.file, compared=True)
        assert (found.kind, found.site) == (kind, name) and found.file is not None
        assert accept(tmp_path / name, found.file).kit is None
        kit = accept(tmp_path / name, found.file, compared=True).kit
        assert kit == open_kit(tmp_path / name, kind)
        assert bodies(kit.path) == before and kit.key.stat().st_mode & 0o077 == 0
        assert not [one for one in before if one in b"".join(files(made.path).values())]
        mine, theirs = files(kit.path), files(other.path)
        assert set(mine) - set(theirs) == {"identity/identity.key"} and set(theirs) <= set(mine)
        keys = {f"startup/{one}" for one in (kit.key.name, kit.certificate.name)}
        for one in set(theirs) - keys - {"README.txt"}:
            assert mine[one] == theirs[one], one
        both = [x509.load_pem_x509_certificate(one.certificate.read_bytes())
                for one in (kit, other)]  # fmt: skip
        assert names[name] in both[0].subject.rfc4514_string().split("+")[-1].split(",")
        assert both[0].subject == both[1].subject
        assert [one.value for one in both[0].extensions if one.oid == ALTERNATIVE] == [
            one.value for one in both[1].extensions if one.oid == ALTERNATIVE]  # fmt: skip
        assert open_signer(kit).vouched(open_signer(kit).card)
        again = approve(made.path, ask_to_join(kit.path).file).file  # a renewal
        assert again is not None and accept(kit.path, again).kit == kit
        assert len(bodies(kit.path) & before) == 1
        with pytest.raises(KitError, match="makes its own keys"):
            renew_kit(made.path, name)
        with pytest.raises(KitError, match=f"the kit is of another {kind}"):
            ask_to_join(kit.path, kind="site")
    assert open_consortium(made.path).sites == ()


# --- what a founder refuses -----------------------------------------------------------------


def resigned(place: Place, **changed: str) -> dict[str, Any]:
    """The site's request with other content, signed by the site's own identity key."""
    identity = read_identity(place.kit / "identity" / "identity.key")
    held = json.loads(place.asked.read_text()) | changed
    held.pop("schema")
    plain = SigningRequest(**held)
    signed = plain.model_copy(update={"signature": identity.sign(plain.said())})
    return {"schema": 1, **signed.model_dump()}


def csr_of(name: str, bits: int = 2048) -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def of_no_version(der: bytes) -> str:
    """The request as one of version 6, which there is not."""
    told = b64encode(der.replace(bytes.fromhex("020100"), bytes.fromhex("020105"), 1)).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{told}\n-----END CERTIFICATE REQUEST-----\n"


def test_a_request_that_is_not_a_sites_own_is_not_approved(place: Place) -> None:
    held = json.loads(place.asked.read_text())
    plain = SigningRequest(**{name: value for name, value in held.items() if name != "schema"})
    assert plain.model_copy(update={"kind": "lead"}).said() != plain.said()
    long_ago = (NOW - 31 * DAY).isoformat()
    der = x509.load_pem_x509_csr(held["csr"].encode()).public_bytes(serialization.Encoding.DER)
    unsigned = x509.load_der_x509_csr(der[:-1] + bytes([der[-1] ^ 1]))
    forged = unsigned.public_bytes(serialization.Encoding.PEM).decode()
    wrong: list[tuple[dict[str, Any], str]] = [
        (resigned(place, consortium="another"), "for another consortium"),
        (held | {"site": "south"}, "was changed"),
        (held | {"csr": csr_of("north")}, "was changed"),
        (held | {"identity": "11" * 32}, "was changed"),
        (held | {"made": NOW.isoformat()}, "was changed"),
        (held | {"signature": "00" * 64}, "was changed"),
        (resigned(place, csr=csr_of("south")), "was changed"),
        (resigned(place, csr=csr_of("north", 1024)), "was changed"),
        (resigned(place, csr=forged), "was changed"),
        (resigned(place, csr=held["csr"][:400]), "was changed"),
        (resigned(place, csr=of_no_version(der)), "was changed"),
        (resigned(place, made=long_ago), "has expired"),
        (resigned(place, made="2999-01-01T00:00:00+00:00"), "has expired"),
        (resigned(place, made=NOW.replace(tzinfo=None).isoformat()), "has expired"),
        (resigned(place, site="server"), "means something else"),
        (resigned(place, site="lead"), "the lead has that name"),
        (held | {"kind": "lead"}, "has another name"),
        (held | {"kind": "root"}, "not a request"),
        (resigned(place, kind="lead"), "the lead of this consortium has another name"),
        (resigned(place, kind="server"), "the server of this consortium has another name"),
        (resigned(place, kind="lead", site="lead"), "was changed"),  # the TLS key says north
        (resigned(place, kind="server", site="lead"), "has another name"),
        (resigned(place, site="../north"), "cannot have this name"),
        (resigned(place, site="North"), "another site has that name"),
        (held | {"schema": 2}, "newer confide"),
        (held | {"more": 1}, "not a request"),
        ({**held, "csr": 7}, "not a request"),
        (held | {"csr": "x" * 10_001}, "not a request"),
        (held | {"consortium": "\ud800"}, "not a request"),
        (json.loads(place.answer.read_text()), "not a request"),
    ]
    before = files(place.consortium.path)
    for content, said in wrong:
        place.asked.write_text(json.dumps(content))
        with pytest.raises(KitError, match=said):
            approve(place.consortium.path, place.asked, compared=True)
    for text in ("", "[]", "[" * 70_000, " " * 70_000, '{"schema": {}}'):
        place.asked.write_text(text)
        with pytest.raises(KitError, match="not a request"):
            approve(place.consortium.path, place.asked, compared=True)
    assert files(place.consortium.path) == before


def test_a_request_is_approved_once_and_another_key_needs_another_call(
    place: Place, tmp_path: Path
) -> None:
    before = place.answer.read_bytes()
    again = approve(place.consortium.path, place.asked)  # the same request, without a call
    assert again.file == place.answer and place.answer.read_bytes() == before
    thief = ask_to_join(tmp_path / "thief", site="north", consortium="trial")
    found = approve(place.consortium.path, thief.file)
    assert found.file is None and found.before == again.fingerprint != found.fingerprint
    assert place.answer.read_bytes() == before
    stranger = ask_to_join(tmp_path / "west", site="west", consortium="trial")
    assert approve(place.consortium.path, stranger.file).file is None
    assert open_consortium(place.consortium.path).sites == ("north",)
    assert approve(place.consortium.path, thief.file, compared=True).file == place.answer
    assert place.answer.read_bytes() != before


# --- what a site refuses --------------------------------------------------------------------


def by(place: Place, **changed: Any) -> str:
    """The founder's answer with other content, signed by the authority's own key."""
    held = json.loads(place.answer.read_text()) | changed
    held.pop("schema")
    plain = certificates.SignedAnswer(**held)
    key, _ = consortium.open_root(place.consortium.authority)
    signature = key.sign(plain.said(), certificates.PSS, hashes.SHA256()).hex()
    signed = plain.model_copy(update={"signature": signature})
    return json.dumps({"schema": 1, **signed.model_dump()})


def ended(place: Place, name: str, days: float, *, ago: int = 0) -> str:
    """A certificate of the key in the answer, in this name, for so many days from so long ago."""
    held = json.loads(place.answer.read_text())["certificate"]
    kit = dataclasses.replace(place.consortium.kit("server"), kind="site", name=name)
    public = x509.load_pem_x509_certificate(held.encode()).public_key()
    assert isinstance(public, rsa.RSAPublicKey)
    made = dataclasses.replace(place.consortium, days=days)
    root = consortium.open_root(place.consortium.authority)
    with pytest.MonkeyPatch.context() as patch:
        then = SimpleNamespace(now=lambda zone: datetime.datetime.now(zone) - ago * DAY)
        patch.setattr(consortium, "datetime", SimpleNamespace(
            datetime=then, timedelta=datetime.timedelta, UTC=datetime.UTC))  # fmt: skip
        return consortium.issue_certificate(made, kit, public=public, root=root).decode()


def test_an_answer_that_is_not_the_founders_own_is_not_accepted(
    place: Place, tmp_path: Path
) -> None:
    other = create_consortium("trial", sites=(), host="fl.example.org", out=tmp_path / "other")
    theirs = approve(other.path, place.asked, compared=True).file
    neighbour = ask_to_join(tmp_path / "south", site="south", consortium="trial")
    foreign = approve(place.consortium.path, neighbour.file, compared=True).file
    assert theirs is not None and foreign is not None
    held, south = json.loads(place.answer.read_text()), json.loads(foreign.read_text())
    certificate = {"certificate": south["certificate"]}
    wrong: list[tuple[str, str]] = [
        (foreign.read_text(), "for another site"),
        (by(place, consortium="another"), "for another consortium"),
        *((json.dumps(held | {name: value}), "was changed") for name, value in {
            "host": "fl.example.com", "port": 8003, "asked": "11" * 32, "identity": "11" * 32,
            "authority": json.loads(theirs.read_text())["authority"], "signature": "00" * 256,
            **certificate,
        }.items()),
        (by(place, **certificate), "was changed"),
        (by(place, certificate=ended(place, "south", 9)), "was changed"),
        (by(place, kind="lead"), "for another kind of place"),
        (json.dumps(held | {"kind": "server"}), "for another kind of place"),
        (by(place, certificate=ended(place, "north", -60 / 86400)), "not valid today"),
        (by(place, certificate=json.loads(theirs.read_text())["certificate"]), "was changed"),
        (by(place, identity=south["identity"]), "for another identity key"),
        (by(place, host="my_host"), "not the name of a host"),
        (json.dumps(held | {"port": 0}), "not an answer"),
        (json.dumps(held | {"port": True}), "not an answer"),
        (place.asked.read_text(), "not an answer"),
        ("{", "not an answer"),
    ]  # fmt: skip
    before = files(place.kit)
    for content, said in wrong:
        (tmp_path / "answer.json").write_text(content)
        with pytest.raises(KitError, match=said):
            accept(place.kit, tmp_path / "answer.json", compared=True)
    assert files(place.kit) == before
    other_key = place.kit / "request" / "client.key"
    shutil.copy(tmp_path / "south" / "request" / "client.key", other_key)
    with pytest.raises(KitError, match="for another key than this site's"):
        accept(place.kit, place.answer, compared=True)


def test_another_authority_never_gets_into_a_kit(place: Place, tmp_path: Path) -> None:
    """Not even with `compared`: a kit belongs to the consortium that it began with."""
    kit = accept(place.kit, place.answer, compared=True).kit
    assert kit is not None
    other = create_consortium("trial", sites=(), host="fl.example.org", out=tmp_path / "other")
    asked = ask_to_join(kit.path)
    theirs = approve(other.path, asked.file, compared=True).file
    before = files(kit.path)
    assert theirs is not None
    with pytest.raises(KitError, match="another authority"):
        accept(kit.path, theirs, compared=True)
    with pytest.raises(KitError, match="of another site"):
        ask_to_join(kit.path, site="south")
    assert files(kit.path) == before


@each("name", ["request/client.key", "identity/identity.key"])
def test_a_key_that_others_can_read_is_not_used(answered: Place, tmp_path: Path, name: str) -> None:
    place = copied(answered, tmp_path / "own")
    (place.kit / name).chmod(0o640)
    for go in (
        lambda: ask_to_join(place.kit, site="north", consortium="trial"),
        lambda: accept(place.kit, place.answer, compared=True),
    ):
        with pytest.raises(KeyFileError, match="others can read"):
            go()
    assert not (place.kit / "startup").exists()


# --- interrupted and run again --------------------------------------------------------------


class Killed(BaseException):
    """The end of a process."""


def killed_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """End the process when it writes or moves its file of this number, before it is there."""
    left = [number]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*given, **named)

        return called

    for name in ("write_atomically", "save_private", "private_folder", "make_identity",
                 "provision", "write_project"):  # fmt: skip
        patch.setattr(certificates, name, counted(getattr(certificates, name)))
    patch.setattr(Path, "replace", counted(Path.replace))


def test_each_of_the_three_can_be_interrupted_anywhere_and_run_again(
    answered: Place, tmp_path: Path
) -> None:
    kit, founder = tmp_path / "north", tmp_path / "trial"
    shutil.copytree(answered.consortium.path, founder)
    shutil.rmtree(founder / "answers")
    consortium.write_project(dataclasses.replace(open_consortium(founder), sites=()))
    answer = founder / "answers" / "north.json"
    for go, done in (
        (lambda: ask_to_join(kit, site="north", consortium="trial").file, kit / "request"),
        (lambda: approve(founder, kit / "request" / "request.json", compared=True), answer),
        (lambda: accept(kit, answer, compared=True).kit, kit / "local" / "confide.json"),
    ):
        for number in range(100):
            with pytest.MonkeyPatch.context() as patch:
                killed_at(patch, number)
                try:
                    go()
                except Killed:
                    continue
            break
        assert number > 1 and done.exists()
        go()  # and once more, when it is done
    assert open_consortium(founder).sites == ("north",)
    made = open_kit(kit, "site")
    shown = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    assert shown.public_key() == key.public_key()
    assert not (kit / "request").exists()


# --- the verbs ------------------------------------------------------------------------------


def call(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_the_verbs_say_what_to_do_next(in_tmp: Path) -> None:
    said = call("consortium", "init", "trial", "--host", "fl.example.org")
    assert "trials" not in said and open_consortium(in_tmp / "trial").sites == ()
    said = call("site", "request", "north", "--name", "north", "--consortium", "trial")
    own = grouped_fingerprint(read_identity(in_tmp / "north/identity/identity.key").fingerprint)
    assert own[:39] in said and "north/request/request.json" in said
    asked = "north/request/request.json"
    said = call("consortium", "approve", "trial", asked)
    assert own[:39] in said and "--compared" in said and not (in_tmp / "trial/answers").exists()
    authority = said.partition("authority")[2].split()[0]
    said = call("consortium", "approve", "trial", asked, "--compared")
    assert "trial/answers/north.json" in said
    said = call("site", "accept", "north", "trial/answers/north.json")
    assert authority in said and "Nothing is accepted yet" in said
    said = call("site", "accept", "north", "trial/answers/north.json", "--compared")
    assert f"{expires(open_kit(in_tmp / 'north')):%Y-%m-%d}" in said
    said = call("site", "request", "boss", "--as", "lead", "--consortium", "trial")
    assert "the lead" in said
    said = call("consortium", "approve", "trial", "boss/request/request.json")
    assert "Call the lead on a number" in said
    said = call("consortium", "init", "bare", "--host", "fl.example.org", "--own-keys")
    assert "consortium bare" in said and not (in_tmp / "bare/kits").exists()
    done = CliRunner().invoke(app, ["site", "request", "south"])
    assert done.exit_code != 0 and "--consortium" in done.output
    assert isinstance(done.exception, (SystemExit, ConfideError))
