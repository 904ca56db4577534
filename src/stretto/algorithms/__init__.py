"""Algorithms as pure functions: ``advantages`` and ``aggregation`` (numpy), ``losses`` (torch), ``schedules``.

Import from the modules: only ``stretto.algorithms.losses`` loads torch.
"""
