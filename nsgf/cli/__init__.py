"""The command line."""

from nsgf.cli.commands import main

__all__ = ["main"]
