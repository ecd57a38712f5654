"""Documents as examples, and examples as numbers."""
