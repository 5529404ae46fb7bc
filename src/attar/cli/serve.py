"""``attar serve``: a small web service that classifies images."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from attar.cli.arguments import Device, parse_device
from attar.cli.output import console
from attar.deploy import Limits, allowed_hosts, make_service
from attar.deploy import serve as serve_app
from attar.models import Classifier, load_deployable

USUAL = Limits()


def serve(
    model: Positional[Path],
    /,
    *,
    host: Annotated[
        str, arg(help="Where to listen; 127.0.0.1 is reached from this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, arg(help="Its port; 0 takes any free one.")] = 8000,
    name: Annotated[str | None, arg(help="The title of the page; that of MODEL unless given.")] = (
        None
    ),
    max_bytes: Annotated[int, arg(help="The largest request.")] = USUAL.bytes,
    max_pixels: Annotated[int, arg(help="The largest image.")] = USUAL.pixels,
    max_images: Annotated[int, arg(help="The most images in a request.")] = USUAL.images,
    seconds: Annotated[float, arg(help="The longest time for a request.")] = USUAL.seconds,
    device: Device = "auto",
) -> None:
    """Serve a model folder or an upload: a page to drop images on, and answers as JSON.

    It has no password and no encryption. Beyond this machine, put it behind a web server that has.
    """
    limits = Limits(bytes=max_bytes, pixels=max_pixels, images=max_images, seconds=seconds)
    device = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(device)
    title = name or model.resolve().stem
    app = make_service(classifier, title, device=device, limits=limits, hosts=allowed_hosts(host))

    def ready(address: str) -> None:
        console.say(f"{title} answers at {address} (Ctrl-C ends it)")

    serve_app(app, host, port, ready=ready)
