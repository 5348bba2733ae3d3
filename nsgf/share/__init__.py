"""Exported runs: ``export`` writes a folder, ``exported`` reads it, ``card`` is its README, and
``hub`` downloads one."""
