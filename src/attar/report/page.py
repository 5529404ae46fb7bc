from pathlib import Path
def write_report(folder, out, recipes):
    out.write_text("x"); return out
