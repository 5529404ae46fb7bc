"""Architectures for small images, one family per file.

Importing this package registers all of them.
"""

# Imported for their registration: these modules have no names in the public list.
from attar.nets import (
    efficientnet,
    efficientnet_lite,
    googlenet,
    mobilenet,
    plain,
    resnet,
    shufflenet,
    vgg,
    vit,
    vit_sizes,
    wrn,
)
from attar.nets.cost import convolution_products, example_inputs, multiply_accumulates
from attar.nets.cvae import CVAE, Decoder, resolve_form
from attar.nets.feature_mixtures import FeatureMixtures
from attar.nets.feature_sums import FeatureSums, project_by, project_features
from attar.nets.feature_views import FeatureViews
from attar.nets.frozen_backbone import OUTPUTS, FrozenBackbone, build_body, describe_net
from attar.nets.graph import FORMAT, Graph, GraphNet, read_graph
from attar.nets.registry import (
    MAX_CLASSES,
    MAX_OPTION_TEXT,
    NETS,
    Kind,
    Look,
    Net,
    NetEntry,
    Shape,
    TokenNet,
    find,
    load_plugins,
    register,
    token_net,
)
from attar.nets.resize import to_shape
from attar.nets.spec import ModelSpec, Preprocess
from attar.nets.statistics import FeatureStatistics

__all__ = [
    "CVAE",
    "FORMAT",
    "MAX_CLASSES",
    "MAX_OPTION_TEXT",
    "NETS",
    "OUTPUTS",
    "Decoder",
    "FeatureMixtures",
    "FeatureStatistics",
    "FeatureSums",
    "FeatureViews",
    "FrozenBackbone",
    "Graph",
    "GraphNet",
    "Kind",
    "Look",
    "ModelSpec",
    "Net",
    "NetEntry",
    "Preprocess",
    "Shape",
    "TokenNet",
    "build_body",
    "convolution_products",
    "describe_net",
    "efficientnet",
    "efficientnet_lite",
    "example_inputs",
    "find",
    "googlenet",
    "load_plugins",
    "mobilenet",
    "multiply_accumulates",
    "plain",
    "project_by",
    "project_features",
    "read_graph",
    "register",
    "resnet",
    "resolve_form",
    "shufflenet",
    "to_shape",
    "token_net",
    "vgg",
    "vit",
    "vit_sizes",
    "wrn",
]
