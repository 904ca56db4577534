"""Stretto post-trains language models with reinforcement learning, from a laptop CPU to a cluster."""
