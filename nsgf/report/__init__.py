"""HTML pages, the list of runs, and files of samples."""
