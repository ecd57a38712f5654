"""The bag ranker: `task = "bags"`."""
