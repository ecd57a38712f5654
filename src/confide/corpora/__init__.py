"""Whole corpora: dealt to sites, counted, labelled from a knowledge base, made up."""

from __future__ import annotations
