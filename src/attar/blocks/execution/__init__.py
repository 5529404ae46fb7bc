"""How a step runs fast: CUDA graphs, streams, compilation, precision.

Main names::

    runner_for, eager, GraphRunner    how pieces of work run on a device; recorded on CUDA
    gradient_step                     one step of an optimiser through a runner
    run_in_streams, prefers_streams   nets in parallel streams, where stacks are slower
    compile_blocks, compiled          compiles the repeated blocks of a net; a function
    arithmetic, autotune_cudnn        precision, and the search for fast kernels
    isolate_randomness, reseed        random numbers of layers such as dropout
    has_float64, widest_float         what a kind of device can do
    synchronise                       waits for a GPU
    channels_last, contiguous         the layout of images in memory
"""

from attar.blocks.execution.compile import compile_blocks, compiled, has_compiled_blocks
from attar.blocks.execution.cuda_graphs import (
    GraphRunner,
    Outputs,
    Runner,
    eager,
    gradient_step,
    runner_for,
)
from attar.blocks.execution.devices import has_float64, synchronise, widest_float
from attar.blocks.execution.precision import Precision, arithmetic, autotune_cudnn
from attar.blocks.execution.randomness import isolate_randomness, reseed
from attar.blocks.execution.streams import (
    channels_last,
    contiguous,
    prefers_streams,
    run_in_streams,
)

__all__ = [
    "GraphRunner",
    "Outputs",
    "Precision",
    "Runner",
    "arithmetic",
    "autotune_cudnn",
    "channels_last",
    "compile_blocks",
    "compiled",
    "contiguous",
    "eager",
    "gradient_step",
    "has_compiled_blocks",
    "has_float64",
    "isolate_randomness",
    "prefers_streams",
    "reseed",
    "run_in_streams",
    "runner_for",
    "synchronise",
    "widest_float",
]
