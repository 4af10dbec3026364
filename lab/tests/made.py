"""Finished run folders with given pictures, written by the real writer."""

from meancap_lab.runs.config import RunIdentity, sample_seed
from meancap_lab.runs.folder import Store


def made_run(folder, images, labels, rule="CFG(2)", *, kind="npz", evaluations=50, seed=0, prompts=None):
    """`images` (n, h, w, c) as one run of one block."""
    config = RunIdentity(
        model="given", model_sha256="0" * 64, rule=rule, times=(0.0, 1.0), count=len(images),
        batch=len(images), images=kind, seed=seed,
    )  # fmt: skip
    store = Store(folder, config, {})
    records = []
    for i in range(len(images)):
        record = {"index": i, "seed": sample_seed(seed, i), "evaluations": evaluations}
        if labels is not None:
            record["label"] = int(labels[i])
        if prompts is not None:
            record["prompt"] = prompts[i]
        records.append(record)
    store.save(0, images.numpy(), records)
    assert store.finish()
    return folder
