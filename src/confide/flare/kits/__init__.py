"""Startup kits: the files of each place of a consortium, and what they allow."""
