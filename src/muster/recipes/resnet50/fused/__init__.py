"""The fused step: the whole network in kernels that fuse normalization with convolution, for Hopper GPUs.

Reading and writing activations is most of what a ResNet's training step does. These kernels read and write each of
them as few times as possible (docs/recipes/resnet50-notebook.md shows the gain of each step). In reading order:

    operations.py   every operation in plain torch, which is its definition
    blocks.py       a Bottleneck made of operations     network.py     the whole network for autograd
    gradients.py    from a batch to gradients, as a CUDA graph; the average over ranks
    fused_step.py   the training step made of these     step_choice.py whether it can run; the recipe's way in
    check.py        whether it computes the right results
    norms.py convs.py widen.py stem.py                  operations in Triton, each with its *_kernels.py

Triton is imported only if kernels run.
"""
