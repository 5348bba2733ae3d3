"""The command ``nsgf``, also ``python -m nsgf``."""

import os
import sys


def configure_allocator() -> None:
    """Let CUDA memory segments grow, since phases allocate different sizes. Call it before torch is
    imported."""
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def main() -> int:
    """Run the command line and return its exit code."""
    # the next opened file would get the file descriptor of a closed stream (2>&-) and its output
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    configure_allocator()
    from nsgf.cli import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
