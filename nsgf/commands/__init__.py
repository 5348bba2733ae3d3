"""The commands, one file each, for the command line and for Python."""
