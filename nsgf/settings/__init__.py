"""The rules of settings: layers, choices for a user's data, effects and checks."""
