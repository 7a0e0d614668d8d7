"""Train ResNet-18 to -152 on CIFAR-10, ImageNet or made-up images, with checkpoints and exact evaluation.

    muster run -m muster.recipes.resnet50 --data DIR                 every GPU of this machine
    muster run -H gpu[01-04]:8,box:2 -m muster.recipes.resnet50 --data DIR
    torchrun --nproc-per-node 2 -m muster.recipes.resnet50 --use_syn
    mpirun -np 2 python -m muster.recipes.resnet50 --use_syn
    python -m muster.recipes.resnet50 --use_syn --batch_size 8       one process
    python -m muster.recipes.resnet50.bench                          how fast is the step here?

DIR holds `cifar-10-batches-py`, or `train` and `val` with a folder for each class. The files, in reading order:

    options.py    every flag                      model.py      the network, with torchvision's names
    train.py      the loop                        step.py       one training step: precision, compile, DDP
    data.py       CIFAR-10 and made-up images     imagenet.py   folders of JPEG files
    schedule.py   the learning rate               evaluate.py   accuracy over all ranks
    fused/        the step in kernels of its own  bench.py      how fast a step is
"""
