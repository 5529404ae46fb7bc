"""Vision transformers: ViT (Dosovitskiy et al., ICLR 2021) and DeiT (Touvron et al., ICML 2021).

DeiT *is* ViT, trained otherwise; the one thing it may add is a distillation token with a head of its own. ``deit-*`` is
therefore the same net as ``vit-*`` until ``distilled=true``; then the features are both tokens side by side, and the
logits the mean of both heads, in training too. The default patch of 4 is for 32 x 32 images; at 3 x 224 x 224 with
``patch=16`` and 1,000 classes the counts are the published ones: ViT-Base 86,567,656, DeiT-Ti 5,717,416, DeiT-S
22,050,664.

    x            (B, C, H, W)
    patches      P = (H / patch) * (W / patch)
    tokens       the class token, the distillation token if there is one (``net.extra`` of both), then the patches
"""

import torch
from torch import Tensor, nn

from attar.nets.limits import dropout_problems, require_options, require_side
from attar.nets.registry import Shape, register

MAX_DEPTH = 64
MAX_PATCHES = 4096


class Attention(nn.Module):
    """Multi-head self-attention, written out: the fused kernel has no vmap rule on the CPU and hides the weights."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, width) -> the same and the weights (B, heads, N, N)."""
        query, key, value = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (query * self.scale @ key.mT).softmax(-1)
        mixed: Tensor = self.project((weights @ value).transpose(1, 2).flatten(2))
        return mixed, weights


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixed, weights = self.attention(self.norm1(x))
        x = x + self.dropout(mixed)
        return x + self.perceptron(self.norm2(x)), weights


class MeanOfHeads(nn.Module):
    """DeiT's late fusion: each token has its head, and the logits are averaged."""

    def __init__(self, width: int, tokens: int, num_classes: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, num_classes) for _ in range(tokens))

    def forward(self, features: Tensor) -> Tensor:
        parts = features.chunk(len(self.heads), dim=1)
        return torch.stack([head(part) for head, part in zip(self.heads, parts, strict=True)]).mean(0)


class ViT(nn.Module):
    """A vision transformer whose tokens can be looked at and left out."""

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
    ) -> None:
        super().__init__()
        channels, height, breadth = input_shape
        self.extra = extra  # tokens that are no patches
        self.embed = nn.Conv2d(channels, width, patch, patch)
        self.tokens_extra = nn.Parameter(torch.empty(1, extra, width))
        self.positions = nn.Parameter(torch.empty(1, extra + (height // patch) * (breadth // patch), width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes) if extra == 1 else MeanOfHeads(width, extra, num_classes)
        nn.init.trunc_normal_(self.tokens_extra, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def attend(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Tokens after the last norm (B, extra + k, width), and the last block's class attention (B, heads, k).

        The class attention is what the class token gives to each patch, over all heads apart. ``keep`` (B, k) are the
        patches that go through the net, at their own positions; all of them by default.
        """
        patches = self.embed(x).flatten(2).transpose(1, 2) + self.positions[:, self.extra :]
        if keep is not None:
            patches = patches.gather(1, keep.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))
        extra = (self.tokens_extra + self.positions[:, : self.extra]).expand(patches.shape[0], -1, -1)
        tokens = self.dropout(torch.cat((extra, patches), dim=1))
        for block in self.blocks:
            tokens, weights = block(tokens)
        return self.norm(tokens), weights[:, :, 0, self.extra :]

    def tokens(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Every token after the last norm."""
        return self.attend(x, keep)[0]

    def features(self, x: Tensor) -> Tensor:
        return self.tokens(x)[:, : self.extra].flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def _vit(
    arch: str,
    input_shape: Shape,
    num_classes: int,
    width: int,
    patch: int,
    depth: int,
    dropout: float,
    distilled: bool = False,
) -> ViT:
    _, height, breadth = input_shape
    problems = dropout_problems(dropout)
    problems += [f"depth = {depth}: 1 to {MAX_DEPTH}"] if not 1 <= depth <= MAX_DEPTH else []
    problems += [f"patch = {patch}: at least 1"] if patch < 1 else []
    require_options(arch, problems)
    require_side(arch, input_shape, patch)
    if height % patch or breadth % patch:
        problems.append(f"patch = {patch}: it must divide the image's {height} x {breadth} pixels")
    if (height // patch) * (breadth // patch) > MAX_PATCHES:
        problems.append(f"patch = {patch}: more than {MAX_PATCHES} patches in {height} x {breadth} pixels")
    require_options(arch, problems)
    return ViT(
        input_shape,
        num_classes,
        patch=patch,
        width=width,
        heads=width // 64,
        depth=depth,
        dropout=dropout,
        extra=2 if distilled else 1,
    )


@register("vit-tiny", "ViT-Tiny: width 192, 3 heads.")
def vit_tiny(input_shape: Shape, num_classes: int, *, patch: int = 4, depth: int = 12, dropout: float = 0.0) -> nn.Module:
    return _vit("vit-tiny", input_shape, num_classes, 192, patch, depth, dropout)


@register("vit-small", "ViT-Small: width 384, 6 heads.")
def vit_small(input_shape: Shape, num_classes: int, *, patch: int = 4, depth: int = 12, dropout: float = 0.0) -> nn.Module:
    return _vit("vit-small", input_shape, num_classes, 384, patch, depth, dropout)


@register("vit-base", "ViT-Base: width 768, 12 heads.")
def vit_base(input_shape: Shape, num_classes: int, *, patch: int = 4, depth: int = 12, dropout: float = 0.0) -> nn.Module:
    return _vit("vit-base", input_shape, num_classes, 768, patch, depth, dropout)


@register("deit-tiny", "DeiT-Tiny: ViT-Tiny, with a distillation token if asked for.")
def deit_tiny(
    input_shape: Shape,
    num_classes: int,
    *,
    patch: int = 4,
    depth: int = 12,
    dropout: float = 0.0,
    distilled: bool = False,
) -> nn.Module:
    return _vit("deit-tiny", input_shape, num_classes, 192, patch, depth, dropout, distilled)


@register("deit-small", "DeiT-Small: ViT-Small, with a distillation token if asked for.")
def deit_small(
    input_shape: Shape,
    num_classes: int,
    *,
    patch: int = 4,
    depth: int = 12,
    dropout: float = 0.0,
    distilled: bool = False,
) -> nn.Module:
    return _vit("deit-small", input_shape, num_classes, 384, patch, depth, dropout, distilled)


@register("deit-base", "DeiT-Base: ViT-Base, with a distillation token if asked for.")
def deit_base(
    input_shape: Shape,
    num_classes: int,
    *,
    patch: int = 4,
    depth: int = 12,
    dropout: float = 0.0,
    distilled: bool = False,
) -> nn.Module:
    return _vit("deit-base", input_shape, num_classes, 768, patch, depth, dropout, distilled)
