"""Where images come from, and who holds what: arrays and lists of indices."""

from attar.data.catalogue import SOURCES
from attar.data.dataset import Dataset, Progress, Split
from attar.data.fetch import data_root
from attar.data.partition import RULES, Partition, label_counts, partition
from attar.data.partition_file import PartitionFile, fingerprint, read_partition, write_partition
from attar.data.picture import bubbles
from attar.data.sources import FORMS, SourceInfo, available, list_sources, load_data

__all__ = [
    "FORMS",
    "RULES",
    "SOURCES",
    "Dataset",
    "Partition",
    "PartitionFile",
    "Progress",
    "SourceInfo",
    "Split",
    "available",
    "bubbles",
    "data_root",
    "fingerprint",
    "label_counts",
    "list_sources",
    "load_data",
    "partition",
    "read_partition",
    "write_partition",
]
