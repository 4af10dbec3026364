"""Published formulas, written out in the space of their authors, beside the rules of the catalogue."""

import math

import pytest
import torch
import torch.nn.functional as F
from rule_cases import SHAPE, dot, norm, velocities

from cases import V_C, V_U, T, X
from meancap import Prediction, guided_velocity, parse, uniform
from meancap.rules import Decay, displace, tv_cfg
from meancap.rules.frequency import SYM4

FORMULAS, RECURSIONS = [], []


def formula(text, *, shape=SHAPE, t=0.4, size=1.0, **options):
    """The function below is the guided velocity, from x, t, v_c and v_u of this size."""

    def add(written):
        case = text, shape, t, size, lambda *args: written(*args, **options)
        FORMULAS.append(pytest.param(*case, id=f"{text} {shape} {t}"))
        return written

    return add


def mean_formula(text, *, t=0.4, **options):
    """The function below is the guided mean, from x, m_c and m_u."""

    def add(written):
        def velocity(x, t, v_c, v_u, **options):
            return (written(x, x + (1 - t) * v_c, x + (1 - t) * v_u, **options) - x) / (1 - t)

        formula(text, t=t, **options)(velocity)
        return written

    return add


def recursion(text, times, **options):
    """The generator below yields the guided velocity of each step, from its (t, x, v_c, v_u)."""

    def add(written):
        RECURSIONS.append(pytest.param(text, times, lambda steps: written(steps, **options), id=text))
        return written

    return add


def along(v, onto):
    return dot(v, onto) / dot(onto, onto) * onto


def cfg(c, u, scale=4.0):
    return u + scale * (c - u)


@formula("Gain(3)")
@formula("FromUnconditional(4)")
@formula("Frequencies([4, 4, 4])")
@formula("early_high(4)", t=0.0)
@formula("early_high(4)", t=0.49)
@formula("early_high(4)", t=0.5, scale=0.0)
@formula("early_high(4)", t=0.99, scale=0.0)
@formula("tag(4, eta=1)")
@formula("Rectify([0, 1], [1, 1]) | CFG(4)", t=0.0)
@formula("beta_cfg(7.5)", t=0.0, scale=0.0)
@formula("beta_cfg(7.5)", t=1.0, scale=0.0)
@formula("CFG(4) | Threshold()", size=0.01)
def plain(x, t, v_c, v_u, scale=4.0):
    return cfg(v_c, v_u, scale)


@mean_formula("apg(4, eta=0.3, radius=0.3, momentum=None)", radius=0.3)
@mean_formula("apg(4, eta=0.3, radius=None, momentum=None)", radius=math.inf)
def apg(x, m_c, m_u, radius):
    g = m_c - m_u
    g = g * (radius / norm(g)).clamp(max=1)
    return m_c + 3 * (g - 0.7 * along(g, m_c))


@formula("adamag(4)")
def adamag(x, t, v_c, v_u):
    assert 4 * (1 - t) ** 4 < 1 and Decay(4)(t) == 1
    d = v_c - v_u
    return v_u + d - 0.9 * along(d, x - t * v_c)


@formula("mog(4)")
@formula("auto_mog()", gamma=1.0)
@formula("auto_mog(gamma=0.1)", gamma=0.1)
@formula("auto_mog(gamma=9, most=3)", gamma=9.0, most=3.0)
def mog(x, t, v_c, v_u, gamma=None, most=20.0):
    d = v_c - v_u
    natural = d / 5 + (1 - 1 / 5) * along(d, v_u)
    scale = 4.0 if gamma is None else (gamma * norm(v_u) / norm(natural)).clamp(1.0, most)
    return v_u + scale * natural


@formula("tsr(4, k=0.93, sigma=3)", t=0.1)
@formula("tsr(4, k=0.93, sigma=3)", t=0.7)
def tsr(x, t, v_c, v_u):
    ratio = t**2 / (1 - t) ** 2 * 3**2
    return (x - (ratio + 1) / (ratio / 0.93 + 1) * (x - t * cfg(v_c, v_u))) / t


