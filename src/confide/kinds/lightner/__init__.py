"""LightNER (Chen et al., COLING 2022): `model.kind = "lightner"`."""
