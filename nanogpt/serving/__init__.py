"""Many at once, and what each asks? Batches, a server, a paged cache; constraints."""
