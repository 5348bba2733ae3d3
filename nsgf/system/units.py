"""Numbers with their units, as text."""


def format_bytes(count: float) -> str:
    """Return a number of bytes as text, in powers of 1000: 1536 is '1.5 KB'."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_hours(seconds: float) -> str:
    """Return seconds as text: 90 is '1.5 min'."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
