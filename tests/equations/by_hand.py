"""What equation tests share: clients whose logits are worked out by hand, uploads, slow twins.

Images have 1 x 1 x 2 pixels. Client 0 has the logits (x0, x1), client 1 has (2 x1, -x0): x = (1, 3)
has (1, 3) and (6, -1), their mean is (3.5, 1). The fixture ``exact`` stands in ``conftest.py``.
"""

from dataclasses import replace
from math import exp, log1p

import torch
from torch import nn
from torch.optim import SGD

from attar.blocks.images import new_generator
from attar.blocks.student import server_plan
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.fusion import server_for
from attar.running import Driver
from attar.seeds import rng
from attar.testing import CLASSES, tiny_decoder, tiny_upload

QUICK = {"epochs": 3, "generator_steps": 2, "batch_size": 6, "noise": 5, "generator_width": 3}
TWO = (1, 1, 2)
CLIENTS = {"one": [[1.0, 0.0], [0.0, 1.0]], "two": [[0.0, 2.0], [-1.0, 0.0]]}


def pixels(*images):
    """Images of two pixels, (B, 1, 1, 2)."""
    return torch.tensor(images).view(-1, *TWO)


def linear(matrix):
    """A classifier of two pixels whose logits are ``matrix @ x``."""
    state = {"head.weight": torch.tensor(matrix), "head.bias": torch.zeros(2)}
    return Part(ModelSpec.parse("mlp:layers=0"), state, ("a", "b"), Preprocess(TWO, (0.0,), (1.0,)))


def start_linear(method, student, counts=(1, 1)):
    """Context and first state of a method for the two linear clients and a linear student."""
    uploads = [
        Upload(name, {"classifier": linear(matrix)}, count)
        for (name, matrix), count in zip(CLIENTS.items(), counts, strict=True)
    ]
    context = method.prepare(uploads, server_for(uploads, initial=linear(student)))
    return context, method.start(context)


def prepare_and_start(method, world):
    """Context and first state of a method."""
    context = method.prepare(world.uploads, world.server)
    return context, method.start(context)


# --- uploads with counts, and a method up to a phase ----------------------------------------------


def run_until(method, uploads, server, phase=None):
    """Context and state of a method before ``phase``, or after all phases."""
    context = method.prepare(uploads, server)
    state = method.start(context)
    phases = list(method.phases(context))
    names = [each.name for each in phases]
    Driver(server.seed).run(phases[: names.index(phase)] if phase else phases, state, history=[])
    return context, state


def upload_with_counts(client, counts, classes=CLASSES, net=None):
    """A classifier and so many images of each class."""
    upload = (
        tiny_upload(client, classes=classes) if net is None else tiny_upload(client, net, classes)
    )
    return replace(upload, label_counts=counts, num_examples=sum(counts))


def decoder_with_counts(client, counts, classes=CLASSES):
    """A decoder and so many images of each class."""
    upload = tiny_decoder(client, classes=classes)
    return replace(upload, label_counts=counts, num_examples=sum(counts))


# --- pairs of logits ------------------------------------------------------------------------------


def softplus(x):
    """ln(1 + e^x): the cross entropy of a pair of logits with the margin -x."""
    return log1p(exp(x))


def divergence(m, n):
    """KL of two pairs of logits with the margins m and n."""
    p = 1 / (1 + exp(-m))
    return p * (softplus(-n) - softplus(-m)) + (1 - p) * (softplus(n) - softplus(m))


def draw_crops(number, draws):
    """Corners in the padded image, and whether to mirror, of so many images."""
    corners = torch.randint(0, 9, (number, 2), generator=draws).tolist()
    mirror = torch.randint(0, 2, (number, 1), generator=draws).flatten().tolist()
    return list(zip(corners, mirror, strict=True))


def crop_and_flip(images, crops):
    """Four black pixels around each image, cut at its corner, mirrored or not."""
    channels, height, width = images[0].shape
    cut = []
    for image, ((top, left), flip) in zip(images, crops, strict=True):
        wide = torch.zeros(channels, height + 8, width + 8)
        wide[:, 4 : 4 + height, 4 : 4 + width] = image
        one = wide[:, top : top + height, left : left + width]
        cut.append(one.flip(2) if flip else one)
    return torch.stack(cut)


