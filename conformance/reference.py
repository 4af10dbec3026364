"""The expected values of vectors.json, from the published formulas in arbitrary precision (mpmath).

    x, t         state and time on the linear path x = (1 - t) noise + t data
    c, u, ...    velocities data - noise: with the condition, without it, and of further predictions by name
    mean         the posterior mean x + (1 - t) v of a velocity; its noise prediction is x - t v
    share        the part of (scale - 1) (m_c - m_u) that the cap keeps

`python conformance/reference.py` reads the inputs in vectors.json and writes the expected values beside them.
This file imports nothing of meancap. Its formulas are those of the papers: the plain root, sums over lists.
A tolerance is 16 roundings of the inputs, each times how strongly the result depends on it; where a host in
half precision stores the result, it is one rounding of that result.
"""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

from mpmath import mp, mpf

mp.dps = 50
FILE = Path(__file__).with_name("vectors.json")
UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
ROUNDINGS = 16
TINY = mpf(10) ** -20  # relative change of an input when the dependence on it is measured
SYM4 = (
    -0.07576571478927333, -0.02963552764599851, 0.49761866763201545, 0.8037387518059161,
    0.29785779560527736, -0.09921954357684722, -0.012603967262037833, 0.0322231006040427,
)  # fmt: skip


class Vec(list):
    """A sample as a list of numbers; a product of two is element by element."""

    def __add__(self, other):
        return Vec(a + b for a, b in zip(self, other, strict=True))

    def __sub__(self, other):
        return Vec(a - b for a, b in zip(self, other, strict=True))

    def __mul__(self, k):
        return Vec(map(mpf.__mul__, self, k)) if isinstance(k, Vec) else Vec(a * k for a in self)

    __rmul__ = __mul__

    def __truediv__(self, k):
        return Vec(a / k for a in self)


def dot(a, b):
    return mp.fsum(a * b)


def norm(a):
    return mp.sqrt(dot(a, a))


def along(a, onto):
    """The part of a along another vector."""
    return dot(a, onto) / dot(onto, onto) * onto


def average(a):
    return mp.fsum(a) / len(a)


def std(a):
    return mp.sqrt(mp.fsum((v - average(a)) ** 2 for v in a) / (len(a) - 1))


class Point:
    """One sample: state, time, velocities by name, and its shape (channels, height, width)."""

    def __init__(self, x, t, v, shape=()):
        self.x, self.t, self.v, self.shape = x, t, v, shape
        self.c, self.u = v["c"], v["u"]
        self.d = self.c - self.u

    def mean(self, v):
        return self.x + (1 - self.t) * v

    def noise(self, v):
        return self.x - self.t * v

    def from_mean(self, m):
        return (m - self.x) / (1 - self.t)

    def from_noise(self, n):
        return (self.x - n) / self.t

    def cfg(self, scale):
        return self.u + scale * self.d

    def channels(self, v):
        size = self.shape[-1] * self.shape[-2]
        return [Vec(v[i : i + size]) for i in range(0, len(v), size)]

    def pixels(self, v):
        return [Vec(pixel) for pixel in zip(*self.channels(v), strict=True)]


def cap(p, scale, gamma, form):
    """Peng & Ma, arXiv 2609.24287, and the displacement form of its SD3.5 appendix: share, mean, velocity."""
    m, gap = p.mean(p.c), (1 - p.t) * p.d
    beta, a = scale - 1, dot(gap, gap)
    if a != 0 and gamma != mp.inf and beta != 0:
        b, q = dot(m, gap), dot(m, m)
        root = (mp.sqrt(b * b + (gamma**2 - 1) * a * q) - b) / a
        beta = min(beta, root if form == "ball" else (gamma - 1) * mp.sqrt(q / a))
    share = beta / (scale - 1) if scale != 1 else mpf(1)
    return {"share": [share], "mean": m + beta * gap, "velocity": p.c + beta * p.d}


# Methods of the catalogue that are functions of one evaluation: the guided velocity.


def tv_cfg(p, scale, steps):
    peak = math.ceil(steps / 2)
    ramp = [mpf(n) / peak if n <= peak else mpf(steps - n) / (steps - peak) for n in range(steps)]
    weights = [1 + 2 * (scale - 1) * r for r in ramp]
    return p.cfg(scale * weights[int(p.t * steps)] / average(weights))


