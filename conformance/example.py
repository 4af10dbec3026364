"""A function to check: `meancap conformance check conformance.example:pmc_cfg`.

This is the paper's formula in the fewest lines. It takes posterior means, and passes on ordinary numbers; the
checker shows what a library adds: a bound of length zero, squares beyond the range, half precision.
"""


def pmc_cfg(m_c, m_u, scale, gamma):
    """m_c + beta (m_c - m_u), beta the largest up to scale - 1 with |m| <= gamma |m_c|; torch tensors."""
    gap = m_c - m_u
    axes = tuple(range(1, m_c.ndim))
    a, b, q = ((v * w).sum(axes, keepdims=True) for v, w in ((gap, gap), (m_c, gap), (m_c, m_c)))
    beta = ((b**2 + (gamma**2 - 1) * a * q) ** 0.5 - b) / a
    return m_c + beta.clip(max=scale - 1) * gap
