"""The draft models, one per file. A draft has `vocab_size` and `get_probs(context)`.

`get_probs` takes all tokens so far (list[int]) and returns q at temperature 1, (V,) float64.
"""
