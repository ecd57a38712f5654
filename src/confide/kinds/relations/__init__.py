"""The relation classifier: `task = "re"`."""
