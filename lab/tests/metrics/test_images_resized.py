"""Three resizers against their definitions."""

import pytest
import torch

from meancap_lab.metrics.image_text import _clip_pixels
from meancap_lab.metrics.images import clean_bicubic, direct_8bit, tf1_bilinear, three_channels


def noise(n, high, wide, channels=3):
    g = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (n, high, wide, channels), generator=g, dtype=torch.uint8)


@pytest.mark.parametrize(("length", "size"), [(256, 299), (32, 299), (300, 7), (5, 5)])
def test_tf1_bilinear_is_a_loop_over_pixel_origins(length, size):
    row = noise(1, 1, length)[0, 0, :, 0].tolist()
    expected = []
    for i in range(size):
        place = i * length / size  # no half-pixel shift
        low = int(place)
        high = min(low + 1, length - 1)
        expected.append(row[low] + (row[high] - row[low]) * (place - low))
    image = torch.tensor(row, dtype=torch.uint8)[None, None, :, None].expand(1, length, length, 3)
    found = tf1_bilinear(image.contiguous(), size)
    torch.testing.assert_close(found[0, 1, 0], torch.tensor(expected), rtol=0, atol=2e-3)


def test_at_the_same_size_nothing_changes():
    x = noise(2, 299, 299)
    plain = x.permute(0, 3, 1, 2).float()
    for resize in (tf1_bilinear, clean_bicubic, direct_8bit):
        assert torch.equal(resize(x, 299), plain)


def test_clean_bicubic_is_antialiased_and_not_rounded():
    stripes = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)
    stripes[:, :, ::2] = 255
    small = clean_bicubic(stripes, 8)
    assert (small[..., 2:-2] - 127.5).abs().max() < 3  # averaged, where a bilinear sample would see 0 or 255
    assert tf1_bilinear(stripes, 8).unique().numel() == 1  # every eighth pixel: always a white one
    x = noise(1, 40, 40)
    fine = clean_bicubic(x, 31)
    assert (fine != fine.round()).float().mean() > 0.9
    # Pillow's 8-bit path rounds and cuts between its two passes, so it is close and not the same.
    assert 0.1 < (fine - direct_8bit(x, 31, bicubic=True)).abs().mean() < 1


def test_grey_images_become_three_equal_channels():
    grey = noise(2, 28, 28, 1)
    assert torch.equal(three_channels(grey), grey.repeat(1, 1, 1, 3))
    assert torch.equal(direct_8bit(three_channels(grey), 50)[:, 0], direct_8bit(grey, 50)[:, 0])


def test_clip_takes_the_middle_of_the_shorter_side():
    x = noise(1, 224, 300)
    found = _clip_pixels(x, 224)
    middle = x[:, :, 38:262].permute(0, 3, 1, 2).float() / 255
    mean, spread = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # as published
    expected = (middle - torch.tensor(mean)[:, None, None]) / torch.tensor(spread)[:, None, None]
    torch.testing.assert_close(found, expected)
    assert _clip_pixels(noise(2, 480, 640), 224).shape == (2, 3, 224, 224)
