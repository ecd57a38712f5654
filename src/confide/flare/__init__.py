"""Real sites: the same run over NVIDIA FLARE.

`kits` has the files that every place gets, `run` has what a run does at the lead, the server and
the sites, whatever the engine, and `nvidia` puts both onto FLARE: it alone imports nvflare.
"""
