"""What statistics of features give away: AUC of membership attacks on real clients, with and
without them.

    python benchmarks/membership.py --data fashion-mnist --rule dirichlet:0.1 --clients 10 --epochs 15 [--epsilon 1 --clip 10]

Trains the clients, takes the statistics with and without noise, and prints a table: one line a
client, and the mean.
"""

import argparse
import statistics as mean_of

from attar.core import ModelSpec
from attar.data.partition import partition
from attar.data.sources import load_data
from attar.privacy import check_membership
from attar.training import (
    StatisticsSettings,
    TrainingFlags,
    add_statistics,
    client_names,
    make_client,
    make_stacks,
    train_stack,
)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--data", default="fashion-mini")
    words.add_argument("--rule", default="dirichlet:0.1")
    words.add_argument("--clients", type=int, default=10)
    words.add_argument("--net", default="lenet5")
    words.add_argument("--epochs", type=int, default=15)
    words.add_argument("--epsilon", type=float, default=None)
    words.add_argument("--clip", type=float, default=None)
    words.add_argument("--device", default="cpu")
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    data = load_data(asked.data)
    dealt = partition(data.train.labels, asked.rule, asked.clients, asked.seed)
    clients = [
        make_client(name, data.train.take(rows), data.classes)
        for name, rows in zip(client_names(asked.clients), dealt.clients, strict=True)
        if len(rows)
    ]
    others = make_client("others", data.test, data.classes)
    flags, specs = TrainingFlags(epochs=asked.epochs), [ModelSpec.parse(asked.net)] * len(clients)
    stacks = make_stacks(
        clients, specs, flags, preset="auto", seed=asked.seed, device=asked.device, initial=None
    )
    uploads = {upload.client: upload for stack in stacks for upload in train_stack(stack)[0]}
    settings = {"plain": StatisticsSettings()}
    if asked.epsilon is not None:
        settings[f"epsilon {asked.epsilon:g}"] = StatisticsSettings(
            epsilon=asked.epsilon, clip=asked.clip
        )
    print(
        f"{asked.data}, {asked.rule}, {asked.net}, {asked.epochs} epochs, seed {asked.seed}: AUC of membership attacks"
    )
    for title, how in settings.items():
        rows = []
        for client in clients:
            upload = add_statistics(uploads[client.name], client, how)
            if "statistics" not in upload.parts:
                print(f"{client.name:12} too few images for statistics")
                continue
            rows.append(check_membership(upload, client, others, seed=asked.seed))
            one = rows[-1]
            print(
                f"{one.client:12} {one.images:6} loss {one.loss:.3f}  distance {one.distance:.3f}  both {one.both:.3f}  {title}"
            )
        for hint in ("loss", "distance", "both"):
            print(f"mean {hint:9} {mean_of.mean(getattr(row, hint) for row in rows):.3f}  {title}")


if __name__ == "__main__":
    main()
