"""Large nets on CUDA run in parallel streams: results and gradients equal the stacked call's."""

from typing import Any

import pytest
import torch
from torch import nn

from attar.blocks.ensemble import Teachers
from attar.blocks.execution import arithmetic, prefers_streams, run_in_streams
from attar.core import ModelSpec, Part, Preprocess
from attar.training import LocalTraining, stacking, train_classifiers
from tiny_clients import random_client

CLASSES = tuple("abcde")
SHAPE = (3, 32, 32)
GREY = (1, 28, 28)


def nets(arch: str, number: int, shape: tuple[int, int, int] = SHAPE) -> list[Part]:
    spec = ModelSpec(arch)
    return [
        Part(
            spec,
            spec.build(shape, len(CLASSES), seed).state_dict(),
            CLASSES,
            Preprocess.centred(shape),
        )
        for seed in range(number)
    ]


def answers(teachers: Teachers, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    images = images.clone().requires_grad_()
    logits = teachers(images)
    (slope,) = torch.autograd.grad(logits.square().sum(), images)
    return logits.detach(), slope


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1, 3, 6])
def test_teachers_one_by_one_equal_stacked(number: int) -> None:
    images, parts = torch.rand(16, *SHAPE, device="cuda"), nets("cnn5", number)
    freely, stacked = (Teachers(parts, CLASSES, stack=stack).to("cuda") for stack in (None, True))
    assert not freely.groups[0].stacks(images)  # type: ignore[operator]
    for ours, twin in zip(answers(freely, images), answers(stacked, images), strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-3, atol=1e-3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = answers(freely, images)
    graph.replay()
    for ours, twin in zip(recorded, answers(freely, images), strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-3, atol=1e-3)


def grey_images(device: str) -> torch.Tensor:
    """Grey images as they come from a file, pixel by pixel: torch calls them contiguous and
    channels-last at once.
    """
    images = torch.rand(4, *GREY[1:], 1, device=device).permute(0, 3, 1, 2)
    assert images.is_contiguous()
    assert images.is_contiguous(memory_format=torch.channels_last)
    return images


def test_teachers_stacked_see_plain_strides() -> None:
    teachers = Teachers(nets("cnn-dense", 2, GREY), CLASSES, stack=True)
    seen: list[tuple[int, ...]] = []

    def look(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(inputs[0].stride())

    teachers.groups[0].code().register_forward_pre_hook(look)  # type: ignore[operator]
    teachers(grey_images("cpu"))
    assert seen == [(28 * 28, 28 * 28, 28, 1)]


@pytest.mark.gpu
def test_teachers_stack_grey_batchnorm_nets() -> None:
    parts, images = nets("cnn-dense", 3, GREY), grey_images("cuda")
    stacked, apart = (Teachers(parts, CLASSES, stack=stack).to("cuda") for stack in (True, False))
    for ours, twin in zip(answers(stacked, images), answers(apart, images), strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-3, atol=1e-3)


def test_prefers_streams_on_cuda_alone() -> None:
    skeletons = {arch: ModelSpec(arch).skeleton(SHAPE, 10) for arch in ("cnn5", "vit-tiny", "cnn2")}
    verdicts = {
        arch: prefers_streams(net, SHAPE, torch.device("cuda")) for arch, net in skeletons.items()
    }
    assert verdicts == {"cnn5": True, "vit-tiny": False, "cnn2": False}  # attention stacks well
    assert not prefers_streams(skeletons["cnn5"], SHAPE, torch.device("cpu"))


def test_run_in_streams_keeps_the_order() -> None:
    assert run_in_streams([lambda n=n: n for n in range(7)], torch.device("cpu")) == list(range(7))


@pytest.mark.parametrize("arch", ["lenet5", "wrn16-1", "cnn2"])
def test_forward_one_by_one_trains_as_forward_stacked(arch: str) -> None:
    """Losses, gradients and running statistics of three clients on their own images, in double
    precision.
    """
    spec = ModelSpec(arch)
    net = spec.build(SHAPE, len(CLASSES), 0).double().train()
    rows = [spec.build(SHAPE, len(CLASSES), seed).double() for seed in (1, 2, 3)]
    params = stacking.stack_tensors([dict(row.named_parameters()) for row in rows], "cpu")
    images = torch.rand(3, 4, *SHAPE, dtype=torch.float64)
    labels = torch.randint(len(CLASSES), (3, 4))
    results = []
    for forward in (stacking.forward_stacked, stacking.forward_one_by_one):
        buffers = stacking.stack_tensors([dict(row.named_buffers()) for row in rows], "cpu")

        def loss(
            leaves: stacking.Tensors, forward: Any = forward, buffers: Any = buffers
        ) -> torch.Tensor:
            logits = forward(net, leaves, buffers, images)
            return stacking.mean_cross_entropy(logits, labels)

        losses, grads = stacking.differentiate(loss, params)
        named = {f"buffer {name}": value for name, value in buffers.items()}
        results.append({"losses": losses, **grads, **named})
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.gpu
def test_train_classifiers_one_by_one_equals_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"ann": 96, "ben": 80, "cem": 33}
    clients = [random_client(name, size, SHAPE, CLASSES) for name, size in sizes.items()]
    states = []
    for apart in (False, True):
        monkeypatch.setattr(stacking, "prefers_streams", lambda *_, apart=apart: apart)
        training = LocalTraining(epochs=3, batch_size=16, lr=0.01)
        with arithmetic("fp32", "cuda"):
            uploads = train_classifiers(clients, [ModelSpec("cnn5")] * 3, training, device="cuda")
        states.append([upload.parts["classifier"].state for upload in uploads])
    torch.testing.assert_close(states[1], states[0], rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cross_entropy_gradients_of_recorded_clients(precision: str) -> None:
    """What a stream keeps for the backward pass is not overwritten meanwhile: recorded gradients of
    five clients against each alone.
    """
    spec, clients = ModelSpec("vgg11"), 5
    net = spec.build(SHAPE, len(CLASSES), 0).cuda().train()
    rows = [spec.build(SHAPE, len(CLASSES), seed) for seed in range(clients)]
    params = stacking.stack_tensors([dict(row.named_parameters()) for row in rows], "cuda")
    buffers = stacking.stack_tensors([dict(row.named_buffers()) for row in rows], "cuda")
    images, labels = (
        torch.rand(clients, 64, *SHAPE, device="cuda"),
        torch.randint(len(CLASSES), (clients, 64), device="cuda"),
    )

    def slopes(first: int, last: int) -> torch.Tensor:
        call = stacking.Call(first, last, 0, 0)
        still = {name: value.clone() for name, value in stacking.slice_stack(buffers, call).items()}
        _, gradients = stacking.cross_entropy_gradients(
            net, stacking.slice_stack(params, call), still, images[first:last], labels[first:last]
        )
        return gradients["trunk.0.weight"]

    with arithmetic(precision, "cuda"):
        alone = torch.cat([slopes(client, client + 1) for client in range(clients)])
        slopes(0, clients)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = slopes(0, clients)
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            error = (recorded - alone).flatten(1).norm(dim=1) / alone.flatten(1).norm(dim=1)
            assert error.max() < (0.05 if precision == "bf16" else 1e-3), error


@pytest.mark.gpu
def test_run_in_streams_sums_gradients_of_shared_weights() -> None:
    """Passes over all patches and over some (FedMITR) share their weights, whose gradients are
    summed, recorded or not.
    """
    net, images = (
        ModelSpec.parse("vit-tiny:depth=2").build(SHAPE, len(CLASSES), 0).cuda(),
        torch.rand(32, *SHAPE, device="cuda"),
    )
    weights, order = list(net.parameters()), torch.rand(32, 64, device="cuda").argsort(1)
    calls = [
        lambda: net(images),
        lambda: net(images, order[:, :17]),
        lambda: net(images, order[:, 17:]),
    ]

    def slopes(answers: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(
            torch.stack([answer.square().sum() for answer in answers]).sum(), weights
        )

    with arithmetic("fp32", "cuda"):
        twin = slopes([call() for call in calls])
        for at_once in (2, 12):  # fewer than the calls, and more
            logits = run_in_streams(calls, images.device, at_once)
            torch.testing.assert_close(slopes(logits), twin, rtol=1e-4, atol=1e-4)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = slopes(run_in_streams(calls, images.device))
        graph.replay()
        torch.testing.assert_close(recorded, twin, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_lay_out_clients_changes_no_number(precision: str) -> None:
    """Weights with channels last, and in the precision of autocast: answers and gradients are
    those of each client's own weights.
    """
    spec = ModelSpec("cnn5")
    nets = [spec.build(SHAPE, 5, seed) for seed in range(3)]
    stack = {
        name: torch.stack([dict(net.named_parameters())[name].detach() for net in nets])
        for name, _ in nets[0].named_parameters()
    }
    buffers = {
        name: torch.stack([dict(net.named_buffers())[name] for net in nets])
        for name, _ in nets[0].named_buffers()
    }
    images = torch.rand(3, 4, *SHAPE, generator=torch.Generator().manual_seed(0))
    found = []
    for for_cuda in (False, True):
        leaves = {name: value.clone().requires_grad_() for name, value in stack.items()}
        own = {name: value.clone() for name, value in buffers.items()}
        with arithmetic(precision, "cpu"):
            rows = stacking.lay_out_clients(leaves, for_cuda=for_cuda)
            if for_cuda:
                convolution = next(value for value in rows[0].values() if value.ndim == 4)
                assert convolution.is_contiguous(memory_format=torch.channels_last)
                wanted = torch.bfloat16 if precision == "bf16" else torch.float32
                assert convolution.dtype == wanted
            logits = [call() for call in stacking.client_calls(nets[0], rows, own, images)]
            loss = torch.stack([one.float().square().mean() for one in logits]).sum()
        grads = torch.autograd.grad(loss, list(leaves.values()))
        found.append((torch.stack(logits).float(), own, grads))
    coarse = precision == "bf16"
    torch.testing.assert_close(*found, rtol=5e-2 if coarse else 1e-4, atol=3e-2 if coarse else 1e-5)
