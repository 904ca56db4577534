"""Sizes of numbers, and of memory for people."""

__all__ = ["BYTES", "show_bytes"]

BYTES = {"float32": 4, "bfloat16": 2}
"""Of a number."""


def show_bytes(size: int) -> str:
    """Bytes for people, in binary units: ``1.5 GiB``."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
