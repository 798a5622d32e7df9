"""Is it right? Exact distributions, checks of whole decoders, and the gallery of bugs."""
