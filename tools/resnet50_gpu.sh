#!/usr/bin/env bash
# Measures and checks the ResNet recipe's fused step on a Hopper GPU, the most important part first. All parts together
# take about ten minutes, most of it for torch.compile. Needs torch for CUDA with its Triton, and torchvision for the
# comparison. A part that fails or times out does not stop the others.
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH=src:. PYTHONUNBUFFERED=1
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

part 150 "$resnet.bench" --batches 1024
part 160 "$resnet.fused.check"
part 40 "$resnet" --use_syn --steps_syn 40 --num_epochs 3 --batch_size 1024
part 300 tools.resnet50_rows
part 180 "$resnet.bench" --batches 2048 --alone
exit $bad
