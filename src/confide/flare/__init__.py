"""Real sites: the same run over NVIDIA FLARE. The only room that imports nvflare."""
