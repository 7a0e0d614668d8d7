"""@record around a function that succeeds returns its result."""

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main(number):
    return number + 1


print(main(41))
