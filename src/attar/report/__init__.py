"""Records as one self-contained page, a fused model as one, and accuracies as a bar chart."""

from attar.report.bar_chart import Bar, draw_bars
from attar.report.model_page import Measured, is_model_folder, measure_model, write_model_report
from attar.report.page import write_report

__all__ = [
    "Bar",
    "Measured",
    "draw_bars",
    "is_model_folder",
    "measure_model",
    "write_model_report",
    "write_report",
]
