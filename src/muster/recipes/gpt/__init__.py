"""Train a GPT on any text file, with DDP, FSDP2 or HSDP, and let it write.

    muster run -m muster.recipes.gpt --data input.txt                every GPU of this machine
    muster run -H gpu[01-04]:8 -m muster.recipes.gpt --data input.txt --size gpt2 --strategy hsdp
    torchrun --nproc-per-node 2 -m muster.recipes.gpt --size tiny
    mpirun -np 2 python -m muster.recipes.gpt --size tiny
    python -m muster.recipes.gpt --size tiny                         one process
    python -m muster.recipes.gpt.generate --prompt "The "            write with the newest checkpoint

Without --data it learns the help topics of Python, which every machine has. The files, in reading order:

    options.py   every flag                       model.py            GPT-2, as in nanoGPT
    train.py     the loop                         data.py             bytes or BPE
    strategy.py  DDP, FSDP2, HSDP, optimizers     generate.py         write text
    cross_entropy.py   in little memory           softmax_kernel.py   its kernel
"""
