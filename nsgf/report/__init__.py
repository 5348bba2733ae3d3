"""HTML pages and the list of runs."""
