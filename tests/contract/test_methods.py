"""Every registered method keeps the contract, with settings that make it quick."""

import dataclasses

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from attar.blocks.execution import GraphRunner, eager, runner_for
from attar.core import ModelSpec
from attar.errors import NeedsError
from attar.fusion import fuse
from attar.methods import METHODS
from attar.testing import (
    SMALL_DECODERS,
    SMALL_SUMS,
    SMALL_VITS,
    check_method,
    tiny_statistics,
    tiny_world,
    with_needs,
)

SMALL = {"epochs": 3, "generator_steps": 2, "batch_size": 8, "noise": 8, "generator_width": 4}
SKETCHED = {"sketches": 30, "sketches_of_epoch": 16}
MHO = {"epochs": 3, "samples": 41, "batch_size": 8}
MITR = {
    "epochs": 3,
    "inversion_steps": 3,
    "batch_size": 8,
    "mask_ratio": 0.5,
    "stop_at": (0.5,),
    "inversion_lr": 0.05,
}
QUICK = {
    "dense": [
        SMALL,
        {**SMALL, "variant": "co-boosting", "ensemble": "data"},
        {**SMALL, "ensemble": "stratified", "pool_limit": 12},
        {**SMALL, "augment": "crop-flip"},
    ],
    "f-dafl": [SMALL, {**SMALL, "per_feature": True, "pool_bytes": True}],
    "f-adi": [{"epochs": 3, "inversion_steps": 2, "batch_size": 8}],
    "fedftg": [{**SMALL, "student_steps": 2}],
    "co-boosting": [
        SMALL,
        {**SMALL, "variant": "paper"},
        {**SMALL, "variant": "code", "augment": "flip"},
        {**SMALL, "weight_steps": "batch", "ensemble": "stratified"},
        {
            **SMALL,
            "hard_generation": False,
            "hard_distillation": False,
            "weight_steps": "never",
            "ensemble": "data",
        },
    ],
    "fedhydra": [
        SMALL,
        {**SMALL, "replay": "pool"},
        {**SMALL, "replay": "last"},
        {**SMALL, "variant": "authors"},
    ],
    "fedavg": [{}, {"weights": "uniform"}, {"mixed": "vote"}, {"mixed": "mean-logits"}],
    "ensemble": [
        {"rule": rule}
        for rule in (
            "mean-logits",
            "data-weighted",
            "mean-probabilities",
            "max-logits",
            "vote",
            "class-share",
            "accord",
            "trimmed",
        )
    ],
    "fedcvae": [
        {"samples": 40, "epochs": 2, "batch_size": 13},
        {
            "samples": 40,
            "epochs": 2,
            "batch_size": 8,
            "mode": "kd",
            "decoder_epochs": 2,
            "truncation": None,
        },
    ],
    "fedmho": [
        {**MHO, "remember": "nothing"},
        {**MHO, "remember": "md"},
        MHO,
        {
            **MHO,
            "remember": "both",
            "weights": "learned",
            "start_from": "distil",
            "initial_epochs": 2,
        },
        {**MHO, "variant": "code", "preset": "mnist", "start_from": "fresh"},
    ],
    "fedmitr": [
        MITR,
        {
            **MITR,
            "stopped": "drifting",
            "attention": "server",
            "pool_limit": 12,
            "pool_bytes": True,
            "labels": "held",
        },
        {
            **MITR,
            "mask_ratio": 0.0,
            "pseudo_labels": 0.0,
            "relabel": 0.0,
            "start_from": "fresh",
        },  # DeepInversion
    ],
    "fedprox": [{}, {"weights": "uniform"}],
    "fednova": [{}, {"momentum": 0.0}],
    "scaffold": [{}, {"global_lr": 0.5}],
    "fedkem": [
        {"steps": 4, "batch_size": 8},
        {
            "steps": 3,
            "batch_size": 8,
            "ensemble": "mean-probabilities",
            "server_distance": "mse",
            "labels": 0.5,
        },
        {"variant": "code", "steps": 4, "batch_size": 8, "drawn": 12},
        {
            "steps": 3,
            "batch_size": 8,
            "images": "generated",
            "generated": 21,
            "augment": "crop-flip",
            **{key: SMALL[key] for key in SMALL if key not in ("epochs", "batch_size")},
        },
        {
            "steps": 3,
            "ensemble": "vote",
            "images": "generated",
            "generated": 21,
            **{key: SMALL[key] for key in SMALL if key != "epochs"},
        },
        {"fusion": "average"},
    ],
    "accord": [
        {**SMALL, **SKETCHED, "drawn": 20, "generator_steps": 0},
        {**SMALL, **SKETCHED, "drawn": 0},
        {**SMALL, **SKETCHED, "drawn": 20, "use": "models", "guess_steps": 2, "averaging": 0.0},
        {
            **SMALL,
            "sketches": 0,
            "drawn": 0,
            "shares": "even",
            "familiarity": 0.0,
            "hard_generation": False,
            "pool_limit": 12,
        },
        {**SMALL, **SKETCHED, "drawn": 10, "adversarial": 0.5, "start_from": "fresh"},
    ],
    "gaussian-head": [
        {"kind": "lda"},
        {"kind": "qda", "shrinkage": 0.5},
        {"kind": "naive-bayes", "prior": "even", "contributions": 0},
        {"kind": "nearest-mean"},
    ],
    "analytic": [{}, {"shrinkage": 0.1, "intercept": False}],
    "fisher-mix": [
        {"samples": 12, "epochs": 3},
        {"samples": 12, "epochs": 2, "margin": 0.2, "most_dimensions": 1},
    ],
    "fedpft": [
        {"samples": 12, "epochs": 3},
        {"samples": 12, "epochs": 3, "gaussians": "sum", "covariance": "diagonal"},
        {"samples": 12, "epochs": 2, "covariance": "spherical"},
    ],
    "local-heads": [{}, {"combine": "average"}, {"head": "ridge", "shrinkage": 0.1}],
    "feddf": [
        {"steps": 4, "batch_size": 8},
        {"steps": 3, "batch_size": 8, "mixed": "vote", "teacher": "class-share"},
        {"steps": 3, "batch_size": 8, "mixed": "mean-logits"},
    ],
}


