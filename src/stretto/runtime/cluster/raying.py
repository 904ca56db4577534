"""Connects this process to Ray, and says in a sentence why that failed."""

import logging
from collections.abc import Mapping
from typing import Any

from stretto.errors import ConfigError

__all__ = ["QUIET", "init"]

QUIET: Mapping[str, Any] = {"log_to_driver": False, "configure_logging": False}
"""Settings by which Ray leaves this process's output and logging alone."""


def init(settings: Mapping[str, Any], failed: str) -> None:
    """``ray.init``. ConfigError that says that the cluster ``failed``, and why."""
    import ray  # an extra: only who asks for a cluster needs it

    logging.getLogger("ray").setLevel(logging.ERROR)  # what it tells beside errors is about itself
    try:
        ray.init(**settings)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"the Ray cluster {failed}: {reason_of(str(error))}. {REMEDY}") from error


REMEDY = "Mend that, or set cluster.address to one that runs."


def reason_of(told: str) -> str:
    """The first sentence of what Ray says, which tells more than anybody reads."""
    line = next((line.strip() for line in told.splitlines() if line.strip()), "Ray gives no reason")
    return line.split(". ")[0].rstrip(".:")
