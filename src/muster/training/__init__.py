"""What a training loop needs beside its model: checkpoints, batches by share, progress. Public in `muster`."""
