"""Flags that many verbs share. Nothing here loads torch."""

from pathlib import Path
from typing import Annotated

from tyro.conf import UseAppendAction, arg

Json = Annotated[bool, arg(name="json", help="Print one JSON document for machines.")]
Device = Annotated[
    str,
    arg(help="cpu, cuda, cuda:1 …, mps (an Apple GPU), or auto: a CUDA device if there is one."),
]
Trusted = Annotated[
    Path | None, arg(help="The public keys that may sign: a TOML file of lines from .pub files.")
]
RequireSignatures = Annotated[bool, arg(help="Refuse uploads that no listed key has signed.")]
Track = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(help="Curves and results, live: tensorboard:DIR, mlflow:URI or wandb:PROJECT."),
]
Seed = Annotated[int, arg(help="Everything random in the run follows from it.")]
