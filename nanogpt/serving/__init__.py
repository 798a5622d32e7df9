"""Many texts at once? Batches, a server, and a paged cache."""
