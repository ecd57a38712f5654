"""A release: a copy of a model that needs no run and no key, by an explicit act of a site.

The model of a run knows its words by keyed digest only. A site that holds the key can recognise
the words of its own training text, and hand on a copy that needs no key. The copy tells which
words occur in that text; that is what the act is about. A model that reads the word pieces of a
public encoder has no word list: its copy needs the files of that encoder. Which of the two a copy
is, and what is in it, is the kind's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confide.errors import RunError
from confide.federation.inprocess import SiteSpec
from confide.kinds import KINDS
from confide.kinds.protocol import Kind
from confide.kinds.releases import Holders
from confide.methods import method_of
from confide.runs.athome import kept_at_home
from confide.runs.folder import RunFolder
from confide.runs.gathering import gather
from confide.settings import Settings
from confide.tasks import TASKS, TaskName


def release(run: Path, *, out: Path, site: str | None = None, key: Path | None = None) -> Path:
    """Write the model of a run to the folder `out`, so that it can be used without the run.

    A relation model is its weights, and names of relations and types. A tagger's words, and those
    of a bag model that reads words, are those of `site` (or of all), in clear: `key` is the sites'
    shared key file; by default the one that the run's settings name. Rows of words and characters
    that occur at no such site cannot be named; they are left out, and such words are read as
    unknown ones. A BART is written as transformers reads it; it may have learnt sentences by heart.
    Raises RunError, KeyFileError, DataError.
    """
    folder = RunFolder(run)
    settings = folder.settings()
    for kind in KINDS.values():
        if (out / kind.released_as).exists():
            where = str(out / kind.released_as)
            raise RunError("there is a release in this folder already", where=where)
    method = method_of(settings)
    form, weights = method(settings).model(*folder.trained(method, site))
    weights = kept_at_home(folder, site) or weights

    def find() -> Sequence[SiteSpec]:
        gathered = gather(settings, folder.sites, key_file=folder.key_file(settings))
        return [spec for spec in gathered.specs if site in (None, spec.name)]

    method.kind.release(form, weights, out, holders=Holders(find, key, _apart(settings)))
    return out


def _apart(settings: Settings) -> int:
    """How many sites annotate some of the types only, so far as the settings say.

    1 at least, where the method is for such sites.
    """
    known = sum(bool(table.knows) for table in settings.site)
    return max(known, int(method_of(settings).apart))


def _kind_of(folder: Path) -> Kind | None:
    """The kind of a release. A BART's folder has a file of the name of a tagger's, too."""
    kinds = reversed(KINDS.values())
    return next((kind for kind in kinds if (Path(folder) / kind.released_as).is_file()), None)


def release_task(folder: Path) -> TaskName | None:
    """The task of a release that annotates; None where this is no folder of one."""
    kind = _kind_of(folder)
    return kind.task if kind and TASKS[kind.task].learns else None


def release_tells(folder: Path) -> str:
    """What a release tells who has it."""
    kind = _kind_of(folder)
    return kind.release_tells if kind else ""


def released(folder: Path) -> Any:
    """The extractor of a release. Raises MessageError where the file is damaged.

    A model with a frozen encoder needs that encoder here too, and one that reads the pieces of an
    encoder the files of the one that it was made of.
    """
    kind = _kind_of(folder)
    assert kind is not None
    return kind.released(Path(folder) / kind.released_as)
