"""Sampling: Algorithms 2 and 4, and their ODE solvers."""
