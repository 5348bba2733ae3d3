"""``nsgf compare``: compare NSGF with alternative methods on equal terms."""
