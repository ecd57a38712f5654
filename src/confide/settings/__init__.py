"""Settings: one short TOML file, read into typed tables."""

from confide.settings.reading import (
    anchored,
    dump,
    leaves,
    load_settings,
    nearest,
    overlaid,
    own_settings,
    parse,
    put,
    read_tree,
)
from confide.settings.sitefile import ConsentTable, SiteFile, SiteGuards, dump_site, load_site
from confide.settings.tables import (
    REFERENCES,
    SIMULATED,
    PublicTable,
    Settings,
    SiteTable,
    SplitTable,
    Table,
    common_splitting,
    splitting_of,
)
from confide.settings.upgrade import SCHEMA

__all__ = [
    "REFERENCES",
    "SCHEMA",
    "SIMULATED",
    "ConsentTable",
    "PublicTable",
    "Settings",
    "SiteFile",
    "SiteGuards",
    "SiteTable",
    "SplitTable",
    "Table",
    "anchored",
    "common_splitting",
    "dump",
    "dump_site",
    "leaves",
    "load_settings",
    "load_site",
    "nearest",
    "overlaid",
    "own_settings",
    "parse",
    "put",
    "read_tree",
    "splitting_of",
]
