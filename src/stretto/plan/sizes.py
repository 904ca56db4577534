"""Sizes of numbers, and of memory for people."""

__all__ = ["BYTES", "LARGE_MATRIX", "PROMPT_ROWS", "show_bytes"]

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


PROMPT_ROWS = 32
"""Prompts that the native engine computes at once at most, in a KV cache of their own."""
LARGE_MATRIX = 300_000
"""Elements from which the native engine packs a matrix for products on a CPU: with few rows that wins then,
with many it costs or gains some percent."""
