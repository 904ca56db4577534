"""Prompt sources: from a section of the recipe to checked Prompts, before anything starts. One file per source.

    source (jsonl, parquet, ...) ──▶ Row ──▶ columns: Draft ──▶ fitting: Prompt ──▶ loading: Intake

A source reads rows and says where each stands; ``columns`` makes a prompt and what judges it of a row's columns;
``fitting`` turns text into tokens within the budget; ``loading`` joins them and counts. Not here: the order of draws
and the held-out split (``stretto.data.order``).
"""

from stretto.data.sources.loading import Intake, load_prompts, read_prompts

__all__ = ["Intake", "load_prompts", "read_prompts"]
