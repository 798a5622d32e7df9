"""Is your draft better? A template, a referee, and a race."""
