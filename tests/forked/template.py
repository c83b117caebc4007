"""The process that is forked: `python template.py DESCRIPTOR MODULE...`. As `-m` it, and its forks, would have `tests`.

It has imported the modules, and called what `MODULE:FUNCTION` names. Each message at the socket is a program: a keeper,
forked for it, forks the program, tells its number, and its status when it has ended.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 20


def wait_for_program(asked: socket.socket) -> dict[str, Any]:
    """What to run: returns in forks only. The template ends when nobody can ask it any more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a keeper
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the tests and their programs
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, MESSAGE_BYTES, 4)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(*descriptors)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return json.loads(message)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(reported: int, *streams: int) -> None:
    """Returns in the program's process, with its three streams in place."""
    program = os.fork()
    if program:
        for descriptor in (0, 1, 2, *streams):  # a pipe ends when nobody has it
            os.close(descriptor)
        os.write(reported, b"%d\n" % program)
        os.write(reported, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        os._exit(0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for descriptor in (reported, *streams):
        os.close(descriptor)


def run(arguments: list[str], environment: dict[str, str], folder: str) -> None:
    """What `python ARGUMENTS` does: `-m MODULE`, `-c CODE` or a file, each with its own arguments."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    _open_streams(environment)
    _seed()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, "")
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(arguments[1], vars(sys.modules["__main__"]))
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _seed() -> None:
    """Each fork has random numbers of its own, as each Python has: or a forgotten seed or broadcast would go unseen."""
    random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _open_streams(environment: dict[str, str]) -> None:
    """As Python does when it starts: how they are written depends on what they are and on the environment."""
    encoding, at_once = environment.get("PYTHONIOENCODING", "utf-8"), bool(environment.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=encoding, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)
    sys.stdout.reconfigure(write_through=at_once)


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file; a program has its own in its place
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        module, _, call = name.partition(":")
        imported = importlib.import_module(module)
        if call:
            getattr(imported, call)()
    gc.collect()
    gc.freeze()  # a fork that looks through all of it again as it ends takes half a second
    run(**wait_for_program(control))
