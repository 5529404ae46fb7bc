"""The flags of ``attar train``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, arg

from attar.blocks.execution import Precision
from attar.cli.arguments import Device, Json, Seed, Track
from attar.training import Preset, PrivacyFlags, StatisticsFlags, SumsFlags, TrainingFlags

DEFAULT_TRAINING = TrainingFlags()
NO_STATISTICS = StatisticsFlags()
NO_SUMS = SumsFlags()
NO_PRIVACY = PrivacyFlags()


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The flags of ``attar train``."""

    data: Annotated[
        str | None,
        arg(
            help="A data source; all its training images belong to this client (of a folder "
            "without train/ and test/ "
            "four fifths of each class)."
        ),
    ] = None
    partition: Annotated[Path | None, arg(help="A partition file instead of --data.")] = None
    client: Annotated[
        str,
        arg(
            help="Numbers in the partition, such as 3 or 0-2,4, or all; with --data, the "
            "client's name."
        ),
    ] = "all"
    kind: Annotated[
        Literal["classifier", "cvae"] | None,
        arg(
            help="A classifier, or an autoencoder of which the decoder is sent; what --net says "
            "unless given."
        ),
    ] = None
    net: Annotated[
        str | None,
        arg(
            help="Architecture; several, separated by commas, go round the clients. That of "
            "--start, or lenet5 or cvae-small, "
            "unless given. hf:FOLDER is a Hugging Face ViT or DeiT, with its weights."
        ),
    ] = None
    preset: Annotated[
        Preset,
        arg(help="Of a CVAE: the column of FedMHO's Table 3; by the net's form unless given."),
    ] = "auto"
    knowledge: Annotated[
        str | None,
        arg(
            help="FedKEM: a small net trained beside each classifier and sent in its place; what "
            "--start begins."
        ),
    ] = None
    deploy: Annotated[
        Path, arg(help="Where the classifiers stay that a knowledge network is sent for.")
    ] = Path("deployed")
    out: Annotated[
        Path, arg(help="The upload: a .attar file, or a folder for one file per client.")
    ] = Path("uploads")
    start: Annotated[
        Path | None,
        arg(
            help="A model folder, upload, hf:FOLDER or efficientnet-lite0 (or 1, of ImageNet) "
            "whose weights training starts from; for other classes, all but its head."
        ),
    ] = None
    withhold_counts: Annotated[
        bool, arg(help="Do not tell the server how many examples of each class there are.")
    ] = False
    sign: Annotated[
        Path | None, arg(help="A private key (`attar keygen`) that signs what is written.")
    ] = None
    training: OmitArgPrefixes[TrainingFlags] = DEFAULT_TRAINING
    statistics: OmitArgPrefixes[StatisticsFlags] = NO_STATISTICS
    sums: OmitArgPrefixes[SumsFlags] = NO_SUMS
    privacy: OmitArgPrefixes[PrivacyFlags] = NO_PRIVACY
    defaults: Annotated[
        Literal["suited", "plain"],
        arg(
            help="What settings of a classifier are that are not given: suited to the net and the "
            "number of images, or plain: those of the recipes, SGD at 0.01 and batches of 128."
        ),
    ] = "suited"
    seed: Seed = 0
    device: Device = "auto"
    precision: Precision = "fp32"
    track: Track = ()
    json: Json = False
