"""Encrypted shared keys at real sites: the same numbers, and a plain word where one stays shut."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="needs NVIDIA FLARE: pip install 'confide[flare]'")

from confide.errors import EngineError
from confide.federation.keys import VARIABLE, protect_key
from confide.jobs.predict import predict
from confide.runs.run import run
from contract.corpus import tiny
from flare.real import Real, running
from flare.test_real_runs import same

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # those of NVIDIA FLARE are not ours
]

SECRET = "five words that nobody joins"


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The file with the passphrase, in the environment of all that this module starts."""
    path = tmp_path_factory.mktemp("secret") / "passphrase"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    os.environ[VARIABLE] = str(path)
    yield path
    del os.environ[VARIABLE]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, secret: Path) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("real")
    settings = tiny(folder, "rounds=6", sites=2)
    protect_key(Path(str(settings.key)))
    with running(folder, settings) as consortium:
        yield consortium


def test_a_run_with_encrypted_keys_gives_the_numbers_of_one_machine(real: Real) -> None:
    run(real.settings, out=real.folder / "whole")
    done = real.run("real")
    same(real.folder / "whole", done.folder)
    own = real.run_of("site-1", "real")
    text = real.settings.site[0].test[0]
    assert predict(own, [text], site="site-1")
    held = [path for path in real.folder.rglob("*") if path.is_file()]
    assert not [path for path in held if SECRET.encode() in path.read_bytes()]


def test_a_passphrase_that_is_gone_is_named_to_the_lead_without_its_place(
    real: Real, secret: Path
) -> None:
    secret.rename(secret.with_name("away"))
    try:
        with pytest.raises(EngineError, match=r"site-2.*its passphrase is wrong or missing"):
            real.run("locked")
    finally:
        secret.with_name("away").rename(secret)
