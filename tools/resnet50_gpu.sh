#!/usr/bin/env bash
# Measures and proves the ResNet recipe's fused step on a GPU of the Hopper generation, the most telling part first; all
# of it takes under eight minutes. Needs torch for CUDA with its Triton, and torchvision for the peers. A part that fails
# or takes too long does not stop the others.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH=src PYTHONUNBUFFERED=1
resnet=muster.recipes.resnet50
bad=0

part() { # SECONDS ARGUMENTS...
    local limit=$1 begin=$SECONDS code=0
    shift
    printf '\n== python3 -m %s\n' "$*"
    timeout "$limit" python3 -m "$@" || code=$?
    printf -- '-- exit %d after %d s\n' "$code" "$((SECONDS - begin))"
    [ "$code" = 0 ] || bad=1
}

part 200 "$resnet.bench" --batches 1024 256 --alone 512
part 150 "$resnet.fused.check"
part 40 "$resnet" --use_syn --steps_syn 40 --num_epochs 3 --batch_size 1024
# Two ranks share the GPU, so gloo carries the gradients: a proof, no measurement.
part 50 muster run --nproc 2 -m "$resnet" --use_syn --steps_syn 10 --num_epochs 2 --batch_size 100 --accumulate 2 --share 3,1
part 110 "$resnet.bench" --batches 2048 --alone
exit $bad
