"""Models on disk and in use.

The module (``classifier``), model folders and their cards and pictures, evaluation, Hugging Face
checkpoints, and models to start training from.
"""

from attar.models.card import federation_card, model_card
from attar.models.classifier import Classifier, forward_bytes, largest_shape, predict
from attar.models.evaluation import Evaluation, check_overlap, describe_data, evaluate, evaluate_on
from attar.models.folder import load_description, load_model, save_model
from attar.models.gallery import Picture, draw_sheet, list_pictures
from attar.models.hub import PREFIX, HubName, open_hub, parse_hub_name, telling
from attar.models.hub_card import hub_card
from attar.models.huggingface import parse_net
from attar.models.metadata import card_head
from attar.models.mixtures import mixture_tensors, mixture_to_json
from attar.models.pretrained import PRETRAINED, is_installed, load_pretrained
from attar.models.starting import (
    load_deployable,
    load_start,
    parse_nets,
    parse_trainable_nets,
    resolve_start,
)

__all__ = [
    "PREFIX",
    "PRETRAINED",
    "Classifier",
    "Evaluation",
    "HubName",
    "Picture",
    "card_head",
    "check_overlap",
    "describe_data",
    "draw_sheet",
    "evaluate",
    "evaluate_on",
    "federation_card",
    "forward_bytes",
    "hub_card",
    "is_installed",
    "largest_shape",
    "list_pictures",
    "load_deployable",
    "load_description",
    "load_model",
    "load_pretrained",
    "load_start",
    "mixture_tensors",
    "mixture_to_json",
    "model_card",
    "open_hub",
    "parse_hub_name",
    "parse_net",
    "parse_nets",
    "parse_trainable_nets",
    "predict",
    "resolve_start",
    "save_model",
    "telling",
]
