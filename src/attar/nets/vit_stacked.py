"""The passes of several vision transformers of one kind at once, their weights stacked.

A small net on a small batch is hundreds of small products. With the weights of K nets stacked each
of them is one batched product, and a block is a function that can be compiled: ``vmap`` cannot call
compiled blocks.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from attar.nets.vit import Block, ViT

Weights = Mapping[str, Tensor]
"""By name, the weights of all nets: (K, ...)."""

BlockCall = Callable[[Weights, Tensor, int, float, bool], tuple[Tensor, Tensor | None]]


def look_stacked(
    net: ViT, weights: Weights, x: Tensor, keep: Tensor | None, block: BlockCall
) -> tuple[Tensor, Tensor]:
    """Run each net on images of its own, in eval mode: ``ViT.look`` of every one of them.

    Args:
        net: the layers; its own weights are not read.
        weights: of the K nets.
        x: inputs, (K, B, C, H, W).
        keep: numbers of the patches that each net sees, (K, B, k); None: all.
        block: ``block_stacked``, compiled or not.

    Returns:
        Logits (K, B, classes), and the attention of the class token to each patch, (K, B, k).
    """
    tokens = _embed(net, weights, x, keep)
    attention = torch.empty(0)
    for number, layer in enumerate(net.blocks):
        assert isinstance(layer, Block)
        own = _under(weights, f"blocks.{number}.")
        last = number == len(net.blocks) - 1
        heads, epsilon = layer.attention.heads, layer.norm1.eps
        tokens, scores = block(own, tokens, heads, epsilon, not last and tokens.is_cuda)
        if last:
            assert scores is not None
            attention = scores[:, :, :, 0, net.extra :].mean(2)
    tokens = _norm(_under(weights, "norm."), tokens, net.norm.eps)
    features = tokens[:, :, : net.head_tokens].flatten(2)
    logits: Tensor = vmap(lambda head, inputs: functional_call(net.head, head, (inputs,)))(
        _under(weights, "head."), features
    )
    return logits, attention


def block_stacked(
    weights: Weights, x: Tensor, heads: int, epsilon: float, fused: bool
) -> tuple[Tensor, Tensor | None]:
    """A ``Block`` of every net in eval mode, where dropout does nothing.

    Args:
        weights: of this block.
        x: the tokens, (K, B, N, width).
        heads: of the attention.
        epsilon: of the LayerNorms.
        fused: use torch's fused attention, which does not return its weights.

    Returns:
        The tokens, and the attention weights (K, B, heads, N, N) unless fused.
    """
    number, batch, length, width = x.shape
    normed = _norm(_under(weights, "norm1."), x, epsilon)
    three = _linear(_under(weights, "attention.qkv."), normed)
    three = three.reshape(number * batch, length, 3, heads, width // heads)
    query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)
    scale = (width // heads) ** -0.5
    scores = None if fused else (query * scale @ key.mT).softmax(-1)
    if scores is None:
        mixed = F.scaled_dot_product_attention(query, key, value, scale=scale)
    else:
        mixed = scores @ value
        scores = scores.unflatten(0, (number, batch))
    mixed = mixed.transpose(1, 2).reshape(number, batch, length, width)
    x = x + _linear(_under(weights, "attention.project."), mixed)
    hidden = _linear(_under(weights, "perceptron.0."), _norm(_under(weights, "norm2."), x, epsilon))
    return x + _linear(_under(weights, "perceptron.3."), F.gelu(hidden)), scores


def _embed(net: ViT, weights: Weights, x: Tensor, keep: Tensor | None) -> Tensor:
    """The tokens before the first block, (K, B, extra + k, width)."""
    batch = x.shape[1]
    pixels = net.cut(x.flatten(0, 1)).unflatten(0, x.shape[:2])
    places = weights["positions"].expand(-1, batch, -1, -1)
    positions = places[:, :, net.extra :]
    if keep is not None:
        rows = keep.unsqueeze(-1)
        pixels = pixels.gather(2, rows.expand(-1, -1, -1, pixels.shape[-1]))
        positions = positions.gather(2, rows.expand(-1, -1, -1, positions.shape[-1]))
    embed = {"weight": weights["embed.weight"].flatten(2), "bias": weights["embed.bias"]}
    extra = weights["tokens_extra"] + places[:, :, : net.extra]
    return torch.cat((extra, _linear(embed, pixels) + positions), dim=2)


def _linear(weights: Weights, x: Tensor) -> Tensor:
    """A linear layer of every net: (K, B, N, inputs) -> (K, B, N, outputs)."""
    rows = x.flatten(1, 2)
    matrix = weights["weight"].mT
    if "bias" in weights:
        outputs = torch.baddbmm(weights["bias"][:, None], rows, matrix)
    else:
        outputs = rows @ matrix
    tokens: Tensor = outputs.unflatten(1, x.shape[1:3])
    return tokens


def _norm(weights: Weights, x: Tensor, epsilon: float) -> Tensor:
    """A LayerNorm of every net."""
    scale, shift = (weights[name][:, None, None] for name in ("weight", "bias"))
    return F.layer_norm(x, x.shape[-1:], eps=epsilon) * scale + shift


def _under(weights: Weights, prefix: str) -> dict[str, Tensor]:
    """The weights whose names begin with this."""
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }
