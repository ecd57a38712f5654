"""The run on NVIDIA FLARE: the only room that imports nvflare."""
