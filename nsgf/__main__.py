"""The command ``nsgf``, also ``python -m nsgf``."""

import ctypes
import gc
import os
import sys
from contextlib import suppress

TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
"""Numbers of options in malloc.h. The values of both options are in bytes."""


def configure_allocator() -> None:
    """Let CUDA memory segments grow, because phases allocate blocks of different sizes. Let the C
    library keep freed memory, because requests for new memory take a tenth of the time of an
    update. Call this before importing torch."""
    if not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & set(os.environ):
        with suppress(AttributeError, OSError, TypeError):  # other C libraries have no mallopt
            set_option = ctypes.CDLL(None).mallopt
            set_option(TRIM_THRESHOLD, 2**30)
            set_option(MMAP_THRESHOLD, 2**25)
    if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & set(os.environ):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"


def main() -> int:
    """Run the command line and return its exit code."""
    # a closed stream (2>&-) leaves its descriptor, and so its output, to the next opened file
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    configure_allocator()
    try:
        from nsgf.cli import main as run

        code = run()
    except ModuleNotFoundError as error:
        sys.stderr.write(f"nsgf: error: {error.name} is not installed; pip install -e .\n")
        return 2
    gc.freeze()  # else Python spends half a second on torch's objects before it exits
    return code


if __name__ == "__main__":
    raise SystemExit(main())