def vags(p, scale, kappa):
    return p.cfg(scale * mp.exp(kappa * (2 * p.t - 1) * dot(p.u, p.c) / (norm(p.u) * norm(p.c))))


def beta_cfg(p, scale, a, b, gamma):
    gap = p.noise(p.c) - p.noise(p.u)
    weight = p.t ** (a - 1) * (1 - p.t) ** (b - 1) / mp.beta(a, b)
    return p.from_noise(p.noise(p.u) + scale * weight * gap / norm(gap) ** gamma)


def tcfg(p, scale):
    """v_u <- <v_u, e> e, with e the first right singular vector of the rows v_c, v_u."""
    gram = [[dot(a, b) for b in (p.c, p.u)] for a in (p.c, p.u)]
    values, vectors = mp.eigsy(mp.matrix(gram))
    top = 0 if values[0] > values[1] else 1
    u = along(p.u, vectors[0, top] * p.c + vectors[1, top] * p.u)
    return u + scale * (p.c - u)


def recfg(p, scale, times, ratios):
    i = max(k for k in range(len(times) - 1) if times[k] <= p.t)
    share = (p.t - times[i]) / (times[i + 1] - times[i])
    r = ratios[i] + share * (ratios[i + 1] - ratios[i])
    return p.from_noise(scale * p.noise(p.c) - (scale - 1) * r * p.noise(p.u))


def adg(p, scale):
    c, u = p.mean(p.c), p.mean(p.u)
    theta = mp.acos(dot(c, u) / (norm(c) * norm(u)))
    turn = min((scale - 1) * theta, mp.pi / 3)
    return p.from_mean(mp.cos(turn) * c + mp.sin(turn) / mp.sin(theta) * (c - along(c, u)))


def apg(p, scale, form, eta, radius):
    """One step without momentum: the published form and ComfyUI's on means, diffusers' on outputs."""
    c, d = (p.c, p.d) if form == "diffusers" else (p.mean(p.c), (1 - p.t) * p.d)
    d = d * min(mpf(1), radius / norm(d))
    d = d - (1 - eta) * along(d, c)
    if form == "diffusers":
        return p.u + scale * d
    return p.from_mean(c + (scale - 1 if form == "published" else scale) * d)


def adamag(p, scale, share, power, least):
    w = max(mpf(least), scale * (1 - p.t) ** power)
    return p.u + w * (p.d - (1 - share) * along(p.d, p.noise(p.c)))


def mog(p, scale, across):
    w = p.d / across + (1 - mpf(1) / across) * along(p.d, p.u)
    return p.u + (min(max(norm(p.u) / norm(w), mpf(1)), mpf(20)) if scale is None else scale) * w


def cfg_zero_star(p, scale, form):
    a = dot(p.c, p.u) / dot(p.u, p.u)
    if form == "published":
        return a * p.u + scale * (p.c - a * p.u)
    return p.from_mean(a * p.mean(p.u) + scale * (p.mean(p.c) - a * p.mean(p.u)))


def perp_neg(p, scale, weight):
    n = p.v["negative"] - p.u
    return p.u + scale * (p.d - weight * (n - along(n, p.d)))


def contrastive(p, scale, tau):
    c, u, n = (p.noise(v) for v in (p.c, p.u, p.v["negative"]))
    near, far = (mpf(2) / (1 + mp.exp(s * tau * dot(v - u, v - u))) for v, s in ((n, 1), (c, -1)))
    return p.from_noise(u + scale * (far * (c - u) - near * (n - u)))


def against(p, name, scale, share=1):
    """CFG with a share of another prediction in its reference."""
    reference = share * p.v[name] + (1 - share) * p.u
    return reference + scale * (p.c - reference)


def bands(p, coarse, low, high):
    """The coarse part of the gap (a matrix on both sides of each image) times low, the rest times high."""
    n, gap = p.shape[-1], Vec()
    for image in p.channels(p.d):
        whole = mp.matrix([image[i : i + n] for i in range(0, n * n, n)])
        gap += map(mp.re, high * whole + (low - high) * (coarse * whole * coarse.T))
    return p.u + gap


