"""How a site's text is cut into sentences and tokens, from its own table and that of all sites."""

from __future__ import annotations

from confide.settings.base import Table
from confide.settings.tables import Settings
from confide.tasks import TASKS
from confide.text.segment import Splitting


def splitting_of(table: Table | None, settings: Settings) -> Splitting:
    """What the table of a site or of public text says or, where it says nothing, `[data]`.

    Only entities are learnt on tokens of our own; relations lie between given entities.
    """
    data = settings.data
    tokens = getattr(table, "train_on", None) or data.train_on
    return Splitting(
        language=getattr(table, "language", None) or data.language,
        sentences=getattr(table, "sentences", None) or data.sentences,
        abbreviations=(*data.abbreviations, *getattr(table, "abbreviations", ())),
        tokens=tokens if TASKS[settings.task].learns == "entities" else "file tokens",
    )


def common_splitting(settings: Settings, table: Table | None) -> Splitting:
    """How this site's text is cut or, without a table, that of all sites if they agree."""
    tables = [table] if table is not None else settings.site
    found = {splitting_of(one, settings) for one in tables}
    return found.pop() if len(found) == 1 else splitting_of(None, settings)
