"""Measures of samples: exact W2, nearest neighbours, classifier and Inception features."""
