"""The web service as an ASGI application, on Starlette: a page, answers as JSON or as a page.

    GET  /          a page to which images are dropped
    POST /predict   images in a form, or one image as the body -> answers
    GET  /model     what the model takes and knows, as JSON
    GET  /health    {"status": "ok"}

This module is only imported where Starlette is installed (``serve.py``).
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from threading import BoundedSemaphore

import torch
from python_multipart.exceptions import FormParserError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message

from attar.data.images import ImageFile, read_images, read_size
from attar.deploy.answers import SHOWN, UNSURE, Answer, classify, draw_thumbnail
from attar.deploy.gallery import BARS, answers_section, page
from attar.deploy.limits import Limits
from attar.errors import DataError
from attar.internal.text import human_bytes
from attar.models import Classifier
from attar.nets import to_shape

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
KINDS = ("image/png", "image/jpeg")
ICON = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 15V4m0 0L8 8m4-4 4 4"/>'
    '<path d="M4 14v4a2 2 0 0 0 2 2h12a2 2 0 0 0 2-2v-4"/></svg>'
)

Sent = list[tuple[str, bytes]]
"""Names and bytes of image files."""


class Service:
    """Answers requests with one model, one batch at a time.

    Args:
        classifier: on ``device``.
        name: of the model, for people.
        device: where it computes.
        limits: of a request.
    """

    def __init__(self, classifier: Classifier, name: str, device: str, limits: Limits) -> None:
        self.classifier = classifier
        self.name = name
        self.device = device
        self.limits = limits
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="classify")
        self._seats = BoundedSemaphore(limits.waiting)

    async def show_page(self, request: Request) -> Response:
        """The page for people."""
        script = '<script src="/service.js" defer></script>'
        parts = [_heading(self), _form(self.limits), '<section id="answers"></section>']
        body = [f"<main>{''.join(parts)}</main>", _footer(request), script]
        return HTMLResponse(page(f"{self.name} · attar", POLICY, body), headers=HEADERS)

    async def show_script(self, _: Request) -> Response:
        """The script of the page."""
        text = (HERE / "service.js").read_text(encoding="utf-8")
        return Response(text, media_type="text/javascript", headers=HEADERS)

    async def describe(self, _: Request) -> Response:
        """What the model takes and knows."""
        channels, height, width = self.classifier.input_shape()
        facts = {
            "model": self.name,
            "classes": list(self.classifier.classes),
            "image": {"channels": channels, "height": height, "width": width},
            "limits": self.limits.to_json(),
        }
        return JSONResponse(facts, headers=HEADERS)

    async def health(self, _: Request) -> Response:
        """That the service runs."""
        return JSONResponse({"status": "ok"}, headers=HEADERS)

    async def predict(self, request: Request) -> Response:
        """The answers to the images of a request."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise HTTPException(403, "Another web site may not use this service.")
        number = _parse_top(request, len(self.classifier.classes))
        as_page = "text/html" in request.headers.get("accept", "")
        end = time.monotonic() + self.limits.seconds
        try:
            async with asyncio.timeout(self.limits.seconds):
                images = await _receive(request, self.limits)
                answers = await self._classify(images, number, end, thumbnails=as_page)
        except TimeoutError:
            raise HTTPException(
                503, f"This took more than {self.limits.seconds:g} s. Send fewer images."
            ) from None
        answered = any(answer.problem is None for answer in answers)
        status = 200 if answered else 400
        if as_page:
            body = [
                f"<main>{answers_section(answers, _heading(self))}</main>",
                '<footer><p><a href="/">More images</a></p></footer>',
            ]
            text = page(f"{self.name} · attar", POLICY, body)
            return HTMLResponse(text, status, headers=HEADERS)
        results = {"model": self.name, "results": [answer.to_json() for answer in answers]}
        return JSONResponse(results, status, headers=HEADERS)

    async def _classify(
        self, images: Sent, number: int, end: float, *, thumbnails: bool
    ) -> list[Answer]:
        """Answers from the only worker.

        Raises:
            HTTPException: if too many requests wait for it.
            TimeoutError: if the time is over.
        """
        if not self._seats.acquire(blocking=False):
            raise HTTPException(503, "Too many requests are waiting. Try again in a moment.")
        job = self._worker.submit(self._answer, images, number, end, thumbnails=thumbnails)
        job.add_done_callback(lambda _: self._seats.release())
        return await asyncio.wrap_future(job)

    def _answer(self, images: Sent, number: int, end: float, *, thumbnails: bool) -> list[Answer]:
        """One answer for each image; runs in the worker."""
        answers = []
        for name, data in images:
            if time.monotonic() > end:
                raise TimeoutError
            answers.append(self._answer_one(name, data, number, thumbnails=thumbnails))
        return answers

    def _answer_one(self, name: str, data: bytes, number: int, *, thumbnails: bool) -> Answer:
        size = read_size(name, data)
        if isinstance(size, str):
            return Answer(name, problem=size.removeprefix(f"{name}: "))
        if size[0] * size[1] > self.limits.pixels:
            most = f"at most {self.limits.pixels / 1e6:g} million are allowed"
            return Answer(name, problem=f"{size[0]} x {size[1]} pixels: {most}")
        try:
            decoded = read_images([ImageFile(name, lambda: data)], source=name)
        except DataError as error:
            problem = error.problems[0] if error.problems else error.what
            return Answer(name, problem=problem.removeprefix(f"{name}: "))
        pixels = torch.from_numpy(decoded).permute(0, 3, 1, 2)
        images = to_shape(pixels.float() / 255, self.classifier.input_shape())
        (top,) = classify(self.classifier, images, self.device, number)
        return Answer(name, top, draw_thumbnail(data) if thumbnails else None)


