"""The nodes over HTTP: a real ComfyUI server, a random tiny SD3, and workflows as a client sends them.

The server is a process of its own, with this repository copied into its custom_nodes as a clone would be, and
no PYTHONPATH: the nodes must find the library beside them.
"""

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from comfy_host import NODE_IDS, ROOT, tiny_weights, where

import absent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("comfy"), pytest.mark.filterwarnings("ignore")]

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

    def log(self):
        return (self.base / "log.txt").read_text(encoding="utf-8", errors="replace")


def pack(folder):
    """Copies the files of the node pack into `folder`, as a clone in custom_nodes has them."""
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


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("comfyui")) as running:
        yield running


def graph(gamma=1.05, seed=1, form="ball", rule=None):
    """A workflow as the API takes it."""
    model = ["2", 0]
    inputs = {"model": ["1", 0], "gamma": gamma, "form": form}
    sampler = {
        "model": model, "positive": ["3", 0], "negative": ["4", 0], "latent_image": ["5", 0], "seed": seed,
        "steps": 6, "cfg": 7.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0,
    }  # fmt: skip
    nodes = {
        "1": ("UNETLoader", {"unet_name": "tiny.safetensors", "weight_dtype": "default"}),
        "2": ("MeancapPosteriorMeanCap", inputs),
        "3": ("TestWords", {"label": 1}),
        "4": ("TestWords", {"label": 2}),
        "5": ("EmptySD3LatentImage", {"width": 64, "height": 64, "batch_size": 2}),
        "6": ("KSampler", sampler),
        "7": ("MeancapGuidanceReport", {"latent": ["6", 0], "model": model, "filename_prefix": "guidance/r"}),
        "8": ("SaveImage", {"images": ["7", 2], "filename_prefix": "image"}),
    }
    if rule is not None:
        nodes["2"] = ("MeancapGuidanceRule", {"model": ["1", 0], "rule": rule})
    return {key: {"class_type": name, "inputs": inputs} for key, (name, inputs) in nodes.items()}


def text_chunks(path):
    """The text of a PNG file, by keyword."""
    data, found, at = path.read_bytes(), {}, 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        if kind == b"tEXt":
            name, _, value = data[at + 8 : at + 8 + size].partition(b"\0")
            found[name.decode()] = value.decode("latin-1")
        at += 12 + size
    return found


def test_the_nodes_are_served(server):
    for name in NODE_IDS:
        known = server.get(f"/object_info/{name}")[name]
        assert known["category"] == "advanced/guidance" and known["python_module"] == "custom_nodes.meancap"


def test_the_report_is_shown_saved_and_written_into_later_images(server):
    outputs = server.run(graph(1.05), extra_pnginfo={"workflow": {"nodes": []}})
    text = outputs["7"]["text"][0]
    assert text.startswith("Cap(1.05): capped 6/6 steps, effective CFG ")
    picture = server.base / "output" / "guidance" / outputs["7"]["images"][0]["filename"]
    record = json.loads(picture.with_suffix(".json").read_text(encoding="utf-8"))
    assert len(record["rows"]) == 12 and record["about"]["headline"] in text
    saved = server.base / "output" / outputs["8"]["images"][0]["filename"]
    assert json.loads(text_chunks(saved)["meancap"]) == text
    assert f"Cap(1.05): {record['about']['headline']}" in server.log()


def test_a_second_run_with_a_cached_node_has_its_own_report(server):
    first = server.run(graph(1.07, seed=5))["7"]["text"][0]
    other = server.run(graph(1.07, seed=6))["7"]["text"][0]
    assert first != other and "6/6 steps" in other
    text = "CFG(5) | Rescale(0.5) | Cap(1.1)"
    assert server.run(graph(rule=text))["7"]["text"][0].startswith(f"{text}: capped ")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (graph(0.5), "smaller than min"),
        (graph(rule="CFG(7) | Kap(1.1)"), "unknown name 'Kap'"),
        (graph(form="cube"), "Value not in list"),
    ],
)
def test_bad_input_is_refused_with_a_reason(server, bad, message):
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post("/prompt", {"prompt": bad})
    assert caught.value.code == 400
    assert message in caught.value.read().decode()


def test_the_example_workflows_are_offered_and_miss_no_node(server):
    assert set(server.get("/workflow_templates")["meancap"]) == {
        path.stem for path in (ROOT / "example_workflows").glob("*.json")
    }
    known = server.get("/object_info")
    for path in (ROOT / "example_workflows").glob("*.json"):
        offered = server.get(f"/api/workflow_templates/meancap/{path.name}")
        for node in offered["nodes"]:
            if node["type"] not in ("MarkdownNote", "Note"):
                inputs = known[node["type"]]["input"]
                names = set(inputs["required"]) | set(inputs.get("optional", {}))
                assert {slot["name"] for slot in node["inputs"]} <= names
