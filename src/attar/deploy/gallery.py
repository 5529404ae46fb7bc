"""Answers as one page that holds everything: image, class and probability, unsure ones first."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from attar.deploy.answers import UNSURE, Answer

HERE = Path(__file__).parent
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
BARS = "Bars show the model's probabilities of the likeliest classes."
MOST_SHOWN = 500  # images on a page


def gallery_page(title: str, answers: Sequence[Answer], *, note: str = "") -> str:
    """A page of answers that needs no other file.

    Args:
        title: of the page.
        answers: in the order of the page.
        note: a sentence below the title.

    Returns:
        HTML.
    """
    summary = _summarise(answers)
    return page(
        title,
        POLICY,
        [
            f"<header><h1>{escape(title)}</h1><p>{escape(note)}</p></header>",
            f"<main>{answers_section(answers, summary)}</main>",
            "<footer><p>Made by attar. The page holds the images itself.</p></footer>",
        ],
    )


def unsure_first(answers: Iterable[Answer]) -> list[Answer]:
    """Answers by their probability, the lowest first; broken images come before all others."""
    return sorted(answers, key=lambda answer: answer.top[0][1] if answer.top else -1.0)


def page(title: str, policy: str, body: Sequence[str]) -> str:
    """A page with the styles of all pages of this package.

    Args:
        title: as text.
        policy: its content security policy.
        body: its parts, as HTML.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{(HERE / 'page.css').read_text(encoding='utf-8')}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def answers_section(answers: Sequence[Answer], summary: str) -> str:
    """The answers as cards.

    Args:
        answers: in their order.
        summary: a line above them, as HTML.
    """
    cards = "\n".join(_card(answer) for answer in answers)
    return f'<section id="answers">{summary}<ol class="cards">\n{cards}\n</ol></section>'


def _summarise(answers: Sequence[Answer]) -> str:
    """How many images, and how many of each class."""
    counts = Counter(answer.top[0][0] for answer in answers if answer.top)
    unsure = sum(answer.unsure for answer in answers)
    images = "1 image" if len(answers) == 1 else f"{len(answers):,} images"
    doubts = f"{unsure:,} unsure (likeliest class below {UNSURE:.0%})"
    chips = "".join(
        f"<li>{escape(name)} <b>{count:,}</b></li>" for name, count in counts.most_common(30)
    )
    return f'<p class="summary">{images}, {doubts}. {BARS}</p><ul class="chips">{chips}</ul>'


def _card(answer: Answer) -> str:
    name = escape(answer.image)
    picture = '<div class="picture none">no picture</div>'
    if answer.thumbnail is not None:
        picture = f'<div class="picture"><img src="{answer.thumbnail}" alt="" loading="lazy"></div>'
    if answer.problem is not None:
        text = f'<p class="problem">{escape(answer.problem)}</p>'
        return f'<li class="card broken">{picture}<div><p class="name">{name}</p>{text}</div></li>'
    best, probability = answer.top[0]
    mark = ' <span class="mark">unsure</span>' if answer.unsure else ""
    bars = "".join(_bar(*pair) for pair in answer.top)
    return (
        f'<li class="card{" unsure" if answer.unsure else ""}">{picture}<div>'
        f'<p class="best">{escape(best)} <b>{probability:.1%}</b>{mark}</p>'
        f'<ul class="bars">{bars}</ul><p class="name">{name}</p></div></li>'
    )


def _percent(probability: float) -> str:
    return "&lt;0.1%" if 0 < probability < 0.0005 else f"{probability:.1%}"


def _bar(name: str, probability: float) -> str:
    return (
        f'<li><span class="class">{escape(name)}</span>'
        f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="rail" width="100" height="8"/>'
        f'<rect class="fill" width="{100 * probability:.2f}" height="8"/></svg>'
        f'<span class="share">{_percent(probability)}</span></li>'
    )
