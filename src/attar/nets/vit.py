"""Vision transformers: ViT (Dosovitskiy et al., ICLR 2021) and DeiT (Touvron et al., ICML 2021).

DeiT is the same net as ViT, trained in another way; it may have a distillation token with its
own head. ``deit-*`` therefore equals ``vit-*`` until ``distilled=true``; then the features are
both tokens side by side, and the logits the mean of both heads, in training too. The default
patch of 4 is for 32 x 32 images; at 3 x 224 x 224 with ``patch=16`` and 1,000 classes the
parameter counts are the published ones: ViT-Base 86,567,656, DeiT-Ti 5,717,416, DeiT-S
22,050,664. ``vit`` has any size and the small differences of Hugging Face checkpoints
(``models/huggingface.py``).

    x            (B, C, H, W)
    patches      P = (H / patch) * (W / patch), numbered row by row
    tokens       the class token, the distillation token if there is one (``net.extra`` counts
                 both), then the patches
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.limits import dropout_problems, require_options, require_side
from attar.nets.registry import Look, Shape, register

MAX_DEPTH = 64
MAX_PATCHES = 4096


class Attention(nn.Module):
    """Multi-head self-attention, written out or by torch's fused kernel.

    Args:
        width: of the tokens.
        heads: how many; they divide the width.
        bias: whether query, key and value have one.
    """

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width, bias)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor, fused: bool = False) -> tuple[Tensor, Tensor | None]:
        """Mix the tokens (B, N, width).

        Args:
            x: the tokens.
            fused: use the fused kernel, which is faster and does not return the weights.

        Returns:
            The mixed tokens, and the attention weights (B, heads, N, N), or None if fused.
        """
        three = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = three.unbind(0)
        weights = None if fused else (query * self.scale @ key.mT).softmax(-1)
        if weights is None:
            mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        else:
            mixed = weights @ value
        return self.project(mixed.transpose(1, 2).flatten(2)), weights


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and added to its input.

    Args:
        width: of the tokens.
        heads: of the attention.
        hidden: width of the perceptron's hidden layer.
        dropout: rate after attention and layers.
        epsilon: of the LayerNorms.
        bias: whether query, key and value have one.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float, epsilon: float, bias: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.attention = Attention(width, heads, bias)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.perceptron = nn.Sequential(
            nn.Linear(width, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor, fused: bool = False) -> tuple[Tensor, Tensor | None]:
        mixed, weights = self.attention(self.norm1(x), fused)
        x = x + self.dropout(mixed)
        return x + self.perceptron(self.norm2(x)), weights


def can_fuse(tokens: Tensor) -> bool:
    """Whether to use torch's fused attention.

    On a CPU it saves nothing, and under vmap it has no rule for every device.
    """
    return tokens.is_cuda and not torch._C._functorch.is_batchedtensor(tokens)


class MeanOfHeads(nn.Module):
    """DeiT's late fusion: each token has its own head, and the logits are averaged.

    Args:
        width: of a token.
        tokens: how many.
        num_classes: outputs.
    """

    def __init__(self, width: int, tokens: int, num_classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, num_classes) for _ in range(tokens))

    def forward(self, features: Tensor) -> Tensor:
        """Logits of the tokens side by side, (B, tokens * width)."""
        parts = features.chunk(len(self.heads), dim=1)
        logits = [head(part) for head, part in zip(self.heads, parts, strict=True)]
        return torch.stack(logits).mean(0)


class ViT(nn.Module):
    """A vision transformer whose patches can be left out: a ``TokenNet``.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        patch: side of a patch in pixels.
        width: of the tokens.
        heads: of the attention.
        depth: blocks.
        dropout: rate.
        extra: tokens that are no patches: 1, or 2 with a distillation token.
        head_tokens: how many of these have a head.
        hidden: width of the perceptrons' hidden layer.
        epsilon: of the LayerNorms.
        qkv_bias: whether query, key and value have one.

    Attributes:
        grid: rows and columns of patches.
    """

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        *,
        patch: int,
        width: int,
        heads: int,
        depth: int,
        dropout: float,
        extra: int,
        head_tokens: int,
        hidden: int,
        epsilon: float,
        qkv_bias: bool,
    ) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        self.patch = patch
        self.grid = (height // patch, breadth // patch)
        self.extra = extra
        self.head_tokens = head_tokens
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.tokens_extra = nn.Parameter(torch.empty(1, extra, width))
        self.positions = nn.Parameter(torch.empty(1, extra + self.grid[0] * self.grid[1], width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, dropout, epsilon, qkv_bias) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=epsilon)
        if head_tokens == 1:
            self.head: nn.Module = nn.Linear(width, num_classes)
        else:
            self.head = MeanOfHeads(width, head_tokens, num_classes)
        nn.init.trunc_normal_(self.tokens_extra, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def attend(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens after the last norm, and the last block's class attention.

        Args:
            x: images, (B, C, H, W).
            keep: numbers of the patches that go through the net, (B, k), each at its own position;
                None keeps all of them.

        Returns:
            Tokens (B, extra + k, width), and the attention of the class token to each patch by
            head,
            (B, heads, k).
        """
        tokens = self._embed(x, keep)
        *before, last = self.blocks
        fused = can_fuse(tokens)
        for block in before:
            tokens, _ = block(tokens, fused)
        tokens, weights = last(tokens, False)
        return self.norm(tokens), weights[:, :, 0, self.extra :]

    def tokens(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """All tokens after the last norm, (B, extra + k, width); see ``attend``."""
        tokens = self._embed(x, keep)
        fused = can_fuse(tokens)
        for block in self.blocks:
            tokens, _ = block(tokens, fused)
        normed: Tensor = self.norm(tokens)
        return normed

    def _embed(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """The tokens before the first block."""
        pixels = self.cut(x)
        positions = self.positions[:, self.extra :]
        if keep is not None:  # before anything is computed of the others
            rows = keep.unsqueeze(-1)
            pixels = pixels.gather(1, rows.expand(-1, -1, pixels.shape[-1]))
            positions = positions.expand(len(x), -1, -1)
            positions = positions.gather(1, rows.expand(-1, -1, positions.shape[-1]))
        patches = F.linear(pixels, self.embed.weight.flatten(1), self.embed.bias) + positions
        extra = self.tokens_extra + self.positions[:, : self.extra]
        extra = extra.expand(patches.shape[0], -1, -1)
        tokens: Tensor = self.dropout(torch.cat((extra, patches), dim=1))
        return tokens

    def cut(self, x: Tensor) -> Tensor:
        """The pixels of each patch, (B, P, C * patch^2), ordered as the convolution's weights."""
        rows, columns = self.grid
        cells = x.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        # (B, C, rows, patch, columns, patch) -> (B, rows, columns, C, patch, patch)
        pixels: Tensor = cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return pixels

    def look(self, x: Tensor, keep: Tensor | None = None) -> Look:
        """Logits, tokens, and the class attention averaged over heads, in one pass."""
        tokens, attention = self.attend(x, keep)
        return Look(self.head(self._head_inputs(tokens)), tokens, attention.mean(1))

    def _head_inputs(self, tokens: Tensor) -> Tensor:
        return tokens[:, : self.head_tokens].flatten(1)

    def features(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """The tokens that have a head, side by side: (B, head_tokens * width)."""
        return self._head_inputs(self.tokens(x, keep))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.features(x, keep))
        return logits


Distillation = Literal["none", "token", "head"]
"""Of DeiT: no such token, a token that no head reads, or a token with its own head."""


def build_vit(
    arch: str,
    input_shape: Shape,
    num_classes: int,
    width: int,
    patch: int,
    depth: int,
    dropout: float,
    distillation: Distillation = "none",
    *,
    heads: int | None = None,
    hidden: int | None = None,
    epsilon: float = 1e-6,
    qkv_bias: bool = True,
) -> ViT:
    """A vision transformer, with every option checked."""
    _, height, breadth = input_shape
    heads = width // 64 if heads is None else heads
    problems = dropout_problems(dropout)
    if not 1 <= depth <= MAX_DEPTH:
        problems.append(f"depth = {depth}: 1 to {MAX_DEPTH}")
    if patch < 1:
        problems.append(f"patch = {patch}: at least 1")
    if heads < 1 or width % heads:
        problems.append(f"heads = {heads}: a number that divides the width of {width}")
    if width < 1 or hidden == 0:
        problems.append(f"width = {width}, hidden = {hidden}: at least 1")
    require_options(arch, problems)
    require_side(arch, input_shape, patch)
    size = f"{height} x {breadth} pixels"
    if height % patch or breadth % patch:
        problems.append(f"patch = {patch}: it must divide the image's {size}")
    if (height // patch) * (breadth // patch) > MAX_PATCHES:
        problems.append(f"patch = {patch}: more than {MAX_PATCHES} patches in {size}")
    require_options(arch, problems)
    return ViT(
        input_shape,
        num_classes,
        patch=patch,
        width=width,
        heads=heads,
        depth=depth,
        dropout=dropout,
        extra=1 if distillation == "none" else 2,
        head_tokens=2 if distillation == "head" else 1,
        hidden=4 * width if hidden is None else hidden,
        epsilon=epsilon,
        qkv_bias=qkv_bias,
    )


@register("vit", "ViT or DeiT of any size, such as a Hugging Face checkpoint's.", tokens=True)
def vit(
    input_shape: Shape,
    num_classes: int,
    *,
    patch: int = 4,
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
    hidden: int = 768,
    dropout: float = 0.0,
    epsilon: float = 1e-6,
    qkv_bias: bool = True,
    distillation: Distillation = "none",
) -> nn.Module:
    """A vision transformer of any size.

    Args:
        input_shape: (C, H, W).
        num_classes: outputs.
        patch: side of a patch in pixels; it divides the image's sides.
        width: of the tokens.
        depth: blocks.
        heads: of the attention; they divide the width.
        hidden: width of the perceptrons' hidden layer.
        dropout: rate.
        epsilon: of the LayerNorms.
        qkv_bias: whether query, key and value have one.
        distillation: whether there is a distillation token, and whether it has a head.
    """
    return build_vit(
        "vit",
        input_shape,
        num_classes,
        width=width,
        patch=patch,
        depth=depth,
        dropout=dropout,
        distillation=distillation,
        heads=heads,
        hidden=hidden,
        epsilon=epsilon,
        qkv_bias=qkv_bias,
    )
