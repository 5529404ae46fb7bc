"""Nets that are one block again and again: the block is compiled, once for all its repetitions
and for everybody's weights.

A transformer compiled as a whole is a large graph for each number of patches and each way of
calling it, a minute each. Its block is a small one, which takes the number of patches as it
comes and serves clients and student alike.
"""

from weakref import WeakSet

from torch import nn

# of calling one block: with and without gradients, in training, at rest …; torch gives up after 8,
# and is slow from then on
WAYS = 64

_compiled: WeakSet[nn.Module] = WeakSet()


def repeated(net: nn.Module) -> list[nn.Module]:
    """The blocks of a net, of several layers each, that stand in a list of their like; none,
    where there is no such list.
    """
    lists = [some for some in net.modules() if isinstance(some, nn.ModuleList) and len(some) > 1]
    alike = [some for some in lists if len({type(block) for block in some}) == 1]
    return [block for some in alike for block in some if any(block.children())]


def compile_blocks(net: nn.Module) -> bool:
    """Have the repeated blocks of ``net`` compiled when they are called first; whether it has
    any. Its weights stay where they are.
    """
    blocks = repeated(net)
    if not blocks:
        return False
    from torch._dynamo import config  # takes two seconds, which nobody else shall wait for

    config.recompile_limit = max(config.recompile_limit, WAYS)
    for block in blocks:
        block.compile(dynamic=True)
    _compiled.add(net)
    return True


def has_compiled_blocks(net: nn.Module) -> bool:
    """Whether ``compile_blocks`` did so to this net; asked at every step. Such blocks cannot be
    called under vmap.
    """
    return net in _compiled
