"""A real ComfyUI server in a process of its own, with this repository in its custom_nodes.

The pack is copied as a clone would be, and the server's environment has no PYTHONPATH: the nodes must find
the library beside them.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from comfy_host import ROOT, tiny_weights, where

import absent

# ComfyUI makes conditionings from text only; this node, in the server's process, makes one from a number.
WORDS = """
import torch

class Words:
    RETURN_TYPES, FUNCTION, CATEGORY = ("CONDITIONING",), "make", "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"label": ("INT", {"default": 1})}}

    def make(self, label):
        g = torch.Generator().manual_seed(label)
        pooled = {"pooled_output": torch.randn(1, 32, generator=g)}
        return ([[torch.randn(1, 4, 16, generator=g), pooled]],)

NODE_CLASS_MAPPINGS = {"TestWords": Words}
"""


class Server:
    def __init__(self, base, port):
        self.base, self.url = base, f"http://127.0.0.1:{port}"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.load(answer)

    def post(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def run(self, graph, **extra):
        """The outputs of every node that shows something."""
        number = self.post("/prompt", {"prompt": graph, "extra_data": extra})["prompt_id"]
        for _ in range(600):
            found = self.get(f"/history/{number}").get(number)
            if found and found["status"]["completed"]:
                return found["outputs"]
            assert not (found and found["status"]["status_str"] == "error"), found["status"]["messages"]
            time.sleep(0.1)
        raise AssertionError("the server did not finish")

    def latent(self, outputs):
        saved = outputs["8"]["latents"][0]
        return (self.base / "output" / saved["subfolder"] / saved["filename"]).read_bytes()

    def log(self):
        return (self.base / "log.txt").read_text(encoding="utf-8", errors="replace")


def pack(folder):
    """The repository as a clone in custom_nodes would be: nothing of it is installed for the server."""
    folder.mkdir(parents=True)
    for name in ("__init__.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("src", "example_workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


@contextlib.contextmanager
def serving(base):
    """The server, up and answering, with `base` as its folder."""
    from safetensors.torch import save_file

    pack(base / "custom_nodes" / "meancap")
    (base / "custom_nodes" / "test_words.py").write_text(WORDS, encoding="utf-8")
    (base / "models" / "diffusion_models").mkdir(parents=True)
    save_file(tiny_weights(), base / "models" / "diffusion_models" / "tiny.safetensors")
    (base / "page").mkdir()
    (base / "page" / "index.html").write_text("<p>no frontend</p>", encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, absent.__file__, "main.py", "--cpu", "--listen", "127.0.0.1", "--port", str(port),
        "--base-directory", str(base), "--front-end-root", str(base / "page"), "--disable-api-nodes",
        "--disable-auto-launch", "--database-url", "sqlite:///:memory:",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (base / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=Path(where()).resolve(), stdout=log, stderr=log, env=environment
        )
    running = Server(base, port)
    try:
        for _ in range(600):
            assert process.poll() is None, running.log()[-2000:]
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                running.get("/system_stats")
                break
            time.sleep(1)
        else:
            raise AssertionError(f"the server did not come up: {running.log()[-2000:]}")
        yield running
    finally:
        process.terminate()
        process.wait(20)
