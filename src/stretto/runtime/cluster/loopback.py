"""Has Ray listen on 127.0.0.1 alone, for a cluster that is of this machine only.

Ray (2.60) puts the machine's other address in the place of 127.0.0.1, whatever it is told, and its servers then listen
on every interface, unless it takes itself for unable to have clusters of several hosts, as it does on macOS. That is a
constant of its own, and here it is set for as long as a cluster is started. ``test_own_cluster.py`` says when there is
no need for this any more.
"""

from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["ADDRESS", "on_loopback"]

ADDRESS = "127.0.0.1"


@contextmanager
def on_loopback() -> Generator[None]:
    """What is started inside listens on ``ADDRESS``."""
    from ray._private import ray_constants  # an extra: only who asks for a cluster needs it

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
