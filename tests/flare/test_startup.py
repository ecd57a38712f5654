"""Startup kits: what is made, what is refused, who may read it, and what it allows."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib
import json
import logging.config
import shutil
import stat
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from nvflare.fuel.utils.argument_utils import parse_vars

import confide.flare.nvidia
from cases import each
from confide.cli import sites
from confide.errors import EngineError, KitError
from confide.flare import kit as naming
from confide.flare import kit as policies
from confide.flare import kit as startup
from confide.flare.kit import Consortium, Kit, adopt_kit, expires, open_consortium, open_kit
from confide.flare.nvidia import consortium, service
from confide.flare.nvidia.consortium import add_site, create_consortium, renew_kit
from confide.flare.peers import open_signer

SITES = ("north", "south")


@pytest.fixture(scope="session")
def founded(tmp_path_factory) -> Consortium:
    """A consortium that no test changes."""
    out = tmp_path_factory.mktemp("founded") / "trial"
    return create_consortium("trial", sites=SITES, host="fl.example.org", port=8443, out=out)


@pytest.fixture
def copied(founded, tmp_path) -> Consortium:
    """A consortium of the test's own."""
    return open_consortium(Path(shutil.copytree(founded.path, tmp_path / "trial")))


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- what is made ---------------------------------------------------------------------------


def test_a_kit_for_each(founded):
    made = founded.kits()
    assert [(kit.kind, kit.name) for kit in made] == [
        ("server", "server"),
        ("site", "north"),
        ("site", "south"),
        ("lead", "lead"),
    ]
    for kit in made:
        assert (kit.consortium, kit.host, kit.port) == ("trial", "fl.example.org", 8443)
        assert kit.identity == "fl.example.org"
        assert kit == open_kit(kit.path)
    assert [kit.user for kit in made] == ["", "", "", "lead@confide.lead"]


def test_the_project_file_says_who_takes_part(founded):
    text = (founded.path / "consortium.toml").read_text()
    assert "authority` beside this file is secret" in text
    held = tomllib.loads(text)
    assert held["schema"] == 1
    assert (held["name"], held["sites"], held["lead"]) == ("trial", ["north", "south"], "lead")
    assert (held["host"], held["port"], held["days"]) == ("fl.example.org", 8443, 365)


def test_one_port_for_sites_and_lead(founded):
    startup = {kit.kind: kit.path / "startup" for kit in founded.kits()}
    server = json.loads((startup["server"] / "fed_server.json").read_text())["servers"][0]
    site = json.loads((startup["site"] / "fed_client.json").read_text())
    lead = json.loads((startup["lead"] / "fed_admin.json").read_text())["admin"]
    assert server["admin_port"] == 8443
    assert server["service"]["target"] == "fl.example.org:8443"
    assert site["servers"][0]["service"]["target"] == "fl.example.org:8443"
    assert (lead["host"], lead["port"]) == ("fl.example.org", 8443)
    security = {server["connection_security"], site["client"]["connection_security"]}
    assert security | {lead["connection_security"]} == {"mtls"}
    assert site["require_signed_jobs"] is True


