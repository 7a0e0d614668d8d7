# env: EMPTY=
# env: SPACES=  two  words
# env: UNICODE=é中
# env: EQUALS=a=b=c
# env: QUOTES="it's" $HOME `x` \
# env: lower_case=yes
# env: CUDA_VISIBLE_DEVICES=
# env: OMP_NUM_THREADS=2
# env: WORLD_SIZE=99
# env: LOCAL_RANK=98
"""What the user has set arrives unchanged, but for what the launcher itself says."""

import os

for name in "EMPTY SPACES UNICODE EQUALS QUOTES lower_case OMP_NUM_THREADS WORLD_SIZE LOCAL_RANK".split():
    print(name, repr(os.environ.get(name)))
print(os.environ["HOME"] == os.path.expanduser("~"), os.environ.get("LANG"), "_" in os.environ)
