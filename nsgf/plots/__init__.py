"""Figures and animations, drawn from arrays."""
