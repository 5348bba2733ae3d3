"""The public functions and classes of ``import nsgf``."""