def fresca(p, scale, low, high, cutoff):
    n = p.shape[-1]
    inside = [f for f in range(n) if -cutoff <= (f + n // 2) % n - n // 2 < cutoff]
    waves = [
        [average([mp.expjpi(mpf(2 * f * (i - j)) / n) for f in inside]) for j in range(n)] for i in range(n)
    ]
    return bands(p, mp.matrix(waves) * len(inside) / n, scale * low, scale * high)


def hiwave(p, scale):
    """One level of sym4 on a ring: the coarse band stays conditional."""
    n = p.shape[-1]
    shifts = [
        [sum(mpf(SYM4[k]) for k in range(8) if (2 * i + k) % n == j) for j in range(n)] for i in range(n // 2)
    ]
    return bands(p, mp.matrix(shifts).T * mp.matrix(shifts), 1, scale)


def fdg(p, high, low):
    """Two levels: the filter 1 4 6 4 1 with reflected edges, halving by means, doubling linearly."""
    n = p.shape[-1]
    blur, half, double = mp.zeros(n), mp.zeros(n // 2, n), mp.zeros(n, n // 2)
    for i, (k, tap) in product(range(n), enumerate((1, 4, 6, 4, 1))):
        blur[i, n - 1 - abs(n - 1 - abs(i + k - 2))] += mpf(tap) / 16
    for i in range(n):
        half[i // 2, i] = mpf(1) / 2
        double[i, i // 2] += mpf(3) / 4
        double[i, min(max(i // 2 + (1 if i % 2 else -1), 0), n // 2 - 1)] += mpf(1) / 4
    return bands(p, blur * double * half * blur, low, high)


def skimmed(p, scale, skim):
    def skim_off(a, b, w):
        guided, excess = b + w * (a - b), (1 - mpf(skim) / w) * (a - b)
        rows = zip(a, b, guided, excess, p.x, strict=True)
        signs = mp.sign
        return Vec(
            v - e if signs(v - r) == signs(v) == signs(g) == signs(g - x) else v for v, r, g, e, x in rows
        )

    u = skim_off(p.mean(p.u), p.mean(p.c), scale)
    c = skim_off(p.mean(p.c), u, scale - 1)
    return p.from_mean(u + scale * (c - u))


def automatic(p, scale, reference):
    """The range of a channel from the largest and the smallest value of its rows."""
    n, gap = p.shape[-1], Vec()
    for image, d in zip(p.channels(p.mean(p.cfg(reference))), p.channels(p.d), strict=True):
        rows = [image[i : i + n] for i in range(0, len(image), n)]
        span = average([(max(row) + abs(min(row))) / 2 for row in rows])
        gap += reference * mpf(scale) / (10 * span) * d
    return p.u + gap


def mahiro(p, scale):
    m_c, m_u = p.mean(p.c), p.mean(p.u)
    guided, leap = m_u + scale * (m_c - m_u), scale * m_c
    roots = [Vec(mp.sign(v) * mp.sqrt(abs(v)) for v in w) for w in (scale * m_u, (leap + guided) / 2)]
    pairs = zip(*map(p.pixels, roots), strict=True)
    q = 2 * (1 + average([dot(a, b) / (norm(a) * norm(b)) for a, b in pairs]))
    return p.from_mean((q * guided + (4 - q) * leap) / 4)


def tonemap(p, scale, spread):
    d = (1 - p.t) * p.d
    lengths = [norm(pixel) for pixel in p.pixels(d)]
    top = average(lengths) + spread * std(lengths)
    soft = Vec(1 / (1 + length / top) for length in lengths)
    return p.from_mean(p.mean(p.u) + scale * d * Vec([*soft] * len(p.channels(d))))


def samg(p, low, high):
    energy = [average(pixel * pixel) for pixel in p.pixels(p.d)]
    least, most = min(energy), max(energy)
    scale = Vec(high - (e - least) / (most - least) * (high - low) for e in energy)
    return p.u + p.d * Vec([*scale] * len(p.channels(p.d)))


def dynamic_threshold(p, scale, quantile):
    m = p.mean(p.cfg(scale))
    ordered, place = sorted(map(abs, m)), quantile * (len(m) - 1)
    low = int(place)
    s = max(mpf(1), ordered[low] + (place - low) * (ordered[low + 1] - ordered[low]))
    return p.from_mean(Vec(min(max(v, -s), s) / s for v in m))


def mimic(p, scale, mimic):
    """Deviations from a channel's mean get the largest size that they have at the scale to be mimicked."""
    out = Vec()
    for guided, lower in zip(p.channels(p.cfg(scale)), p.channels(p.cfg(mimic)), strict=True):
        wanted, actual = (max(abs(v - average(image)) for v in image) for image in (lower, guided))
        out += [average(guided) + (v - average(guided)) * min(mpf(1), wanted / actual) for v in guided]
    return out


def rescaled(p, scale, phi):
    v = p.cfg(scale)
    return phi * std(p.c) / std(v) * v + (1 - phi) * v


def tsr(p, scale, k, sigma):
    q = p.t**2 / (1 - p.t) ** 2 * sigma**2
    return p.from_noise((q + 1) / (q / k + 1) * p.noise(p.cfg(scale)))


def ep_cfg(p, scale):
    m = p.mean(p.cfg(scale))
    return p.from_mean(norm(p.mean(p.c)) / norm(m) * m)


def renorm(p, scale, form):
    c, v, n = p.c, p.cfg(scale), p.shape[-1]
    if form == "z_image":
        return v * min(mpf(1), norm(c) / norm(v))
    if form == "comfy":  # each pixel of the mean
        m = p.mean(v)
        kept = [min(mpf(1), norm(a) / norm(b)) for a, b in zip(p.pixels(p.mean(c)), p.pixels(m), strict=True)]
        return p.from_mean(m * Vec(kept * len(p.channels(m))))
    ratios = [
        norm(Vec(c[i : i + n])) / norm(Vec(v[i : i + n])) for i in range(0, len(v), n)
    ]  # of packed tokens
    ratios = ratios if form == "lumina2" else [min(mpf(1), r) for r in ratios]
    return v * Vec(r for r in ratios for _ in range(n))


METHODS = {
    "CFG": lambda p, scale: p.cfg(scale),
    "Ramp": lambda p, scale, shape: p.cfg(scale * {"linear": 2 * p.t}[shape]),
    "c2fg": lambda p, scale, rate: p.cfg(scale * mp.exp(rate * p.t)),
    "limited_interval": lambda p, scale, low, high: p.cfg(scale) if low <= (1 - p.t) / p.t <= high else p.c,
    "early_high": lambda p, scale, switch, late: p.cfg(scale if p.t < switch else late),
    "mambo_g": lambda p, scale, alpha: p.cfg(1 + (scale - 1) * mp.exp(-alpha * norm(p.d) / norm(p.u))),
    "power_law": lambda p, omega, alpha: p.cfg(1 + omega * norm(p.t / (1 - p.t) * p.d) ** alpha),
    "tag": lambda p, scale, eta: eta * p.cfg(scale) + (1 - eta) * along(p.cfg(scale), p.x),
    "auto_mog": lambda p, across: mog(p, None, across),
    "instruct_pix2pix": lambda p, scale, image: (
        p.u + image * (p.v["image"] - p.u) + scale * (p.c - p.v["image"])
    ),
    "composable": lambda p, scale, others, weights: sum(
        (w * (p.v[name] - p.u) for name, w in zip(others, weights, strict=True)), start=p.cfg(scale)
    ),
    "signed_negative": lambda p, scale, weight: p.cfg(scale) - weight * (p.v["negative"] - p.u),
    "windowed_negative": lambda p, scale, start, end: (
        against(p, "negative", scale) if start <= p.t <= end else p.cfg(scale)
    ),
    "ltx2": lambda p, scale, perturbed, modality: (
        p.cfg(scale) + perturbed * (p.c - p.v["perturbed"]) + (modality - 1) * (p.c - p.v["modality"])
    ),
    "sgg": lambda p, scale, tau: p.cfg(scale) if 1 - p.t > tau else against(p, "weak", scale),
    "mixed_autoguidance": lambda p, scale, share: against(p, "weak", scale, share),
    "epsilon_scaling": lambda p, scale, factor: p.cfg(scale) / factor,
}
for _function in (
    tv_cfg, vags, beta_cfg, tcfg, recfg, adg, apg, adamag, mog, cfg_zero_star, perp_neg, contrastive, fresca,
    hiwave, fdg, skimmed, automatic, mahiro, tonemap, samg, dynamic_threshold, mimic, rescaled, tsr, ep_cfg,
    renorm,
):  # fmt: skip
    METHODS[_function.__name__] = _function


def exact(value):
    """An option or an input as the number that a float64 holds."""
    if isinstance(value, list):
        return [exact(v) for v in value]
    return mpf(value) if isinstance(value, float) or value in ("inf", "nan") else value


def run(case, names, flat):
    """What a case expects of one sample, from its inputs in a row: the vectors, then t, scale and gamma."""
    n = math.prod(case["shape"])
    x, *others = (Vec(flat[i * n : i * n + n]) for i in range(len(names)))
    sign = -1 if case.get("convention") == "noise at 1" else 1
    v = {name[2:]: sign * w for name, w in zip(names[1:], others, strict=True)}
    t = flat[len(names) * n]
    p = Point(x, t if sign > 0 else 1 - t, v, case["shape"])
    if "method" in case:
        options = {key: exact(value) for key, value in case["options"].items()}
        return {"velocity": METHODS[case["method"]](p, **options)}
    found = cap(p, *flat[-2:], case["form"])
    return found | {"velocity": sign * found["velocity"]}


def sensitivity(function, inputs):
    """The largest change of each result if every input is rounded once, in roundings of the result."""
    base = function(inputs)
    change = {key: [abs(v) for v in values] for key, values in base.items()}
    for i, value in enumerate(inputs):
        if value != 0 and mp.isfinite(value):
            moved = function([*inputs[:i], value * (1 + TINY), *inputs[i + 1 :]])
            for key, total in change.items():
                pairs = zip(total, moved[key], base[key], strict=True)
                change[key] = [a + abs(b - c) / TINY for a, b, c in pairs]
    return {key: max(total) / (max(map(abs, base[key])) or 1) for key, total in change.items()}


def expected(case, inputs, tolerances=True):
    """The expected values of a case and its tolerances; a sample with a NaN is expected to have one."""
    names = [name for name in inputs if name == "x" or name.startswith("v_")]
    numbers = [exact(inputs["t"]), *(exact(case[key]) for key in ("scale", "gamma") if key in case)]
    whole = inputs | case
    found: dict[str, list] = {}
    worst: dict[str, float] = {}
    for sample in zip(*(inputs[name] for name in names), strict=True):
        flat = [mpf(v) for part in sample for v in part] + [mpf(v) for v in numbers]
        broken = any(map(mp.isnan, flat))
        for key, values in run(whole, names, flat).items():
            listed = [float(v) for v in values]
            found.setdefault(key, []).append("nan" if broken else listed[0] if key == "share" else listed)
        if tolerances and not broken:
            for key, roundings in sensitivity(lambda flat: run(whole, names, flat), flat).items():
                worst[key] = max(worst.get(key, 0.0), float(roundings))
    unit = UNITS[case["dtype"]]
    one = unit < 2.0**-20  # half precision rounds the stored result once, and nothing else
    limits = {key: unit * (ROUNDINGS * r if one else 1.01) for key, r in worst.items()}
    rounded = {key: 0.0 if case.get("exact") else float(f"{v:.2g}") for key, v in limits.items()}
    return found | ({"tolerance": rounded} if tolerances else {})


def as_text(vectors):
    """JSON with one case in a line."""
    head = json.dumps({key: value for key, value in vectors.items() if key != "cases"}, indent=1)
    cases = ",\n".join(map(json.dumps, vectors["cases"]))
    return f'{head[:-2]},\n "cases": [\n{cases}\n]}}\n'


def main():
    vectors = json.loads(FILE.read_text(encoding="utf-8"))
    for case in vectors["cases"]:
        case |= expected(case, vectors["inputs"][case["input"]] if "input" in case else case)
    FILE.write_text(as_text(vectors), encoding="utf-8")


if __name__ == "__main__":
    main()
