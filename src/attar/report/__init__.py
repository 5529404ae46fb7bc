"""Records as one self-contained page, and accuracies as a bar chart."""

from attar.report.bar_chart import Bar, draw_bars
from attar.report.page import write_report

__all__ = ["Bar", "draw_bars", "write_report"]
