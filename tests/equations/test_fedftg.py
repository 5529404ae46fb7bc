"""FedFTG: its terms by hand, and its epochs beside the loop written out slowly."""

from copy import deepcopy

import pytest
import torch
from by_hand import QUICK, largest_change, upload_with_counts
from torch.nn import functional as F
from torch.optim import SGD, Adam

from attar.blocks.ensemble import average, class_shares, data_shares, label_shares
from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import server_plan
from attar.fusion import server_for
from attar.methods.fedftg import FedFtg
from attar.seeds import rng
from attar.testing import CLASSES, SHAPE

UPLOADS = [
    upload_with_counts("one", (6, 0, 2)),
    upload_with_counts("two", (2, 4, 1)),
    upload_with_counts("three", (5, 0), ("bar", "ring"), "lenet5"),
]


def test_class_shares_and_label_shares_by_hand():
    """ring 6, 2, 0; cross 0, 4, unknown; bar 2, 1, 5: 8, 4 and 8 of 20."""
    expected = torch.tensor([[6 / 8, 0.0, 2 / 8], [2 / 8, 1.0, 1 / 8], [0.0, 0.0, 5 / 8]])
    torch.testing.assert_close(class_shares(UPLOADS, CLASSES), expected)
    torch.testing.assert_close(label_shares(UPLOADS, CLASSES), torch.tensor([0.4, 0.2, 0.4]))


def test_draw_labels_in_proportion():
    """Chi-square of 6,000 draws over 3 classes, two degrees of freedom: below 13.8 in 999 of
    1,000 cases.
    """
    for shares in (None, torch.tensor([0.4, 0.2, 0.4]), torch.tensor([6.0, 0.0, 2.0])):
        odds = torch.ones(3) / 3 if shares is None else shares / shares.sum()
        labels = draw_labels(6000, 3, rng(5), "cpu", shares)
        counts, expected = torch.bincount(labels, minlength=3), 6000 * odds
        assert counts[expected == 0].sum() == 0
        kept = expected > 0
        assert ((counts[kept] - expected[kept]).square() / expected[kept]).sum() < 13.8
    uniform, skewed = (
        draw_labels(60, 3, rng(5), "cpu", shares)
        for shares in (None, torch.tensor([0.4, 0.2, 0.4]))
    )
    assert not torch.equal(uniform, skewed)


