"""ResNet training on one GPU: the step, its kernels and its benchmark."""
