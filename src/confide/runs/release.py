"""A release: a copy of a model that needs no run and no key, made by an explicit act of a site.

A run's model knows its words by keyed digest only. A site that holds the key can recognise the
words of its own training text and pass on a copy that needs no key. That copy reveals which words
occur in the text, which is why it takes an explicit act. A model that reads the word pieces of a
public encoder has no word list; its copy needs the encoder's files instead. The kind decides which
of the two a copy is and what is in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from confide.errors import RunError, SettingsError
from confide.federation.files import write_of_run
from confide.federation.inprocess import SiteSpec
from confide.kinds import KINDS
from confide.kinds.protocol import Kind
from confide.kinds.releases import Holders
from confide.kinds.trained import Trained
from confide.methods import method_of
from confide.runs.athome import kept_at_home
from confide.runs.card import Copied, write_card
from confide.runs.folder import RunFolder
from confide.runs.gathering import gather
from confide.scoring.calibration import AS_IS, COLDEST, HOTTEST, MOST_OFFSET, Calibrator
from confide.settings import Settings, common_splitting
from confide.tasks import TaskName
from confide.text.segment import Splitting
from confide.userfiles import MOST_JSON, json_of, text_of

CALIBRATION = "calibration.json"
"""What calibrates a release's confidences."""
READING = "reading.json"
"""How a release cuts text into sentences and tokens, where that is not the plain way."""

_SPLITTING = TypeAdapter(Splitting)


def release(run: Path, *, out: Path, site: str | None = None, key: Path | None = None) -> Path:
    """Write the model of a run to the folder `out`, so that it can be used without the run.

    A relation model consists of its weights and the names of relations and types. A tagger, or a
    bag model that reads words, also gets the words of `site` (or of all sites) in the clear; `key`
    is the sites' shared key file, by default the one that the run's settings name. Words and
    characters that occur at no such site cannot be named: their rows are left out, and the copy
    reads them as unknown. Beside the model lie its card (`confide.runs.card`) and, where that is
    not the plain way, how the settings cut text: the copy cuts it into sentences and tokens as the
    run does.

    Raises RunError, KeyFileError, DataError.
    """
    folder = RunFolder(run)
    settings = folder.settings()
    for kind in KINDS.values():
        if (out / kind.released_as).exists():
            where = str(out / kind.released_as)
            raise RunError(
                "there is already a release in this folder",
                where=where,
                fix="choose another folder with --out",
            )
    method = method_of(settings)
    form, weights = method(settings).model(*folder.trained(method, site))
    kept = kept_at_home(folder, site)
    weights = weights if kept is None else kept.weights
    calibrator = folder.calibrator(site) if kept is None else kept.calibrator

    def find() -> Sequence[SiteSpec]:
        gathered = gather(settings, folder.sites, key_file=folder.key_file(settings))
        return [spec for spec in gathered.specs if site in (None, spec.name)]

    own = next((table for table in settings.site if table.name == site), None)
    splitting = common_splitting(settings, settings.split or own)
    tells = method.kind.release_tells
    told = Copied(run, site, tells, at_home=kept is not None, calibrator=calibrator)
    beside, fresh = [out / CALIBRATION, out / READING], not out.exists()
    try:  # the model comes last: with it, and not before, this is a release
        write_of_run(out / CALIBRATION, json.dumps(calibrator._asdict()).encode())
        if splitting != Splitting():
            write_of_run(out / READING, json.dumps(asdict(splitting)).encode())
        beside.append(write_card(out, told))
        method.kind.release(form, weights, out, holders=Holders(find, key, _apart(settings)))
    except BaseException:
        for path in beside:
            path.unlink(missing_ok=True)
        if fresh:
            with suppress(OSError):
                out.rmdir()
        raise
    return out


def _apart(settings: Settings) -> int:
    """How many sites annotate only some of the types, according to the settings.

    At least 1 if the method is for such sites.
    """
    known = sum(bool(table.knows) for table in settings.site)
    return max(known, int(method_of(settings).apart))


def _kind_of(folder: Path) -> Kind | None:
    """The kind of a release."""
    kinds = KINDS.values()
    return next((kind for kind in kinds if (Path(folder) / kind.released_as).is_file()), None)


def release_task(folder: Path) -> TaskName | None:
    """The task of a release; None if the folder holds none."""
    kind = _kind_of(folder)
    return kind.task if kind else None


def release_tells(folder: Path) -> str:
    """What a release reveals to whoever has it."""
    kind = _kind_of(folder)
    return kind.release_tells if kind else ""


def released_calibrator(folder: Path) -> Calibrator:
    """What calibrates a release's confidences; nothing if it says nothing. Raises RunError."""
    file = Path(folder) / CALIBRATION
    if not file.is_file():
        return AS_IS
    try:
        found = json_of(text_of(file, MOST_JSON))
        finds = int(found.get("finds", -1))
        made = Calibrator(float(found["temperature"]), float(found["offset"]), finds)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        made = Calibrator(math.nan)
    if not made.is_sound:
        raise RunError(
            "the calibration of this release cannot be read",
            where=str(file),
            expected=f'{{"temperature": {COLDEST:g} to {HOTTEST:g}, "offset": -{MOST_OFFSET:g} to'
            f" {MOST_OFFSET:g}}}",
            fix="delete the file to have the model's own confidences",
        )
    return made


def released_splitting(folder: Path) -> Splitting:
    """How a release cuts text into sentences; as text tells if it says nothing. Raises RunError."""
    file = Path(folder) / READING
    if not file.is_file():
        return Splitting()
    try:
        return _SPLITTING.validate_json(text_of(file, MOST_JSON))
    except (OSError, ValueError, SettingsError):
        raise RunError(
            "how this release cuts text into sentences cannot be read",
            where=str(file),
            expected='{"language": "es", "sentences": "rules", "abbreviations": ["Urb."]}',
            fix="delete the file to let the text tell its language",
        ) from None


def released(folder: Path) -> Trained:
    """The extractor of a release. Raises MessageError if the file is damaged.

    A model with a frozen encoder needs that encoder here too; one that reads an encoder's pieces
    needs the files of the encoder that it was made from.
    """
    kind = _kind_of(folder)
    assert kind is not None
    return kind.released(Path(folder) / kind.released_as)
