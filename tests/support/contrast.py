"""The contrast of texts on a page by WCAG, from the colours that the browser computed."""

from typing import Any

LEAST = 4.5  # minimum contrast of text; graphics need 3

# JavaScript functions for the colour and the background of a text. The background is the colour of the nearest opaque
# ancestor, blended with the translucent colours of the elements in between.
COLOURS = """
const parse = (text) => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
};
const over = (top, below) => top.slice(0, 3).map((part, n) => part * top[3] + below[n] * (1 - top[3]));
const ground = (element) => {
    if (!element) return parse(getComputedStyle(document.documentElement).backgroundColor)[3]
        ? parse(getComputedStyle(document.documentElement).backgroundColor) : [255, 255, 255, 1];
    const own = parse(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own : [...over(own, ground(element.parentElement)), 1];
};
const opacity = (element) => element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1;
const shown = (element) => element.checkVisibility({opacityProperty: true, visibilityProperty: true})
    && element.getBoundingClientRect().width > 2;
"""


def luminance(page: Any, selector: str, what: str) -> float:
    """Return the relative luminance of a colour of the first matching element. what: a CSS property such as "color"."""
    script = f"(found, what) => {{ {COLOURS} return parse(getComputedStyle(found)[what]); }}"
    return _luminance(page.locator(selector).first.evaluate(script, what))


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


def hard_to_read(page: Any, selector: str, least: float = LEAST) -> list[str]:
    """Return a line with class, text and contrast for each element whose text has a contrast below `least`.

    Waits until the selector matches an element, so that the check cannot pass for lack of elements.
    """
    script = f"""(all) => {{
        {COLOURS}
        return all.filter((e) => e.textContent.trim() && shown(e)).map((e) => {{
            const below = ground(e), colour = parse(getComputedStyle(e).color);
            colour[3] *= opacity(e);
            return [`${{e.className}} ${{e.textContent.trim().slice(0, 40)}}`, over(colour, below), below];
        }});
    }}"""
    texts = page.locator(selector)
    texts.filter(visible=True).first.wait_for()
    found = texts.evaluate_all(script)
    assert found, f"{selector}: no visible text"
    contrasts = {text: contrast(_luminance(colour), _luminance(below)) for text, colour, below in found}
    return [f"{text}: {number:.2f}" for text, number in contrasts.items() if number < least]


def _luminance(colour: list[float]) -> float:
    channels = [part / 255 for part in colour[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
