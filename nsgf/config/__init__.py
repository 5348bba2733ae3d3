"""Settings: their schema, the files that hold them, and what may change on resume."""
