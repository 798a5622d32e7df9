"""Commands that are nothing else: `nanogpt course`, `demo`, `load` and `size`."""
