"""A Ray cluster: started or joined, and what workers of a run are in it."""
