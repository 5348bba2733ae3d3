"""A run's folder, checkpoints, lock, log and trackers."""
