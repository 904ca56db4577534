"""What hands groups from worker to worker: one file per way of moving them."""
