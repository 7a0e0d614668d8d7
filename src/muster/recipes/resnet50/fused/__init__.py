"""The fused step: the whole network in kernels that normalise while they convolve, for GPUs of the Hopper generation.

Reading and writing activations is most of what a ResNet's training step does. These kernels read and write each of
them as few times as possible (docs/recipes/resnet50.md says what each step of that gave). In reading order:

    operations.py   every operation in plain torch, which is its definition
    blocks.py       a Bottleneck out of operations      network.py     all of them, as autograd sees them
    gradients.py    from a batch to gradients, as a CUDA graph; the average over ranks
    step_choice.py  can it run here?                    check.py       does it compute what it should here?
    norms.py convs.py widen.py stem.py                  operations in Triton, each with its *_kernels.py

Triton is imported only where kernels run.
"""
