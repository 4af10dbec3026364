"""Methods that are not rules: they wrap the model, move the state, or are trained."""

from __future__ import annotations

from .catalogue import not_a_rule

not_a_rule(
    "rectified_cfgpp",
    "model",
    "sample(rectified_cfgpp(predict, times), CFG(5.5), x, times)",
    """
    Rectified-CFG++.

    formula: y = x + share (s - t) v_c(x); v = v_c(x) + w (v_c(y) - v_u(y))
    space: velocity
    source: Saini et al., NeurIPS 2025
    evidence: shreshthsaini/Rectified-CFGpp; the paper's half step is second-hand
    use when: a flow model drifts at large scales and more evaluations per step are affordable
    state: none
    defaults:
        - SD3.5 Large: w 4.5, 28 steps (its code)
    notes:
        - the code takes a full step and evaluates at the old time, its clocks being mixed up: share=1,
          hold=True; the paper's text describes a half step, our default
        - the code adds Gaussian noise 0.005 to y, gated in the same wrong units; we add none
    """,
)

not_a_rule(
    "policy",
    "laboratory",
    "train_policy(condition)",
    """
    Adaptive guidance by stochastic optimal control.

    formula: scale w(t, x) by a trained network: maximal E log p(c | x_1) - cost E KL(guided path | unguided
        path)
    space: score
    source: Azangulov et al., AISTATS 2026, arXiv 2505.19367
    evidence: the abstract only; no repository found
    use when: you study a mixture whose truth is known; it is trained for each condition
    state: none
    defaults:
        - 2-D mixtures: trained for each condition (meancap.lab.policy)
    notes:
        - the paper reweights diffusion paths; we differentiate the Euler flow of a mixture exactly
        - its authors call images future work, and so do we
    """,
    confidence="paper",
)

not_a_rule(
    "manifold",
    "solver",
    "manifold_sample(predict, CFG(4.5), x, times)",
    """
    Manifold projection (CFG-MP, CFG-MP+).

    formula: x <- z + h v_c(z) with z = x - h v_u(x), a few times at fixed t, then a CFG step; MP+ mixes the
        results
    space: state
    source: Cai et al., ICML 2026, arXiv 2601.21892
    evidence: LeonSuZhengYi/CFG-MP @ 1de2898f
    use when: you want to try its fixed point; it costs evaluations, and an independent test found no gain
    state: the last results of the iteration, within a step
    defaults:
        - SD3.5: 10 steps, scale 4 to 4.5, 3 iterations, window 1, sigma > 0.6 (its demo and README)
        - DiT: 10 steps, scale 1.75 to 2, 2 iterations (its demo and README)
    notes:
        - the code stops a whole batch by its mean residual; we always do all iterations, per sample
        - a predict that gives both predictions costs twice the evaluations, for each half needs one of them
        - an independent re-measurement on SD3.5 found no gain over CFG at equal cost
    """,
)

not_a_rule(
    "autoguidance",
    "model",
    "sample(autoguidance(predict, weak), CFG(2.1), x, times)",
    """
    Autoguidance.

    formula: m = m_weak + scale (m_main - m_weak), both under the condition
    space: any
    source: Karras et al., NeurIPS 2024, arXiv 2406.02507
    evidence: NVlabs/edm2 @ 4bf8162f
    use when: you have a weaker model of the same kind
    state: none
    defaults:
        - EDM2-S 512: weak XS at 134M images, scale 2.10 (its presets: FID 1.34)
        - EDM2-XXL 512: weak M at 268M images, scale 2.05 (its presets: FID 1.25)
        - EDM2-S 64: scale 1.70 (its presets: FID 1.01)
    notes:
        - diffusers' AutoGuidance drops layers of the same network instead, by default at scale 7.5
    """,
)
