"""Who guesses? The drafts, one kind a file; `shipped` has all of them by name."""
