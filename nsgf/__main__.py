"""The command ``nsgf``, also ``python -m nsgf``."""

import os
import sys


def configure_allocator() -> None:
    """Let CUDA memory grow in place, which torch has to be told before it is loaded.

    Phases and batch sizes differ in what they allocate; fixed segments would be left in pieces.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def open_streams() -> None:
    """Let standard streams that are closed (``2>&-``) lead nowhere: a file that is opened later
    would get their number, and with it what is said.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def main() -> int:
    """Run the command line and return its exit code."""
    open_streams()
    configure_allocator()
    from nsgf.cli import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
