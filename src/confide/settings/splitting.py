"""How a site's text is cut into sentences, from its own table and that of all sites."""

from __future__ import annotations

from confide.settings.base import Table
from confide.settings.tables import DataTable, Settings
from confide.text.splitting import Splitting


def splitting_of(table: Table | None, data: DataTable) -> Splitting:
    """What the table of a site or of public text says or, where it says nothing, `[data]`."""
    return Splitting(
        language=getattr(table, "language", None) or data.language,
        sentences=getattr(table, "sentences", None) or data.sentences,
        abbreviations=(*data.abbreviations, *getattr(table, "abbreviations", ())),
    )


def common_splitting(settings: Settings, table: Table | None) -> Splitting:
    """How this site's text is cut or, without a table, that of all sites if they agree."""
    tables = [table] if table is not None else settings.site
    found = {splitting_of(one, settings.data) for one in tables}
    return found.pop() if len(found) == 1 else splitting_of(None, settings.data)
