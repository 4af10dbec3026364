"""The shipped model: what its card says of it, and that it makes what it is asked for."""

import pytest
import torch

from meancap import CFG, Cap, Record, noise, sample, uniform
from meancap.files import sha256_of
from meancap_lab.metrics.classifiers import fashion_classifier
from meancap_lab.models import fashion
from meancap_lab.models.classes import SHIPPED

CARD = SHIPPED.with_suffix(".md")


def test_the_file_is_small_and_the_card_is_about_it():
    assert SHIPPED.stat().st_size <= 8_000_000
    card = CARD.read_text(encoding="utf-8")
    assert sha256_of(SHIPPED) in card
    assert f"{sum(p.numel() for p in fashion().network.parameters()):,} parameters" in card
    assert all(word in card for word in ("MIT", "seed", "recall", "precision"))


def test_a_classifier_that_never_saw_it_names_the_garments():
    model = fashion()
    labels = [c for c in range(10) for _ in range(4)]
    record = Record()
    rule = CFG(4) | Cap(1.1)
    x = sample(model.predict(labels), rule, noise(range(40), model.shape), uniform(16), record=record)
    pictures = model.decode(x).permute(0, 2, 3, 1)
    seen = fashion_classifier()(pictures, ())["logits"].argmax(1)
    hits = seen == torch.tensor(labels)
    # Chance gives 4 of 40.
    assert hits.sum() >= 30
    assert record.stacked()["ratio"].max() <= 1.1 * (1 + 1e-6)


def test_the_garments_have_the_class_to_avoid_in_the_place_of_none_or_beside_it():
    model = fashion()
    x, labels = noise(range(2), model.shape), [6, 6]
    plain, avoided = model.predict(labels), model.predict([2, 2])
    predict = model.predict(labels, negative=2)
    p, both = predict(x, 0.3), predict.including(("negative",))(x, 0.3)
    assert torch.equal(p.m_c, plain(x, 0.3).m_c) and torch.equal(p.m_u, avoided(x, 0.3).m_c)
    assert torch.equal(both.m_u, plain(x, 0.3).m_u) and torch.equal(both.other("negative"), p.m_u)
    assert predict.including(("weak",)) is predict
    with pytest.raises(ValueError, match="has classes 0 to"):
        model.predict(labels, negative=10)
