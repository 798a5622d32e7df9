"""Is it faster? A fair clock, the benchmark, what fits where, and a server under load."""
