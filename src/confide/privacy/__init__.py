"""Differential privacy of sums: the account, the noise, and what a site has spent."""
