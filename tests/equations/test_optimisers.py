"""Two clients, one or two weights each, worked out by hand."""

import torch
from torch import Tensor

from attar.training import optimisers, sam


def stack(*clients: float | list[float]) -> Tensor:
    return torch.tensor(clients, dtype=torch.float64)


def test_sgd_step_with_momentum() -> None:
    """lr 0.1, momentum 0.9, weight decay 0.5; gradient 1 for the first client, -2 for the
    second, both times.

    Client 1, w = 2:   v = 1 + 0.5 * 2 = 2               w = 2 - 0.1 * 2 = 1.8
                       v = 0.9 * 2 + 1 + 0.5 * 1.8 = 3.7   w = 1.8 - 0.37 = 1.43
    Client 2, w = 4:   v = -2 + 0.5 * 4 = 0              w = 4
                       v = 0.9 * 0 - 2 + 0.5 * 4 = 0       w = 4
    """
    params = {"w": stack(2.0, 4.0)}
    moments = optimisers.start_moments("sgd", params, momentum=0.9)
    for expected in (stack(1.8, 4.0), stack(1.43, 4.0)):
        optimisers.sgd_step(
            params, {"w": stack(1.0, -2.0)}, moments, lr=0.1, momentum=0.9, weight_decay=0.5
        )
        torch.testing.assert_close(params["w"], expected)
    torch.testing.assert_close(moments["momentum"]["w"], stack(3.7, 0.0))


def test_sgd_step_without_momentum() -> None:
    """w = 2 - 0.1 * 3 = 1.7."""
    params = {"w": stack(2.0)}
    moments = optimisers.start_moments("sgd", params, momentum=0.0)
    optimisers.sgd_step(params, {"w": stack(3.0)}, moments, lr=0.1, momentum=0.0, weight_decay=0.0)
    assert moments == {}
    torch.testing.assert_close(params["w"], stack(1.7))


def test_adam_step_first() -> None:
    """At its first step Adam moves by lr * sign(g), whatever the size of g (up to epsilon).

    m = 0.1 g, v = 0.001 g^2; corrected by 1 - 0.9 and 1 - 0.999: m = g, v = g^2; step lr * g /
    (|g| + 1e-8). lr = 0.01: w = 1 - 0.01 = 0.99 for g = 3, and 1 + 0.01 = 1.01 for g = -0.5.
    """
    params = {"w": stack(1.0, 1.0)}
    moments = optimisers.start_moments("adam", params, momentum=0.9)
    optimisers.adam_step(
        params, {"w": stack(3.0, -0.5)}, moments, torch.tensor([1, 1]), lr=0.01, weight_decay=0.0
    )
    torch.testing.assert_close(params["w"], stack(0.99, 1.01), atol=1e-9, rtol=0)
    torch.testing.assert_close(moments["first"]["w"], stack(0.3, -0.05))
    torch.testing.assert_close(moments["second"]["w"], stack(0.009, 0.00025))


def test_adam_step_corrects_by_own_count() -> None:
    """Empty moments, g = 1, lr = 0.01; the first client counts 1 step, the second 2.

    Client 2: m = 0.1 / (1 - 0.81) = 0.526315789, v = 0.001 / (1 - 0.998001) = 0.500250125, its
    root 0.707283623; step 0.01 * 0.526315789 / 0.707283623 = 0.007441368.
    """
    params = {"w": stack(0.0, 0.0)}
    moments = optimisers.start_moments("adam", params, momentum=0.9)
    optimisers.adam_step(
        params, {"w": stack(1.0, 1.0)}, moments, torch.tensor([1, 2]), lr=0.01, weight_decay=0.0
    )
    torch.testing.assert_close(params["w"], stack(-0.01, -0.007441368), atol=1e-8, rtol=0)


def test_clip_gradients_by_client() -> None:
    """Over both weights the first client's norm is 5 (3, 4), the second's 0.5 (0.3, 0.4); limit
    1: a fifth, and no change.
    """
    clipped = optimisers.clip_gradients(
        {"a": stack([3.0], [0.3]), "b": stack([4.0], [0.4])}, limit=1.0
    )
    torch.testing.assert_close(clipped["a"], stack([0.6], [0.3]), atol=1e-6, rtol=0)
    torch.testing.assert_close(clipped["b"], stack([0.8], [0.4]), atol=1e-6, rtol=0)


def test_perturb_weights_on_a_quadratic() -> None:
    """L = (3 a^2 + 4 b^2) / 2 at a = b = 1: g = (3, 4), ||g|| = 5. With rho = 0.5 the climb ends at

    (1 + 0.5 * 3/5, 1 + 0.5 * 4/5) = (1.3, 1.4), where the gradient is (3.9, 5.6). Plain SGD with
    lr 0.1 then ends at (1 - 0.39, 1 - 0.56) = (0.61, 0.44). The second client, at a = b = 0.1,
    has g = (0.3, 0.4) of norm 0.5, climbs to (0.4, 0.5) and ends at (0.1 - 0.12, 0.1 - 0.2) =
    (-0.02, -0.1).
    """

    def gradient(params: optimisers.Tensors) -> dict[str, Tensor]:
        return {"a": 3 * params["a"], "b": 4 * params["b"]}

    params = {"a": stack([1.0], [0.1]), "b": stack([1.0], [0.1])}
    perturbed = sam.perturb_weights(params, gradient(params), radius=0.5)
    torch.testing.assert_close(perturbed, {"a": stack([1.3], [0.4]), "b": stack([1.4], [0.5])})
    torch.testing.assert_close(params["a"], stack([1.0], [0.1]))
    optimisers.sgd_step(params, gradient(perturbed), {}, lr=0.1, momentum=0.0, weight_decay=0.0)
    torch.testing.assert_close(params, {"a": stack([0.61], [-0.02]), "b": stack([0.44], [-0.1])})


def test_sgd_step_leaves_parameters_without_gradient() -> None:
    """Weight decay would move it to 1 - 0.1 * 0.5 = 0.95 if it had a gradient of 0."""
    params = {"used": stack(1.0), "unused": stack(1.0)}
    moments = optimisers.start_moments("sgd", params, momentum=0.9)
    optimisers.sgd_step(
        params, {"used": stack(0.0)}, moments, lr=0.1, momentum=0.9, weight_decay=0.5
    )
    torch.testing.assert_close(params, {"used": stack(0.95), "unused": stack(1.0)})
