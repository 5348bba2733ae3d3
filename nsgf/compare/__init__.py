"""``nsgf compare``: NSGF and the methods that users would pick instead, on equal terms."""

from nsgf.compare.comparison import compare, comparison_plan

__all__ = ["compare", "comparison_plan"]
