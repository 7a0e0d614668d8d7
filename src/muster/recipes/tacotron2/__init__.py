"""Train Tacotron2, text to mel spectrograms, on LJSpeech or synthetic clips, with a fast decoder.

    muster run -m muster.recipes.tacotron2 -d LJSpeech-1.1 -o out      every GPU of this machine
    muster run -H gpu[01-04]:8 -m muster.recipes.tacotron2 -d LJSpeech-1.1 -o out
    torchrun --nproc-per-node 2 -m muster.recipes.tacotron2 --use_syn
    mpirun -np 2 python -m muster.recipes.tacotron2 --use_syn
    python -m muster.recipes.tacotron2 --use_syn --batch-size 4        one process
    python -m muster.recipes.tacotron2.infer -c out "Hello." -w hello.wav
    python -m muster.recipes.tacotron2.bench                           measure the training step
    python -m muster.recipes.tacotron2.corpus DIR --hours 1            a speech corpus from espeak-ng

The files, in reading order:

    options.py    every flag                       model.py      the network, with NVIDIA's names; the plain loop
    train.py      the loop over epochs             train_step.py one training step
    data.py       clips and batches                mels.py       mels, computed once and cached
    audio.py      wav files, mels, Griffin-Lim     infer.py      synthesize speech
    symbols.py    text to symbols                  numerals.py   numbers to words
    loss.py       losses, guided attention        validate.py   the loss on validation clips, over all ranks
    loop.py       the fast decoder                 tape.py       its tensors
    steps.py      its steps in plain torch         kernels.py    the same in Triton
    streams.py    two streams of a GPU             graphs.py     forward and backward as CUDA graphs
    original.py   NVIDIA's checkpoints             pictures.py   alignments and mels as PNG images
    corpus.py     a corpus from espeak-ng          bench.py      frames per second
"""
