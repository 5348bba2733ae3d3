"""The training loop, the optimizer's state and the batches."""
