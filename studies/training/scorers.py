"""Trains the classifier behind the `fashion` protocol and writes what ships with the package.

    python -m studies.training classifier --folder DATA --out src/meancap/metrics/weights

DATA holds the four idx .gz files of Fashion-MNIST (Debian: dataset-fashion-mnist). One thread, one seed.
Writes `fashion_classifier.safetensors`, `fashion_reference.safetensors` (features of the 10,000 held-out test
images in half precision, against which the protocol measures) and a JSON card with what was measured.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from meancap.metrics import gaussian
from meancap.metrics.classifiers import FashionClassifier
from meancap.models.data import FASHION, fashion

EPOCHS, BATCH, PEAK, DECAY, SHIFT, SEED = 8, 128, 3e-3, 0.02, 2, 0


class Training(nn.Module):
    """The same network with the batch norms that `folded` merges into the convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False)
            for c_in, c_out, stride in FashionClassifier.LAYERS
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(c_out) for _, c_out, _ in FashionClassifier.LAYERS)
        self.head = nn.Linear(FashionClassifier.LAYERS[-1][1], 10)

    def forward(self, images: Tensor) -> Tensor:
        x = (images - FashionClassifier.MEAN) / FashionClassifier.SPREAD
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.relu(norm(convolution(x)))
        return self.head(x.mean((2, 3)))

    def folded(self) -> FashionClassifier:
        self.eval()
        network = FashionClassifier()
        pairs = zip(self.convolutions, self.norms, strict=True)
        network.convolutions = nn.ModuleList(fuse_conv_bn_eval(*pair) for pair in pairs)
        network.head.load_state_dict(self.head.state_dict())
        return network.eval()


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to SHIFT pixels both ways; black comes in at the edges."""
    padded = F.pad(images, (SHIFT,) * 4)
    dy, dx = torch.randint(0, 2 * SHIFT + 1, (2, len(images), 1, 1), generator=generator)
    rows, columns = dy + torch.arange(28)[None, :, None], dx + torch.arange(28)[None, None, :]
    return padded[torch.arange(len(images))[:, None, None], 0, rows, columns][:, None]


def train(x: Tensor, y: Tensor) -> Training:
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    model = Training()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=DECAY)
    steps = EPOCHS * (len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK, total_steps=steps)
    for epoch in range(EPOCHS):
        begun, losses = time.time(), []
        for rows in torch.randperm(len(x), generator=generator).split(BATCH)[: len(x) // BATCH]:
            loss = F.cross_entropy(model(shifted(x[rows], generator).float()), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch + 1}: loss {mean:.4f}, {time.time() - begun:.0f} s", flush=True)
    return model.eval()


@torch.no_grad()
def features(network: FashionClassifier, x: Tensor) -> dict[str, Tensor]:
    parts = [network(block.float()) for block in x.split(500)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def reference(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the protocol needs of the test images: features to measure coverage of, statistics of the rest."""
    spatial = gaussian(found["spatial"])
    return {
        "pool": found["pool"].half(),
        "spatial_mean": spatial.mean,
        "spatial_covariance": spatial.covariance.float(),
    }


def run_classifier(data: Path, out: Path) -> Path:
    """Trains the classifier and writes it with its reference and card."""
    begun = time.process_time()
    training, test = fashion(data), fashion(data, train=False)
    model = train(training.images, training.labels)
    network = model.folded()
    y_test = test.labels
    found = features(network, test.images)
    right = (found["logits"].argmax(1) == y_test).float()
    card = {
        "data": "Fashion-MNIST (Zalando Research, MIT licence), 60,000 training images",
        "recipe": f"{EPOCHS} epochs, batch {BATCH}, AdamW, one cycle to {PEAK}, weight decay {DECAY}, "
        f"shifts up to {SHIFT} pixels, seed {SEED}, one thread",
        "parameters": sum(p.numel() for p in network.parameters()),
        "test_accuracy": round(right.mean().item(), 4),
        "test_accuracy_per_class": {
            name: round(right[y_test == i].mean().item(), 3) for i, name in enumerate(FASHION)
        },
        "test_cross_entropy": round(F.cross_entropy(found["logits"], y_test).item(), 4),
        "training_cpu_seconds": round(time.process_time() - begun),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "fashion_classifier.safetensors").write_bytes(save(network.state_dict()))
    (out / "fashion_reference.safetensors").write_bytes(save(reference(found)))
    (out / "fashion_classifier.json").write_text(json.dumps(card, indent=1) + "\n")
    return out / "fashion_classifier.safetensors"
