"""Rules for settings: their layers, choices for a user's data, their effects, and checks."""
