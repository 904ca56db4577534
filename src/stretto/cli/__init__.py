"""The command line: parses arguments, shows what happens, and turns every outcome into an exit status.

Importing it loads typer and nothing else of weight; each command imports what it needs when it runs, so that
``stretto --help`` answers at once.
"""
