"""Vision transformers: ViT (Dosovitskiy et al., ICLR 2021) and DeiT (Touvron et al., ICML 2021).

DeiT *is* ViT, trained otherwise; the one thing it may add is a distillation token with a head of
its own. ``deit-*`` is therefore the same net as ``vit-*`` until ``distilled=true``; then the
features are both tokens side by side, and the logits the mean of both heads, in training too.
The default patch of 4 is for 32 x 32 images; at 3 x 224 x 224 with ``patch=16`` and 1,000
classes the counts are the published ones: ViT-Base 86,567,656, DeiT-Ti 5,717,416, DeiT-S
22,050,664. ``vit`` is one of any size, with the small differences of other people's checkpoints
(``huggingface.py``).

    x            (B, C, H, W)
    patches      P = (H / patch) * (W / patch), numbered row by row
    tokens       the class token, the distillation token if there is one (``net.extra`` of both), then the patches
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar.nets.limits import dropout_problems, require_options, require_side
from attar.nets.registry import Builder, Look, Shape, register

MAX_DEPTH = 64
MAX_PATCHES = 4096


class Attention(nn.Module):
    """Multi-head self-attention, written out or by the fused kernel, which is faster and hides
    the weights.
    """

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width, bias)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor, fused: bool = False) -> tuple[Tensor, Tensor | None]:
        """(B, N, width) -> the same and the weights (B, heads, N, N), None where they are not seen."""
        query, key, value = (
            self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        weights = None if fused else (query * self.scale @ key.mT).softmax(-1)
        if weights is None:
            mixed = F.scaled_dot_product_attention(query, key, value, scale=self.scale)
        else:
            mixed = weights @ value
        return self.project(mixed.transpose(1, 2).flatten(2)), weights


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and added to its input."""

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


def fusible(tokens: Tensor) -> bool:
    """Whether torch's fused attention is to be had: it has no vmap rule on every device. On a
    CPU it wins nothing.
    """
    return tokens.is_cuda and not torch._C._functorch.is_batchedtensor(tokens)


class MeanOfHeads(nn.Module):
    """DeiT's late fusion: each token has its head, and the logits are averaged."""

    def __init__(self, width: int, tokens: int, num_classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, num_classes) for _ in range(tokens))

    def forward(self, features: Tensor) -> Tensor:
        parts = features.chunk(len(self.heads), dim=1)
        return torch.stack([head(part) for head, part in zip(self.heads, parts, strict=True)]).mean(
            0
        )


