"""The GPT recipe's network, loss, tokenizer and learning rate."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from muster.recipes.gpt import cross_entropy as loss
from muster.recipes.gpt.data import Tokenizer, merge, train_tokenizer
from muster.recipes.gpt.model import GPT, Config
from muster.recipes.gpt.strategy import learning_rate

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

SMALL = Config(vocabulary=64, context=16, layers=2, heads=2, width=32)


def gradients(model: GPT, tokens: torch.Tensor) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    value = model(tokens[:, :-1], tokens[:, 1:])
    value.backward()
    return value.item(), torch.cat([each.grad.flatten() for each in model.parameters()])


def test_gpt2_has_the_parameters_and_operations_that_nanogpt_counts():
    with torch.device("meta"):
        model = GPT(Config())
    assert sum(each.numel() for each in model.parameters()) == 124_373_760
    assert model.flops_per_token == 854_770_176


@pytest.mark.parametrize("at_once", [2**30, 64 * 7])
def test_the_loss_and_its_gradients_are_those_of_cross_entropy(at_once, monkeypatch):
    monkeypatch.setattr(loss, "AT_ONCE", at_once)
    torch.manual_seed(0)
    x, weight = torch.randn(50, 32).requires_grad_(), torch.randn(64, 32).requires_grad_()
    targets = torch.randint(0, 64, (50,))
    wanted = cross_entropy(linear(x, weight), targets)
    exact = torch.autograd.grad(wanted, (x, weight))
    value = loss.linear_cross_entropy(x, weight, targets)
    torch.testing.assert_close(value, wanted)
    for mine, theirs in zip(torch.autograd.grad(3 * value, (x, weight)), exact, strict=True):
        torch.testing.assert_close(mine, 3 * theirs)
    with torch.no_grad():
        torch.testing.assert_close(loss.linear_cross_entropy(x, weight, targets), wanted)


def test_bfloat16_and_recomputing_change_no_more_than_rounding():
    torch.manual_seed(0)
    tokens, model = torch.randint(0, 64, (4, 17)), GPT(SMALL)
    value, exact = gradients(model, tokens)
    for config, bound in ((replace(SMALL, recompute=True), 1e-6), (replace(SMALL, precision=torch.bfloat16), 0.03)):
        other = GPT(config)
        other.load_state_dict(model.state_dict())
        its_value, its = gradients(other, tokens)
        assert its_value == pytest.approx(value, rel=bound)
        assert (its - exact).norm() < bound * exact.norm()


def test_no_token_sees_a_later_one():
    torch.manual_seed(0)
    model, tokens = GPT(SMALL), torch.randint(0, 64, (1, 16))
    with torch.no_grad():
        before = model(tokens[:, :9])
        tokens[0, 9:] = 0
        assert torch.equal(model(tokens[:, :9]), before)
        tokens[0, 8] = (tokens[0, 8] + 1) % 64
        assert not torch.equal(model(tokens[:, :9]), before)


def test_byte_pairs_are_merged_most_frequent_first_and_decode_to_the_same_text():
    text = b"".join(b"%d times %d is %d.\n" % (i, i + 1, i * (i + 1)) for i in range(1000))
    tokenizer = train_tokenizer(text, 300)
    assert len(tokenizer.merges) == 44
    tokens = tokenizer.encode(text)
    assert len(tokens) < 0.6 * len(text)
    assert b"".join(tokenizer.decode(int(token)) for token in tokens) == text
    assert [int(token) for token in Tokenizer().encode(b"\x00\xff")] == [0, 255]
    assert b" times " in [tokenizer.decode(256 + i) for i in range(44)]


def test_of_overlapping_pairs_the_first_is_merged():
    assert merge(torch.tensor([1, 1, 1, 2, 1, 1, 1, 1]), [1, 1], 9).tolist() == [9, 1, 2, 9, 9]
    assert merge(torch.tensor([1, 2, 1, 2, 1]), [1, 2], 9).tolist() == [9, 9, 1]


def test_the_learning_rate_rises_then_falls_to_a_tenth():
    at = [learning_rate(i / 100, 0.1) for i in range(101)]
    assert (at[0], at[5]) == (0, pytest.approx(0.5))
    assert at[10] == pytest.approx(1)
    assert at[100] == pytest.approx(0.1)
    assert all(later < earlier for earlier, later in pairwise(at[10:]))
    assert learning_rate(0.0, 0.0) == pytest.approx(1)