class SlowFedFtg:
    """One epoch: each image has its label's weights, each client is asked alone over the classes
    it knows.
    """

    def __init__(self, server, method):
        self.method, self.server, self.draws = method, server, rng(server.seed, "fedftg")
        self.parts = [upload.parts["classifier"] for upload in UPLOADS]
        self.plan = server_plan(server)
        self.student = self.plan.fresh(server.seed)
        alike = UPLOADS[:2]
        self.student.load_state_dict(
            average([u.parts["classifier"].state for u in alike], data_shares(alike))
        )
        self.generator = new_generator(
            SHAPE, method.generator.noise + 3, method.generator.width, server.seed
        )
        self.sgd = SGD(self.student.parameters(), method.student.lr, method.student.momentum)
        self.adam = Adam(self.generator.parameters(), method.generator.lr)
        self.norms = []
        self.counts = torch.tensor([[6.0, 0.0, 2.0], [2.0, 4.0, 1.0], [0.0, 0.0, 5.0]])

    def make_images(self):
        y = draw_labels(
            self.method.batch_size, 3, self.draws, "cpu", torch.tensor([8.0, 4.0, 8.0]) / 20
        )
        z = draw_noise(self.method.batch_size, self.method.generator.noise, self.draws, "cpu")
        return self.generator(torch.cat([z, torch.eye(3)[y]], 1)), z, y

    def terms(self, x, y, kind="kl"):
        student, discrepancy, loyalty = self.student(self.plan.preprocess(x)), 0.0, 0.0
        for k, part in enumerate(self.parts):
            columns = [CLASSES.index(name) for name in part.classes]
            logits = part.build()(part.preprocess(x))
            log_k = logits.log_softmax(-1)
            log_s = student[:, columns].log_softmax(-1)
            apart = {
                "kl": lambda i, p=log_s, q=log_k: (p[i].exp() * (p[i] - q[i])).sum(),
                "l1": lambda i, f=student[:, columns], g=logits: (f[i] - g[i]).abs().mean(),
                "soft-labels": lambda i, q=log_k, c=columns: (
                    -(q[i].exp() * student[i].log_softmax(-1)[c]).sum()
                ),
            }[kind]
            for i in range(len(x)):
                weight = self.counts[k, y[i]] / self.counts[:, y[i]].sum()
                if weight:
                    discrepancy = discrepancy + weight * apart(i) / len(x)
                    loyalty = loyalty - weight * log_k[i, columns.index(y[i].item())] / len(x)
        return discrepancy, loyalty

    def epoch(self):
        method = self.method
        self.student.eval()
        for _ in range(method.generator.steps):
            x, z, y = self.make_images()
            discrepancy, loyalty = self.terms(x, y, method.mining)
            count, pairs = len(x), 0.0
            for i in range(count):
                for j in range(count):
                    if i != j:
                        pairs = (
                            pairs
                            + (x[i] - x[j]).square().mean().sqrt()
                            * (z[i] - z[j]).square().mean().sqrt()
                        )
            loss = (
                -discrepancy + method.fidelity * loyalty + method.spread * (-pairs / count**2).exp()
            )
            self.down(self.adam, loss, self.generator)
        self.student.train()
        for _ in range(method.student.steps):
            with torch.no_grad():
                x, _, y = self.make_images()
            self.down(self.sgd, self.terms(x, y, method.teaching)[0], self.student)

    def down(self, optimiser, loss, net):
        optimiser.zero_grad()
        loss.backward()
        norm = sum(
            weight.grad.square().sum() for weight in net.parameters() if weight.grad is not None
        ).sqrt()
        self.norms.append(norm.item())
        if self.method.clip is not None and norm > self.method.clip:
            for weight in net.parameters():
                weight.grad *= self.method.clip / (norm + 1e-6)
        optimiser.step()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("clip", "mining", "teaching"),
    [(None, "kl", "kl"), (0.3, "kl", "kl"), (None, "l1", "soft-labels"), (None, "kl", "l1")],
)
def test_epoch_equals_the_loop_written_out(clip, mining, teaching):
    method = FedFtg(
        **QUICK,
        student_steps=2,
        fidelity=0.7,
        spread=1.3,
        clip=clip,
        mining=mining,
        teaching=teaching,
    )
    server = server_for(UPLOADS, seed=2)
    context = method.prepare(UPLOADS, server)
    state, slow = method.start(context), SlowFedFtg(server, method)
    (phase,) = method.phases(context)
    begun = deepcopy(state.student.state_dict())
    for state.step in range(2):
        phase.step(state)
        slow.epoch()
        for mine, theirs in ((state.student, slow.student), (state.generator, slow.generator)):
            for key, value in theirs.state_dict().items():
                torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-4, atol=1e-6)
    assert largest_change(state.student, begun) > 1e-3
    assert clip is None or min(slow.norms) < clip < max(slow.norms)  # some are cut, some are not


def test_generator_step_raises_the_discrepancy():
    """The generator's loss holds -L_md: its own steps raise the discrepancy when nothing else is
    asked of it.
    """
    method = FedFtg(
        **{**QUICK, "generator_steps": 12},
        student_steps=1,
        fidelity=0.0,
        spread=0.0,
        generator_lr=0.01,
    )
    context = method.prepare(UPLOADS, server_for(UPLOADS))
    state = method.start(context)
    noise_and_labels = torch.cat(
        [draw_noise(6, 5, rng(1), "cpu"), F.one_hot(torch.tensor([0, 1, 2, 0, 1, 2]), 3)], 1
    )
    slow = SlowFedFtg(context.server, method)

    def discrepancy(student):
        slow.student = student
        with torch.no_grad():
            return slow.terms(state.generator(noise_and_labels), torch.tensor([0, 1, 2, 0, 1, 2]))[
                0
            ]

    student = deepcopy(state.student).eval()
    before = discrepancy(student)
    method.phases(context)[0].step(state)
    assert discrepancy(student) > before


def test_generator_loss_by_hand():
    """-2 + 0.7 * 3 + 1.3 * 0.5 = 0.75."""
    method = FedFtg(fidelity=0.7, spread=1.3)
    terms = (torch.tensor(value) for value in (2.0, 3.0, 0.5))
    assert method.generator_loss(*terms).item() == pytest.approx(0.75)
