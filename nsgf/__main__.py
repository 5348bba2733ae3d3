"""The command ``nsgf``, also ``python -m nsgf``."""

import os


def configure_allocator() -> None:
    """Let CUDA memory grow in place, which torch has to be told before it is loaded.

    Phases and batch sizes differ in what they allocate; fixed segments would be left in pieces.
    """
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def main() -> int:
    """Entry point; the exit code of :func:`nsgf.cli.main`."""
    configure_allocator()
    from nsgf.cli import main as run

    return run()


if __name__ == "__main__":
    raise SystemExit(main())
