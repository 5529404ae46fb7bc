"""FEDCVAE: what ENS and KD learn from, and that they do."""

from dataclasses import replace

import pytest
import torch
from by_hand import run_until
from torch.nn import functional as F

from attar.blocks.images import Decoders, draw_codes, new_decoder
from attar.fusion import fuse, server_for
from attar.methods import METHODS
from attar.methods.fedcvae import FedCvae
from attar.seeds import rng
from attar.testing import CLASSES, SHAPE, SMALL_DECODERS, tiny_decoder, tiny_upload


def vivid(upload):
    """The same decoder with larger weights: images that differ by class and code."""
    part = upload.parts["decoder"]
    state = {name: 4 * value for name, value in part.state.items()}
    return replace(upload, parts={"decoder": replace(part, state=state)})


WEAK = (
    vivid(tiny_decoder("a")),
    vivid(tiny_decoder("b", SMALL_DECODERS[1])),
    vivid(tiny_decoder("c")),
)
SERVER = server_for(WEAK, student="lenet5")
SMALL = {"samples": 60, "epochs": 2}


def run_cvae(method, until=None, uploads=WEAK, server=SERVER):
    """Context and state before the phase ``until``, or after all phases."""
    return run_until(method, uploads, server, until)


@pytest.mark.parametrize("width", [0.5, 1.0, 3.0])
def test_draw_codes_is_normal_within_the_truncation(width):
    """Of a standard normal cut off at +-w the variance is 1 - 2 w pdf(w) / (2 cdf(w) - 1)."""
    codes = draw_codes(4000, 5, width, rng(0, "codes"))
    normal = torch.distributions.Normal(0.0, 1.0)
    w = torch.tensor(width)
    variance = 1 - 2 * w * normal.log_prob(w).exp() / (2 * normal.cdf(w) - 1)
    assert float(codes.abs().max()) <= width
    assert float(codes.var()) == pytest.approx(float(variance), rel=0.05)
    assert draw_codes(4000, 5, None, rng(0, "codes")).abs().max() > 3


def test_ens_generates_by_data_amount_and_label_counts():
    """Counts (4, 0, 2) and (6, 12, 0) and (0, 0, 6), of 60 images: twice as many of each."""
    uploads = [
        replace(upload, label_counts=counts, num_examples=sum(counts))
        for upload, counts in zip(WEAK, [(4, 0, 2), (6, 12, 0), (0, 0, 6)], strict=True)
    ]
    context, state = run_cvae(FedCvae(**SMALL), "train", uploads)
    assert context.synthetic.image_counts.tolist() == [[8, 0, 4], [12, 24, 0], [0, 0, 12]]
    assert state.pool.labels(torch.arange(60)).bincount().tolist() == [20, 24, 16]
    net, codes = (
        WEAK[1].parts["decoder"].build(),
        context.synthetic.decoders.draw_codes(1, 1, 24, 3.0),
    )
    expected = net(codes, F.one_hot(torch.full((24,), 1), 3).float())
    assert torch.allclose(state.pool.images(torch.arange(20, 44)), expected, atol=1e-6)


def test_ens_generates_classes_equally_by_squared_counts():
    """20 images of each class: class 0 in the ratio 16 to 36, class 1 from b alone, class 2,
    which nobody holds, from all alike.
    """
    counts = [(4, 0, 0), (6, 12, 0), (0, 0, 0)]
    uploads = [
        replace(upload, label_counts=some, num_examples=max(1, sum(some)))
        for upload, some in zip(WEAK, counts, strict=True)
    ]
    context, state = run_cvae(
        FedCvae(allocation="all-classes", count_exponent=2.0, **SMALL), "train", uploads
    )
    assert context.synthetic.image_counts.tolist() == [[6, 0, 7], [14, 20, 7], [0, 0, 6]]
    assert state.pool.labels(torch.arange(60)).bincount().tolist() == [20, 20, 20]


def test_ens_trains_a_fresh_classifier():
    method = FedCvae(samples=90, epochs=30, batch_size=16, lr=3e-3)
    context, start = run_cvae(method, "generate")
    fresh = context.synthetic.plan.fresh(SERVER.seed).state_dict()
    assert all(
        torch.equal(value, fresh[name]) for name, value in start.student.state_dict().items()
    )
    _, state = run_cvae(method)
    places = torch.arange(len(state.pool))
    said = context.synthetic.plan.eval_logits(state.student, state.pool.images(places)).argmax(1)
    assert float((said == state.pool.labels(places)).float().mean()) > 0.9


def test_kd_has_the_codes_of_its_images():
    """Each decoder uses the first entries of a code as long as the longest (3); images and codes
    stand in one order.
    """
    context, state = run_cvae(FedCvae(mode="kd", **SMALL), "fit decoder")
    assert context.codes.shape == (60, 3)
    assert len(state.lessons) == 60
    assert len(state.pool) == 0
    place = 0
    for label in range(3):
        for row, number in enumerate(context.synthetic.image_counts[:, label].tolist()):
            net = WEAK[row].parts["decoder"].build()
            codes = context.codes[place : place + number, : net.latent]
            made = net(codes, F.one_hot(torch.full((number,), label), 3).float())
            assert torch.allclose(
                state.lessons.images(torch.arange(place, place + number)), made, atol=1e-6
            )
            place += number


