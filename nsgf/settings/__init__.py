"""The rules of settings: their layers, choices, effects and checks."""
