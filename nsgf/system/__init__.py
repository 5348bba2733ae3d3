"""The machine: device, processes, seeds, errors."""