def test_kd_fits_a_decoder_and_generates_classes_equally():
    short, long = (
        run_cvae(
            FedCvae(mode="kd", samples=60, decoder_epochs=n, decoder_lr=1e-2, batch_size=16),
            "generate again",
            WEAK[:1],
        )
        for n in (0, 60)
    )
    errors = []
    for context, state in (short, long):
        labels = F.one_hot(state.lessons.labels(torch.arange(60)), 3).float()
        made = state.decoder(context.codes[:, : state.decoder.latent], labels).detach()
        errors.append(float((made - state.lessons.images(torch.arange(60))).square().mean()))
    assert errors[1] < errors[0] / 2
    _, state = run_cvae(FedCvae(mode="kd", samples=61, epochs=0, decoder_epochs=1))
    assert state.pool.labels(torch.arange(61)).bincount().tolist() == [21, 20, 20]


def test_new_decoder_of_more_classes_than_each_client_knows():
    """Seven and seven classes: a fresh cvae-small of fourteen would have codes of 20 in place of
    the clients' 2.
    """
    names = tuple(f"class {number}" for number in range(14))
    uploads = [
        replace(
            tiny_decoder(client, "cvae-small-decoder:hidden=4", classes=some), label_counts=(2,) * 7
        )
        for client, some in (("a", names[:7]), ("b", names[7:]))
    ]
    uploads = [replace(upload, num_examples=14) for upload in uploads]
    result = fuse(
        uploads,
        FedCvae(mode="kd", samples=28, epochs=1, decoder_epochs=1),
        server_for(uploads, student="lenet5"),
    )
    assert result.result.models["student"].classes == names
    decoder = new_decoder(Decoders(uploads, server_for(uploads)))
    assert (decoder.latent, decoder.num_classes) == (2, 14)


def test_result_names_classes_without_images():
    uploads = [replace(upload, label_counts=(3, 3, 0), num_examples=6) for upload in WEAK]
    for mode in ("ens", "kd"):
        result = fuse(
            uploads, FedCvae(mode=mode, samples=40, epochs=1, decoder_epochs=1), SERVER
        ).result
        assert "No image was made of: bar" in result.remarks[0]
        assert result.arrays["images made"][:, 2].tolist() == [0, 0, 0]


def test_result_names_a_student_with_one_answer():
    """As vgg9 does where Adam's first steps at 1e-3 are too large for it: its loss stays that of
    guessing.
    """
    context, state = run_cvae(FedCvae(samples=60, epochs=30, batch_size=16))
    assert not context.synthetic.result(state).remarks
    with torch.no_grad():
        state.student.head.weight.zero_()
        state.student.head.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
    before = [value.clone() for value in state.student.state_dict().values()]
    (remark,) = context.synthetic.result(state).remarks
    assert "takes all of 60 synthetic images, of several classes, for cross" in remark
    assert "lr" in remark
    assert state.student.training
    assert all(map(torch.equal, before, state.student.state_dict().values()))


def test_result_allows_one_answer_for_one_class():
    uploads = [replace(upload, label_counts=(0, 6, 0), num_examples=6) for upload in WEAK]
    context, state = run_cvae(FedCvae(samples=60, epochs=30, batch_size=16), uploads=uploads)
    (remark,) = context.synthetic.result(state).remarks
    assert "No image was made of" in remark


def test_generate_gives_the_shape_of_the_task():
    server = replace(SERVER, task=replace(SERVER.task, input_shape=(3, 20, 18)))
    context, _ = run_cvae(
        FedCvae(**SMALL),
        "train",
        server=replace(server, student_preprocess=SERVER.student_preprocess),
    )
    assert context.synthetic.generate(0).shape[1:] == (3, 20, 18)


def test_needs_of_dense_refuse_decoders_alone():
    with pytest.raises(
        Exception, match=r"clients a, b, c must send a classifier \(they sent a decoder\)"
    ):
        fuse(WEAK, METHODS["dense"](epochs=1), SERVER)


def test_needs_of_fedcvae_refuse_a_classifier():
    with pytest.raises(
        Exception, match=r"client strong must send a decoder \(it sent a classifier\)"
    ):
        fuse((*WEAK, tiny_upload("strong")), FedCvae(**SMALL), SERVER)


def test_needs_ask_for_counts_of_decoders_alone():
    silent = replace(WEAK[0], label_counts=None)
    with pytest.raises(Exception, match="client a must send label counts"):
        fuse((silent, *WEAK[1:]), FedCvae(**SMALL), SERVER)
    quiet = replace(tiny_upload("strong"), label_counts=None)
    fuse((quiet, *WEAK), METHODS["fedmho"](samples=20, epochs=1), server_for((quiet, *WEAK)))
    with pytest.raises(Exception, match="client a must send label counts"):
        fuse((quiet, silent), METHODS["fedmho"](samples=20, epochs=1), server_for((quiet, silent)))


def test_server_for_decoders_takes_their_task():
    assert SERVER.task.classes == CLASSES
    assert SERVER.task.input_shape == SHAPE
