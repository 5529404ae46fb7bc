"""The flags of ``attar fuse``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from attar.blocks.execution import Precision
from attar.cli.arguments import Device, Json, RequireSignatures, Seed, Track, Trusted
from attar.data import PartName


@dataclass(frozen=True, kw_only=True)
class FuseOptions:
    """The flags of ``attar fuse``."""

    files: Positional[tuple[Path, ...]]
    method: Annotated[
        str | None,
        arg(
            help="See `attar ls methods`; gaussian-head for sums of features and ensemble for nets "
            "unless given."
        ),
    ] = None
    student: Annotated[
        str | None,
        arg(
            help="Architecture of the fused model; the clients' commonest, the cheapest of "
            "several, unless given."
        ),
    ] = None
    out: Annotated[Path | None, arg(help="The run and model folder.")] = None
    settings: Annotated[
        UseAppendAction[tuple[str, ...]], arg(name="set", help="A hyper-parameter, key=value.")
    ] = ()
    public: Annotated[
        str | None,
        arg(
            help="The server's images: a data source, images:DIR, a partition file's held-out "
            "ones, or sketches."
        ),
    ] = None
    public_labels: Annotated[bool, arg(help="The server knows their labels, too.")] = False
    start: Annotated[
        Path | None,
        arg(
            help="A model folder, upload, hf:FOLDER or efficientnet-lite0 (or 1, of ImageNet) "
            "whose weights the student starts from; for other classes, all but its head."
        ),
    ] = None
    backbone: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="The clients' frozen backbone, if it is not found here by the name they give."),
    ] = ()
    resume: Annotated[bool, arg(help="Go on with the run in --out.")] = False
    minutes: Annotated[float | None, arg(help="End in time with the model of the moment.")] = None
    classes: Annotated[
        str | None,
        arg(
            help="The task's classes in this order, a,b,c or a .txt file; the union of the "
            "clients' unless given."
        ),
    ] = None
    class_map: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="Synonyms: kitty=cat (a client's name = the task's), or a .toml or .json file."),
    ] = ()
    merge_classes: Annotated[
        bool, arg(help="Classes of other names are other classes: merge the lists as they are.")
    ] = False
    exclude: Annotated[UseAppendAction[tuple[str, ...]], arg(help="A client to leave out.")] = ()
    trusted: Trusted = None
    require_signatures: RequireSignatures = False
    inspected: Annotated[
        Path | None,
        arg(help="What `attar inspect --json` printed; files that changed since are refused."),
    ] = None
    no_robustness: Annotated[bool, arg(help="Do not look for clients that do not fit in.")] = False
    backdoors: Annotated[
        bool, arg(help="Search each client's net for a backdoor, too: seconds for each.")
    ] = False
    trust_counts: Annotated[
        bool,
        arg(
            help="Believe numbers of images, and take weights, that are out of all proportion to "
            "the others'."
        ),
    ] = False
    data: Annotated[
        str | None, arg(help="A labelled data source that the fused model is evaluated on.")
    ] = None
    split: Annotated[PartName, arg(help="Which of its images.")] = "test"
    evaluate_every: Annotated[int | None, arg(help="Evaluate every so many steps, too.")] = None
    dry_run: Annotated[
        bool,
        arg(
            help="Only say which methods fit these files, in the order to try them, and what each "
            "would cost; or --method alone."
        ),
    ] = False
    seed: Seed = 0
    device: Device = "auto"
    precision: Precision = "fp32"
    compile: Annotated[
        bool, arg(help="On CUDA: compile the nets, up to a minute for faster steps.")
    ] = False
    teacher_memory: Annotated[
        float | None,
        arg(
            help="GiB of clients' weights in memory at once; more are read from their files in "
            "turns."
        ),
    ] = None
    max_memory: Annotated[
        float | None, arg(help="GiB that the run may take; what is free unless given.")
    ] = None
    max_work: Annotated[
        float | None,
        arg(
            help="Hours that the run may take by its multiplications; an hour, or twenty times "
            "what it would take with the median client alone, unless given."
        ),
    ] = None
    checkpoint_seconds: Annotated[float, arg(help="How often the run is saved.")] = 30.0
    track: Track = ()
    json: Json = False
