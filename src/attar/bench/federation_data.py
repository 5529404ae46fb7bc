"""The images of a federation: who holds what, what the server holds, and what is tested on."""

from dataclasses import dataclass
from functools import lru_cache

from attar.bench.recipe import Federation
from attar.core import Images
from attar.data.dataset import Dataset, Split
from attar.data.partition import Partition, label_counts, partition
from attar.data.sources import load_data
from attar.errors import SettingsError
from attar.training import client_names, server_images

LEFT_OUT = "left-out"


@dataclass(frozen=True)
class FederationData:
    """The data of a federation with one seed.

    Attributes:
        dataset: All images.
        partition: Which training images each client holds, and which are held out.
        test: What models are tested on.
        names: The clients' names.
    """

    dataset: Dataset
    partition: Partition
    test: Split
    names: list[str]

    def public(self, federation: Federation, *, labelled: bool) -> Images | None:
        """The images that the server has: of other data, held out, or all training images.

        Args:
            federation: Which of them.
            labelled: Whether labels are needed. Images of other data have no labels of the task.

        Returns:
            None where nothing was held out.
        """
        if federation.server_images == "training":
            origin = f"{federation.data}, all training images, the clients' own included"
            return server_images(self.dataset.train, origin, labelled=labelled)
        if federation.public is not None and not labelled:
            other = load_cached(federation.public).train
            return server_images(other, f"{federation.public}, the training part")
        if not len(self.partition.held_out):
            return None
        held_out = self.dataset.train.take(self.partition.held_out)
        origin = f"{federation.data}, held out before the split"
        return server_images(held_out, origin, labelled=labelled)

    def counts(self) -> list[list[int]]:
        """How many images of each class (columns) each client (rows) holds."""
        labels = self.dataset.train.labels
        table = label_counts(labels, self.partition.clients, len(self.dataset.classes))
        return [[int(count) for count in row] for row in table]


@lru_cache(maxsize=2)  # the cells of a federation follow each other
def load_cached(source: str) -> Dataset:
    """Load a data source, or return it where it was one of the last two."""
    return load_data(source)


def load_federation(federation: Federation, seed: int) -> FederationData:
    """Load the images of a federation and deal them to its clients.

    Raises:
        SettingsError: The data do not have the domain that is left out.
    """
    dataset = load_cached(federation.data)
    left_out = _domain_number(federation, dataset)
    images = (1 - federation.hold_out) * len(dataset.train)
    share = int(federation.least_share * images / federation.clients)
    split = partition(
        dataset.train.labels,
        federation.rule,
        federation.clients,
        seed,
        hold_out=federation.hold_out,
        min_size=max(federation.min_size, share),
        domains=dataset.train.domains,
        leave_out=left_out,
    )
    test = dataset.test
    if federation.tested_on == LEFT_OUT:
        unseen = dataset.train.take(split.left_out)
        assert dataset.test.domains is not None
        test = unseen.join(dataset.test.take((dataset.test.domains == left_out).nonzero()[0]))
    return FederationData(dataset, split, test, client_names(federation.clients))


def _domain_number(federation: Federation, dataset: Dataset) -> int | None:
    if federation.leave_out is None:
        return None
    if federation.leave_out not in dataset.domains:
        known = ", ".join(dataset.domains) or "none"
        raise SettingsError(f"{federation.data} has no domain {federation.leave_out!r}: {known}")
    return dataset.domains.index(federation.leave_out)
