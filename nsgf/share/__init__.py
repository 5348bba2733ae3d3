"""Runs that are handed on: a folder of safetensors, settings and a model card.

``export`` writes such a folder, ``exported`` reads it, ``card`` is its README, ``hub`` fetches one.
"""
