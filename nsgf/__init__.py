"""NSGF++: generative modelling by a neural Sinkhorn gradient flow (arXiv 2401.14069)."""

__version__ = "0.1.0"
