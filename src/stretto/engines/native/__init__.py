"""Stretto's own rollout engine for the Llama family, embedded in the run's process."""

from stretto.engines.native.engine import NativeEngine

__all__ = ["NativeEngine"]
