"""Compile nets that repeat one block: the block is compiled once, for all repetitions and weights.

A transformer compiled as a whole is a large graph for each number of patches and each way of
calling it, a minute each. Its block is a small graph that takes any number of patches and serves
clients and student alike.
"""

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import nn

# Ways of calling one block: with and without gradients, in train and eval mode and so on. By
# default torch gives up after 8, and is slow from then on.
RECOMPILE_LIMIT = 64

_compiled: WeakSet[nn.Module] = WeakSet()


def repeated_blocks(net: nn.Module) -> list[nn.Module]:
    """The blocks of several layers each that a net holds in a list of blocks of the same type."""
    lists = [
        module for module in net.modules() if isinstance(module, nn.ModuleList) and len(module) > 1
    ]
    alike = [blocks for blocks in lists if len({type(block) for block in blocks}) == 1]
    return [block for blocks in alike for block in blocks if any(block.children())]


def compile_blocks(net: nn.Module) -> bool:
    """Have the repeated blocks of a net compiled at their first call; its weights stay in place.

    Returns:
        Whether the net has such blocks.
    """
    blocks = repeated_blocks(net)
    if not blocks:
        return False
    _allow_recompiling()
    for block in blocks:
        block.compile(dynamic=True)
    _compiled.add(net)
    return True


def has_compiled_blocks(net: nn.Module) -> bool:
    """Whether ``compile_blocks`` compiled blocks of this net; they cannot be called under vmap."""
    return net in _compiled


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors, compiled at its first call for any sizes of them."""
    _allow_recompiling()
    return torch.compile(function, dynamic=True)


def _allow_recompiling() -> None:
    from torch._dynamo import config  # the import takes two seconds

    config.recompile_limit = max(config.recompile_limit, RECOMPILE_LIMIT)
