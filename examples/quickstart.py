"""Three clients with three nets become one model: the README's lines, with the three clients'
own accuracy beside it.
"""

import tempfile
from pathlib import Path

import attar

data = attar.load_data("fashion-mini")
split = attar.partition(data.train.labels, "classes:5", clients=3, hold_out=0.2)
clients = attar.share_out(data, split)
nets = [attar.ModelSpec.parse(name) for name in ("lenet5", "mlp", "cnn-mho")]
uploads = attar.train_classifiers(
    clients, nets, attar.LocalTraining(epochs=8, optimiser="adam", lr=1e-3)
)
for upload in uploads:
    alone = attar.Classifier(upload.parts["classifier"])
    print(
        f"{upload.client} alone: {attar.evaluate_on(alone, data.test, data.classes).accuracy:.3f}"
    )

public = attar.server_images(data.train.take(split.held_out), "held out before the split")
server = attar.server_for(uploads, student="lenet5", public=public)
with tempfile.TemporaryDirectory() as folder:
    attar.fuse(
        uploads,
        attar.METHODS["feddf"](steps=300, teacher="class-share"),
        server,
        out=Path(folder) / "fused",
    )
    model = attar.load_model(Path(folder) / "fused")
print(f"fused: {attar.evaluate_on(model, data.test, data.classes).accuracy:.3f}")
