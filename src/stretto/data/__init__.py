"""Prompts and tokens: tokenizers, prompt sources, the held-out split, the order of draws, and seeds."""
