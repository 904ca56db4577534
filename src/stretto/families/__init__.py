"""What model families are to engines and backends: ``facts`` from a ``config.json``, ``modules`` of transformers.

Import from the modules: ``facts`` loads neither torch nor transformers.
"""
