"""Large nets on CUDA run side by side in streams of their own: equal to the stacked call, forth and back."""

import pytest
import torch

from attar.blocks import lanes
from attar.blocks.teachers import Teachers
from attar.core import ModelSpec, Part, Preprocess

CLASSES = tuple("abcde")
SHAPE = (3, 32, 32)


def nets(arch: str, number: int) -> list[Part]:
    spec = ModelSpec(arch)
    return [
        Part(spec, spec.build(SHAPE, len(CLASSES), seed).state_dict(), CLASSES, Preprocess.centred(SHAPE))
        for seed in range(number)
    ]


def answers(teachers: Teachers, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    images = images.clone().requires_grad_()
    logits = teachers(images)
    (slope,) = torch.autograd.grad(logits.square().sum(), images)
    return logits.detach(), slope


@pytest.mark.gpu
@pytest.mark.parametrize("number", [1, 3, 6])
def test_side_by_side_equals_stacked_and_recorded(number: int) -> None:
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


def test_large_convolutions_are_left_alone_on_cuda_only() -> None:
    skeletons = {arch: ModelSpec(arch).skeleton(SHAPE, 10) for arch in ("cnn5", "vit-tiny", "cnn2")}
    verdicts = {arch: lanes.heavy_on(net, SHAPE, torch.device("cuda")) for arch, net in skeletons.items()}
    assert verdicts == {"cnn5": True, "vit-tiny": False, "cnn2": False}  # attention stacks well
    assert not lanes.heavy_on(skeletons["cnn5"], SHAPE, torch.device("cpu"))


def test_calls_keep_their_order() -> None:
    assert lanes.side_by_side([lambda n=n: n for n in range(7)], torch.device("cpu")) == list(range(7))
