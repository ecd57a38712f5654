"""The run on NVIDIA FLARE: the only room that imports nvflare.

FLARE's own files that this room changes, builds on or trusts to refuse what a site must not run are
checked when the room is first imported, in every process: they are those that were tested.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from confide.errors import EngineError
from confide.files import file_text, odd_file

VERSION = "2.9.0"
_LISTED = file_text(Path(__file__).with_name("nvflare.sha256"))
FILES = {name: digest for digest, name in map(str.split, _LISTED.splitlines())}
"""Files of nvflare and their SHA-256, as `sha256sum` lists them: what starts its processes, the
commands that these take, what keeps foreign code and components out, the form of messages, TLS,
certificates, and kits."""


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
