"""What model families are to engines and backends: ``facts`` from a ``config.json``, ``decoder`` for the families that
Stretto computes itself, ``modules`` of transformers for all others.

Import from the modules: ``facts`` and ``decoder`` load neither torch nor transformers.
"""
