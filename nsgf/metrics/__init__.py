"""Metrics: exact W2, nearest neighbours, FID and Inception score."""
