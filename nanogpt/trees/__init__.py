"""Guesses that branch: the values, the rules, and the loop that decodes with them."""