# --- slow twins -----------------------------------------------------------------------------------


def kl(teacher, student, temperature=1.0):
    """T^2 KL of every image, written out."""
    p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
    return temperature**2 * (p * (p.log() - q.log())).sum(-1)


def cross_entropy(logits, labels):
    """The mean of minus log softmax at the labels."""
    return -logits.log_softmax(-1)[torch.arange(len(labels)), labels].mean()


def gap_of(part, images):
    """L_BN of one client: the inputs of every BatchNorm caught, means and variances written out."""
    net, caught = part.build(), []
    layers = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]
    for layer in layers:
        layer.register_forward_pre_hook(lambda layer, inputs: caught.append((layer, inputs[0])))
    net(part.preprocess(images))
    assert len(caught) == len(layers)
    total = images.new_zeros(())
    for layer, x in caught:
        mean = x.mean((0, 2, 3))
        variance = (x - mean[:, None, None]).square().mean((0, 2, 3))
        total = (
            total
            + (mean - layer.running_mean).square().sum().sqrt()
            + (variance - layer.running_var).square().sum().sqrt()
        )
    return total


class Twin:
    """A data-free method written out slowly: here its beginning, each client by itself."""

    def __init__(self, world, method):
        self.method, self.server = method, world.server
        self.parts = [upload.parts["classifier"] for upload in world.uploads]
        self.nets = [part.build() for part in self.parts]
        self.plan = server_plan(world.server)
        self.student = self.plan.fresh(world.server.seed)
        training = method.student
        self.sgd = SGD(
            self.student.parameters(),
            training.lr,
            training.momentum,
            weight_decay=training.weight_decay,
        )
        self.generator = self.fresh_generator() if hasattr(method, "generator") else None
        self.draws = rng(world.server.seed, "studio")
        self.pool = []  # (image, label)

    def fresh_generator(self, *purpose):
        training, shape = self.method.generator, self.server.task.input_shape
        return new_generator(shape, training.noise, training.width, self.server.seed, *purpose)

    def logits(self, k, x):
        """Of client k."""
        return self.nets[k](self.parts[k].preprocess(x))

    def student_logits(self, x):
        return self.student(self.plan.preprocess(x))

    def gap(self, x):
        """L_BN, the mean over the clients."""
        return sum(gap_of(part, x) for part in self.parts) / len(self.parts)

    def grow(self, images, labels):
        self.pool += list(zip(images, labels, strict=True))

    def batches(self):
        """The pool in the order of the method, in batches of images and labels."""
        order = torch.randperm(len(self.pool), generator=self.draws) if self.pool else ()
        for batch in order.split(self.method.batch_size) if len(order) else ():
            images, labels = zip(*(self.pool[i] for i in batch), strict=True)
            yield torch.stack(images), torch.stack(labels)


def assert_same_run(state, twin):
    """The nets, the pool and what is drawn next of a method's state are those of its twin."""
    assert_same_nets(state, twin)
    if twin.pool:
        images, labels = zip(*twin.pool, strict=True)
        places = torch.arange(len(state.pool))
        torch.testing.assert_close(
            state.pool.images(places), torch.stack(images), rtol=1e-5, atol=1e-8
        )
        assert torch.equal(state.pool.labels(places), torch.stack(labels))


def assert_same_nets(state, twin, rtol=1e-5, atol=1e-7):
    """Student and generator have the weights of the twin's."""
    for mine, theirs in ((state.student, twin.student), (state.generator, twin.generator)):
        for name, value in ({} if theirs is None else theirs.state_dict()).items():
            torch.testing.assert_close(mine.state_dict()[name], value, rtol=rtol, atol=atol)


def assert_same_draws(state, twin):
    """The next random numbers are the same."""
    ours, theirs = (torch.rand(3, generator=each.draws) for each in (state, twin))
    assert torch.equal(ours, theirs)


def largest_change(net, before):
    """The largest change of a weight since the state dict ``before``."""
    after = net.state_dict()
    return max((after[name] - value).abs().max().item() for name, value in before.items())
