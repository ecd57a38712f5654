"""confide trains information extraction across organisations whose text may not leave them."""

__version__ = "0.1.0"
