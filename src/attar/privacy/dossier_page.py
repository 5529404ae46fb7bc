"""A privacy dossier as one page: no request, no script, every foreign name escaped."""

import base64
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from torch import Tensor

from attar.internal.text import human_bytes
from attar.nets import to_shape
from attar.privacy.attacks import Attack, Rate
from attar.privacy.dossier import Dossier
from attar.privacy.findings import Finding
from attar.version import __version__

STYLE = Path(__file__).with_name("dossier.css")
SIDE = 112  # pixels, the least side that a picture is shown with
TITLES = {"yes": "Yes", "no": "No, not like this", "cannot tell": "Cannot tell"}
MARKS = {"yes": "may be sent", "no": "do not send", "cannot tell": "cannot tell"}
LIMITS = {"yes": "below the limit", "no": "above the limit", "cannot tell": "cannot tell"}
CLASSES = {"yes": "good", "no": "bad", "cannot tell": "open"}


def dossier_page(dossier: Dossier, *, signed_by: str | None = None, pictures: bool = True) -> str:
    """Write a dossier as HTML.

    Args:
        dossier: what was found.
        signed_by: the public key whose signature will lie beside the page; None without.
        pictures: whether to show pictures of training images beside what was made of the file.

    Returns:
        The page.
    """
    findings = "\n".join(_finding(found, pictures=pictures) for found in dossier.findings)
    shows = pictures and any(found.pictures is not None for found in dossier.findings)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "img-src data:; style-src 'unsafe-inline'\">",
            f"<title>Privacy dossier of {escape(dossier.client)}</title>",
            f"<style>{STYLE.read_text(encoding='utf-8')}</style>",
            "</head>",
            "<body>",
            _header(dossier, shows=shows),
            "<main>",
            _answer(dossier),
            '<section><h2>What the file says openly</h2><p class="soft">Whoever holds the file '
            "reads this from it.</p>",
            _list(dossier.reveals),
            "</section>",
            findings,
            _limits(dossier),
            _about(dossier, signed_by),
            "</main>",
            f"<footer><p>Made by attar {escape(__version__)} on the client's machine. This page "
            "needs no network and holds no script.</p></footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _header(dossier: Dossier, *, shows: bool) -> str:
    day = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    keep = (
        '<p class="keep">This page shows training images. Keep it inside your organisation, or '
        "make it again with --no-pictures.</p>"
        if shows
        else ""
    )
    return (
        f"<header><p class='soft'>Privacy dossier · {escape(day)}</p>"
        f"<h1>{escape(dossier.client)}</h1>"
        f"<p class='soft'>{escape(dossier.file)}, {human_bytes(dossier.bytes)}</p>{keep}</header>"
    )


def _answer(dossier: Dossier) -> str:
    kind = CLASSES[dossier.answer]
    advice = f"<p><strong>What to do:</strong> {escape(dossier.advice)}</p>"
    rows = "".join(
        f"<tr><th scope='row'>{escape(found.title)}</th><td>{_mark(found)}</td></tr>"
        for found in dossier.findings
    )
    return (
        f"<section class='answer {kind}'><h2>May this file be sent?</h2>"
        f"<p class='big'>{TITLES[dossier.answer]}</p><p>{escape(dossier.verdict)}</p>"
        f"{advice if dossier.advice else ''}<table class='short'>{rows}</table></section>"
    )


def _mark(found: Finding) -> str:
    if found.answer is None:
        return "<span class='mark'>a statement</span>"
    return f"<span class='mark {CLASSES[found.answer]}'>{MARKS[found.answer]}</span>"


def _finding(found: Finding, *, pictures: bool) -> str:
    content = [f"<section><h2>{escape(found.title)} {_mark(found)}</h2>"]
    content.append(f"<p>{escape(found.sentence)}</p>")
    if found.advice:
        content.append(f"<p><strong>What to do:</strong> {escape(found.advice)}</p>")
    content += [_attack(attack) for attack in found.attacks]
    if found.facts:
        content.append(_facts(found.facts))
    if pictures and found.pictures is not None and len(found.pictures):
        content.append(_pairs(found.pictures, found.captions))
    content.append("</section>")
    return "\n".join(content)


def _attack(attack: Attack) -> str:
    low, high = attack.auc_interval
    rows = "".join(_rate(rate) for rate in attack.rates)
    return (
        f"<h3>{escape(attack.name)}</h3><p class='soft'>Judges by {escape(attack.how)}.</p>"
        "<div class='scroll'><table><thead><tr><th>false alarms</th><th>training images found</th>"
        "<th>95 % interval</th><th>others accused</th><th></th></tr></thead><tbody>"
        f"{rows}</tbody></table></div>"
        f"<p class='soft'>On average: a training image scores above another one with probability "
        f"{attack.auc:.3f} ({low:.3f} to {high:.3f}); 0.5 is guessing.</p>"
    )


def _rate(rate: Rate) -> str:
    low, high = rate.interval
    target = f"{100 * rate.target:g} %"
    accused = f"{rate.accused:,} of {rate.others:,}"
    if rate.others < rate.needed:
        why = f"needs {rate.needed:,} other images, there are {rate.others:,}"
        return (
            f"<tr><th scope='row'>{target}</th><td colspan='2' class='soft'>{why}</td>"
            f"<td>{rate.others:,} others</td><td><span class='mark open'>cannot tell</span></td>"
            "</tr>"
        )
    return (
        f"<tr><th scope='row'>{target}</th><td>{_percent(rate.share)} ({rate.found:,} of "
        f"{rate.members:,})</td><td>{_percent(low)} to {_percent(high)}</td><td>{accused}</td>"
        f"<td><span class='mark {CLASSES[rate.answer]}'>{LIMITS[rate.answer]}</span></td></tr>"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts
    )
    return f"<dl>{rows}</dl>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _pairs(pictures: Tensor, captions: Sequence[str]) -> str:
    figures = "".join(
        f"<figure>{_image(pair[0], 'made from the file')}{_image(pair[1], 'training image')}"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for pair, caption in zip(pictures, captions, strict=True)
    )
    return f"<div class='pairs'>{figures}</div>"


def _image(picture: Tensor, words: str) -> str:
    from PIL import Image

    colour = to_shape(picture[None].cpu().float(), (3, *picture.shape[1:]))[0].clamp(0, 1)
    pixels = (colour * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
    times = max(1, -(-SIDE // pixels.shape[1]))
    image = Image.fromarray(pixels)
    large = image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    file = io.BytesIO()
    large.save(file, "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    return f"<img alt='{words}' src='data:image/png;base64,{data}'>"


def _limits(dossier: Dossier) -> str:
    return "<section><h2>What this page does not show</h2>" + _list(dossier.limits) + "</section>"


def _about(dossier: Dossier, signed_by: str | None) -> str:
    signature = (
        "none"
        if signed_by is None
        else f"in the file of this page's name with .sig beside it, by {signed_by}"
    )
    duplicates = (
        f"; {dossier.duplicates:,} were left out, since they are training images"
        if dossier.duplicates
        else ""
    )
    facts = [
        ("file", dossier.file),
        ("SHA-256 of the file", dossier.sha256),
        *((f"part {name}", net) for name, net in dossier.parts),
        ("training images looked at", f"{dossier.members:,}"),
        ("other images", f"{dossier.others:,}, from {dossier.source}{duplicates}"),
        ("signature of this page", signature),
    ]
    return (
        "<section><h2>About this page</h2>"
        "<p>It is about the file with this hash and no other. attar inspect --json FILE prints the "
        "hash of a file.</p>"
        f"{_facts(facts)}</section>"
    )
