"""Measures of samples: exact W2, nearest neighbours, features of a classifier and of Inception."""
