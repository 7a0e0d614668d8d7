"""Tacotron2's network, audio, loss and batches, and the fast decoder against the plain one."""

from __future__ import annotations

import math
import os
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from bare import ENV, script

from muster import Batches
from muster.recipes.tacotron2 import tape
from muster.recipes.tacotron2.audio import AudioSettings, filterbank, griffin_lim, mel_spectrogram
from muster.recipes.tacotron2.data import Corpus, Examples, Padding, bucketed_order, synthetic
from muster.recipes.tacotron2.loop import fast_decoder
from muster.recipes.tacotron2.loss import NEAR, gate_targets, losses, off_diagonal
from muster.recipes.tacotron2.model import Decoder, ModelSizes, Outputs, Tacotron2, count_parameters
from muster.recipes.tacotron2.original import audio_of, load_weights, read_original, sizes_of, write_weights
from muster.recipes.tacotron2.pictures import picture, write_png
from muster.recipes.tacotron2.train import GUIDANCE, guidance, learning_rate
from muster.recipes.tacotron2.train_step import StepOptions, TrainingStep
from muster.recipes.tacotron2.validate import validate

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

torch.set_num_threads(1)  # the threads of OpenMP wait for each other in loops, which takes long where tests share cores

SMALL = ModelSizes(
    symbols_embedding_dim=16,
    encoder_embedding_dim=16,
    decoder_rnn_dim=20,
    prenet_dim=12,
    attention_rnn_dim=24,
    attention_dim=18,
    attention_location_n_filters=4,
    attention_location_kernel_size=5,
    postnet_embedding_dim=16,
)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def without_dropout(sizes: ModelSizes = SMALL) -> Tacotron2:
    from dataclasses import replace

    model = Tacotron2(replace(sizes, p_attention_dropout=0.0, p_decoder_dropout=0.0))
    for part in (model.encoder, model.decoder.prenet, model.postnet):
        part.dropout = 0.0
    return model


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randint(1, 148, (3, 9)), torch.tensor([9, 7, 4]), torch.randn(3, 80, 11)


def test_the_network_has_the_published_number_of_parameters():
    assert count_parameters(Tacotron2()) == 28_193_153


def test_the_weights_have_nvidias_names():
    names = set(Tacotron2(SMALL).state_dict())
    for name in (
        "embedding.weight",
        "encoder.convolutions.2.0.conv.bias",
        "encoder.convolutions.0.1.running_mean",
        "encoder.lstm.weight_hh_l0_reverse",
        "decoder.prenet.layers.1.linear_layer.weight",
        "decoder.attention_rnn.weight_ih",
        "decoder.attention_layer.query_layer.linear_layer.weight",
        "decoder.attention_layer.memory_layer.linear_layer.weight",
        "decoder.attention_layer.v.linear_layer.weight",
        "decoder.attention_layer.location_layer.location_conv.conv.weight",
        "decoder.attention_layer.location_layer.location_dense.linear_layer.weight",
        "decoder.decoder_rnn.bias_hh",
        "decoder.linear_projection.linear_layer.bias",
        "decoder.gate_layer.linear_layer.weight",
        "postnet.convolutions.4.1.num_batches_tracked",
    ):
        assert name in names
    assert len(names) == 84


def test_padding_changes_nothing_that_is_inside_a_text():
    model = without_dropout().eval()
    text, lengths, _ = batch()
    embedded = model.embedding(text).transpose(1, 2)
    whole = model.encoder(embedded, lengths)
    assert not whole[2, 4:].any()
    # The LSTM itself sees nothing of the padding; the convolutions before it do, as in the original.
    model.encoder.convolutions = torch.nn.ModuleList()
    whole = model.encoder(embedded, lengths)
    alone = model.encoder(embedded[2:, :, :4], lengths[2:])
    torch.testing.assert_close(whole[2, :4], alone[0])
    packed = torch.nn.utils.rnn.pack_padded_sequence(embedded.transpose(1, 2), lengths, batch_first=True)
    there_and_back, _ = torch.nn.utils.rnn.pad_packed_sequence(model.encoder.lstm(packed)[0], batch_first=True)
    torch.testing.assert_close(whole, there_and_back)


