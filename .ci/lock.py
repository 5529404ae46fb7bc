"""Write what pip would install, with the hash of each file, for ``pip install --require-hashes``.

    python -m pip install --dry-run --ignore-installed --report report.json '.[dev]'
    python .ci/lock.py report.json > requirements.lock

The hashes are those of the index and the platform on which pip was asked, so the file is made
where it is used and is not part of the repository. ``make lock`` does both.
"""

import json
import sys


def lock_lines(report):
    """A line for each package of pip's report; the project itself has no file and is left out.

    Args:
        report: what ``pip install --report`` wrote.

    Raises:
        ValueError: if a file has no sha256, as one that was built from a folder or a clone.
    """
    lines = []
    for item in report["install"]:
        if "dir_info" in item["download_info"]:
            continue
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        sha256 = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if sha256 is None:
            raise ValueError(f"{name} {version} has no sha256: it cannot be locked")
        lines.append(f"{name}=={version} --hash=sha256:{sha256}")
    return sorted(lines, key=str.lower)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.stdout.write("\n".join(lock_lines(json.load(file))) + "\n")
