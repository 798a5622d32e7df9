"""Commands that are nothing else: `nanogpt demo` and `nanogpt size`."""
