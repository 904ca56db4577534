"""Tasks and rewards: what judges a trajectory, and the processes it runs in.

Nothing is imported here, so that a reward process, which needs only a part, starts fast.
"""
