"""Exported runs: ``export`` writes a folder, ``exported`` reads it."""