class ViT(nn.Module):
    """A vision transformer whose tokens can be looked at and left out: a ``TokenNet``."""

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
        voices: int,
        hidden: int,
        epsilon: float,
        qkv_bias: bool,
    ) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        self.patch, self.grid = patch, (height // patch, breadth // patch)
        self.extra = extra  # tokens that are no patches
        self.voices = voices  # how many of them have a head
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.tokens_extra = nn.Parameter(torch.empty(1, extra, width))
        self.positions = nn.Parameter(torch.empty(1, extra + self.grid[0] * self.grid[1], width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(width, heads, hidden, dropout, epsilon, qkv_bias) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.head = (
            nn.Linear(width, num_classes)
            if voices == 1
            else MeanOfHeads(width, voices, num_classes)
        )
        nn.init.trunc_normal_(self.tokens_extra, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def attend(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens after the last norm (B, extra + k, width), and the last block's class attention
        (B, heads, k).

        The class attention is what the class token gives to each patch, over all heads apart.
        ``keep`` (B, k) are the patches that go through the net, at their own positions; all of
        them by default.
        """
        tokens, (*before, last) = self._embedded(x, keep), self.blocks
        fused = fusible(tokens)
        for block in before:
            tokens, _ = block(tokens, fused)
        tokens, weights = last(tokens, False)
        return self.norm(tokens), weights[:, :, 0, self.extra :]

    def tokens(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Every token after the last norm."""
        tokens = self._embedded(x, keep)
        fused = fusible(tokens)
        for block in self.blocks:
            tokens, _ = block(tokens, fused)
        normed: Tensor = self.norm(tokens)
        return normed

    def _embedded(self, x: Tensor, keep: Tensor | None) -> Tensor:
        """The tokens before the first block."""
        pixels, places = self._cut(x), self.positions[:, self.extra :]
        if keep is not None:  # before anything is computed of them
            rows = keep.unsqueeze(-1)
            pixels = pixels.gather(1, rows.expand(-1, -1, pixels.shape[-1]))
            places = places.expand(len(x), -1, -1).gather(1, rows.expand(-1, -1, places.shape[-1]))
        patches = F.linear(pixels, self.embed.weight.flatten(1), self.embed.bias) + places
        extra = (self.tokens_extra + self.positions[:, : self.extra]).expand(
            patches.shape[0], -1, -1
        )
        tokens: Tensor = self.dropout(torch.cat((extra, patches), dim=1))
        return tokens

    def _cut(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> the pixels of each patch, (B, P, C * patch * patch), in the order of
        the convolution's weights.
        """
        rows, columns = self.grid
        cells = x.unflatten(3, (columns, self.patch)).unflatten(
            2, (rows, self.patch)
        )  # B, C, rows, patch, columns, patch
        pixels: Tensor = cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return pixels

    def look(self, x: Tensor, keep: Tensor | None = None) -> Look:
        """Logits, tokens and the class attention, averaged over heads, in one pass."""
        tokens, attention = self.attend(x, keep)
        return Look(self.head(self._heard(tokens)), tokens, attention.mean(1))

    def _heard(self, tokens: Tensor) -> Tensor:
        return tokens[:, : self.voices].flatten(1)

    def features(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self._heard(self.tokens(x, keep))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.features(x, keep))
        return logits


Distillation = Literal[
    "none", "token", "head"
]  # of DeiT: none, a token that no head reads, a token with a head of its own


def _vit(
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
    _, height, breadth = input_shape
    heads = width // 64 if heads is None else heads
    problems = dropout_problems(dropout)
    problems += [f"depth = {depth}: 1 to {MAX_DEPTH}"] if not 1 <= depth <= MAX_DEPTH else []
    problems += [f"patch = {patch}: at least 1"] if patch < 1 else []
    problems += (
        [f"heads = {heads}: a number that divides the width of {width}"]
        if heads < 1 or width % heads
        else []
    )
    problems += (
        [f"width = {width}, hidden = {hidden}: at least 1"] if width < 1 or hidden == 0 else []
    )
    require_options(arch, problems)
    require_side(arch, input_shape, patch)
    if height % patch or breadth % patch:
        problems.append(f"patch = {patch}: it must divide the image's {height} x {breadth} pixels")
    if (height // patch) * (breadth // patch) > MAX_PATCHES:
        problems.append(
            f"patch = {patch}: more than {MAX_PATCHES} patches in {height} x {breadth} pixels"
        )
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
        voices=2 if distillation == "head" else 1,
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
    more = {"heads": heads, "hidden": hidden}
    return _vit(
        "vit",
        input_shape,
        num_classes,
        width,
        patch,
        depth,
        dropout,
        distillation,
        epsilon=epsilon,
        qkv_bias=qkv_bias,
        **more,
    )


def _plain(arch: str, width: int) -> Builder:
    def build(
        input_shape: Shape,
        num_classes: int,
        *,
        patch: int = 4,
        depth: int = 12,
        dropout: float = 0.0,
    ) -> nn.Module:
        return _vit(arch, input_shape, num_classes, width, patch, depth, dropout)

    return build


def _data_efficient(arch: str, width: int) -> Builder:
    def build(
        input_shape: Shape,
        num_classes: int,
        *,
        patch: int = 4,
        depth: int = 12,
        dropout: float = 0.0,
        distilled: bool = False,
    ) -> nn.Module:
        return _vit(
            arch,
            input_shape,
            num_classes,
            width,
            patch,
            depth,
            dropout,
            "head" if distilled else "none",
        )

    return build


for _size, _width in (("Tiny", 192), ("Small", 384), ("Base", 768)):
    _name = f"vit-{_size.lower()}"
    register(_name, f"ViT-{_size}: width {_width}, {_width // 64} heads.", tokens=True)(
        _plain(_name, _width)
    )
    _name = f"deit-{_size.lower()}"
    _summary = f"DeiT-{_size}: ViT-{_size}, with a distillation token if asked for."
    register(_name, _summary, tokens=True)(_data_efficient(_name, _width))
