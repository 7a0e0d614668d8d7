"""What the MNIST recipes use besides training: flags, files, synthetic digits, and ranks without a launcher."""
