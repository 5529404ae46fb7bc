"""The table of verbs, in the order in which ``attar --help`` lists them."""

from attar.cli.bench import bench
from attar.cli.demo import demo
from attar.cli.eval import evaluate
from attar.cli.federate import federate
from attar.cli.fuse import fuse
from attar.cli.inspect import inspect
from attar.cli.keygen import keygen
from attar.cli.ls import ls
from attar.cli.network import network
from attar.cli.pack import pack
from attar.cli.parse import Verb
from attar.cli.partition import partition
from attar.cli.plan import plan
from attar.cli.predict import predict
from attar.cli.privacy import privacy
from attar.cli.report import report
from attar.cli.sign import sign
from attar.cli.speed import speed
from attar.cli.train import train

VERBS: dict[str, Verb] = {
    "demo": demo,
    "ls": ls,
    "speed": speed,
    "bench": bench,
    "report": report,
    "partition": partition,
    "train": train,
    "pack": pack,
    "inspect": inspect,
    "fuse": fuse,
    "eval": evaluate,
    "predict": predict,
    "network": network,
    "federate": federate,
    "plan": plan,
    "privacy": privacy,
    "keygen": keygen,
    "sign": sign,
}
