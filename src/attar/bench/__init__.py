"""A recipe -> a grid of cells -> clients trained once -> records -> tables."""

from attar.bench.carry import Carried, pack_bench
from attar.bench.cells import Cell, ClientSet, digest, unique_client_sets, unique_runs
from attar.bench.clients import bundle_folder, read_training
from attar.bench.compare import CostToAccuracy, bytes_to_accuracy
from attar.bench.cost import Cost, Costs
from attar.bench.defaults import name_of_code
from attar.bench.engines import Engine, EngineName, open_engine
from attar.bench.engines.schedule import BenchResult, run_bench
from attar.bench.finished import find_finished, find_outdated
from attar.bench.grid import cells_of, check_settings, parse_filters
from attar.bench.inherit import recipe_name, recipe_tables, with_settings
from attar.bench.metadata import describe_machine, short_commit
from attar.bench.oracles import CENTRAL, LOCAL
from attar.bench.outcome import arrays_json, outcome_json
from attar.bench.paired import Comparison, compare_rows
from attar.bench.parse import parse_recipe, read_recipe
from attar.bench.queue import Queue, read_queue
from attar.bench.queue_plan import QueuePlan, Work
from attar.bench.recipe import Labels, Published, Recipe, with_seeds
from attar.bench.records import (
    FAILED,
    FINISHED,
    FORMAT,
    Packing,
    Record,
    pack_records,
    read_records,
    take_records,
    write_record,
)
from attar.bench.releases import FIRST
from attar.bench.tables import Line, as_csv, cell_text, table_of

__all__ = [
    "CENTRAL",
    "FAILED",
    "FINISHED",
    "FIRST",
    "FORMAT",
    "LOCAL",
    "BenchResult",
    "Carried",
    "Cell",
    "ClientSet",
    "Comparison",
    "Cost",
    "CostToAccuracy",
    "Costs",
    "Engine",
    "EngineName",
    "Labels",
    "Line",
    "Packing",
    "Published",
    "Queue",
    "QueuePlan",
    "Recipe",
    "Record",
    "Work",
    "arrays_json",
    "as_csv",
    "bundle_folder",
    "bytes_to_accuracy",
    "cell_text",
    "cells_of",
    "check_settings",
    "compare_rows",
    "describe_machine",
    "digest",
    "find_finished",
    "find_outdated",
    "name_of_code",
    "open_engine",
    "outcome_json",
    "pack_bench",
    "pack_records",
    "parse_filters",
    "parse_recipe",
    "read_queue",
    "read_recipe",
    "read_records",
    "read_training",
    "recipe_name",
    "recipe_tables",
    "run_bench",
    "short_commit",
    "table_of",
    "take_records",
    "unique_client_sets",
    "unique_runs",
    "with_seeds",
    "with_settings",
    "write_record",
]
