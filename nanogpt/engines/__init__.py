"""Is another engine right? Our models in its format, and an audit of what it returns."""
