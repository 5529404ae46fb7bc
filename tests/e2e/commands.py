"""`attar ...` as people type it: in this process, which is quick, or in one of its own, which
can be killed.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO

from attar.cli import main

# A process of its own that has imported attar before it is wanted: another interpreter with other
# hashes, as a new one would be.
READY = multiprocessing.get_context("forkserver")
READY.set_forkserver_preload(["attar.cli"])


def run(*arguments, cwd, status=0):
    """In this process."""
    out, err = StringIO(), StringIO()
    with chdir(cwd), redirect_stdout(out), redirect_stderr(err):
        try:
            code = main([str(word) for word in arguments])
        except SystemExit as ended:  # flags that cannot be parsed
            code = ended.code
    return _checked(
        subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue()), status
    )


def run_json(*arguments, cwd):
    return json.loads(run(*arguments, "--json", cwd=cwd).stdout)


def run_apart(*arguments, cwd, status=0):
    """In a process of its own."""
    return _checked(
        subprocess.run(words(*arguments), cwd=cwd, capture_output=True, text=True, timeout=300),
        status,
    )


def start(*arguments, cwd, told):
    """Begin in a process of its own, to be killed; what it says on stderr goes to the file ``told``."""
    process = READY.Process(
        target=_live, args=([str(word) for word in arguments], str(cwd), str(told))
    )
    process.start()
    return process


def _live(arguments, cwd, told):
    os.chdir(cwd)
    with open(told, "w") as file:
        os.dup2(file.fileno(), 2)
    sys.exit(main(arguments))


def words(*arguments):
    """The command line of a process of its own."""
    return [sys.executable, "-m", "attar", *map(str, arguments)]


def _checked(done, status):
    assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done
