"""Small mathematics that predictions do without scipy: the same numbers as scipy's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import eigh_tridiagonal
from scipy.special import betaln, logsumexp, ndtr, ndtri
from scipy.stats import qmc

from knothole.densities.normal import normal_cdf, normal_quantile
from knothole.densities.univariate.base import log_sum_exp
from knothole.missingness.inference import LossPrior, _hypotheses, gauss_jacobi
from knothole.sobol import SIZE, WORDS, sobol_net


def test_the_normal_distribution_is_that_of_scipy():
    z = np.concatenate([np.linspace(-38, 38, 7601), [0.0, -0.0, np.inf, -np.inf, 1e-300]])
    assert_allclose(normal_cdf(z), ndtr(z), rtol=2e-13, atol=1e-300)
    assert np.isnan(normal_cdf(np.nan))
    assert normal_cdf(np.zeros((2, 0))).shape == (2, 0) and normal_cdf(1.0).shape == ()
    columns = np.linspace(-1, 1, 12).reshape(3, 4)
    assert_array_equal(normal_cdf(columns.T), normal_cdf(columns).T)


def test_normal_quantiles_are_those_of_scipy():
    tails = np.logspace(-307, -1, 5000)
    u = np.concatenate([tails, np.linspace(0.001, 0.999, 999), 1 - tails[tails > 1e-15]])
    assert_allclose(normal_quantile(u), ndtri(u), rtol=2e-14, atol=1e-15)
    assert_allclose(normal_cdf(normal_quantile(u)), u, rtol=1e-12)


@pytest.mark.parametrize("coordinates", [1, 2, 7, 64, 1024])
def test_points_are_those_of_scipys_sobol_sequence(coordinates):
    sobol = qmc.Sobol(coordinates, scramble=True, bits=32, rng=np.random.default_rng(0))
    bits = (sobol.random(SIZE * WORDS) * 2.0**32).astype(np.uint32)
    assert_array_equal(
        sobol_net(coordinates), bits.reshape(WORDS, SIZE, coordinates).transpose(0, 2, 1)
    )


def test_sums_of_exponentials_are_those_of_scipy():
    rng = np.random.default_rng(0)
    terms = 300 * rng.normal(size=(50, 7, 3))
    terms[rng.random(terms.shape) < 0.3] = -np.inf
    terms[0] = -np.inf
    for axis in range(3):
        expected = logsumexp(terms, axis=axis)
        assert_allclose(log_sum_exp(terms, axis), expected, rtol=1e-14, atol=1e-15)
        kept = log_sum_exp(terms, axis, keepdims=True)
        assert_array_equal(kept.squeeze(axis), log_sum_exp(terms, axis))


@pytest.mark.parametrize(("a", "b", "n"), [(1.0, 1.0, 1), (0.5, 3.0, 2), (4.0, 30.0, 12)])
def test_nodes_of_quadrature_are_those_of_the_tridiagonal_matrix(a, b, n):
    k = np.arange(n, dtype=np.float64)
    total = a + b - 2
    with np.errstate(invalid="ignore"):
        middle = (a - b) * total / ((2 * k + total) * (2 * k + total + 2))
        middle[0] = (a - b) / (a + b)
        j = k[1:]
        beside = 4 * j * (j + a - 1) * (j + b - 1) * (j + total)
        beside /= (2 * j + total) ** 2 * (2 * j + total + 1) * (2 * j + total - 1)
    if n > 1:
        beside[0] = 4 * a * b / ((a + b) ** 2 * (a + b + 1))
    expected = (1 + eigh_tridiagonal(middle, np.sqrt(beside), eigvals_only=True)) / 2
    assert_allclose(gauss_jacobi(a, b, n)[0], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("lost", "observed"), [(0, 0), (0, 400), (3, 5), (200, 300)])
def test_weights_of_losses_are_ratios_of_beta_functions(lost, observed):
    prior = LossPrior(nothing=0.0, column=0.0, a=0.7, b=2.5)
    _, weight, _ = _hypotheses(lost, observed, 2, prior)
    a, b = prior.a + lost, prior.b + observed
    nodes, log_share = gauss_jacobi(a, b, 2)
    expected = np.log(prior.scattered) + betaln(a, b) - betaln(prior.a, prior.b)
    assert_allclose(weight, expected + log_share + 2 * np.log(nodes), rtol=1e-12)
