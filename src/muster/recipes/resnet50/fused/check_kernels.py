"""Compare every kernel with its definition in plain torch, on random numbers, with the tiles used in training."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .operations import Branch, Operations, Sums, block_weight, chosen_pixels
from .plans import PLANS, STEM

BF16 = torch.bfloat16
Maps = tuple[int, int, int]
"""Number of images, rows and columns."""


class KernelCheck:
    """Calls both implementations of an operation with the same arguments, and records the worst relative error."""

    def __init__(self, kernels: Operations, device: torch.device) -> None:
        self.worst: dict[str, float] = {}
        self.kernels, self._plain, self.device = kernels, Operations(), device

    def both(self, name: str, *arguments: Any, **more: Any) -> Any:
        """Return the kernel's result; in-place changes of a normalization are also compared."""
        given = copy_norms(arguments)
        expected = getattr(self._plain, name)(*arguments, **more)
        result = getattr(self.kernels, name)(*given, **more)
        pairs = zip([*tensors(result), *statistics(given)], [*tensors(expected), *statistics(arguments)], strict=True)
        for mine, theirs in pairs:
            self.compare(name, mine, theirs)
        return result

    def compare(self, name: str, mine: Tensor, theirs: Tensor) -> None:
        """Record the difference of two tensors; NaN counts as the largest difference."""
        error = ((mine.float() - theirs.float()).norm() / (theirs.float().norm() + 1e-30)).item()
        self.worst[name] = max(self.worst.get(name, 0.0), error if error == error else float("inf"))

    def numbers(self, *shape: int) -> Tensor:
        """Normally distributed numbers in bf16."""
        return torch.randn(*shape, device=self.device).to(BF16)

    def vec(self, columns: int) -> Tensor:
        """A random vec of a normalization, with five rows; some scales are negative."""
        rows = torch.randn(5, columns, device=self.device) * 0.3
        rows[0] += 0.7
        rows[3] = rows[3].abs() + 0.5
        return rows

    def norm(self, columns: int) -> nn.BatchNorm2d:
        """A normalization that is not the identity."""
        norm = nn.BatchNorm2d(columns, device=self.device)
        nn.init.uniform_(norm.weight, -0.5, 1.5)
        nn.init.normal_(norm.bias, 0, 0.2)
        return norm