@formula("epsilon_scaling(4)")
@formula("epsilon_scaling(4, factor=1.01, space='noise')", noise=True)
def epsilon_scaling(x, t, v_c, v_u, noise=False):
    v = cfg(v_c, v_u)
    return (x - (x - t * v) / 1.01) / t if noise else v / 1.005


@formula("hiwave(4)")
def hiwave(x, t, v_c, v_u):
    """CFG on the detail bands alone, of an orthonormal transform."""
    n, taps = 8, torch.tensor(SYM4, dtype=torch.float64)
    mirror = torch.tensor([(-1) ** k * SYM4[7 - k] for k in range(8)], dtype=torch.float64)
    whole = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n // 2):
        for k in range(8):
            whole[i, (2 * i + k) % n] += taps[k]
            whole[n // 2 + i, (2 * i + k) % n] += mirror[k]
    torch.testing.assert_close(whole @ whole.T, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-11)
    bands_c, bands_u = (whole @ v @ whole.T for v in (v_c, v_u))
    guided = cfg(bands_c, bands_u)
    guided[..., : n // 2, : n // 2] = bands_c[..., : n // 2, : n // 2]
    return whole.T @ guided @ whole


@formula("samg(5, 12)")
def samg(x, t, v_c, v_u):
    energy = (v_c - v_u).square().mean(1, keepdim=True)
    low, high = energy.amin((1, 2, 3), keepdim=True), energy.amax((1, 2, 3), keepdim=True)
    return cfg(v_c, v_u, 12 - (energy - low) / (high - low) * 7)


@formula("renorm(4)", shape=(2, 16, 12))
@formula("renorm(4, form='lumina2')", shape=(2, 16, 12), dims=2, match=True)
@formula("renorm(4)")
@formula("renorm(4, form='lumina2')", dims=3, match=True)
@formula("CFG(9) | Renorm(per='token', least=0.9)", dims=3, least=0.9, scale=9.0)
def renorm(x, t, v_c, v_u, dims=(1, 2, 3), match=False, least=0.0, rho=1.0, scale=4.0):
    """The length of each group becomes rho |v_c|, or is capped there."""
    guided = cfg(v_c, v_u, scale)
    dims = tuple(range(1, x.dim())) if dims == (1, 2, 3) else dims
    ratio = rho * v_c.square().sum(dims, keepdim=True).sqrt() / guided.square().sum(dims, keepdim=True).sqrt()
    return guided * (ratio if match else ratio.clamp(least, 1))


for per, axes in {"sample": (1, 2, 3), "channel": (2, 3), "token": 3, "pixel": 1}.items():
    for match in (False, True):
        for scale in (0.5, 1.5):  # shorter than v_c, and longer
            text = f"CFG({scale}) | Renorm(0.8, per='{per}', match={match})"
            formula(text, dims=axes, match=match, rho=0.8, scale=scale)(renorm)


@mean_formula("CFG(4) | EnergyMatch()", shape=(3, 200), low=0.0, high=1.0)
@mean_formula("CFG(4) | EnergyMatch(0.45, 0.55)", shape=(3, 200), low=0.45, high=0.55)
def energy_match(x, m_c, m_u, low, high):
    def energy(v):
        squares = v.square()
        low_, high_ = torch.quantile(squares, torch.tensor([low, high], dtype=v.dtype))
        return squares[(squares >= low_) & (squares <= high_)].sum()

    guided = cfg(m_c, m_u)
    return torch.stack([m * (energy(c) / energy(m)).sqrt() for c, m in zip(m_c, guided, strict=True)])


@mean_formula("CFG(4) | Threshold(0.9)")
def threshold(x, m_c, m_u):
    guided = cfg(m_c, m_u)
    s = torch.quantile(guided.abs().flatten(1), 0.9, dim=1).reshape(-1, 1, 1, 1)
    assert (s > 1).all()
    return torch.minimum(torch.maximum(guided, -s), s) / s


@formula("CFG(9) | Mimic(5, 0.9, 'AD', 'MEAN', phi=0.8)", measure="AD", start="MEAN")
@formula("CFG(9) | Mimic(5, 0.9, 'AD', 'ZERO', phi=0.8)", measure="AD", start="ZERO")
@formula("CFG(9) | Mimic(5, 0.9, 'STD', 'MEAN', phi=0.8)", measure="STD", start="MEAN")
@formula("CFG(9) | Mimic(5, 0.9, 'STD', 'ZERO', phi=0.8)", measure="STD", start="ZERO")
def mimic(x, t, v_c, v_u, measure, start):
    def one(a, b):
        """Of one channel."""
        centred, other = a - a.mean(), b - b.mean()
        if measure == "STD":
            found, wanted = centred.std(), other.std()
        else:
            found, wanted = torch.quantile(centred.abs().flatten(), 0.9), other.abs().max()
        limit = torch.maximum(found, wanted)
        if start == "ZERO":
            out = a * wanted / found
        elif measure == "STD":
            out = centred / found * wanted + a.mean()
        else:
            out = centred.clamp(-limit, limit) / limit * wanted + a.mean()
        return 0.8 * out + 0.2 * a

    pairs = zip(cfg(v_c, v_u, 9).flatten(0, 1), cfg(v_c, v_u, 5).flatten(0, 1), strict=True)
    return torch.stack([one(a, b) for a, b in pairs]).reshape(x.shape)


@mean_formula("fresca(4, low=0.5, high=2, cutoff=3)", shape=(2, 3, 12, 15))
def fresca(x, m_c, m_u):
    """A centred square of frequencies."""
    plane = torch.fft.fftshift(torch.fft.fftn(m_c - m_u, dim=(-2, -1)), dim=(-2, -1))
    mask = torch.full((12, 15), 2.0)
    mask[6 - 3 : 6 + 3, 7 - 3 : 7 + 3] = 0.5
    return m_u + 4 * torch.fft.ifftn(torch.fft.ifftshift(plane * mask, dim=(-2, -1)), dim=(-2, -1)).real


def sign(v):
    return (v > 0) - (v < 0)


def outward(x, a, b, w):
    guided = b + w * (a - b)
    return sign(a - b) == sign(a) == sign(guided) == sign(guided - x)


@mean_formula("skimmed(9, skim=3)", shape=(4, 50))
@mean_formula("skimmed(9, skim=3, form='linear')", shape=(4, 50), linear=True)
def skimmed(x, m_c, m_u, linear=False):
    """Element by element, as the nodes do it."""

    def scaled(x, c, u, w=9.0, skim=3.0):
        u = u - (1 - skim / w) * (u - c) if outward(x, u, c, w) else u
        c = c - (1 - skim / (w - 1)) * (c - u) if outward(x, c, u, w - 1) else c
        return u + w * (c - u)

    def linearly(x, c, u, w=9.0, share=2 / 8):
        u = c * (1 - share) + u * share if outward(x, c, u, w) else u
        u = c * (1 - share) + u * share if outward(x, u, c, w) else u
        return u + w * (c - u)

    rows = zip(*(v.flatten().tolist() for v in (x, m_c, m_u)), strict=True)
    found = torch.tensor([(linearly if linear else scaled)(*row) for row in rows], dtype=x.dtype)
    assert not torch.allclose(found.reshape(x.shape), cfg(m_c, m_u, 9))
    return found.reshape(x.shape)


@mean_formula("automatic(6)", shape=(2, 3, 8, 8), count=2)
@mean_formula("automatic(6)", shape=(2, 4, 64, 8), count=8)  # whole rows of an image that is tall
def automatic(x, m_c, m_u, count):
    rows = cfg(m_c, m_u, 8)
    top = rows.topk(count).values.mean((2, 3), keepdim=True)
    bottom = rows.topk(count, largest=False).values.abs().mean((2, 3), keepdim=True)
    return cfg(m_c, m_u, 8 * 0.6 / ((top + bottom) / 2))


@mean_formula("mahiro(5)", shape=(1, 4, 8, 8))
def mahiro(x, m_c, m_u):
    def root(v):
        return v.abs().sqrt() * v.sign()

    guided, leap = cfg(m_c, m_u, 5), 5 * m_c
    q = 2 * (1 + F.cosine_similarity(root(5 * m_u), root((leap + guided) / 2)).mean())
    return (q * guided + (4 - q) * leap) / 4


@mean_formula("tonemap(5)")
def tonemap(x, m_c, m_u):
    length = (m_c - m_u).norm(dim=1, keepdim=True)
    top = length.mean(dim=(1, 2, 3), keepdim=True) + 5 * length.std(dim=(1, 2, 3), keepdim=True)
    return m_u + 5 * (m_c - m_u) / length * top * (length / top) / (1 + length / top)


@formula("tcfg(4)", shape=(5, 30))
def tcfg(x, t, v_c, v_u):
    """The part along the first right singular vector of the rows v_c, v_u."""
    e = torch.linalg.svd(torch.stack([v_c, v_u], 1), full_matrices=False).Vh[:, 0]
    return cfg(v_c, dot(v_u, e) * e)


@formula("tag(4, eta=1.3)")
def tag(x, t, v_c, v_u):
    v = cfg(v_c, v_u)
    return along(v, x) + 1.3 * (v - along(v, x))


@mean_formula("adg(1)", shape=(6, 30), scale=1.0)
@mean_formula("adg(1.3)", shape=(6, 30), scale=1.3)
@mean_formula("adg(4)", shape=(6, 30), scale=4.0)
@mean_formula("adg(12)", shape=(6, 30), scale=12.0)
def adg(x, m_c, m_u, scale):
    theta = torch.acos(dot(m_c, m_u) / (norm(m_c) * norm(m_u)))
    turn = ((scale - 1) * theta).clamp(max=math.pi / 3)
    m = turn.cos() * m_c + turn.sin() / theta.sin() * (m_c - along(m_c, m_u))
    assert (norm(m) <= math.sqrt(2) * norm(m_c) * (1 + 1e-12)).all()
    return m


RATIOS = [[1, 0.9, 0.8, 0.7], [0.5, 0.6, 0.8, 0.9]]


@formula(f"recfg(4, [0.2, 0.6], {RATIOS})", t=0.2, shape=(3, 4))
@formula(f"recfg(4, [0.2, 0.6], {RATIOS})", t=0.3, shape=(3, 4))
@formula(f"recfg(4, [0.2, 0.6], {RATIOS})", t=0.3)
@formula(f"recfg(4, [0.2, 0.6], {RATIOS})", t=0.6)
def recfg(x, t, v_c, v_u):
    first, last = (torch.tensor(r, dtype=x.dtype).reshape(4, *[1] * (x.dim() - 2)) for r in RATIOS)
    share = (t - 0.2) / 0.4
    r = (1 - share) * first + share * last
    return (x - (4 * (x - t * v_c) - 3 * r * (x - t * v_u))) / t


@formula("beta_cfg(7.5, a=2, b=3, gamma=0.5)", t=0.3)
def beta_cfg(x, t, v_c, v_u):
    d = -t * (v_c - v_u)
    density = t * (1 - t) ** 2 * math.gamma(5) / (math.gamma(2) * math.gamma(3))
    return (x - ((x - t * v_u) + 7.5 * density * d / norm(d) ** 0.5)) / t


@mean_formula("Normalise(1, 'mean')")
def normalise(x, m_c, m_u):
    return m_c + (m_c - m_u) / norm(m_c - m_u)


@recursion("Momentum(-0.5) | CFG(4)", (0.1, 0.5, 0.9), of_means=True)
@recursion("Momentum(-0.5, space='velocity') | CFG(4)", (0.1, 0.5, 0.9), of_means=False)
def momentum(steps, of_means):
    total = 0.0
    for t, _, v_c, v_u in steps:
        unit = 1 - t if of_means else 1.0
        total = unit * (v_c - v_u) - 0.5 * total
        yield v_c + 3 * total / unit


@recursion("smc(4)", (0.1, 0.5, 0.9))
@recursion("smc(4, switching='unit')", (0.1, 0.5, 0.9), switch=lambda s: s / norm(s))
@recursion("smc(4, warmup=2)", (0.1, 0.3, 0.5, 0.7), warmup=2)
def sliding_mode(steps, switch=torch.sign, warmup=0):
    """The warm-up is unguided and leaves the state alone."""
    before = None
    for i, (_, _, v_c, v_u) in enumerate(steps):
        if i < warmup:
            yield v_c
            continue
        e = v_c - v_u
        before = e if before is None else before
        before = e - 0.2 * switch((e - before) + 5 * before)
        yield v_u + 4 * before


@recursion("apg(10, form='diffusers', steps=2, radius=None, eta=1)", (0.1, 0.3, 0.5))
def apg_mix(steps):
    """Its momentum fills while it waits."""
    total = 0.0
    for i, (_, _, v_c, v_u) in enumerate(steps):
        total = (v_c - v_u) - 0.5 * total
        yield cfg(v_c, v_u, 3.5) if i < 2 else v_u + 10 * total


_LONG = (0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)


@recursion("Reuse(3, until=0.6) | CFG(4)", _LONG, fresh=(0, 3), of_means=True)
@recursion("Reuse(3, until=0.6, space='velocity') | CFG(4)", _LONG, fresh=(0, 3))
@recursion(
    "cfg_gating(4, gate=0)", uniform(8)[:-1], fresh=(0,)
)  # FastVideo: i >= int(N gate), once there is a gap
@recursion("cfg_gating(4)", uniform(8)[:-1], fresh=range(4))
@recursion("cfg_gating(4, gate=1)", uniform(8)[:-1], fresh=range(8))
def reuse(steps, fresh, of_means=False):
    """The last fresh gap beside the conditional prediction of now."""
    gap = 0.0
    for i, (t, _, v_c, v_u) in enumerate(steps):
        unit = 1 - t if of_means else 1.0
        gap = unit * (v_c - v_u) if i in fresh else gap
        yield v_c + 3 * gap / unit


@recursion("momentum_guidance(4)", (0.0, 0.3, 0.6, 0.9))
def momentum_guidance(steps):
    average = None
    for t, _, v_c, v_u in steps:
        v = cfg(v_c, v_u)
        average = v if average is None else average
        yield v + (0.5 if t <= 0.7 else 0.0) * (v - average)
        average = 0.4 * v + 0.6 * average


@recursion("higs(4, eta=0.3)", (0.1, 0.3, 0.5, 0.7))
def higs(steps):
    rows = [[math.cos(math.pi * k * (2 * i + 1) / 16) for i in range(8)] for k in range(8)]
    cosines = torch.tensor(rows, dtype=torch.float64) / 2
    cosines[0] /= math.sqrt(2)
    places = torch.arange(8, dtype=torch.float64) / 8
    high = torch.sigmoid(50 * (torch.hypot(places[:, None], places) - 0.05))
    past = 0.0
    for t, x, v_c, v_u in steps:
        m = guided = x + (1 - t) * cfg(v_c, v_u)
        if t > 0.1 and 1 - t > 0.4:
            d = m - past
            detail = cosines.T @ (high * (cosines @ (d - 0.7 * along(d, m)) @ cosines.T)) @ cosines
            guided = m + 1.75 * math.sqrt((1 - t - 0.4) / 0.6) * detail
        yield (guided - x) / (1 - t)
        past = 0.75 * m + 0.25 * past


@pytest.mark.parametrize(("text", "shape", "t", "size", "written"), FORMULAS)
def test_a_rule_is_its_formula(text, shape, t, size, written):
    x, v_c, v_u = (size * v for v in velocities(1, shape))
    v, _ = guided_velocity(parse(text), x, t, v_c, v_u)
    torch.testing.assert_close(v, written(x, t, v_c, v_u))


@pytest.mark.parametrize(("text", "times", "written"), RECURSIONS)
def test_a_rule_with_memory_is_its_recursion(text, times, written):
    steps = [(t, *velocities(i)) for i, t in enumerate(times)]
    rule, state = parse(text), None
    for (t, x, v_c, v_u), expected in zip(steps, written(steps), strict=True):
        v, state = guided_velocity(rule, x, t, v_c, v_u, state)
        torch.testing.assert_close(v, expected)


def stepped(text, times, inputs=None):
    """The guided velocities of successive steps, and what was predicted at each."""
    inputs = inputs or [velocities(seed) for seed in range(len(times))]
    rule, state, found = parse(text), None, []
    for t, (x, v_c, v_u) in zip(times, inputs, strict=True):
        v, state = guided_velocity(rule, x, t, v_c, v_u, state)
        found.append((v, x, v_c, v_u))
    return found


def test_tsr_samples_a_gaussian_at_another_temperature():
    """For data N(0, s^2) the exact score times the factor is the exact score of N(0, s^2 / k)."""
    x, _, _ = velocities(3)
    t, s, k = 0.6, 2.0, 1.7
    mean = t * s**2 / (t**2 * s**2 + (1 - t) ** 2) * x
    sharper = t * s**2 / k / (t**2 * s**2 / k + (1 - t) ** 2) * x
    v = (mean - x) / (1 - t)
    found, _ = guided_velocity(parse(f"tsr(1, k={k}, sigma={s})"), x, t, v, v)
    torch.testing.assert_close(x + (1 - t) * found, sharper)


@pytest.mark.parametrize(("below", "corrected"), [(0.5, 0), (0.911, 1), (1.5, 3)])
def test_oec_is_what_the_paper_writes_with_predictions_carried_on(below, corrected):
    times = (0.2, 0.4)
    first, (v, x, v_c, v_u) = stepped(f"cfg_oec(4, below={below})", times)
    (c0, u0), (c, u) = (
        [x - t * v for v in pair] for t, x, pair in ((0.2, first[1], first[2:]), (0.4, x, (v_c, v_u)))
    )
    ahead_c, ahead_u = 2 * c - c0, 2 * u - u0
    a, b = c - ahead_c, u - ahead_u
    s = dot(a, b) / (norm(a) * norm(b))
    moved = ahead_u + b - dot(a, b) / dot(a, a) * a
    reference = torch.where(s < below, (1 - s) * moved + s * u, u)
    torch.testing.assert_close(x - times[1] * v, reference + 4 * (c - reference))
    assert int((s < below).sum()) == corrected


def test_guidance_begins_when_the_gap_has_passed_its_first_minimum():
    x, v_c, other = velocities(5)
    t, gaps = 0.5, (3.0, 2.0, 1.0, 1.5, 0.5)  # the minimum is the third, so the fourth step is guided
    inputs = [(x, v_c, v_c - gap * other) for gap in gaps]
    scales = (1, 1, 1, 4, 4)
    for (v, _, c, u), scale in zip(stepped("transition_point(4)", [t] * 5, inputs), scales, strict=True):
        torch.testing.assert_close(v, u + scale * (c - u))
    falling = [(x, v_c, v_c - gap * other) for gap in (3.0, 2.0, 1.0)]
    for v, _, c, u in stepped("transition_point(4, before=-1)", [t] * 3, falling):
        torch.testing.assert_close(v, u - (c - u))


def test_lf_cfg_is_its_four_terms():
    times, share = (0.2, 0.4), 0.5
    x, v_c, v_u = velocities(7)
    calm = [a + 0.05 * b for a, b in zip((v_c, v_u), velocities(8)[1:], strict=True)]
    (first, _, _, _), (v, _, c, u) = stepped("lf_cfg(4, 0.5, 2)", times, [(x, v_c, v_u), (x, *calm)])
    torch.testing.assert_close(first, v_u + 4 * (v_c - v_u))

    def low(v):
        return F.interpolate(F.avg_pool2d(v, 2), scale_factor=2, mode="bilinear", align_corners=False)

    def mask(now, last):
        rate = (low(now) - low(last)).square().sum(1, keepdim=True).sqrt()
        flat = rate.flatten(1)
        return (rate < (flat.mean(1) + flat.std(1)).reshape(-1, 1, 1, 1)).double()

    m_c, m_u, c_low, u_low = mask(c, v_c), mask(u, v_u), low(c), low(u)
    wanted = (
        u_low
        + share * 4 * (m_c * c_low - m_u * u_low)
        + 4 * ((1 - m_c) * c_low - (1 - m_u) * u_low)
        + (u - u_low)
        + 4 * ((c - c_low) - (u - u_low))
    )
    assert 0 < m_c.mean() < 1
    torch.testing.assert_close(v, wanted)


def blurred(v):
    line = torch.tensor([math.exp(-0.5), 1, math.exp(-0.5)], dtype=torch.float64)
    kernel = line[:, None] * line[None, :] / line.sum() ** 2
    padded = F.pad(v, (1, 1, 1, 1), mode="reflect")
    return F.conv2d(padded, kernel.expand(v.shape[1], 1, 3, 3), groups=v.shape[1])


def test_zeresfdg_is_one_of_its_two_forms_and_keeps_it_between_the_thresholds():
    x, v_c, v_u = velocities(9)
    fine, coarse = v_c - v_u, blurred(blurred(blurred(v_c - v_u)))

    def weighed(v):
        return 0.6 * blurred(v) + 1.3 * (v - blurred(v))

    def share(d):
        low, high = blurred(d).square().sum(), (d - blurred(d)).square().sum()
        return float(high / (low + high))

    def zero(c, u):
        a = dot(c, u) / dot(u, u)
        return a * u + 4 * weighed(c - a * u)

    def rescale(c, u):
        y = u + 4 * weighed(c - u)
        ratio = (u + weighed(c - u)).flatten(1).std(1) / y.flatten(1).std(1)
        return (0.7 * ratio + 0.3).reshape(-1, 1, 1, 1) * y

    assert share(fine[:1]) > 0.6 > 0.45 > share(coarse[:1])
    inputs = [(x[:1], (v_u + d)[:1], v_u[:1]) for d in (coarse, fine, fine, fine, coarse)]
    running, form = None, zero
    forms = []
    for v, _, c, u in stepped("zeresfdg(4, keep=0.5)", [0.4] * 5, inputs):
        now = share(c - u)
        running = now if running is None else 0.5 * running + 0.5 * now
        form = rescale if running >= 0.6 else zero if running <= 0.45 else form
        forms.append(form)
        torch.testing.assert_close(v, form(c, u))
    assert {zero, rescale} == set(forms)


P = Prediction.from_velocity(X, T, V_C, V_U)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "apg(4, eta=0, radius=0.3, momentum=None, form='comfy')",
            [0.058753, -1.829843, -0.138119, 0.434733],
        ),
        ("rescaled(4, space='mean')", [0.205118, -1.962190, -0.039879, 0.701943]),
    ],
)
def test_the_guided_velocity_of_the_worked_example(text, expected):
    v, _ = guided_velocity(parse(text), X, T, V_C, V_U)
    torch.testing.assert_close(v, torch.tensor([expected], dtype=torch.float64), rtol=0, atol=1.1e-6)


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ("pmc(4, 1.05)", 1.31633699),
        ("pmc(4, 1.10)", 1.62733099),
        ("pmc(4, 1.15)", 1.93389317),
        ("pmc(4, 1.5)", 4.0),
        ("pmc_displacement(4, 1.05)", 1.26918247),
        ("pmc_displacement(4, 1.10)", 1.53836494),
        ("pmc_displacement(4, 1.15)", 1.80754741),
        ("pmc_displacement(4, 1.5)", 3.69182469),
        ("power_law(3, 0.9)", 2.883778),
        ("vags(7)", 5.968418),
        ("c2fg(4, 0.2)", 4 * math.exp(0.2 * T)),
    ],
)
def test_the_effective_scale_of_the_worked_example(text, scale):
    g, _ = displace(parse(text), P.until(0.5))
    assert 1 + float(g.coefficient) == pytest.approx(scale, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "slope", "first", "peak", "after"),
    [
        (50, "paper", (1.0, 1.08, 1.16), 3.0, 2.92),
        (50, "repo", (1.0, 1.08, 1.16), 3.0, 2.92),
        (49, "repo", (1.009477, 1.090235, 1.170993), 3.028430, 2.866914),
        (49, "paper", (1.0, 1.08, 1.16), 3.0, 2.916667),
    ],
)
def test_the_triangle_of_tv_cfg(count, slope, first, peak, after):
    values = tv_cfg(2, count, slope=slope).scale.values
    top = values.index(max(values))
    assert values[:3] == pytest.approx(first, abs=1e-6)
    assert (values[top], values[top + 1]) == pytest.approx((peak, after), abs=1e-6)
    assert sum(values) / count == pytest.approx(2)
