"""Whether the tensors of a file make the net that its manifest describes.

Names, shapes and types are compared with the net on the ``meta`` device, so that nothing is
allocated for a file that is then refused.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import AttarError
from attar.uploads.manifest import one_line


def role_problems(role: str, spec: ModelSpec) -> list[str]:
    """Check that a net is of the kind that its part needs.

    Args:
        role: the part's name. ``"decoder"``, ``"statistics"``, ``"sums"`` and ``"mixtures"`` need
            nets of these kinds, every other part a classifier. No part takes a whole autoencoder.
        spec: the net.

    Returns:
        One sentence, or an empty list.
    """
    wanted = role if role in ("decoder", "statistics", "sums", "mixtures") else "classifier"
    return [] if spec.kind == wanted else [f"{spec} is a {spec.kind}, not a {wanted}"]


def shape_problems(
    spec: ModelSpec,
    classes: Sequence[str],
    preprocess: Preprocess,
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
) -> list[str]:
    """Compare the tensors of a file with those of the net: names, shapes and data types.

    Args:
        spec: the net.
        classes: its class names; their number is the size of its last layer.
        preprocess: gives the shape of its input.
        shapes: data type and shape of each tensor in the file.

    Returns:
        One sentence for each difference, the first few; empty if there is none.
    """
    try:
        expected = spec.skeleton(preprocess.input_shape, len(classes)).state_dict()
    except AttarError as error:
        return [one_line(error)]
    problems = _list_names("missing tensor", sorted(expected.keys() - shapes.keys()))
    problems += _list_names("unexpected tensor", sorted(shapes.keys() - expected.keys()))
    for name in sorted(expected.keys() & shapes.keys()):
        dtype, shape = shapes[name]
        needed = expected[name]
        if shape != tuple(needed.shape):
            sizes = f"has shape {list(shape)}, {spec} needs {list(needed.shape)}"
            problems.append(f"tensor {name} {sizes}")
        elif dtype != needed.dtype:
            types = f"has type {_dtype_name(dtype)}, {spec} needs {_dtype_name(needed.dtype)}"
            problems.append(f"tensor {name} {types}")
    return cap(problems)


def value_problems(state: Mapping[str, Tensor]) -> list[str]:
    """Find weights that no training produces: NaN, infinities, negative variances or counters.

    Args:
        state: the tensors of a net by name.

    Returns:
        One sentence for each such tensor, the first few; empty if there is none.
    """
    problems = []
    for name, tensor in state.items():
        if tensor.is_floating_point() and not all_finite(tensor):
            problems.append(f"tensor {name} holds NaN or infinite values")
        elif name.endswith("running_var") and _any_negative(tensor):
            problems.append(f"tensor {name} holds negative variances")
        elif name.endswith("num_batches_tracked") and _any_negative(tensor):
            problems.append(f"tensor {name} is negative")
    return cap(problems)


def statistics_problems(classifier: Part | None, statistics: Part | None) -> list[str]:
    """Check that feature statistics describe the features that the classifier has.

    Args:
        classifier: the upload's classifier; None if it has none.
        statistics: its statistics; None if it has none, which is no problem.

    Returns:
        One sentence, or an empty list.
    """
    if statistics is None:
        return []
    if classifier is None:
        return ["statistics without the classifier whose features they describe"]
    wanted = dict(statistics.spec.options).get("features")
    width = feature_width(classifier)
    if width is None:
        return [f"{classifier.spec} has no penultimate features that statistics could be of"]
    if width != wanted:
        return [f"statistics of {wanted} features, {classifier.spec} has {width}"]
    return []


def feature_width(part: Part) -> int | None:
    """How many penultimate features a classifier has, found on the ``meta`` device.

    Returns:
        The width of the input of ``head``; None if the net does not end in one.
    """
    net = part.spec.skeleton(part.preprocess.input_shape, len(part.classes)).eval()
    head = dict(net.named_children()).get("head")
    if head is None:
        return None
    if isinstance(head, nn.Linear):  # as in every packed net: no foreign graph is run here
        return head.in_features
    widths: list[int] = []
    head.register_forward_pre_hook(lambda _, inputs: widths.append(int(inputs[0].shape[-1])))
    net(torch.zeros(1, *part.preprocess.input_shape, device="meta"))
    return widths[0]


def all_finite(tensor: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinities.

    Looks at the minimum and the maximum, in which a NaN shows: one pass over the tensor, in an
    eighth of the time of ``isfinite``.
    """
    return not tensor.numel() or all(bool(end.isfinite()) for end in tensor.aminmax())


def _any_negative(tensor: Tensor) -> bool:
    """Found by the minimum, which needs no memory, unlike a comparison of each value."""
    return bool(tensor.numel()) and bool(tensor.amin() < 0)


def cap(problems: list[str], most: int = 6) -> list[str]:
    """The first ``most`` problems of one kind, and how many more there are."""
    if len(problems) <= most:
        return problems
    return [*problems[:most], f"and {len(problems) - most} more of this kind"]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _list_names(what: str, names: Sequence[str], most: int = 3) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return [f"{what} {', '.join(name[:80] for name in names[:most])}{more}"]
