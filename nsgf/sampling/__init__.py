"""Algorithms 2 and 4, their solvers, and pictures."""
