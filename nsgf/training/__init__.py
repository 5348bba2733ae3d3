"""One step loop and the three trainers."""
