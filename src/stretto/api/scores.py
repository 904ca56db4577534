"""What an evaluation came to, in words: for the progress of a run, its summary, and ``stretto eval``."""

from collections.abc import Mapping

__all__ = ["interval_words", "percent", "score_words", "set_words"]


def percent(share: float) -> str:
    """0.4567 as ``45.7%``."""
    return f"{100 * share:.1f}%"


def set_words(name: str) -> str:
    """How a set is called."""
    return "held-out" if name == "held_out" else name


def interval_words(name: str, metrics: Mapping[str, float]) -> str:
    """The 95 % interval of the accuracy, ``42.8% to 47.2%``; empty where it is not known."""
    low, high = metrics.get(f"{name}/accuracy/low"), metrics.get(f"{name}/accuracy/high")
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def score_words(name: str, metrics: Mapping[str, float]) -> str:
    """What several attempts at a problem give: ``, pass@4 61.0%, maj@4 48.0%``; empty for one attempt."""
    metrics = {key.removeprefix(f"{name}/"): value for key, value in metrics.items()}
    kinds = [key for key in metrics if key.startswith(("pass@", "maj@")) and key != "pass@1"]
    return "".join(f", {key} {percent(metrics[key])}" for key in kinds)
