"""The catalogue, part one: PMC-CFG, the methods it is compared with, and schedules that it cites."""

from __future__ import annotations

from .entry import Default, Entry

ENTRIES = (
    Entry(
        "CFG",
        "classifier-free guidance",
        "Ho & Salimans 2022, arXiv 2207.12598; for flows Zheng et al. 2023",
        "any",
        "m = m_u + scale (m_c - m_u)",
        "CFG({scale})",
        seen="willisma/SiT models.py; diffusers 0.42.1",
        defaults=(
            Default("SiT-XL/2 256", "scale 1.5", "its README: FID 2.06, IS 270.27"),
            Default("EDM2-S 512, EDM2-XXL 512", "scale 1.4, 1.2", "NVlabs/edm2: FID 2.23, 1.81"),
            Default("text to image", "scale 4 to 7", "common practice"),
        ),
        differs=(
            "SiT's forward_with_cfg guides the first 3 of 4 latent channels only, and its published "
            "numbers do so",
            "diffusers' use_original_formulation means m_c + scale (m_c - m_u), one unit more",
        ),
    ),
    Entry(
        "pmc",
        "posterior-mean capped guidance, the norm ball",
        "Peng & Ma 2026, arXiv 2609.24287, Section 4",
        "mean",
        "the largest beta <= scale - 1 with |m_c + beta (m_c - m_u)| <= gamma |m_c|",
        "pmc({scale}, 1.1)",
        seen="ppposition/pmc @ b27a9640 (SiT)",
        defaults=(Default("SiT-XL/2 256", "gamma 1.05 to 1.10", "paper"),),
        differs=(
            "the authors' SiT code guides 4 channels while its CFG baseline guides 3",
            "it takes scale 1 where the gap vanishes, we keep the nominal scale: the former jumps at t = 1",
            "its root is the plain one in float32; comfy-cfg-megapack lists the SD3.5 gamma 1.15 for this "
            "form",
        ),
    ),
    Entry(
        "pmc_displacement",
        "posterior-mean capped guidance, the displacement form",
        "Peng & Ma 2026, arXiv 2609.24287, SD3.5 appendix",
        "mean",
        "beta = min(scale - 1, (gamma - 1) |m_c| / |m_c - m_u|)",
        "pmc_displacement({scale}, 1.15)",
        seen="ppposition/pmc @ b27a9640 (SD3.5)",
        defaults=(Default("SD3.5 Medium", "gamma 1.15, scale 3 to 9, 10 steps", "paper, SD3.5 appendix"),),
        differs=(
            "stricter than the ball at the same gamma, equal only where the gap points along m_c",
            "the authors' code casts the scale to bfloat16, whose spacing near 1 is 2^-7: the bound is "
            "then broken",
        ),
    ),
    Entry(
        "apg",
        "adaptive projected guidance, as published",
        "Sadat, Hilliges & Weber, ICLR 2025, arXiv 2410.02416",
        "mean",
        "d = m_c - m_u; d += momentum d'; d *= min(1, radius / |d|); m = m_c + (scale - 1)(d - (1 - eta) "
        "proj_{m_c} d)",
        "apg({scale})",
        state="the running sum d', stored before clip and projection, advanced once per step",
        confidence="paper",
        seen="code printed in the appendix; transcriptions in NVIDIA cosmos, ACE-Step and diffusers agree",
        defaults=(
            Default("EDM2-S", "scale 4, eta 0, radius 2.5, momentum -0.75", "two secondary sources"),
            Default("DiT-XL/2", "scale 4, eta 0, radius 5, momentum -0.5", "two secondary sources"),
            Default("SD2.1", "scale 10, eta 0, radius 7.5, momentum -0.75", "two secondary sources"),
            Default("SDXL", "scale 15, eta 0, radius 15, momentum -0.5", "two secondary sources"),
        ),
        differs=(
            "its authors act on denoised means; space='velocity' acts on the network's output, another "
            "method",
            "ACE-Step takes lengths over the time axis alone (radius 2.5, momentum -0.75, velocities)",
            "the radius is absolute, so its effect depends on resolution and channels; with eta 1 and a "
            "radius of "
            "(gamma - 1) |m_c| / (scale - 1) it is pmc_displacement",
            "no source says what a solver with several evaluations per step does to the momentum: here, "
            "once per step",
        ),
    ),
    Entry(
        "apg_diffusers",
        "adaptive projected guidance, diffusers' default form",
        "after Sadat et al., arXiv 2410.02416",
        "velocity",
        "apg's d on the network's output; v = v_u + scale (d - (1 - eta) proj_{v_c} d)",
        "apg_diffusers({scale})",
        state="none by default; with momentum, the running sum of velocity gaps",
        seen="diffusers 0.42.1 AdaptiveProjectedGuidance",
        defaults=(Default("any", "eta 1, radius 15, no momentum, scale 7.5", "diffusers"),),
        differs=(
            "the base is the unconditional prediction once clip or projection act, so scale 1 is not "
            "conditional",
            "the published form is use_original_formulation=True with guidance_scale = scale - 1",
        ),
        unit=False,
    ),
    Entry(
        "apg_comfy",
        "adaptive projected guidance, ComfyUI's node",
        "after Sadat et al., arXiv 2410.02416",
        "mean",
        "apg's d; m = m_c + scale (d - (1 - eta) proj_{m_c} d)",
        "apg_comfy({scale})",
        state="none by default; with momentum, the running sum, which the node clears when sigma rises",
        seen="ComfyUI comfy_extras/nodes_apg.py",
        defaults=(Default("any", "eta 1, radius 5, no momentum", "ComfyUI"),),
        differs=(
            "one unit more guidance than published at equal scale",
            "the node's norms run over the last three axes: per channel for video, across the batch for "
            "tokens; "
            "ours are per sample",
            "the node allows no negative momentum, the only kind the paper uses",
        ),
        unit=False,
    ),
    Entry(
        "c2fg",
        "C2FG: exponentially growing scale",
        "Gao et al., CVPR 2026, arXiv 2603.08155",
        "any",
        "scale(t) = scale exp(rate t)",
        "c2fg({scale}, 0.2)",
        confidence="second-hand",
        seen=(
            "a full note on the paper, an article and a third-party implementation agree; no repository found"
        ),
        defaults=(
            Default("DiT-XL/2 256", "scale 1, rate ln 2", "paper note: FID 2.07"),
            Default(
                "SiT-XL/2 + REPA",
                "scale 1, rate 1 (SDE); 1.8, 0.03 in an interval",
                "paper note: FID 1.51; 1.41",
            ),
            Default(
                "SiT-XL/2 + REPA, 50 steps", "scale 1.7, rate 0.15", "paper note: FID 3.20 SDE, 3.25 ODE"
            ),
            Default("SD1.5", "scale 5, rate 0.2", "paper note"),
            Default("SD3.5", "rate 0.2", "PMC paper"),
        ),
        differs=(
            "progress is t here; the PMC paper says 'on the shifted sigma grid', which we read as t",
            "a press summary writes scale exp(-rate (1 - t)): the same curve, its scale being the largest "
            "value",
            "for plain SiT no published rate was found",
        ),
        unit=False,
    ),
    Entry(
        "Ramp",
        "weight schedulers",
        "Wang et al., TMLR 2024, arXiv 2404.13040",
        "any",
        "linear 2t, cosine 1 - cos(pi t), inverse-linear 2(1 - t), sine 1 + cos(pi t), V 2|1 - 2t|, "
        "Lambda 2(1 - |1 - 2t|), clamp max(least, .), powered-cosine (1 - cos(pi t^power))/2; times scale "
        "or scale - 1",
        "CFG(Ramp({scale}, shape='linear'))",
        confidence="second-hand",
        seen="two independent transcriptions; no repository found",
        defaults=(
            Default("SD1.5, SDXL, SD3", "clamp-linear with least 2, 4, 0.5", "transcriptions"),
            Default("ImageNet 256", "powered-cosine with power 4", "transcriptions"),
        ),
        differs=(
            "the paper's equation and its reported magnitudes disagree on whether the ramp multiplies the "
            "scale "
            "(on='scale', starting unconditional) or scale - 1 (on='gain', starting conditional)",
            "powered-cosine is not normalised to mean 1, the others are",
        ),
        unit=False,
    ),
    Entry(
        "limited_interval",
        "guidance in a limited interval of noise levels",
        "Kynkäänniemi et al., NeurIPS 2024, arXiv 2404.07724",
        "any",
        "scale while low <= sigma <= high with sigma = (1 - t)/t; conditional elsewhere",
        "limited_interval({scale}, 0.19, 1.61)",
        seen="kynkaat/guidance-interval",
        defaults=(
            Default(
                "EDM2-XXL 512",
                "scale 2, sigma (0.19, 1.61], 32 Heun steps",
                "its code: FID 1.40 against 1.81",
            ),
            Default("SDXL", "scale 16, sigma (0.28, 5.42]", "two secondary sources"),
            Default("SiT-XL/2 + REPA", "scale 1.8, Interval(0.3, 1)", "REPA README: FID 1.42"),
            Default("BAGEL", "Interval(0.4, 1)", "its code"),
        ),
        differs=(
            "the code decides by step index, both ends included, once per step: CFG(2) | StepInterval(17, "
            "22)",
            "diffusers' start and stop are step fractions; Lumina's and Z-Image's truncations switch off "
            "late",
        ),
    ),
    Entry(
        "cfgpp",
        "CFG++",
        "Chung et al., ICLR 2025, arXiv 2406.08070",
        "any",
        "x' = s m + (1 - s) n_u with m = m_u + scale (m_c - m_u): Euler with CFG scale (1 - t) s / (s - "
        "t) * scale",
        "cfgpp(0.6)",
        state="the scale of the step, for its later evaluations",
        seen=(
            "CFGpp-diffusion/CFGpp @ 80353525; the flow form is derived and agrees with ComfyUI's "
            "euler_cfg_pp"
        ),
        defaults=(
            Default("SDXL and others", "scale 0.6, in [0, 1], about CFG 7.5; Lightning 1", "its README"),
        ),
        differs=(
            "a fixed scale is not a fixed strength: on N equal steps the CFG scale peaks at scale * N / 4",
            "needs the time at which the step ends",
            "the form of the ADG repository lacks the factor s: cfgpp_adg",
        ),
        unit=False,
    ),
    Entry(
        "cfgpp_adg",
        "CFG++, the second form in circulation",
        "the baseline in jinc7461/ADG, after Chung et al., arXiv 2406.08070",
        "any",
        "x' = m - (1 - s) v_u with m = m_u + scale (m_c - m_u): Euler with CFG scale (1 - t) / (s - t) * "
        "scale",
        "cfgpp_adg(0.6)",
        state="the scale of the step, for its later evaluations",
        seen="jinc7461/ADG @ b5fad684 method/CFGplus.py",
        defaults=(Default("SD3.5 Large", "scale = guidance_scale / 12.5, at most 1", "its code"),),
        differs=("its first step is about N times stronger than that of cfgpp",),
        unit=False,
    ),
)
