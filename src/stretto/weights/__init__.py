"""Transports that carry a Model's weights from its trainer to engines, one file each."""
