"""The run on NVIDIA FLARE: the only room that imports nvflare.

FLARE's own files that this room changes, builds on or trusts to refuse what a site must not run are
checked when the room is first imported, in every process: they are those that were tested.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from confide.errors import EngineError
from confide.files import odd_file

VERSION = "2.9.0"
FILES = {
    "app_common/default_component_policy.py":
        "5510fe2df612be22f2283716724ba403a90a30be94906e0b6bb2325c519ac959",
    "app_common/widgets/component_path_authorizer.py":
        "6ef409a8c95d3935630a5262cbcbd15594cca04c25eb8ca54ef91669ba37155e",
    "fuel/f3/drivers/net_utils.py":
        "ca1df4e18e9f2982a28ba026fe38a350f4681e26d1b13bcc45253078f3609b68",
    "fuel/f3/mpm.py":
        "00d6a0381ab6e3fa6bd16d6f2169db9b836931d75dcb7896091b86bb91780a61",
    "fuel/utils/fobs/fobs.py":
        "30203328d98747532f9ba8c5b17147d70e059010dff1015cfad72aed7af0301f",
    "lighter/impl/cert.py":
        "1a09a69d3204d281c7528fa688727745dc6e88ef6cd68e31cedd5895bfc55f27",
    "lighter/impl/static_file.py":
        "742c4d8b71b0856c3cb0e0a245a2c63eb9eeb37c703f21b7b2c9b34a23e1fa89",
    "lighter/templates/master_template.yml":
        "a140b171062eec08d129de5bd4024c7eb51bf0aa924eda288463abefe2b06d1c",
    "lighter/utils.py":
        "0f5c730487db86482a72005a3d1b30d18aab16efd4397cd2511a24994c94586f",
    "private/fed/app/client/client_train.py":
        "c7dd013e70e5065e098591e706790dbd4cb7cb6ae7321781112e3d801a414026",
    "private/fed/app/client/worker_process.py":
        "2555f5b3c7228da9d3d30291e4f490bc2bd2003afe7baca8fc377ebcd1a8ef35",
    "private/fed/app/default_app_validator.py":
        "62b1c6b3313fd71b7204d83b2786751b49b0cddc7ad628afc2e5ba9ecbeacb3a",
    "private/fed/app/server/runner_process.py":
        "0e4d2c92ec6cefd78c4ec9b435feaabceb407179a2fa43f6df054287c4080fa3",
    "private/fed/app/server/server_train.py":
        "03b6904b7ea246d05aff5616749fecc62418f0eb613a1413833456081a057bf6",
    "private/fed/client/admin_commands.py":
        "7862ed0840d27e48e274de20d3f5e66b3dc3ca62caecd2b2d6fa5f5ab7866c4c",
    "private/fed/client/client_req_processors.py":
        "c5454a020a838fc701beaf5b43cfc698a4b6ac4f6c1a72313990cffb31d53ebd",
    "private/fed/server/job_meta_validator.py":
        "f049d85b84aad445f1231290aa59e793f605b00ace1e5c0ed5c4394eff54a5ae",
    "private/fed/server/server_engine.py":
        "43fd2a979c6740c3928f2a666146e9698afdcd6bec32f008f06807c5b3c9a79d",
    "private/fed/utils/site_config.py":
        "de0c48ad761c99b071e5be308cf116a232ced7a06f58d65f22d3afb81719990e",
}  # fmt: skip
"""Files of nvflare and their SHA-256: what starts its processes, the commands that these take, what
keeps foreign code and components out, the form of messages, TLS, certificates, and kits."""


def check_engine(folder: Path) -> None:
    """Raise EngineError if one of `FILES` in nvflare's folder is not the one that was tested."""
    odd = odd_file(folder, FILES)
    if odd is not None:
        raise EngineError(
            "NVIDIA FLARE is not used: a file of it is not the one that was tested",
            expected=f"nvflare {VERSION}, SHA-256 {FILES[odd]}",
            where=str(folder / odd),
            fix=f"install it again: pip install --force-reinstall --no-deps nvflare=={VERSION}",
        )


_SPEC = find_spec("nvflare")
if _SPEC is not None and _SPEC.origin is not None:  # or whoever imports it says that it is missing
    check_engine(Path(_SPEC.origin).parent)
