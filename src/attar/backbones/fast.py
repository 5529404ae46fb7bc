"""A frozen net for many images: BatchNorms folded into convolutions, channels last in memory.

On a CPU that nearly doubles the images a second of EfficientNet-Lite0. Features differ in the
last digits only.
"""

import copy
from itertools import pairwise

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


def fast_copy(net: nn.Module, device: str | torch.device) -> nn.Module:
    """Copy a frozen net to a device in its fastest form.

    Args:
        net: in eval mode.
        device: where it will run.
    """
    fast = copy.deepcopy(net)
    for chain in [module for module in fast.modules() if isinstance(module, nn.Sequential)]:
        for first, second in pairwise(list(chain._modules)):
            convolution, norm = chain._modules[first], chain._modules[second]
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                chain._modules[first] = fuse_conv_bn_eval(convolution, norm)
                chain._modules[second] = nn.Identity()
    fast.to(device)
    fast.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return fast.eval().requires_grad_(False)
