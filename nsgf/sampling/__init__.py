"""Sampling: Algorithms 2 and 4, and the ODE solvers of the straight flow."""
