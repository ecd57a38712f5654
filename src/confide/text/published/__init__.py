"""Readers of corpora in the forms in which they were published."""
