"""The table of verbs, in the order in which ``attar --help`` lists them.

A verb's module is imported when the verb is called: ``attar --help`` and ``attar --version`` need
no torch, which takes seconds to load.
"""

from attar.cli.verbs import Verb

FIRST, CLIENT, SERVER, RESEARCH = (
    "A first look",
    "At the client",
    "At the server",
    "Comparing methods",
)

VERBS: dict[str, Verb] = {
    "demo": Verb(
        "demo:demo",
        "Train five clients with different nets on unequal data, fuse them, and compare methods.",
        FIRST,
    ),
    "ls": Verb("ls:ls", "List nets, methods or data sources, or explain one of them.", FIRST),
    "doctor": Verb("doctor:doctor", "Say what this machine has and what is missing.", FIRST),
    "completion": Verb(
        "completion:completion",
        "Print the script with which a shell completes the verbs and flags of attar.",
        FIRST,
    ),
    "partition": Verb(
        "partition:partition",
        "Decide who holds which training image of a data source, and write that as a file.",
        CLIENT,
    ),
    "train": Verb(
        "train:train",
        "Train one client's net, or those of all clients of a partition, and write one upload "
        "file each.",
        CLIENT,
    ),
    "pack": Verb(
        "pack:pack",
        "Pack your own classifier, from PyTorch or ONNX, into an upload, as data: the server "
        "rebuilds it without running your code.",
        CLIENT,
    ),
    "inspect": Verb(
        "inspect:inspect",
        "Check upload files and their signatures, and show what they reveal.",
        CLIENT,
    ),
    "privacy": Verb(
        "privacy:privacy",
        "Attack an upload before it is sent, and write what it gives away as a page.",
        CLIENT,
    ),
    "keygen": Verb(
        "keygen:keygen",
        "Make a private key that signs uploads, and the line for the server's list of trusted "
        "keys.",
        CLIENT,
    ),
    "sign": Verb(
        "sign:sign",
        "Sign upload files: write a .sig file beside each, to be sent with it.",
        CLIENT,
    ),
    "plan": Verb(
        "plan:plan",
        "Choose a net for each device: the largest that fits its memory and its limit of "
        "multiply-accumulates.",
        CLIENT,
    ),
    "fuse": Verb(
        "fuse:fuse", "Fuse upload files into one model, without any client's data.", SERVER
    ),
    "update": Verb(
        "update:update",
        "Let clients join or leave a model of sums of features, to the bits of a new fusion.",
        SERVER,
    ),
    "eval": Verb(
        "eval:evaluate",
        "Measure a model folder or an upload: accuracy, balanced accuracy, accuracy per class "
        "and calibration error.",
        SERVER,
    ),
    "predict": Verb(
        "predict:predict", "Classify image files with a model folder or an upload.", SERVER
    ),
    "export": Verb(
        "export:export",
        "Write a model folder or an upload as ONNX or for torch.export.load, preprocessing inside.",
        SERVER,
    ),
    "serve": Verb(
        "serve:serve",
        "Serve a model folder or an upload: a page to drop images on, and answers as JSON.",
        SERVER,
    ),
    "publish": Verb(
        "publish:publish",
        "Send a model folder to the Hugging Face hub: weights, config and a card, and nothing "
        "else.",
        SERVER,
    ),
    "inbox": Verb(
        "inbox:inbox",
        "Collect uploads over plain HTTPS, from partners who need an invitation and nothing else: "
        "invite, serve, send.",
        SERVER,
    ),
    "network": Verb(
        "network:network",
        "Collect uploads over Flower, where each partner runs the app that the server sends: "
        "init, server, client.",
        SERVER,
    ),
    "federate": Verb(
        "federate:federate",
        "Simulate several rounds on this machine: the clients of a partition train, upload and "
        "are fused in each round; one round is one-shot.",
        RESEARCH,
    ),
    "bench": Verb("bench:bench", "Run the cells of recipes that have no record yet.", RESEARCH),
    "report": Verb(
        "report:report",
        "Write one page of all records below a folder, or of a fused model; it needs no network "
        "and no server.",
        RESEARCH,
    ),
    "speed": Verb(
        "speed:speed",
        "Time the real code paths on this machine: generator step, pool batch, "
        "stratification, local training.",
        RESEARCH,
    ),
}
