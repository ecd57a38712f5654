"""Settings: one short TOML file, read into typed tables."""

from confide.settings.reading import anchored as anchored
from confide.settings.reading import dump as dump
from confide.settings.reading import leaves as leaves
from confide.settings.reading import load_settings as load_settings
from confide.settings.reading import nearest as nearest
from confide.settings.reading import overlaid as overlaid
from confide.settings.reading import own_settings as own_settings
from confide.settings.reading import parse as parse
from confide.settings.reading import put as put
from confide.settings.reading import read_tree as read_tree
from confide.settings.sitefile import ConsentTable as ConsentTable
from confide.settings.sitefile import SiteFile as SiteFile
from confide.settings.sitefile import SiteGuards as SiteGuards
from confide.settings.sitefile import dump_site as dump_site
from confide.settings.sitefile import load_site as load_site
from confide.settings.tables import REFERENCES as REFERENCES
from confide.settings.tables import SIMULATED as SIMULATED
from confide.settings.tables import PublicTable as PublicTable
from confide.settings.tables import Settings as Settings
from confide.settings.tables import SiteTable as SiteTable
from confide.settings.tables import SplitTable as SplitTable
from confide.settings.tables import Table as Table
from confide.settings.tables import common_splitting as common_splitting
from confide.settings.tables import splitting_of as splitting_of
from confide.settings.upgrade import SCHEMA as SCHEMA
