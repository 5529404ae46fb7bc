"""Uploads and a method in, one model out."""

from attar.fusion.broken_answers import BrokenAnswers, check_answers, find_broken_answers
from attar.fusion.claims import Claim, bound_claims, bound_weights, find_claims
from attar.fusion.class_lists import ClassQuestion, question_classes
from attar.fusion.describe import describe_images, describe_run
from attar.fusion.estimate import estimate
from attar.fusion.execute import MethodRun, check_needs, start_method, start_prepared
from attar.fusion.one_answer import OneAnswer, find_one_answers
from attar.fusion.outliers import ClientReport, OutlierReport, find_outliers
from attar.fusion.price import ClientPrice, Price, check_price, price_run
from attar.fusion.recommend import (
    Obstacle,
    Recommendation,
    best_rule,
    find_obstacles,
    recommend,
)
from attar.fusion.run import Fused, fuse
from attar.fusion.safeguards import Safeguards
from attar.fusion.server import ServerOptions, explain_student, server_for
from attar.fusion.updating import FusedFolder, find_files, read_folder, update

__all__ = [
    "BrokenAnswers",
    "Claim",
    "ClassQuestion",
    "ClientPrice",
    "ClientReport",
    "Fused",
    "FusedFolder",
    "MethodRun",
    "Obstacle",
    "OneAnswer",
    "OutlierReport",
    "Price",
    "Recommendation",
    "Safeguards",
    "ServerOptions",
    "best_rule",
    "bound_claims",
    "bound_weights",
    "check_answers",
    "check_needs",
    "check_price",
    "describe_images",
    "describe_run",
    "estimate",
    "explain_student",
    "find_broken_answers",
    "find_claims",
    "find_files",
    "find_obstacles",
    "find_one_answers",
    "find_outliers",
    "fuse",
    "price_run",
    "question_classes",
    "read_folder",
    "recommend",
    "server_for",
    "start_method",
    "start_prepared",
    "update",
]
