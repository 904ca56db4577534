"""Stretto's own rollout engine embedded in the run's process."""

from stretto.engines.native.engine import NativeEngine

__all__ = ["NativeEngine"]
