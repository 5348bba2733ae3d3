"""Settings: the schema, files of settings, and rules for a resume."""
