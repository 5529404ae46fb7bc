"""A recipe -> a grid of cells -> clients trained once -> records -> tables."""

from attar.bench.clients import bundle_folder
from attar.bench.clients import trained as read_training
from attar.bench.cost import Cost, Costs
from attar.bench.defaults import name_of_code
from attar.bench.engines import EngineName, open_engine
from attar.bench.engines.engine import Engine
from attar.bench.engines.schedule import Tally as BenchResult
from attar.bench.engines.schedule import run_bench
from attar.bench.grid import Cell, ClientSet, cells_of, check_settings, digest
from attar.bench.grid import named_by_headline as unique_runs
from attar.bench.grid import shared_sets as unique_client_sets
from attar.bench.grid import wanted_of as parse_filters
from attar.bench.inherit import recipe_name, recipe_tables, with_settings
from attar.bench.reached import Reached as CostToAccuracy
from attar.bench.reached import reached as bytes_to_accuracy
from attar.bench.recipe import Labels, Published, Recipe, parse_recipe, read_recipe, with_seeds
from attar.bench.records import (
    FAILED,
    FINISHED,
    FORMAT,
    Packing,
    Record,
    arrays_json,
    outcome_json,
    pack_records,
    read_records,
    short_commit,
    write_record,
)
from attar.bench.records import finished as find_finished
from attar.bench.records import outdated as find_outdated
from attar.bench.records import surroundings as describe_machine
from attar.bench.releases import FIRST
from attar.bench.tables import Line, as_csv, cell_text, table_of
from attar.bench.tensorboard import Board as TensorBoardWriter

__all__ = [
    "FAILED",
    "FINISHED",
    "FIRST",
    "FORMAT",
    "BenchResult",
    "Cell",
    "ClientSet",
    "Cost",
    "CostToAccuracy",
    "Costs",
    "Engine",
    "EngineName",
    "Labels",
    "Line",
    "Packing",
    "Published",
    "Recipe",
    "Record",
    "TensorBoardWriter",
    "arrays_json",
    "as_csv",
    "bundle_folder",
    "bytes_to_accuracy",
    "cell_text",
    "cells_of",
    "check_settings",
    "describe_machine",
    "digest",
    "find_finished",
    "find_outdated",
    "name_of_code",
    "open_engine",
    "outcome_json",
    "pack_records",
    "parse_filters",
    "parse_recipe",
    "read_recipe",
    "read_records",
    "read_training",
    "recipe_name",
    "recipe_tables",
    "run_bench",
    "short_commit",
    "table_of",
    "unique_client_sets",
    "unique_runs",
    "with_seeds",
    "with_settings",
    "write_record",
]
