"""Integrals over the unit interval."""

import numpy as np


def gauss_legendre(n_points: int) -> list[tuple[float, float]]:
    """Points in (0, 1) and their weights, which sum to 1.

    Σ w f(s) is the integral of f from 0 to 1, exactly for polynomials of a degree below
    twice the number of points.

    >>> [(round(s, 4), round(w, 4)) for s, w in gauss_legendre(2)]
    [(0.2113, 0.5), (0.7887, 0.5)]
    """
    points, weights = np.polynomial.legendre.leggauss(n_points)
    return list(zip(((points + 1) / 2).tolist(), (weights / 2).tolist(), strict=True))
