"""The catalogue, part two: methods cited by the paper that need more than a scale."""

from __future__ import annotations

from .entry import Default, Entry

ENTRIES = (
    Entry(
        "rectified_cfgpp",
        "Rectified-CFG++",
        "Saini et al., NeurIPS 2025",
        "velocity",
        "y = x + share (s - t) v_c(x); v = v_c(x) + w (v_c(y) - v_u(y))",
        "sample(rectified_cfgpp(predict, times), CFG(5.5), x, times)",
        kind="model",
        seen="shreshthsaini/Rectified-CFGpp; the paper's half step is second-hand",
        defaults=(Default("SD3.5 Large", "w 4.5, 28 steps", "its code"),),
        differs=(
            "the code takes a full step and evaluates at the old time, its clocks being mixed up: "
            "share=1, hold=True; "
            "the paper's text describes a half step, our default",
            "the code adds Gaussian noise 0.005 to y, gated in the same wrong units; we add none",
        ),
    ),
    Entry(
        "recfg",
        "rectified guidance (ReCFG)",
        "Xia et al., CVPR 2025, arXiv 2410.18737",
        "noise",
        "n = scale n_c - (scale - 1) r n_u, r = E[n_c n_u] / E[n_u^2] per element and time",
        "recfg({scale}, [0, 0.5, 1], [1, 0.97, 0.9])",
        state="none; a table made offline by recfg_table",
        seen="thuxmf/recfg",
        defaults=(Default("EDM2", "100 labels x 500 images, 32 steps, per pixel", "its code"),),
        differs=(
            "the paper has r = E[n_c] / E[n_u], the code the least-squares ratio, which we compute",
            "the code attributes a batch's average to each of its labels; our tables are made one "
            "condition at a time",
            "the row of a step serves its Heun correction there; here the table is interpolated in t",
        ),
        zero_gap=False,
    ),
    Entry(
        "power_law",
        "power-law guidance",
        "Pavasovic et al., ICLR 2026, arXiv 2502.07849",
        "score",
        "beta = omega |S_c - S_u|^alpha, |S_c - S_u| = t / (1 - t)^2 |m_c - m_u|; m = m_c + beta (m_c - m_u)",
        "power_law(0.5, 0.9)",
        confidence="second-hand",
        seen="xxiiyu/cui_generalized_guidance_forms (unofficial); the authors published no code",
        defaults=(Default("latent models", "alpha 0.9, omega tuned", "paper, second-hand"),),
        differs=(
            "omega depends on the dimension (the length grows with its root) and on the grid's last time",
            "the unofficial node adds 1 to sigma^2, starts from m_u and keeps the factor at 1 at least",
        ),
        unit=False,
    ),
    Entry(
        "smc",
        "CFG-Ctrl: sliding-mode control (SMC-CFG)",
        "Wang et al., CVPR 2026, arXiv 2603.03281",
        "velocity",
        "e = v_c - v_u; s = (e - e') + rate e'; e -= gain sign(s); v = v_u + scale e",
        "smc({scale})",
        state="e', the corrected gap of the last step; the warm-up leaves it untouched",
        seen="hanyang-21/CFG-Ctrl @ 490a628f",
        defaults=(
            Default("SD3, SD3.5", "scale 7.5, rate 5, gain 0.2", "its README"),
            Default("FLUX", "scale 2 to 3, rate 5, gain 0.2, warmup 2", "its README"),
            Default("Qwen-Image, Wan", "scale 4, 5, rate 5, gain 0.2", "its README"),
        ),
        differs=(
            "the code's sign is elementwise; a port says the paper means the unit vector s / |s|: "
            "switching='unit'",
            "elements smaller than the gain change their sign; on noise predictions of SDXL gain 0.2 "
            "destroys images",
        ),
        unit=False,
    ),
    Entry(
        "policy",
        "adaptive guidance by stochastic optimal control",
        "Azangulov et al., AISTATS 2026, arXiv 2505.19367",
        "score",
        "scale w(t, x) by a trained network: maximal E log p(c | x_1) - cost E KL(guided path | unguided "
        "path)",
        "train_policy(condition)",
        kind="laboratory",
        confidence="paper",
        seen="the abstract only; no repository found",
        defaults=(Default("2-D mixtures", "trained for each condition", "meancap.lab.policy"),),
        differs=(
            "the paper reweights diffusion paths; we differentiate the Euler flow of a mixture exactly",
            "its authors call images future work, and so do we",
        ),
    ),
    Entry(
        "manifold",
        "manifold projection (CFG-MP, CFG-MP+)",
        "Cai et al., ICML 2026, arXiv 2601.21892",
        "state",
        "x <- z + h v_c(z) with z = x - h v_u(x), a few times at fixed t, then a CFG step; MP+ mixes the "
        "results",
        "manifold_sample(predict, CFG(4.5), x, times)",
        kind="solver",
        state="the last results of the iteration, within a step",
        seen="LeonSuZhengYi/CFG-MP @ 1de2898f",
        defaults=(
            Default(
                "SD3.5",
                "10 steps, scale 4 to 4.5, 3 iterations, window 1, sigma > 0.6",
                "its demo and README",
            ),
            Default("DiT", "10 steps, scale 1.75 to 2, 2 iterations", "its demo and README"),
        ),
        differs=(
            "the code stops a whole batch by its mean residual; we always do all iterations, per sample",
            "a predict that gives both predictions costs twice the evaluations, for each half needs one "
            "of them",
            "an independent re-measurement on SD3.5 found no gain over CFG at equal cost",
        ),
    ),
    Entry(
        "dg_cfg",
        "analytic schedule (DG-CFG)",
        "Jiang & Ma 2026, arXiv 2607.19725",
        "any",
        "scale(u) = 1 + C (scale - 1) (1 - A) sqrt(A) / beta(u), of mean scale over the diffusion time u",
        "dg_cfg({scale})",
        confidence="second-hand",
        seen="a third-party implementation; no repository found",
        defaults=(Default("VP models", "beta from 0.1 to 20", "the usual VP process"),),
        differs=(
            "designed for variance-preserving models with DDIM; we move it to t by equal signal-to-noise, "
            "and no "
            "flow version is known",
        ),
    ),
    Entry(
        "tv_cfg",
        "stage-wise triangle (TV-CFG)",
        "Jin, Shi & Gu, ICLR 2026, arXiv 2509.22007",
        "any",
        "1 + 2 (scale - 1) n / M up to step M = ceil(N/2), then (N - n)/(N - M); normalised to time mean "
        "scale",
        "tv_cfg({scale}, 50)",
        seen="ppposition/pmc cfg_schedules.TVCFG; the paper's fall is second-hand",
        defaults=(Default("SiT-XL/2 256", "scale 1.5 to 2.5, 50 steps", "PMC paper"),),
        differs=("the repository falls as (N - n)/M, which differs for odd N: slope='repo'",),
    ),
    Entry(
        "autoguidance",
        "autoguidance",
        "Karras et al., NeurIPS 2024, arXiv 2406.02507",
        "any",
        "m = m_weak + scale (m_main - m_weak), both under the condition",
        "sample(autoguidance(predict, weak), CFG(2.1), x, times)",
        kind="model",
        seen="NVlabs/edm2 @ 4bf8162f",
        defaults=(
            Default("EDM2-S 512", "weak XS at 134M images, scale 2.10", "its presets: FID 1.34"),
            Default("EDM2-XXL 512", "weak M at 268M images, scale 2.05", "its presets: FID 1.25"),
            Default("EDM2-S 64", "scale 1.70", "its presets: FID 1.01"),
        ),
        differs=(
            "diffusers' AutoGuidance drops layers of the same network instead, by default at scale 7.5",
        ),
    ),
)
