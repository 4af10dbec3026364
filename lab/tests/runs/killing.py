"""Runs `meancap generate` again and again, and kills it at random moments; started by test_folder_kills.py.

    python killing.py MODEL FOLDER KILLS SEED

A fresh process costs seconds to import torch, so that this one imports it once and forks the victims.
"""

import io
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from meancap.files import is_temporary
from meancap_lab.cli import main
from meancap_lab.runs.folder import Run

KINDS = (["--npz", "--diagnostics"], [], ["--npz"], ["--diagnostics"])


def command(model, folder, kind):
    rule = "CFG(4) | Cap(1.1)"
    start = ["generate", "--model", f"sit:{model}", "--rule", rule, "--steps", "6", "--per-class", "8"]
    return [*start, "--batch", "4", "--device", "cpu", "--out", str(folder), *KINDS[kind]]


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def start(arguments):
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os._exit(main(arguments))
    return child


def ended(child, seconds):
    """Waits so long at most; whether the child ended by itself, and well."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, f"the run failed with status {status}"
            return True
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def check_no_torn_file(folder, whole):
    """After a kill, every name that exists holds a whole file."""
    for name, data in contents(folder).items() if folder.exists() else ():
        if is_temporary(Path(name)):
            continue
        if name == "run.json":
            begun, finished = json.loads(data), json.loads(whole[name])
            assert begun["config"] == finished["config"]
            assert begun["finished"] in (None, finished["finished"])
        elif name.startswith("blocks/"):
            if name.endswith(".json"):
                assert json.loads(data)
            else:
                np.load(io.BytesIO(data))
        else:
            assert data == whole[name], f"{name} is torn or differs"
            if name.endswith(".png"):
                Image.open(io.BytesIO(data)).load()


def kill_often(model, out, kills, seed):
    chance = random.Random(seed)
    began = time.monotonic()
    whole = []
    for kind in range(len(KINDS)):
        assert ended(start(command(model, out / f"whole{kind}", kind)), 300)
        whole.append(contents(out / f"whole{kind}"))
    usual = (time.monotonic() - began) / len(KINDS)
    killed = finished = 0
    while killed < kills:
        kind, folder = finished % len(KINDS), out / f"run{finished}"
        if ended(start(command(model, folder, kind)), chance.random() * usual):
            assert contents(folder) == whole[kind]
            finished += 1
        else:
            killed += 1
            check_no_torn_file(folder, whole[kind])
    kind, folder = finished % len(KINDS), out / f"run{finished}"
    assert ended(start(command(model, folder, kind)), 300)
    assert contents(folder) == whole[kind]
    assert len(Run.open(folder)) == 80
    return {"kills": killed, "finished": finished + 1}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kill_often(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