def copy_norms(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments, with copies of the normalizations, which are changed in place."""
    return tuple(copy.deepcopy(each) if isinstance(each, nn.BatchNorm2d) else each for each in arguments)


def statistics(arguments: tuple[Any, ...]) -> Iterator[Tensor]:
    """The running statistics among the arguments."""
    for each in arguments:
        if isinstance(each, nn.BatchNorm2d) and each.running_mean is not None and each.running_var is not None:
            yield from (each.running_mean, each.running_var)


def tensors(result: Any) -> Iterator[Tensor]:
    """All tensors of a result, with parts of sums added up."""
    if isinstance(result, Sums):
        yield from result.both()
    elif isinstance(result, Tensor):
        yield result
    elif result is not None:
        for each in result:
            yield from tensors(each)


@torch.no_grad()
def check_norms(check: KernelCheck, maps: Maps, columns: int) -> None:
    """Check normalization alone, forward and backward, with each kind of residual."""
    n, h, w = maps
    m = n * h * w
    x, g, norm, vec = check.numbers(m, columns), check.numbers(m, columns), check.norm(columns), check.vec(columns)
    res, even = check.numbers(m, columns), check.numbers(n * ((h + 1) // 2) * ((w + 1) // 2), columns)
    own: Tensor = check.both("finish_forward", check.both("stats", x), norm, m)
    check.both("apply", x, own)
    check.both("apply", x, own, res)
    check.both("apply", x, own, res, vec)
    sums, _ = check.both("reduce", g, x, own)
    abc = check.both("finish_backward", sums, norm.weight, own, m)[0]
    check.both("normalize_backward", g, x, abc, own)
    check.both("copy_sum", x, vec)
    check.both("copy_sum", x, half=maps)
    check.both("reduce", g, x, own, keep=True)
    check.both("reduce", g, mask=x, keep=True)
    check.both("reduce", g, mask=x, res=res, keep=True)
    check.both("reduce", g, mask=x, res=even, size=(h, w), keep=True)


@torch.no_grad()
def check_convs(check: KernelCheck, maps: Maps, width: int) -> None:
    """Check the 1x1 convolutions of a stage that has kernels for them, in its first block and in the others."""
    n, h, w = maps
    m, plan = n * h * w, PLANS[width]
    before = 64 if width == 64 else 2 * width
    even = check.numbers(n * ((h + 1) // 2) * ((w + 1) // 2), before)
    g, c, y_vec, x_vec = check.numbers(m, width), check.numbers(m, width), check.vec(width), check.vec(before)
    abc = torch.randn(3, width, device=check.device) * 0.3
    for columns, forward, backward, raw in (
        (before, plan.first, plan.back_first, width == 64),  # the stem leaves its normalization to the first stage
        (4 * width, plan.conv1, plan.back1, False),
    ):
        x = check.numbers(m, columns) if raw else check.numbers(m, columns).relu()
        weight = check.numbers(width, columns) / columns**0.5
        if forward:
            check.both("conv_forward", x, weight, forward, x_vec if raw else None)
        if backward:
            arguments = (g, c, x, weight, backward, abc, y_vec, x_vec if raw else None)
            check.both("conv_backward", *arguments, check.numbers(m, columns), (h, w))
            if columns == before and not raw:
                check.both("conv_backward", *arguments, even, (h, w))


@torch.no_grad()
def check_widening(check: KernelCheck, m: int, width: int) -> None:
    """Check a widening convolution with its normalization, each kind of residual, and the next convolution."""
    plan, outputs = PLANS[width], 4 * width
    x, x_vec, norm = check.numbers(m, width), check.vec(width) if plan.gram else None, check.norm(outputs)
    weight, gamma = check.numbers(outputs, width) / width**0.5, norm.weight.detach()
    plain = Operations()
    total = x.float().sum(0)
    gram: Tensor = check.both("gram", x, x_vec, plan.gram) if plan.gram else plain.wide_gram(x, total)
    vec, scaled = check.both("normalize", gram, weight, norm, m)
    main, res = Branch(x, x_vec, scaled, vec), check.numbers(m, outputs)
    if plan.out:
        check.both("widen", main, plan.out, res)
        check.both("widen", main, plan.out, res, check.vec(outputs))
    if plan.out and plan.joined:
        second = Branch(
            check.numbers(m, width), check.vec(width), check.numbers(outputs, width) / 8, check.vec(outputs)
        )
        following = check.numbers(width, outputs) / outputs**0.5
        check.both("widen", main, plan.out, None, None, second, following)
        check.both("widen", main, plan.out, res, None, None, following)
    g = (check.numbers(m, outputs) + 0.3).to(BF16)
    sums, moved = plain.stats(g), plain.conv_wgrad(g, x, PLANS[64].out or STEM, x_vec)
    if plan.wgrad3:
        moved = check.both("conv_wgrad", g, x, plan.wgrad3, x_vec)
    d = check.both("widen_backward", sums, moved, weight, gram, vec, gamma, m)[0]
    if plan.dgrad3 and x_vec is not None:
        check.both("widen_dgrad", g, d, x, x_vec, plan.dgrad3)
        check.both("widen_dgrad", g, d, x, x_vec, plan.dgrad3, x_vec[2])


@torch.no_grad()
def check_stem(check: KernelCheck, images: int, height: int, width: int) -> None:
    """Check the stem from bytes to the pooled map, and backward to the weight."""
    pixels = torch.randint(0, 256, (images, height, width, 3), dtype=torch.uint8, device=check.device)
    scale, shift = torch.tensor([[0.01, 0.02, 0.03], [-1.0, -0.5, 0.2]], device=check.device)
    blocks = check.both("blocks", pixels.permute(0, 3, 1, 2), scale, shift, BF16)
    weight = block_weight(check.numbers(64, 3, 7, 7) * 0.1)
    c, sums = check.both("stem_forward", blocks, weight, STEM)
    size, norm = (images, height // 2, width // 2), check.norm(64)
    vec = check.both("finish_forward", sums, norm, len(c))
    pooled, which = check.kernels.pool(c, vec, size)
    check.compare("pool", pooled, Operations().pool(c, vec, size)[0])
    check.compare("pool", c.gather(0, chosen_pixels(which, size)), pooled)  # ties may be resolved differently
    abc = torch.randn(3, 64, device=check.device)
    dc = check.both("unpool", check.numbers(*pooled.shape), which, c, abc, size)
    check.both("stem_wgrad", blocks, dc, STEM)


def check_all(kernels: Operations, device: torch.device, *, large: bool) -> dict[str, float]:
    """Return the worst relative error of each operation; with `large`, every program gets several tiles."""
    torch.manual_seed(0)
    check = KernelCheck(kernels, device)
    ragged, even = ((8, 113, 111), (8, 128, 128)) if large else ((2, 9, 11), (1, 16, 16))
    for maps in (ragged, even):
        for columns in (64, 512) if maps == ragged else (256,):
            check_norms(check, maps, columns)
        for width in (64, 128):
            check_convs(check, maps, width)
        for width in (64, 128, 256, 512) if large else (64, 128, 256):
            check_widening(check, maps[0] * maps[1] * maps[2], width)
    for images, height, width in ((3, 224, 224), (2, 176, 160)) if large else ((2, 24, 28),):
        check_stem(check, images, height, width)
    return check.worst
