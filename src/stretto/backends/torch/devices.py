"""Devices by name, checked by use."""

import torch

from stretto.errors import ConfigError

__all__ = ["open_device"]


def open_device(name: str, key: str) -> torch.device:
    """The device ``name``, which the recipe's ``key`` asks for. ConfigError if nothing can be put on it."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"{key}={name!r} cannot be used: {reason}. Set {key}=cpu.") from error
    return device
