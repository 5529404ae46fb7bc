"""Where images come from, and who holds which: arrays and lists of indices."""

from attar.data.catalogue import SOURCES
from attar.data.dataset import PARTS, Dataset, PartName, Progress, Split
from attar.data.fetch import data_root
from attar.data.partition import RULES, Partition, label_counts, partition
from attar.data.partition_file import PartitionFile, hash_labels, read_partition, write_partition
from attar.data.picture import draw_partition
from attar.data.sources import FORMS, SourceInfo, is_available, list_sources, load_data

__all__ = [
    "FORMS",
    "PARTS",
    "RULES",
    "SOURCES",
    "Dataset",
    "PartName",
    "Partition",
    "PartitionFile",
    "Progress",
    "SourceInfo",
    "Split",
    "data_root",
    "draw_partition",
    "hash_labels",
    "is_available",
    "label_counts",
    "list_sources",
    "load_data",
    "partition",
    "read_partition",
    "write_partition",
]
