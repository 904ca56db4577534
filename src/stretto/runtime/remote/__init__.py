"""Rollers and learners in processes of their own, actors of Ray: what they are there, and how a driver reaches them."""
