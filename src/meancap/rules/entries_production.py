"""The catalogue, part four: what production models and community nodes ship."""

from __future__ import annotations

from .entry import Default, Entry

ENTRIES = (
    Entry(
        "z_image",
        "Z-Image's renormalisation",
        "no paper; diffusers' Z-Image pipeline",
        "velocity",
        "v <- v min(1, rho |v_c| / |v|) after CFG, per sample",
        "z_image({scale})",
        seen="diffusers 0.42.1, ZImagePipeline",
        defaults=(Default("Z-Image", "off; cfg_normalization=True means rho 1", "diffusers"),),
        differs=("its scale is ours minus one", "cfg_truncation sets the scale to 0 late"),
    ),
    Entry(
        "lumina2",
        "Lumina-Image 2.0's renormalisation",
        "Qin et al. 2025, arXiv 2503.21758, after STIV",
        "velocity",
        "v <- v |v_c| / |v| after CFG, along the last axis",
        "lumina2({scale})",
        seen="diffusers 0.42.1, Lumina2Pipeline",
        defaults=(Default("Lumina-Image 2.0", "on", "diffusers"),),
        differs=(
            "the last axis of the unpacked velocity is the image's width, and the length is matched, not "
            "capped; "
            "the paper describes a cap at rho |v_c| (second-hand): z_image",
        ),
    ),
    Entry(
        "qwen_image",
        "Qwen-Image's renormalisation",
        "no paper; diffusers' Qwen-Image pipelines",
        "velocity",
        "v <- v |v_c| / |v| after CFG, per packed token",
        "qwen_image({scale})",
        seen="diffusers 0.42.1, QwenImagePipeline, NucleusMoE",
        defaults=(Default("Qwen-Image", "always on, scale 4", "diffusers"),),
        differs=("the layered variant has it off by default",),
    ),
    Entry(
        "longcat",
        "LongCat-Image's renormalisation",
        "no paper; diffusers' LongCat-Image pipeline",
        "velocity",
        "v <- v clamp(|v_c| / |v|, least, 1) after CFG, per packed token",
        "longcat({scale})",
        seen="diffusers 0.42.1",
        defaults=(Default("LongCat-Image", "on, least 0", "diffusers"),),
        differs=("the code adds 1e-8 to |v|",),
    ),
    Entry(
        "bagel",
        "BAGEL's renormalisation",
        "Deng et al. 2025, BAGEL",
        "velocity",
        "v <- v clamp(|v_c| / |v|, least, 1) after CFG, per sample or token",
        "bagel({scale})",
        confidence="second-hand",
        seen="summaries of its code",
        defaults=(Default("BAGEL", "per sample ('global'), least 0, Interval(0.4, 1)", "second-hand"),),
        differs=("its text_channel kind needs a third prediction and is not here",),
    ),
    Entry(
        "cfg_norm",
        "CFGNorm",
        "no paper; ComfyUI",
        "mean",
        "m <- m min(1, |m_c| / |m|) strength after CFG, per pixel over channels",
        "cfg_norm({scale})",
        seen="ComfyUI comfy_extras/nodes_cfg.py",
        defaults=(Default("any", "strength 1", "ComfyUI"),),
        differs=(
            "PMC's constraint at gamma 1, but per pixel, and kept by shrinking the whole mean; users "
            "report worse results",
            "the node adds 1e-8 to |m|",
        ),
    ),
    Entry(
        "ep_cfg",
        "energy-preserving guidance (EP-CFG)",
        "Zhang et al. 2024, arXiv 2412.09966",
        "mean",
        "m <- m sqrt(E(m_c) / E(m)) after CFG; robust: E of the squares between two quantiles",
        "ep_cfg({scale})",
        confidence="second-hand",
        seen="the abstract and summaries; which prediction it is stated for was not verified: space=",
        defaults=(Default("any", "low 0, high 1; robust low 0.45, high 0.55", "second-hand"),),
        differs=("always on: it also amplifies",),
    ),
    Entry(
        "skimmed",
        "Skimmed CFG",
        "no paper; Extraltodeus",
        "mean",
        "elementwise: where a, a - b and b + w (a - b) agree in sign, and the last with its way from x, "
        "a -= (1 - skim/w)(a - b); first a = m_u, b = m_c, w = scale, then a = m_c, b = m_u, w = scale - "
        "1; then CFG",
        "skimmed({scale})",
        seen="Extraltodeus/Skimmed_CFG @ 2712803a",
        defaults=(
            Default("any", "skim 7; 2 to 3 against burning, 4 cruise, 5 to 7 colourful", "its README"),
            Default("SD3.5 Turbo", "skim 2 to 2.5", "its README"),
        ),
        differs=("scale 1 divides by zero there; here it is the conditional mean",),
        scale=9.0,
    ),
    Entry(
        "skimmed_linear",
        "Skimmed CFG, linear interpolation",
        "no paper; Extraltodeus",
        "mean",
        "on the same mask m_u <- m_c + (skim - 1)/(scale - 1)(m_u - m_c); then CFG",
        "skimmed_linear({scale})",
        seen="Extraltodeus/Skimmed_CFG @ 2712803a",
        defaults=(Default("any", "skim 5", "its node"),),
        scale=9.0,
    ),
    Entry(
        "automatic",
        "Automatic CFG",
        "no paper; Extraltodeus, who left it for Skimmed CFG",
        "mean",
        "per channel: scale_k = reference scale / (10 R_k), R_k the mean of the top and bottom quarter of "
        "the guided "
        "mean at the scale reference",
        "automatic({scale})",
        seen="Extraltodeus/ComfyUI-AutomaticCFG @ 2e395317, mode 'hard'",
        defaults=(Default("any", "reference 8, top 0.25", "its node"),),
        differs=("it remembers the last scale above 1; here the scale is always the one given",),
        axes=4,
    ),
    Entry(
        "mahiro",
        "Mahiro",
        "no paper; ComfyUI",
        "mean",
        "m = (q guided + (4 - q) scale m_c)/4, q = 2(1 + sim), sim a cosine of signed square roots",
        "mahiro({scale})",
        seen="ComfyUI comfy_extras/nodes_mahiro.py",
        differs=(
            "the node averages sim over the batch; ours over the pixels of a sample",
            "scale m_c is no affine combination of the predictions",
        ),
    ),
    Entry(
        "tonemap",
        "Reinhard tone map",
        "no paper; ComfyUI latent operation",
        "mean",
        "per pixel: |d| <- |d| / (1 + |d|/top), top = multiplier (mean + 5 std) of |d| in a sample; m = "
        "m_u + scale d",
        "tonemap({scale})",
        seen="ComfyUI comfy_extras/nodes_latent.py",
        defaults=(Default("any", "multiplier 1", "ComfyUI"),),
        differs=("every gap shrinks, so scale 1 is not conditional",),
        unit=False,
    ),
)

# Named in the literature and not here, with the reason.
LEFT_OUT = (
    ("TCG", "matches mean and variance of the guided velocity; withdrawn, and its formula was not found"),
    ("CFG-OEC (2511.14075), HiGS, TSR", "only their names were seen, in a third-party collection"),
    (
        "Momentum Guidance (2602.20360)",
        "an average of past velocities with one evaluation; its formula was not read",
    ),
    ("Characteristic guidance", "a fixed point over extra evaluations; its formula was not read"),
    (
        "Learn to Guide (2510.00815), annealing schedules (2506.24108), adversarial schedules (2608.14038), "
        "information-theoretic schedule (2606.24025), online feedback (2509.16131)",
        "trained schedules, of which no weights or code were seen; policy is our laboratory's example "
        "of the kind",
    ),
    ("Difference CFG", "Skimmed CFG's companion takes norms and extremes of a whole batch"),
    (
        "Dynamic CFG schedules of mimic",
        "its own schedules are any schedule here: CFG(Cosine(...)) | Mimic(...)",
    ),
)
