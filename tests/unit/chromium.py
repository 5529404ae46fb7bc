"""A headless Chromium for the tests of pages."""

import fcntl
import json
import os
import select
import shutil
import subprocess


def browser():
    """A Chromium: the one that $ATTAR_CHROMIUM names, or one on the path."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
    return os.environ.get("ATTAR_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


# What sticks out or is cut, text with too little contrast, and figures without a caption.
LOOK = """
const channel = (value) => {
  const part = value / 255;
  return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
};
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const rgba = (text) => (text.match(/[0-9.]+/g) ?? []).map(Number);
const contrast = (one, other) => {
  const [low, high] = [light(rgba(one)), light(rgba(other))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const parts = rgba(getComputedStyle(at).backgroundColor);
    if (parts.length === 3 || parts[3] === 1) return getComputedStyle(at).backgroundColor;
  }
  return "rgb(255, 255, 255)";
};
const pale = [], cut = [], bare = [];
for (const element of document.querySelectorAll("body *:not(script)")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility() || element.closest(".skip")) continue;
  const svg = element.closest("svg"), look = getComputedStyle(element);
  const found = contrast(svg ? look.fill : look.color, ground(element));
  if (found < 4.5) pale.push([element.textContent.slice(0, 40), found]);
  const box = element.getBoundingClientRect();
  const scrolls = !matchMedia("print").matches && element.closest(".scroll, .drawing");
  if (look.textOverflow === "ellipsis" && element.scrollWidth > element.clientWidth)
    cut.push([element.textContent.slice(0, 40), "ellipsis"]);
  if (!scrolls && box.width && (box.right > innerWidth + 1 || box.left < -1))
    cut.push([element.textContent.slice(0, 40), box.left, box.right]);
}
const probe = document.body.appendChild(document.createElement("i"));
probe.style.cssText = "color:var(--ink);background:var(--heat)";
const colours = getComputedStyle(probe);
const heat = contrast(colours.color, colours.backgroundColor);
probe.remove();
for (const figure of document.querySelectorAll("figure:not(figure figure)")) {
  const words = figure.querySelector("figcaption")?.textContent.trim() ?? "";
  if (words.length < 20) bare.push(figure.outerHTML.slice(0, 80));
}
return { pale, cut, bare, heat, wide: document.documentElement.scrollWidth - innerWidth };
"""
PAPER = 717  # pixels between the margins of A4


def look_at(address, width, scheme="light", media=""):
    """What ``LOOK`` finds on a page, in a colour scheme, on the screen or on paper."""
    chromium = Chromium(browser())
    try:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        chromium.ask("Emulation.setEmulatedMedia", chromium.session, features=features, media=media)
        chromium.open(address, width)
        if media == "print":
            chromium.run("window.dispatchEvent(new Event('beforeprint'));")
        return chromium.run(LOOK)
    finally:
        chromium.close()


class Chromium:
    """A headless Chromium, spoken to through its debugging pipe: no further package is needed."""

    def __init__(self, program):
        hear_from, say_to = os.pipe(), os.pipe()  # (read, write)
        words = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (say_to[0], hear_from[1])]

        def as_3_and_4():
            os.dup2(theirs[0], 3)
            os.dup2(theirs[1], 4)

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, pass_fds=(3, 4), preexec_fn=as_3_and_4, **quiet)
        for end in theirs:
            os.close(end)
        os.close(say_to[0])
        os.close(hear_from[1])
        self._in, self._out, self._rest, self._number, self.events = (
            hear_from[0],
            say_to[1],
            b"",
            0,
            [],
        )
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def ask(self, method, session=None, **words):
        self._number += 1
        message = {"id": self._number, "method": method, "params": words} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], 60)
            assert ready, "Chromium says nothing"
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        one, self._rest = self._rest.split(b"\0", 1)
        return json.loads(one)

    def open(self, address, width):
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable", self.session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.ask("Emulation.setDeviceMetricsOverride", self.session, **size)
        self.ask("Page.navigate", self.session, url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script):
        answer = self.ask(
            "Runtime.evaluate",
            self.session,
            expression=f"(() => {{{script}}})()",
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def heard(self, method):
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self):
        self.process.kill()
        self.process.wait()
