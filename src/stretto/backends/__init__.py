"""Training backends, one folder per library."""
