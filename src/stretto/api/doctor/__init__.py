"""``stretto doctor``: what this machine is, what works on it, and what killed runs left.

    machine    processor, memory, threads
    packages   versions against what the package needs, and the extras
    trials     tries engines and backends in a process of its own
    leftovers  runs, files and processes that a kill left
    examining  all of it, in order

Nothing is imported here.
"""
