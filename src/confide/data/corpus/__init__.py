"""Whole corpora: dealt to sites, counted, labelled from a knowledge base, made up."""
