"""Records as pictures: one page of all charts, and a bar chart for the demo."""

from attar.report.bar_chart import Bar, bars
from attar.report.page import write_report

__all__ = ["Bar", "bars", "write_report"]