def test_only_the_owner_can_read(founded):
    for path in (founded.path, *founded.path.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_private_key_lies_in_its_kit_only(founded):
    everything = {path: path.read_text() for path in founded.path.rglob("*") if path.is_file()}
    keys = [path for path in everything if path.suffix == ".key"]
    assert len(keys) == 5
    for key in keys:
        body = everything[key].splitlines()[5]
        assert [path for path, text in everything.items() if body in text] == [key]


def test_the_engines_own_scripts_are_left_out(founded):
    names = {path.name for path in founded.path.rglob("*") if path.is_file()}
    assert not {name for name in names if name.endswith((".sh", ".ipynb", ".default", ".sample"))}


def test_certificates_name_the_server_and_end_in_time(founded):
    from cryptography import x509

    server = founded.kit("server")
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    year = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
    for kit in founded.kits():
        assert abs(expires(kit) - year) < datetime.timedelta(hours=1)
    root = x509.load_pem_x509_certificate((founded.authority / "root.crt").read_bytes())
    assert root.not_valid_after_utc - root.not_valid_before_utc == datetime.timedelta(days=3650)
    root.verify_directly_issued_by(root)
    certificate.verify_directly_issued_by(root)


def test_an_address_and_days_are_taken(tmp_path):
    from cryptography import x509

    made = create_consortium("t", sites=["a"], host="127.0.0.1", out=tmp_path / "t", days=400.5)
    certificate = x509.load_pem_x509_certificate(made.kit("server").certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)
    assert expires(made.kit("a")) > later


# --- what is refused ------------------------------------------------------------------------


@each(
    ("changed", "said"),
    [
        ({"sites": ["a", "A"]}, "another site has that name"),
        ({"sites": ["north.ward"]}, "a site cannot have this name"),
        ({"sites": ["../north"]}, "a site cannot have this name"),
        ({"sites": ["-x"]}, "a site cannot have this name"),
        ({"sites": ["x" * 49]}, "a site cannot have this name"),
        ({"sites": ["2026"]}, "read this name as a number"),
        ({"sites": ["1e5"]}, "read this name as a number"),
        ({"sites": ["1_2"]}, "read this name as a number"),
        ({"sites": ["N"]}, "as yes or no"),
        ({"sites": ["server"]}, "means something else here"),
        ({"sites": ["All"]}, "means something else here"),
        ({"sites": ["lead"]}, "the lead has that name"),
        ({"sites": ["localhost"]}, "is the server's host"),
        ({"lead": "server"}, "means something else here"),
        ({"lead": "a b"}, "a lead cannot have this name"),
        ({"name": "my trial"}, "a consortium cannot have this name"),
        ({"host": "localhost:8002"}, "not the name of a host"),
        ({"host": "https://fl.example.org"}, "not the name of a host"),
        ({"host": "my_host"}, "not the name of a host"),
        ({"host": "::1"}, "IPv6"),
        ({"port": 0}, "not a port"),
        ({"port": 65536}, "not a port"),
        ({"days": 0}, "valid for some time"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changed, said):
    plain = {"name": "trial", "sites": ["north"], "host": "localhost", **changed}
    with pytest.raises(KitError, match=said):
        create_consortium(plain.pop("name"), out=tmp_path / "new", **plain)
    assert list(tmp_path.iterdir()) == []


NAMES = st.from_regex(naming._NAME, fullmatch=True)


@given(NAMES | st.sampled_from(["y", "No", "t", "0", "inf", "nan", "1_0", "2026-11", "007", "F"]))
def test_the_engine_reads_a_name_as_it_is_written(name):
    read = parse_vars([f"uid={name}", f"org={naming.organisation(name)}"])
    assert read["org"] == naming.organisation(name)
    try:
        naming.check_site(name, host="fl.example.org")
    except KitError:
        return
    assert read["uid"] == name


def test_nothing_is_written_over(copied):
    before = _digests(copied.path)
    with pytest.raises(KitError, match="never overwritten"):
        create_consortium("other", sites=["west"], host="localhost", out=copied.path)
    assert _digests(copied.path) == before


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KitError("the kits could not be provisioned")

    monkeypatch.setattr(consortium.Provisioner, "provision", broken)
    with pytest.raises(KitError, match="provisioned"):
        create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "trial")
    assert list(tmp_path.iterdir()) == []


def test_what_the_engine_says_of_a_failure_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(consortium.WorkspaceBuilder, "finalize", lambda *_: 1 / 0)
    with pytest.raises(KitError, match="division by zero"):
        create_consortium("trial", sites=["north"], host="localhost", out=tmp_path / "trial")
    assert list(tmp_path.iterdir()) == []
    capsys.readouterr()


def test_without_the_engine_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delattr(confide.flare.nvidia, "consortium")
    monkeypatch.setitem(sys.modules, "nvflare.lighter.constants", None)
    monkeypatch.delitem(sys.modules, "confide.flare.nvidia.consortium")
    monkeypatch.chdir(tmp_path)
    north = sites.KitOptions(sites=["north"])
    with pytest.raises(EngineError, match=r"pip install 'confide\[flare\]'"):
        sites.consortium_init("trial", kits=north, host="localhost")
    assert not list(tmp_path.iterdir())


# --- a further site -------------------------------------------------------------------------


def test_a_site_is_added_and_the_others_keep_theirs(copied):
    before = _digests(copied.path)
    kit = add_site(copied.path, "west")
    assert (kit.kind, kit.name, kit.path) == ("site", "west", (copied.path / "kits/west").resolve())
    after = _digests(copied.path)
    new = {name for name in after if name.startswith("kits/west/")}
    assert {name for name in before if after[name] != before[name]} == {"consortium.toml"}
    assert set(after) == set(before) | new
    assert open_consortium(copied.path).sites == ("north", "south", "west")
    assert kit.root.read_bytes() == copied.kit("north").root.read_bytes()
    assert {path.name for path in copied.path.iterdir()} == {"authority", "consortium.toml", "kits"}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in kit.path.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_a_site_is_added_where_the_other_kits_have_been_given_away(copied):
    shutil.rmtree(copied.path / "kits")
    assert add_site(copied.path, "west").name == "west"


@each("name", ["north", "SOUTH", "server", "lead", "a.b"])
def test_a_site_of_a_taken_name_is_not_added(copied, name):
    before = _digests(copied.path)
    with pytest.raises(KitError):
        add_site(copied.path, name)
    assert _digests(copied.path) == before


@pytest.mark.parametrize("part", ["root.key", "root.crt"])
def test_without_the_authority_no_site_is_added(copied, part):
    (copied.authority / part).write_text("torn")
    before = _digests(copied.path)
    with pytest.raises(KitError, match="authority is missing or damaged"):
        add_site(copied.path, "west")
    assert _digests(copied.path) == before


def test_another_authority_does_not_fit(copied, tmp_path):
    consortium.create_root_key(tmp_path / "other", "trial", days=1)
    shutil.copy(tmp_path / "other/root.key", copied.authority / "root.key")
    with pytest.raises(KitError, match="do not match"):
        add_site(copied.path, "west")


@pytest.mark.parametrize("name", ["server", "north", "lead"])
def test_a_kit_is_renewed_with_a_new_key(copied, name):
    old = copied.kit(name)
    key, root = old.key.read_bytes(), old.root.read_bytes()
    with pytest.raises(KitError, match="there is already a kit of that name"):
        renew_kit(copied.path, name)
    shutil.rmtree(old.path)
    before = _digests(copied.path)
    new = renew_kit(copied.path, name)
    assert new == old
    assert new.key.read_bytes() != key and new.root.read_bytes() == root
    after = _digests(copied.path)
    assert {file: digest for file, digest in after.items() if file in before} == before
    assert all(file.startswith(f"kits/{name}/") for file in set(after) - set(before))


def test_nobody_unknown_is_renewed(copied):
    with pytest.raises(KitError, match="no participant of that name"):
        renew_kit(copied.path, "west")


# --- opening --------------------------------------------------------------------------------


def test_a_kit_of_another_kind_is_refused_and_the_right_verb_named(founded):
    with pytest.raises(KitError) as caught:
        open_kit(founded.kit("server").path, "site")
    assert "kit of the server" in caught.value.what
    assert "confide server start" in str(caught.value.fix)
    with pytest.raises(KitError, match="site north") as caught:
        open_kit(founded.kit("north").path, "lead")
    assert "confide site start" in str(caught.value.fix)
    with pytest.raises(KitError) as caught:
        open_kit(founded.kit("lead").path, "server")
    assert "confide coordinate" in str(caught.value.fix)


def test_what_is_no_kit_is_refused(founded, copied, tmp_path):
    with pytest.raises(KitError, match="no such folder"):
        open_kit(tmp_path / "nowhere")
    with pytest.raises(KitError, match="no startup kit"):
        open_kit(founded.path)
    kit = copied.kit("north")
    file = kit.path / "local" / "confide.json"
    held = json.loads(file.read_text())
    for changed, said in (
        (held | {"schema": 2}, "newer version of confide"),
        ({**held, "schema": "one"}, "its schema"),
        ({name: held[name] for name in held if name != "port"}, "lacks 'port'"),
        (held | {"kind": "relay"}, "kind is damaged"),
    ):
        file.write_text(json.dumps(changed))
        with pytest.raises(KitError, match=said):
            open_kit(kit.path)
    file.write_text("{")
    with pytest.raises(KitError, match="damaged"):
        open_kit(kit.path)
    file.write_text(json.dumps(held))
    kit.key.unlink()
    with pytest.raises(KitError, match=r"client\.key"):
        open_kit(kit.path)


def test_flares_description_of_a_kit_is_enough_to_adopt_it(copied):
    """That of others' kits too: test_real_plain.py. What it says is checked like our own."""
    for kit in copied.kits():
        described = kit.path / "local" / "confide.json"
        described.unlink()
        assert adopt_kit(kit.path, lead="lead@confide.lead") == dataclasses.replace(
            kit, user="lead@confide.lead"
        )
        described.unlink()
        (file,) = kit.path.glob("startup/fed_*.json")
        text = file.read_text()
        for bad in ("[]", "{}", text.replace("8443", "many"), text.replace('"trial"', '"a\\nb"')):
            file.write_text(bad)
            with pytest.raises(KitError, match=r"cannot be read|is damaged"):
                adopt_kit(kit.path, lead="lead@confide.lead")
        file.write_text(text)
        for lead in ("lead", "lead@", "@confide.lead", "a b@confide.lead", "lead@a b"):
            with pytest.raises(KitError, match=r"cannot have this name|not the name of a host"):
                adopt_kit(kit.path, lead=lead)
        assert not described.exists()
    lead = open_signer(adopt_kit(copied.path / "kits/lead", lead="lead@confide.lead"), make=True)
    for domain in ("confide.lead", "else.org"):
        site = adopt_kit(copied.path / "kits/north", lead=f"lead@{domain}")
        assert open_signer(site, make=True).vouched(lead.card) is (domain == "confide.lead")
        (site.path / "local" / "confide.json").unlink()


def test_what_is_no_consortium_is_refused(copied, tmp_path):
    with pytest.raises(KitError, match="not a consortium's folder"):
        open_consortium(tmp_path)
    file = copied.path / "consortium.toml"
    text = file.read_text()
    for changed, said in (
        (text.replace("schema = 1", "schema = 2"), "newer version of confide"),
        (text.replace('host = "fl.example.org"', ""), "lacks 'host'"),
        ("name =", "not a project file"),
    ):
        file.write_text(changed)
        with pytest.raises(KitError, match=said):
            open_consortium(copied.path)


def test_a_certificate_that_cannot_be_read(copied):
    kit = copied.kit("north")
    kit.certificate.write_text("torn")
    with pytest.raises(KitError, match="certificate cannot be read"):
        expires(kit)


# --- policies -------------------------------------------------------------------------------

OWN = {"get_job_meta", "app_command", "abort_job", "download_job", "download_job_components"}
ANY = {"submit_job", "check_status", "list_jobs"}
RIGHTS = {
    "submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands",
    "byoc", "server-predeployed-flwr",
}  # fmt: skip
"""The rights that FLARE gives to a role; each is a group of commands or one command."""


def _allowed(kit: Kit, role: str, *, submitter: str, org: str = "trial") -> set[str]:
    """The commands that FLARE's own authorizer lets a person do with this kit's policy."""
    from nvflare.apis.fl_constant import AdminCommandNames
    from nvflare.fuel.sec.authz import AuthzContext, Person
    from nvflare.security.security import FLAuthorizer

    policy = json.loads((kit.path / "local" / "authorization.json").read_text())
    authorizer = FLAuthorizer("trial", policy)
    commands = {value for name, value in vars(AdminCommandNames).items() if name.isupper()}
    commands |= {"byoc", "server-predeployed-flwr", *RIGHTS, "anything"}
    person = Person("lead@confide.lead", org, role)
    other = Person(submitter, org, "lead")
    return {
        command
        for command in commands
        if authorizer.authorize(AuthzContext(command, user=person, submitter=other))[0]
    }


def test_the_lead_may_handle_its_own_runs_and_nothing_else(founded):
    server, site = founded.kit("server"), founded.kit("north")
    assert _allowed(server, "lead", submitter="lead@confide.lead") == ANY | OWN
    assert _allowed(server, "lead", submitter="someone@confide.lead") == ANY
    assert _allowed(site, "lead", submitter="lead@confide.lead") == {"submit_job"}
    assert _allowed(server, "lead", submitter="x@y.zz", org="another") == set()


@each("role", ["project_admin", "org_admin", "member", "anyone"])
def test_no_other_role_may_do_anything(founded, role):
    for kit in (founded.kit("server"), founded.kit("north")):
        assert _allowed(kit, role, submitter="lead@confide.lead") == set()


def test_every_right_is_named_and_none_is_any(founded):
    for name in ("server", "north"):
        file = founded.kit(name).path / "local" / "authorization.json"
        permissions = json.loads(file.read_text())["permissions"]
        assert set(permissions) == {"project_admin", "org_admin", "lead", "member"}
        for role, rights in permissions.items():
            assert set(RIGHTS) <= set(rights)
            assert rights["byoc"] == rights["shell_commands"] == rights["operate"] == "none"
            assert "any" not in rights.values(), role


def test_only_our_two_classes_can_be_built(founded):
    from nvflare.apis.fl_exception import UnsafeComponentError
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

    for name in ("server", "north"):
        held = json.loads((founded.kit(name).path / "local" / "resources.json").read_text())
        assert held["class_list_enforcement_mode"] == "enforce"
        assert tuple(held["class_allow_list"]) == policies.CLASSES

    class Fixed(ComponentPathAuthorizer):
        def _get_policy(self, **_):
            return *self._get_policy_from_resources(held)[:2], "the kit"

    for path in policies.CLASSES:
        Fixed().authorize_component_config({"path": path})
    for path in ("nvflare.app_common.np.np_trainer.NPTrainer", "subprocess.Popen", "os.system"):
        with pytest.raises(UnsafeComponentError, match="not in allow_list"):
            Fixed().authorize_component_config({"path": path})


def _paths(held: object) -> set[str]:
    if isinstance(held, dict):
        found = {held["path"]} if isinstance(held.get("path"), str) else set()
        return found.union(*(_paths(value) for value in held.values()))
    return set().union(*(_paths(value) for value in held)) if isinstance(held, list) else set()


@each("name", ["server", "north"])
def test_a_kit_runs_with_parts_that_exist_and_no_log_streaming(founded, name):
    local = founded.kit(name).path / "local"
    text = "".join(path.read_text() for path in local.glob("*resources.json"))
    for word in ("log_streamer", "log_receiver", "gpu", tempfile.gettempdir(), "snapshot"):
        assert word not in text.lower()
    assert json.loads((local / "resources.json").read_text())["allow_log_streaming"] is False
    paths = set().union(
        *(_paths(json.loads(path.read_text())) for path in local.glob("*resources.json"))
    )
    assert len(paths) >= 4
    for path in (*paths, *policies.CLASSES):
        module, _, kind = path.rpartition(".")
        assert isinstance(getattr(importlib.import_module(module), kind), type)


def test_the_server_is_short_of_patience_and_stores_at_home(founded):
    held = json.loads((founded.kit("server").path / "local" / "resources.json").read_text())
    parts = {part["id"]: part["args"] for part in held["components"]}
    assert parts["job_scheduler"]["max_jobs"] == 1
    assert held["servers"][0]["heart_beat_timeout"] == policies.HEARTBEAT_TIMEOUT <= 30
    assert held["servers"][0]["admin_timeout"] == policies.MESSAGE_TIMEOUT
    assert parts["job_manager"]["uri_root"] == str(policies.STORE / "runs")
    assert held["class_allow_list"] == list(policies.CLASSES)
    assert policies.HEARTBEAT_TIMEOUT >= 2 * (policies.HEARTBEAT_EVERY + 5)


def test_a_site_tells_the_server_nothing_of_its_settings(founded):
    from nvflare.private.fed.utils.site_config import project_site_config

    held = json.loads((founded.kit("north").path / "local" / "resources.json").read_text())
    assert held["client"]["site_config"] == {}
    assert set(project_site_config(held)) == {"allow_log_streaming"}  # what it would tell


def test_local_processes_speak_tls_too(founded):
    for name in ("server", "north"):
        held = json.loads((founded.kit(name).path / "local" / "comm_config.json").read_text())
        assert held["internal"]["resources"]["connection_security"] == "mtls"
        assert held["allow_adhoc_conns"] is False


# --- what is logged -------------------------------------------------------------------------


def test_the_log_goes_to_one_file_through_our_formatter(founded, tmp_path):
    file = founded.kit("north").path / "local" / "log_config.json"
    held = json.loads(file.read_text())
    assert [handler["class"] for handler in held["handlers"].values()] == [
        "logging.handlers.RotatingFileHandler"
    ]
    held["handlers"]["file"]["filename"] = str(tmp_path / "log.txt")
    held["loggers"] = {"kit.test": {"level": "INFO", "handlers": ["file"], "propagate": False}}
    logging.config.dictConfig(held)
    logger = logging.getLogger("kit.test")
    try:
        raise ValueError("Mr Smith has pneumonia")
    except ValueError:
        logger.exception("Can't encode %s", b"Mr Smith")
    logger.error("bad reply {'text': 'Mr Smith'}")
    logger.error('Traceback:\r\n  File "a.py", line 3, in f\nValueError: Mr Smith')
    logger.info("got task assignment: name=fit, id=7")
    for handler in logger.handlers:
        handler.close()
    text = (tmp_path / "log.txt").read_text()
    assert "Smith" not in text
    assert "ValueError" in text and "test_startup.py:" in text and 'File "a.py"' in text
    assert "INFO kit.test: got task assignment: name=fit, id=7" in text
    assert len(text.splitlines()) == 4


def test_a_long_message_is_cut():
    assert len(service.without_content("x" * 10_000)) < 410


def test_an_uncaught_exception_is_told_without_its_message(capsys, monkeypatch):
    import threading

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    service.hide_error_messages()
    try:
        raise ValueError("Mr Smith")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    thread = threading.Thread(target=lambda: [][0])
    thread.start()
    thread.join()
    said = capsys.readouterr().err
    assert "Smith" not in said and "list index" not in said
    assert "uncaught: ValueError" in said and "uncaught in a thread: IndexError" in said


def test_a_process_of_a_run_takes_no_command_that_looks_into_it():
    import subprocess

    code = (
        "from confide.flare.nvidia import service; service.seal_run()\n"
        "from nvflare.private.fed.client.admin_commands import AdminCommands\n"
        "print(sorted(c.get_command_name() for c in AdminCommands.commands))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['abort', 'abort_task', 'check_status', 'shutdown']"


# --- the verbs ------------------------------------------------------------------------------


def test_the_verbs_say_what_goes_to_whom(in_tmp):
    runner = CliRunner()
    given = ["init", "trial", "--site", "north", "--site", "south", "--host", "fl.example.org"]
    said = runner.invoke(sites.consortium, given, catch_exceptions=False)
    assert said.exit_code == 0
    flat = " ".join(said.output.split())
    for word in ("site north", "site south", "the lead", "TCP port 8002", "is secret", "until 20"):
        assert word in flat
    said = runner.invoke(sites.consortium, ["add", "trial", "--site", "west"])
    assert said.exit_code == 0 and "site west" in said.output
    assert open_consortium(in_tmp / "trial").sites == ("north", "south", "west")
    shutil.rmtree(in_tmp / "trial" / "kits" / "west")
    said = runner.invoke(sites.consortium, ["renew", "trial", "west"])
    assert said.exit_code == 0 and "local/site.toml" in said.output


def test_the_verbs_need_a_site_and_a_host(in_tmp):
    assert CliRunner().invoke(sites.consortium, ["init", "trial"]).exit_code == 2
    assert list(in_tmp.iterdir()) == []


def test_kits_module_is_light():
    """`confide --help` must not pay for the engine."""
    import subprocess

    code = "import sys; from confide.flare import kit;print('nvflare' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert startup.SCHEMA == 1
