"""A sheet to draw a picture on: boxes, arrows, bars and words, in the looks of ``stretto graph -o x.svg``."""

from xml.sax.saxutils import escape

INK, SOFT, LINE, PAPER = "#1f2933", "#52606d", "#9aa5b1", "#fbfcfd"
BLUE, GREEN, ORANGE, RED, GREY = "#d9e8fb", "#dcf1e4", "#fce6d2", "#f9d9d9", "#edf1f5"
STYLE = f"""
  text {{ font-family: ui-sans-serif, system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }}
  text {{ fill: {INK}; font-size: 14px; }} .title {{ font-size: 16px; font-weight: 700; }}
  .strong {{ font-weight: 600; }} .soft {{ font-size: 12px; fill: {SOFT}; }}
  .mono {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 13px; }}
  .line {{ fill: none; stroke: {SOFT}; stroke-width: 1.5; }} .dashed {{ stroke-dasharray: 6 5; }}
"""


class Sheet:
    """A picture of ``width`` by ``height`` pixels; ``title`` says what it shows to who cannot see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """Words with their base line at ``y``; ``|`` breaks a line."""
        for place, line in enumerate(words.split("|")):
            self.parts.append(
                f'<text class="{kind}" x="{x:g}" y="{y + 17 * place:g}" text-anchor="{anchor}" xml:space="preserve">'
                f"{escape(line)}</text>"
            )

    def box(self, x: float, y: float, size: tuple[float, float], words: str, fill: str = "#ffffff") -> None:
        """A box with words in its middle, the first line strong."""
        width, height = size
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{LINE}"/>'
        )
        lines = words.split("|")
        top = y + height / 2 + 5 - 17 * (len(lines) - 1) / 2
        for place, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * place, line, "soft" if place else "strong", "middle")

    def bar(self, x: float, y: float, size: tuple[float, float], words: str, fill: str) -> None:
        """A bar with words in its middle."""
        width, height = size
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{LINE}"/>'
        )
        self.text(x + width / 2, y + height / 2 + 5, words, "", "middle")

    def arrow(self, *points: tuple[float, float], dashed: bool = False, both: bool = False) -> None:
        """A line through points, with a head at its end (and at its start)."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        kind = "line dashed" if dashed else "line"
        self.parts.append(f'<path class="{kind}" marker-end="url(#head)"{start} d="{path}"/>')

    def line(self, start: tuple[float, float], end: tuple[float, float], *, stroke: str = LINE) -> None:
        """A dashed line."""
        self.parts.append(
            f'<line class="dashed" stroke="{stroke}" stroke-width="1.4" '
            f'x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}"/>'
        )

    def svg(self) -> str:
        """The document."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(self.title)}">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0.8 L7.5 4 L0 7.2 z" fill="{SOFT}"/></marker></defs>'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" rx="10" fill="{PAPER}"/>'
        return "\n".join([head, f"<style>{STYLE}</style>", marker, paper, *self.parts, "</svg>"]) + "\n"
