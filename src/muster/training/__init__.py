"""What a training loop needs besides its model: checkpoints, batches by share, progress. Public in `muster`."""
