"""A page about a run: what was trained, how it went, what it makes, how to do it again."""
