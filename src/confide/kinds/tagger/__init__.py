"""The BiLSTM-CNNs-CRF tagger (Ma & Hovy 2016): `model.kind = "tagger"`."""
