"""Fakes for devices and small builders of values, for tests, benchmarks and authors of nodes. Numpy only."""

__all__: list[str] = []
