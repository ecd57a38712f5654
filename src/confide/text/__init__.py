"""Documents in, documents out: offsets, tokens, tag schemes, file formats."""
