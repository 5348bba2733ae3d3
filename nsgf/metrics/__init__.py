"""Measures of samples: exact W2, nearest neighbours, ImageNet and Inception features."""
