"""Flower's SuperNode, which ends when `attar network client` ends.

``python -m attar.network.node`` takes the arguments of ``flower-supernode``.
"""

from attar.network.link import end_with_parent


def main() -> None:
    """Run Flower's SuperNode."""
    from flwr.supernode.cli import flower_supernode

    end_with_parent()
    flower_supernode()


if __name__ == "__main__":
    main()
