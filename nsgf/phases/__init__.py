"""One file for each phase: network, inputs, loss, what it needs, its picture."""
