"""``nsgf compare``: NSGF and the methods that users would pick instead, on equal terms."""
