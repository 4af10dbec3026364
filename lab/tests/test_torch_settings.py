"""What the library changes in torch, it restores: after an error, in nested blocks and between threads."""

from threading import Event, Thread

import pytest
import torch

from meancap import CFG
from meancap.sampling import uniform
from meancap_lab.mixtures import flow
from meancap_lab.mixtures.condition import TRIPLE
from meancap_lab.torch_settings import torch_settings


def state():
    return torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


def test_both_settings_come_back_even_after_an_error():
    torch.set_num_threads(2)
    before = state()
    with pytest.raises(KeyError), torch_settings(threads=1, tf32=not before[1]):
        assert state() == (1, not before[1], not before[1])
        raise KeyError
    assert state() == before


def test_blocks_nest_in_one_thread():
    torch.set_num_threads(3)
    with torch_settings(threads=2):
        with torch_settings(threads=1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3


def test_a_second_thread_waits_and_restores_what_it_found():
    torch.set_num_threads(2)
    inside, seen = Event(), []

    def other():
        torch.set_num_threads(2)
        started.set()
        assert inside.wait(60)
        with torch_settings(threads=1):
            seen.append(torch.get_num_threads())
        seen.append(torch.get_num_threads())

    thread, started = Thread(target=other), Event()
    thread.start()
    assert started.wait(60)
    with torch_settings(threads=1):
        inside.set()
        thread.join(0.2)
        assert not seen, "the second block did not wait"
    thread.join(60)
    assert seen == [1, 2] and torch.get_num_threads() == 2


def test_flows_in_several_threads_give_the_bits_of_one_and_leave_the_threads_alone():
    torch.set_num_threads(2)
    condition, times = TRIPLE.condition(), uniform(8)
    starts = [torch.randn(3000, 2, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    alone = [flow(condition, CFG(3.0), x, times, engine="numba") for x in starts]
    together = [None] * 4

    def run(i):
        together[i] = flow(condition, CFG(3.0), starts[i], times, engine="numba")

    threads = [Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.get_num_threads() == 2
    fresh = []
    late = Thread(target=lambda: fresh.append(torch.get_num_threads()))
    late.start()
    late.join()
    assert fresh == [2], "a thread that starts later finds the number that the program had set"
