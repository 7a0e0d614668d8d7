"""Train ResNet-18 to -152 on CIFAR-10, ImageNet or synthetic images, with checkpoints and exact evaluation.

    muster run -m muster.recipes.resnet50 --data DIR                 every GPU of this machine
    muster run -H gpu[01-04]:8,box:2 -m muster.recipes.resnet50 --data DIR
    torchrun --nproc-per-node 2 -m muster.recipes.resnet50 --use_syn
    mpirun -np 2 python -m muster.recipes.resnet50 --use_syn
    python -m muster.recipes.resnet50 --use_syn --batch_size 8       one process
    python -m muster.recipes.resnet50.bench                          measure the training step

DIR contains `cifar-10-batches-py`, or `train` and `val` with one directory per class. The files, in reading order:

    options.py    every flag                      model.py      the network, with torchvision's names
    train.py      the loop                        step.py       one training step: precision, compile, DDP
    data.py       CIFAR-10 and synthetic images   imagenet.py   directories of JPEG files
    schedule.py   the learning rate               evaluate.py   accuracy over all ranks
    fused/        the step in custom kernels      bench.py      throughput of a step
"""
