"""The step loop, the optimizer's state and the batches."""