@pytest.mark.parametrize("piece", [4, 64])
def test_the_fast_decoder_gives_what_the_plain_one_gives(monkeypatch, piece):
    monkeypatch.setattr("muster.recipes.tacotron2.loop.PIECE", piece)
    monkeypatch.setattr(tape, "PIECE", piece)
    model = without_dropout()
    text, lengths, mels = batch()
    results = []
    for loop in (Decoder.forward, fast_decoder):
        model.decoder_loop = loop
        model.zero_grad()
        outputs = model(text, lengths, mels)
        ends = torch.tensor([11, 8, 5])
        guided = off_diagonal(outputs.alignments, lengths, ends)
        (losses(outputs, mels, ends).reference + 30 * guided).backward()
        results.append((outputs, {name: p.grad.clone() for name, p in model.named_parameters()}))
    (plain, plain_gradients), (fast, fast_gradients) = results
    for name in ("mels", "refined", "gates", "alignments"):
        torch.testing.assert_close(getattr(fast, name), getattr(plain, name), atol=1e-5, rtol=1e-5)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(fast_gradients[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_the_fast_decoder_is_right_in_double_precision_with_dropout(monkeypatch):
    monkeypatch.setattr("muster.recipes.tacotron2.loop.PIECE", 3)
    monkeypatch.setattr(tape, "PIECE", 3)
    model = Tacotron2(SMALL).double()
    model.decoder.prenet.dropout = 0.0
    memory = torch.randn(2, 5, 16, dtype=torch.float64, requires_grad=True)
    lengths, mels = torch.tensor([5, 3]), torch.randn(2, 80, 4, dtype=torch.float64)

    def decode(memory, weight):
        torch.manual_seed(3)  # the same dropout each time
        frames, gates, alignments = torch.func.functional_call(
            Plain(model.decoder), {"decoder.attention_rnn.weight_hh": weight}, (memory, lengths, mels)
        )
        return frames.sum(2), gates, alignments

    weight = model.decoder.attention_rnn.weight_hh.detach()[:, :].clone().requires_grad_()
    assert torch.autograd.gradcheck(decode, (memory, weight), nondet_tol=0.0, fast_mode=True)


class Plain(torch.nn.Module):
    """Something to call the fast decoder through with other weights."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, memory, lengths, mels):
        return fast_decoder(self.decoder, memory, lengths, mels)


KERNELS = """
import torch
from muster.recipes.tacotron2 import loop, steps, tape
from muster.recipes.tacotron2.kernels import TritonSteps
from muster.recipes.tacotron2.model import ModelSizes, Tacotron2

loop.PIECE = tape.PIECE = 2
torch.manual_seed(0)
sizes = {"symbols_embedding_dim": 16, "encoder_embedding_dim": 24, "decoder_rnn_dim": 20, "prenet_dim": 12,
         "attention_rnn_dim": 40, "attention_dim": 18, "attention_location_kernel_size": 5, "postnet_embedding_dim": 8}
decoder = Tacotron2(ModelSizes(**sizes)).decoder
memory, lengths, mels = torch.randn(3, 19, 24, requires_grad=True), torch.tensor([19, 6, 11]), torch.randn(3, 80, 5)
results = []
for kind in (steps.TorchSteps, TritonSteps):
    steps.choose = lambda tape: kind()
    decoder.zero_grad()
    memory.grad = None
    torch.manual_seed(1)                                       # the same dropout
    frames, gates, alignments = loop.fast_decoder(decoder, memory, lengths, mels)
    (frames.square().sum() + gates.sum() + 9 * alignments[:, :, :5].square().sum()).backward()
    results.append([frames, gates, alignments, memory.grad, *(p.grad for p in decoder.parameters())])
for torchs, tritons in zip(*results, strict=True):
    torch.testing.assert_close(tritons, torchs, atol=1e-5, rtol=1e-4)
print(len(results[0]), "tensors agree")
"""


def test_the_kernels_do_what_the_steps_in_torch_do(tmp_path):
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs only", exc_type=ImportError)
    env = {**ENV, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, script(tmp_path, KERNELS)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "23 tensors agree\n"


def test_dropout_of_the_fast_decoder_has_the_distribution_of_the_plain_one():
    model = Tacotron2(SMALL)
    text, lengths, mels = batch()
    memory = model.encoder.eval()(model.embedding(text).transpose(1, 2), lengths).detach()
    means, deviations = [], []
    for loop in (Decoder.forward, fast_decoder):
        with torch.no_grad():
            made = torch.stack([loop(model.decoder, memory, lengths, mels)[0] for _ in range(300)])
        means.append(made.mean(0))
        deviations.append(made.std(0))
    spread = deviations[0].mean().item()
    assert spread > 0.01
    assert (means[0] - means[1]).abs().mean() < 3 * spread / math.sqrt(300)
    assert (deviations[0].mean() / deviations[1].mean() - 1).abs() < 0.05


def test_the_network_gives_what_torchaudios_gives(monkeypatch):
    theirs = pytest.importorskip(
        "torchaudio.models.tacotron2", reason="torchaudio cannot be imported beside this torch", exc_type=ImportError
    )
    monkeypatch.setattr(theirs.F, "dropout", lambda x, *_, **__: x)
    model = without_dropout()
    peer = theirs.Tacotron2(
        symbol_embedding_dim=16,
        encoder_embedding_dim=16,
        decoder_rnn_dim=20,
        prenet_dim=12,
        attention_rnn_dim=24,
        attention_hidden_dim=18,
        attention_location_n_filter=4,
        attention_location_kernel_size=5,
        postnet_embedding_dim=16,
    )
    renamed = {re.sub(r"\.(linear_layer|conv)\.", ".", n): w for n, w in model.state_dict().items()}
    peer.load_state_dict(renamed)
    text, lengths, mels = batch()
    expected = peer(text, lengths, mels, torch.tensor([11, 8, 5]))
    for loop in (Decoder.forward, fast_decoder):
        model.decoder_loop = loop
        outputs = model(text, lengths, mels)
        for name, theirs_ in zip(("mels", "refined", "gates", "alignments"), expected, strict=True):
            torch.testing.assert_close(getattr(outputs, name), theirs_, atol=1e-5, rtol=1e-5)


def test_speaking_stops_where_the_gate_says_so():
    model = without_dropout().eval()
    text, lengths, _ = batch()
    model.decoder.gate_layer.linear_layer.bias.data.fill_(-100)
    outputs, ends = model.infer(text, lengths, most=6)
    assert outputs.refined.shape == (3, 80, 6)
    assert ends.tolist() == [6, 6, 6]
    model.decoder.gate_layer.linear_layer.bias.data.fill_(100)
    outputs, ends = model.infer(text, lengths, most=6)
    assert outputs.mels.shape == (3, 80, 1)
    assert ends.tolist() == [1, 1, 1]


def test_the_filterbank_is_librosas():
    # librosa.filters.mel(sr=22050, n_fft=1024, n_mels=80, fmin=0, fmax=8000), librosa 0.11
    bank = filterbank(AudioSettings())
    assert bank.shape == (80, 513)
    torch.testing.assert_close(bank[0, :4], torch.tensor([0.0, 0.0155, 0.0227, 0.0071]), atol=5e-5, rtol=0)
    assert bank.sum().item() == pytest.approx(3.7137, abs=1e-3)
    assert bank[79].argmax().item() == 358


def test_a_tone_is_loudest_in_its_channel_and_comes_back_from_its_mel():
    settings = AudioSettings()
    tone = 0.3 * torch.sin(2 * math.pi * 1000 / 22050 * torch.arange(11025))
    mel = mel_spectrogram(tone, settings)
    assert mel.shape == (80, 11025 // 256 + 1)
    frequencies = torch.linspace(0, 11025, 513)
    loudest = filterbank(settings)[mel[:, 20].argmax()]
    assert abs(frequencies[loudest.argmax()].item() - 1000) < 60
    again = mel_spectrogram(griffin_lim(mel, settings, rounds=20), settings)
    assert (again[:, 5:-5] - mel[:, 5 : again.shape[1] - 5]).abs().mean() < 0.5
    assert mel_spectrogram(torch.zeros(4096), settings).unique().tolist() == [pytest.approx(math.log(1e-5))]


def test_the_reference_loss_counts_padding_and_the_other_does_not():
    lengths, frames = torch.tensor([2, 4]), 4
    assert gate_targets(lengths, frames).tolist() == [[0, 1, 1, 1], [0, 0, 0, 1]]
    mels = torch.zeros(2, 80, frames)
    made = torch.zeros(2, 80, frames)
    made[0, :, 2:] = 1.0  # wrong in the padding only
    gates = torch.where(gate_targets(lengths, frames) > 0, 100.0, -100.0)
    both = losses(Outputs(mels=made, refined=made, gates=gates, alignments=gates), mels, lengths)
    assert both.reference.item() == pytest.approx(2 * 2 / 8)
    assert both.unpadded.item() == pytest.approx(0.0)


def test_guided_attention_is_the_mean_cost_of_the_frames_of_all_clips():
    alignments = torch.rand(2, 6, 4)
    text_lengths, mel_lengths = torch.tensor([4, 3]), torch.tensor([6, 5])
    alignments[1, :, 3] = 0
    costs = [
        sum(
            alignments[clip, t, n].item() * (1 - math.exp(-((n / symbols - t / frames) ** 2) / (2 * NEAR**2)))
            for n in range(symbols)
        )
        for clip, (symbols, frames) in enumerate(((4, 6), (3, 5)))
        for t in range(frames)
    ]
    assert off_diagonal(alignments, text_lengths, mel_lengths).item() == pytest.approx(sum(costs) / 11)
    straight = torch.eye(5)[None]
    assert off_diagonal(straight, torch.tensor([5]), torch.tensor([5])).item() == 0
    assert off_diagonal(straight.flip(1), torch.tensor([5]), torch.tensor([5])).item() > 0.5


@pytest.mark.parametrize("decoder", ["plain", "fast"])
def test_guided_attention_finds_the_diagonal_and_does_not_change_the_reported_loss(decoder):
    world: Any = SimpleNamespace(device=torch.device("cpu"), size=1, rank=0)
    corpus = synthetic(4, 80, world.device, scale=0.05)
    examples = corpus.examples(range(4), max(corpus.symbols), max(corpus.frames))
    astray, first = {}, {}
    for weight in (0.0, 100.0):
        torch.manual_seed(0)
        step = TrainingStep(Tacotron2(SMALL), world, StepOptions(decoder=decoder))
        for _ in range(30):
            both = step(examples, rate=1e-2, guidance=weight)
            first.setdefault(weight, both.reference.item())
        outputs = step.losses(examples)[1]
        astray[weight] = off_diagonal(outputs.alignments, examples.text_lengths, examples.mel_lengths).item()
    assert first[0.0] == first[100.0]
    assert astray[100.0] < 0.3 < 0.5 < astray[0.0]


def test_guidance_is_constant_fades_and_continues_where_a_run_resumes():
    world: Any = SimpleNamespace(size=2, rank=0)
    batches = Batches(1000, 5, world)  # 100 steps per epoch

    def weight(epoch: int, position: int = 0) -> float:
        batches.load_state_dict({**batches.state_dict(), "epoch": epoch, "position": position})
        return guidance(batches, 1000)

    assert [weight(0), weight(4, 990)] == [GUIDANCE, GUIDANCE]
    assert weight(7) == pytest.approx(0.6 * GUIDANCE)
    assert weight(7, 500) == pytest.approx(0.5 * GUIDANCE)
    assert [weight(10), weight(1500)] == [0, 0]
    assert guidance(batches, 0) == 0


def test_every_rank_gets_the_same_batches_of_clips_of_one_length():
    lengths = [(i * 37) % 101 + 20 for i in range(205)]
    order = bucketed_order(lengths, 8, seed=1, epoch=0)
    assert order == bucketed_order(lengths, 8, seed=1, epoch=0) != bucketed_order(lengths, 8, seed=1, epoch=1)
    assert len(order) == len(set(order)) == 200
    batches = [[lengths[i] for i in order[start : start + 8]] for start in range(0, 200, 8)]
    padded = sum(max(each) * 8 for each in batches)
    assert padded < 1.1 * sum(map(sum, batches))
    assert [max(each) for each in batches] != sorted(max(each) for each in batches)


def test_validation_puts_clips_of_about_one_length_together():
    frames = [10, 50, 11, 51]
    symbols = [torch.ones(3, dtype=torch.long)] * 4
    corpus = Corpus(symbols, torch.zeros(sum(frames), 80), frames, torch.device("cpu"))
    world: Any = SimpleNamespace(device=torch.device("cpu"), size=1, rank=0)
    step, padded = TrainingStep(Tacotron2(SMALL), world, StepOptions()), []
    run = step.losses

    def losses_of(examples: Examples):
        padded.append((sorted(examples.mel_lengths.tolist()), examples.mels.shape[2]))
        return run(examples)

    step.losses = losses_of
    validate(step, world, corpus, batch_size=2, padding=Padding(), picture=None)
    assert padded == [([10, 11], 11), ([50, 51], 51)]


def test_made_up_clips_have_the_lengths_of_ljspeech_and_are_gathered_with_zeros_behind():
    corpus = synthetic(2000, 2, torch.device("cpu"))
    assert sum(corpus.frames) / 2000 == pytest.approx(566, rel=0.03)
    assert max(corpus.frames) <= 870
    assert sum(corpus.symbols) / 2000 == pytest.approx(99.9, rel=0.04)
    examples = corpus.examples([5, 6], 200, 900)
    assert examples.shape == (2, 200, 900)
    for row, clip in enumerate((5, 6)):
        assert examples.text[row].count_nonzero() == corpus.symbols[clip] == examples.text_lengths[row]
        assert examples.mels[row, 0].count_nonzero() == corpus.frames[clip] == examples.mel_lengths[row]


def test_a_checkpoint_of_the_original_is_read_with_and_without_ddps_prefix(tmp_path: Path):
    model = Tacotron2(SMALL)
    audio = AudioSettings(hop_length=512)
    write_weights(tmp_path / "tacotron2.pt", model, 7, audio)
    content = torch.load(tmp_path / "tacotron2.pt", weights_only=True)
    content["state_dict"] = {f"module.{name}": value for name, value in content["state_dict"].items()}
    torch.save(content, tmp_path / "checkpoint_Tacotron2_7.pt")
    for name in ("tacotron2.pt", "checkpoint_Tacotron2_7.pt"):
        original = read_original(tmp_path / name)
        assert original.epoch == 7
        assert audio_of(original) == audio
        other = Tacotron2(sizes_of(original))
        load_weights(other, original, tmp_path / name)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_picture_is_a_png_that_can_be_read(tmp_path: Path):
    pixels = picture([torch.arange(12.0).view(3, 4), torch.zeros(2, 3)], scale=2)
    assert pixels.shape == (6 + 6 + 4, 8, 3)
    write_png(tmp_path / "x.png", pixels)
    content = (tmp_path / "x.png").read_bytes()
    assert struct.unpack(">II", content[16:24]) == (8, 16)
    packed = content[content.index(b"IDAT") + 4 : content.index(b"IEND") - 8]
    assert len(zlib.decompress(packed)) == 16 * (1 + 3 * 8)


def test_the_learning_rate_is_annealed_as_in_the_original():
    steps = [500, 1000, 1500]
    assert [learning_rate(1.0, e, steps, 0.1) for e in (0, 499, 500, 1000)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [learning_rate(1.0, e, steps, 0.3) for e in (0, 500, 1000, 1500)] == pytest.approx([1, 0.3, 0.1, 0.03])
