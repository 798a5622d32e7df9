"""Speculative decoding from scratch, on a small GPT: the package that the notebooks build."""
