"""Real sites: the same run over NVIDIA FLARE.

`kits` are the files that every place gets, `run` is what a run does at its three places without any
engine, and `nvidia` puts both onto FLARE: it alone imports nvflare.
"""
