"""Tasks of users with text and with runs: one module for each."""
