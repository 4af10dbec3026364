"""The catalogue, part three: published methods that the paper does not cite."""

from __future__ import annotations

from .entry import Default, Entry

ENTRIES = (
    Entry(
        "cfg_zero_star",
        "CFG-Zero*",
        "Fan et al. 2025, arXiv 2503.18886",
        "velocity",
        "v = a v_u + scale (v_c - a v_u), a = <v_c, v_u> / |v_u|^2; v = 0 in the first steps",
        "cfg_zero_star({scale})",
        state="the step index",
        seen="WeichenFan/CFG-Zero-star @ 3162be1f",
        defaults=(
            Default("SD3.5 Large", "scale 3.5, one zero step of 28", "its example"),
            Default("Wan, CogView, HiDream", "two zero steps", "its code"),
        ),
        differs=(
            "the code adds 1e-8 to |v_u|^2; we divide exactly",
            "its zero_steps=0 still zeroes one step; ours counts the steps that stand still, as diffusers "
            "does",
            "ComfyUI's node scales means by the factor of the velocities: cfg_zero_star_comfy",
        ),
        zero_gap=False,
        unit=False,
    ),
    Entry(
        "cfg_zero_star_comfy",
        "CFG-Zero*, ComfyUI's node",
        "after Fan et al., arXiv 2503.18886",
        "mean",
        "m = a m_u + scale (m_c - a m_u), with a = <v_c, v_u> / |v_u|^2 from velocities",
        "cfg_zero_star_comfy({scale})",
        seen="ComfyUI comfy_extras/nodes_cfg.py",
        differs=("lacks the term (1 - scale)(1 - a) x of the published rule, and the zero steps",),
    ),
    Entry(
        "tcfg",
        "tangential damping (TCFG)",
        "Kwon et al., CVPR 2025, arXiv 2503.18137",
        "velocity",
        "v_u <- <v_u, e> e, e the first right singular vector of the rows v_c, v_u; then CFG",
        "tcfg({scale})",
        confidence="second-hand",
        seen="diffusers 0.42.1 and ComfyUI nodes_tcfg.py; no official repository found",
        defaults=(Default("SD1.5, SDXL, SD3, PixArt", "scale 7.5, 5, 7, 4.5", "second-hand"),),
        differs=(
            "exact here by the 2 x 2 Gram matrix, in float64; diffusers takes a float32 SVD",
            "diffusers' guider reads the attribute _num_outputs_prepared, which does not exist, and "
            "raises in use "
            "(issues 14643, 14794)",
        ),
    ),
    Entry(
        "rescaled",
        "guidance rescale",
        "Lin et al., WACV 2024, arXiv 2305.08891",
        "velocity",
        "v <- phi v std(v_c)/std(v) + (1 - phi) v after CFG, std over a sample, unbiased",
        "rescaled({scale})",
        seen="diffusers rescale_noise_cfg",
        defaults=(Default("any", "phi 0.7; the paper 0.5 to 0.75", "ComfyUI; paper"),),
        differs=(
            "the paper's network predicts v; diffusers rescales any output; on means (space='mean') it "
            "differs",
            "ComfyUI converts to a v-prediction by formulas that do not hold for flows",
        ),
    ),
    Entry(
        "dynamic_threshold",
        "dynamic thresholding (Imagen)",
        "Saharia et al. 2022, arXiv 2205.11487",
        "mean",
        "m <- clip(m, -s, s)/s with s the quantile of |m|, between 1 and most; after CFG",
        "dynamic_threshold({scale})",
        confidence="paper",
        seen="the paper; implemented widely",
        defaults=(Default("pixel models", "quantile 0.995", "paper"),),
        differs=(
            "diffusers' default sample_max_value 1 turns it into a static clip (most=1)",
            "meant for pixels in [-1, 1]; latents are not bounded",
        ),
        zero_gap=False,
        unit=False,
    ),
    Entry(
        "mimic",
        "dynamic thresholding by a mimicked scale",
        "mcmonkey, sd-dynamic-thresholding",
        "velocity",
        "per channel: deviations of m - x from their mean, clipped at R and scaled by r/R, r the largest "
        "deviation at "
        "the scale mimic, R the larger of r and the quantile of the guided ones",
        "mimic({scale})",
        seen="mcmonkeyprojects/sd-dynamic-thresholding @ 73e4e045",
        defaults=(Default("any", "mimic 7, quantile 1, per channel, AD, MEAN, phi 1", "its node"),),
        differs=(
            "up to the scale mimic it is plain CFG",
            "the simple node takes one spread for the whole batch; ours (separate=False) takes one per "
            "sample",
            "its half-cosine schedules use cos(f) for cos(pi f / 2)",
        ),
        scale=9.0,
    ),
    Entry(
        "fdg",
        "frequency-decoupled guidance",
        "Sadat et al. 2025, arXiv 2506.19713",
        "any",
        "CFG on each level of a Laplacian pyramid with its own scale, fine to coarse",
        "fdg(10, 5)",
        seen="diffusers 0.42.1, which cites the paper's Algorithm 2",
        defaults=(Default("SDXL", "high 10, low 5", "paper Table 8, second-hand"),),
        differs=(
            "linear without parallel, so the same in every space; with it, taken on velocities",
            "diffusers' parallel weights act from the unconditional level unless use_original_formulation "
            "is set",
            "diffusers appends the previous level, or raises, when a level is switched off (issue 14643)",
            "diffusers keeps kornia's padding: where neither side is a power of two the output has "
            "another shape",
        ),
        unit=False,
        axes=4,
    ),
    Entry(
        "fresca",
        "FreSca",
        "Huang et al. 2025, arXiv 2504.02154; WikiChao/FreSca",
        "any",
        "low and high frequencies of m_c - m_u times two factors, d; m = m_u + scale d",
        "fresca({scale})",
        confidence="second-hand",
        seen="ComfyUI comfy_extras/nodes_fresca.py",
        defaults=(Default("any", "low 1, high 1.25, cutoff 20", "ComfyUI"),),
        differs=(
            "where the cutoff exceeds half a side, ComfyUI's slice wraps round and marks a corner as low",
        ),
        unit=False,
        axes=4,
    ),
    Entry(
        "mambo_g",
        "magnitude-aware guidance (MAMBO-G, once RAAG)",
        "Zhu et al., arXiv 2508.03442 (v1, v2 as RAAG)",
        "velocity",
        "scale_eff = 1 + (scale - 1) exp(-alpha r), r = |v_c - v_u| / |v_u|",
        "mambo_g({scale})",
        seen="xiaomomy/MAMBO-G @ 9c54dd11; diffusers 0.42.1",
        defaults=(
            Default("SD3.5 Large, 10 steps", "scale 18, alpha 12", "its code"),
            Default("Qwen-Image, 10 steps", "scale 10, alpha 8, then Rescale(1)", "its code"),
            Default("any", "scale 10, alpha 8", "diffusers"),
        ),
        differs=(
            "the official code takes the norms of the whole batch; ours and diffusers' are per sample",
            "its README prints 1 + scale exp(-alpha r); the code has scale - 1",
            "diffusers 0.42.1 raises on 4-D and 5-D latents (torch.norm over three axes); packed tokens work",
        ),
        scale=10.0,
    ),
    Entry(
        "apg_mix",
        "CFG, then APG",
        "HunyuanImage 2.1; after Sadat et al., arXiv 2410.02416",
        "velocity",
        "CFG(early) in steps 0 to 5 while the momentum fills; apg_diffusers(scale) afterwards",
        "apg_mix({scale})",
        state="the step index and the running sum of velocity gaps",
        seen="diffusers 0.42.1 AdaptiveProjectedMixGuidance",
        defaults=(
            Default("HunyuanImage 2.1", "early 3.5, scale 10, radius 10, momentum -0.5, eta 0", "diffusers"),
        ),
        scale=10.0,
        unit=False,
    ),
    Entry(
        "fbg",
        "feedback guidance (FBG)",
        "Koulischer et al., NeurIPS 2025, arXiv 2506.06085",
        "mean",
        "scale = e^L / (e^L - (1 - pi)); L -= tau/(2 s^2)(|y' - mu_c|^2 - |y' - mu_u|^2) - delta after "
        "each step, y = x/t",
        "fbg(20)",
        state="the log posterior L of each sample and its last prediction",
        seen="FelixKoulischer/FBG_using_edm2 @ 0049f951",
        defaults=(
            Default("EDM2, 64 steps", "pi 0.95, t0 0.5, t1 0.4, most 10", "function defaults"),
            Default("EDM2, best FD-DINOv2", "pi 0.999, t0 0.556, t1 0.429", "its README"),
            Default("EDM2, hybrid", "constant 2.6, interval (0.48, 6.84), t1 0.492", "its README"),
            Default("text to image", "pi 0.85, t0 0.75, t1 0.5", "second-hand"),
        ),
        differs=(
            "the code rounds delta and tau to four decimals; ours does not",
            "written so that it is regular at t = 0, where sigma is infinite",
        ),
        unit=False,
    ),
    Entry(
        "beta_cfg",
        "beta-CFG",
        "Malarz et al., ECAI 2025, arXiv 2502.10574",
        "noise",
        "n = n_u + scale B(t; a, b) (n_c - n_u) / |n_c - n_u|^gamma, B the Beta density",
        "beta_cfg({scale})",
        seen="gmum/beta-CFG @ c17edf52",
        defaults=(Default("SD1.5 and others", "scale 7.5, a = b = 2, gamma 1, 50 DDIM steps", "its code"),),
        differs=(
            "the weight is 0 at both ends: there the prediction is unconditional, not conditional",
            "the density is of t here and of the step in the code: give times= for the latter",
            "with gamma 1 the strength depends on the size of the tensor",
        ),
        unit=False,
    ),
    Entry(
        "adg",
        "angle-domain guidance (ADG)",
        "Jin et al., ICML 2025, arXiv 2506.11039",
        "mean",
        "m = cos(a) m_c + sin(a)/sin(theta) e, a = min((scale - 1) theta, pi/3), theta the angle between "
        "m_c and m_u, "
        "e = m_c - proj_{m_u} m_c",
        "adg({scale})",
        seen="jinc7461/ADG @ b5fad684 method/ADG_SD3.py",
        defaults=(Default("SD3.5 Large", "scale 7 (2 to 15 tested)", "its code"),),
        differs=(
            "the code adds 1e-3 to scale - 1, takes 3.14 for pi and switches formula at sin(theta) = "
            "1e-3; ours has "
            "the limit instead",
            "bounded by |m| <= sqrt(2) |m_c|, not norm-preserving; its renormalised variant does so along "
            "axis 1",
        ),
    ),
    Entry(
        "adamag",
        "AdaMaG",
        "Esmati et al. 2026, arXiv 2605.20079",
        "noise",
        "v = v_u + w (d - (1 - share) proj_{n_c} d), d = v_c - v_u, w = max(least, scale (1 - t)^power)",
        "adamag({scale})",
        confidence="second-hand",
        seen="a reading note",
        defaults=(Default("any", "share 0.1, power 4", "second-hand; least 1 was not stated"),),
        differs=("its scale falls towards the data, against the trend of PMC and C2FG",),
        unit=False,
    ),
    Entry(
        "vags",
        "VAGS",
        "Luo et al. 2026, arXiv 2605.15661",
        "velocity",
        "scale exp(kappa (2t - 1) cos(v_u, v_c))",
        "vags({scale})",
        confidence="second-hand",
        seen="a reading note",
        defaults=(Default("any", "kappa 1", "second-hand"),),
        unit=False,
    ),
    Entry(
        "adaptive_guidance",
        "adaptive guidance (guide until the predictions agree)",
        "Castillo et al. 2023, arXiv 2312.12487",
        "velocity",
        "CFG until cos(c, u) exceeds above, conditional from then on",
        "adaptive_guidance({scale})",
        state="which samples have stopped",
        confidence="second-hand",
        seen="a third-party collection",
        defaults=(Default("LDM", "above 0.991", "second-hand"),),
        differs=(
            "stated for noise predictions, which coincide at t = 0 of a flow; velocities do not: space=",
            "per sample here",
        ),
    ),
)
