"""Models on disk and in use: folders, cards, pictures, evaluation, Hugging Face checkpoints."""

from attar.models.card import federation_card, model_card
from attar.models.evaluation import Evaluation, check_common, evaluate, evaluate_on, measured_on
from attar.models.folder import Classifier, largest_shape, load_description, load_model, save_model
from attar.models.gallery import Picture, gallery, pictures_of
from attar.models.huggingface import PREFIX, parse_net
from attar.models.starting import (
    load_deployable,
    load_start,
    parse_nets,
    parse_trainable_nets,
    resolve_start,
)

__all__ = [
    "PREFIX",
    "Classifier",
    "Evaluation",
    "Picture",
    "check_common",
    "evaluate",
    "evaluate_on",
    "federation_card",
    "gallery",
    "largest_shape",
    "load_deployable",
    "load_description",
    "load_model",
    "load_start",
    "measured_on",
    "model_card",
    "parse_net",
    "parse_nets",
    "parse_trainable_nets",
    "pictures_of",
    "resolve_start",
    "save_model",
]