def test_quick_settings_of_every_method():
    assert set(QUICK) == set(METHODS)


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, settings) for name, choices in QUICK.items() for settings in choices],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else "-".join(str(value[key]) for key in value if key not in (*SMALL, "samples")) or "plain"
    ),
)
def test_check_method(name, settings):
    check_method(METHODS[name](**settings))


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, settings) for name, choices in QUICK.items() for settings in choices],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_fuse_different_classes(name, settings):
    method = METHODS[name](**settings)
    parts = method.needs.parts
    strong = SMALL_VITS[0] if method.needs.same_patches else "lenet5"
    nets = [*([strong] * ("classifier" in parts)), *(SMALL_DECODERS[:1] * ("decoder" in parts))]
    if "sums" in parts:
        nets = [SMALL_SUMS[1]]
    nets = nets if len(nets) == 2 else nets * 2
    world = with_needs(tiny_world(nets, classes=[("cat", "dog"), ("dog", "bird")]), method)
    assert world.server.task.classes == ("cat", "dog", "bird")
    if method.needs.different_classes:
        fused = fuse(world.uploads, method, world.server)
        assert fused.model.classes == ("cat", "dog", "bird")
        images = torch.rand(
            4, *world.server.task.input_shape, generator=torch.Generator().manual_seed(0)
        )
        logits = fused.model(images)
        assert logits.shape == (4, 3)
        assert torch.isfinite(logits).all()
    else:
        with pytest.raises(
            NeedsError, match="all clients must list the same classes in the same order"
        ):
            fuse(world.uploads, method, world.server)


def test_needs_one_class_list():
    refusing = [name for name, kind in METHODS.items() if not kind().needs.different_classes]
    assert refusing == ["fedavg", "fedprox", "fednova", "scaffold"]


# --- recorded steps -------------------------------------------------------------------------------
# A CUDA graph repeats operations at addresses. On a CPU ``make_fx`` does the same: it writes down
# the operations, with every tensor
# that is no input by reference. A method that reads something stale from its closure fails here,
# without a GPU.

STEPPING = [
    (name, settings)
    for name, choices in QUICK.items()
    for settings in choices
    if "batch_size" in settings
]
NETS = ("lenet5", "mlp:hidden=8,layers=1", "lenet5")


def world_for(name, *more):
    """A federation that the method can fuse. Its student has no BatchNorm: writing operations
    down would move its statistics.
    """
    parts = METHODS[name]().needs.parts
    if METHODS[name]().needs.same_patches:
        return tiny_world(SMALL_VITS[:1] * 2)
    strong = (*NETS, *more) if "classifier" in parts else ()
    world = tiny_world((*strong, *(SMALL_DECODERS if "decoder" in parts else ())))
    if name == "accord":  # all but one of its clients send statistics
        told = [
            tiny_statistics(upload) if "classifier" in upload.parts else upload
            for upload in world.uploads[1:]
        ]
        world = dataclasses.replace(world, uploads=(world.uploads[0], *told))
    return dataclasses.replace(
        world, server=dataclasses.replace(world.server, student=ModelSpec("lenet5"))
    )


def traced(work, inputs):
    """``work`` as a list of operations, traced on zeros: no numbers of this call are in it."""
    return make_fx(work)(*(torch.zeros_like(value) for value in inputs))


def with_runner(context, runner):
    """The context of a method with another runner, wherever in it the runner stands."""
    if not dataclasses.is_dataclass(context):
        return context
    values = {each.name: getattr(context, each.name) for each in dataclasses.fields(context)}
    changed = {
        name: runner if name == "run" else with_runner(value, runner)
        for name, value in values.items()
    }
    return dataclasses.replace(context, **changed)


def run_on(runner, method, world):
    """Weights and arrays of a fusion whose steps the runner runs."""
    kind = type(method)

    def prepare(self, uploads, server):
        return with_runner(kind.prepare(self, uploads, server), runner)

    fields = {each.name: getattr(method, each.name) for each in dataclasses.fields(method)}
    method = type(kind.__name__, (kind,), {"prepare": prepare})(**fields)
    result = fuse(world.uploads, method, world.server).result
    part = next(iter(result.models.values()))
    parts = part.members if hasattr(part, "members") else (part,)
    return [value for part in parts for value in part.state.values()] + list(result.arrays.values())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "settings"), STEPPING, ids=lambda v: v if isinstance(v, str) else None
)
def test_fuse_recorded_equals_eager(name, settings):
    method = METHODS[name](**settings)
    world = with_needs(world_for(name), method)
    runner = GraphRunner(traced)
    plain, recorded = (run_on(each, method, world) for each in (eager, runner))
    assert runner.recordings
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "settings"), STEPPING, ids=lambda v: v if isinstance(v, str) else None
)
def test_fuse_cuda_graphs_equal_eager(name, settings, precision):
    method = METHODS[name](**settings)
    world = with_needs(world_for(name, "resnet20"), method)
    server = dataclasses.replace(world.server, device="cuda", precision=precision)
    world = dataclasses.replace(world, server=server)
    runners = eager, runner_for("cuda")
    plain, recorded = (run_on(each, method, world) for each in runners)
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(
            one,
            other,
            rtol=2e-3 if precision == "fp32" else 0.3,
            atol=2e-4 if precision == "fp32" else 2e-2,
        )