def make_app(service: Service, hosts: list[str] | None) -> Starlette:
    """The service as an ASGI application.

    Args:
        service: what answers.
        hosts: the names under which it may be addressed; None for any.
    """
    routes = [
        Route("/", service.show_page),
        Route("/service.js", service.show_script),
        Route("/model", service.describe),
        Route("/health", service.health),
        Route("/predict", service.predict, methods=["POST"]),
    ]
    middleware = []
    if hosts is not None:  # another site's name that leads to this machine is refused
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    return Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: _show_refusal},
    )


async def _show_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = {**HEADERS, **(error.headers or {})}
    if "text/html" in request.headers.get("accept", ""):
        body = [f'<main><p class="problem">{escape(error.detail)}</p></main>']
        return HTMLResponse(page("attar", POLICY, body), error.status_code, headers=headers)
    return JSONResponse({"error": error.detail}, error.status_code, headers=headers)


async def _receive(request: Request, limits: Limits) -> Sent:
    """The images of a request, within the limits.

    Raises:
        HTTPException: if there are none, or too many, or they are too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (*KINDS, "multipart/form-data"):
        raise HTTPException(
            415, "Send images in a form (multipart/form-data), or one PNG or JPEG as the body."
        )
    body = await _read_body(request, limits)
    if kind in KINDS:
        images = [(request.query_params.get("name", "image"), body)]
    else:
        images = await _parse_form(request, body, limits)
    images = [(name, data) for name, data in images if data]
    if not images:
        raise HTTPException(400, "There is no image in the request.")
    return images


async def _read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request, whatever length it states."""
    too_large = HTTPException(
        413, f"A request may have {human_bytes(limits.bytes)}. Send fewer or smaller images."
    )
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > limits.bytes:
        raise too_large
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limits.bytes:
                raise too_large
    except ClientDisconnect:
        raise HTTPException(400, "The request ended too early.") from None
    return bytes(body)


async def _parse_form(request: Request, body: bytes, limits: Limits) -> Sent:
    """The files of a form."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    whole = Request(request.scope, receive)
    try:
        async with whole.form(max_files=limits.images, max_fields=10) as form:
            files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
            return [(file.filename or "image", await file.read()) for file in files]
    except FormParserError:
        raise HTTPException(400, "The form is damaged.") from None


def _parse_top(request: Request, classes: int) -> int:
    """How many classes an answer lists."""
    text = request.query_params.get("top", str(SHOWN))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise HTTPException(400, f"top={text}: a whole number from 1 to 1000 is expected.")
    return min(int(text), classes)


def _heading(service: Service) -> str:
    classes = service.classifier.classes
    shown = ", ".join(classes[:12]) + (", …" if len(classes) > 12 else "")
    about = f"Tells {len(classes)} classes apart: {shown}."
    return f"<header><h1>{escape(service.name)}</h1><p>{escape(about)}</p></header>"


def _form(limits: Limits) -> str:
    most = f"{limits.images} images and {limits.bytes / 1e6:g} MB at once"
    return (
        f'<form action="/predict" method="post" enctype="multipart/form-data" '
        f'data-images="{limits.images}" data-bytes="{limits.bytes}">'
        f'<label class="drop">{ICON}<strong>Choose or drop images</strong>'
        f"<span>PNG or JPEG, at most {most}</span>"
        f'<input class="away" type="file" name="image" accept="{",".join(KINDS)}" multiple>'
        f'</label><button>Classify</button></form><p id="status" role="status"></p>'
    )


def _footer(request: Request) -> str:
    address = f"{request.url.scheme}://{request.url.netloc}/predict"
    command = f"curl -F image=@scan.png {address}"
    return (
        "<footer><details><summary>From a program</summary>"
        f"<pre>{escape(command)}</pre></details>"
        f"<p>{BARS} Unsure: the likeliest class has less than {UNSURE:.0%}. Images are classified "
        "by this server and not kept.</p></footer>"
    )
