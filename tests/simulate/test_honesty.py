"""Standard errors over replicates are honest: exact moments of small linear networks, many simulations of four each."""

import numpy as np
import pytest

import widefield as wf

from .students import agrees, honest

N = 8
X = wf.Task(np.array([[1.0, 2.0]]), np.array([1.5]))
K = 1.3 * 2.5  # input variance times |x|^2/D


def prior():
    """Means of the kernels of a deep and a recurrent linear network at every width."""
    deep = wf.simulate.prior(
        wf.DNN(3, "linear", input_variance=1.3, weight_variance=1.4), X, width=N, replicates=4000, seed=1
    )
    tied = wf.simulate.prior(
        wf.RNN(3, "linear", input_variance=1.3, weight_variance=1.4), X, width=N, replicates=4000, seed=2
    )
    samples = [deep.hidden[:, a, a, 0, 0] for a in range(3)] + [tied.hidden[:, a, b, 0, 0] for a, b in ((0, 2), (2, 2))]
    # tied: E W_ij W_kl = w/n twice; h1 . W W h1 has the trace of W W, and |W W h1|^2 one more pairing
    return np.stack(samples, axis=1), K * np.array([1, 1.4, 1.4**2, 1.4 / N, 1.4**2 * (1 + 2 / N**2)])


def finite_width():
    """Variances of the kernel: a product of independent chi^2/n."""
    net = wf.DNN(2, "linear", input_variance=1.3, weight_variance=1.4, readout_variance=0.7)
    found = wf.simulate.finite_width(net, X, width=N, replicates=40_000, groups=2000, seed=3)
    one, two = 1.4 * K, 1.4 * 0.7 * K
    samples = [found.covariance[:, 1], found.covariance[:, 2], found.kernel_variance[:, 1], found.kernel_variance[:, 2]]
    exact = [one, two, one**2 * 2 / N, two**2 * ((1 + 2 / N) ** 2 - 1)]
    return np.stack([s.values[:, 0, 0] for s in samples], axis=1), np.array(exact)


def dynamics():
    """One layer, one sample: f = c V.U; after one step c (s + g q + g^2 s), g = a (y - c s), s = V.U, q = |V|^2 + |U|^2."""
    net, rate, richness, y = wf.DNN(1, "linear", input_variance=1.3, readout_variance=0.7), 0.1, 1.2, 1.5
    training = wf.Training(rate, 1, richness=richness)
    found = wf.simulate.dynamics(net, X, training, width=N, replicates=4000, seed=4)
    c = np.sqrt(0.7 * K) / (richness * N)
    a = rate * richness**2 * N * c
    f = found.prediction.values[:, :, 0, 0]
    samples = np.stack([found.loss[:, 0], found.ntk[:, 0, 0, 0], f[:, 1]], axis=1)
    after = c * (2 * N * a * y - 2 * N * a**2 * y * c)  # E s = E s q = 0, E s^2 = N, E q = 2 N
    return samples, np.array([(y**2 + c**2 * N) / 2, 2 * 0.7 * K, after])


def proportional():
    """At the start the test loss is |w*|^2/D + |f|^2, and the readout of a product of Gaussians has a known size."""
    training = wf.Training(0.05, 1, richness=0.8)
    options = {"width_ratio": 0.5, "dimension": 2 * N, "replicates": 2000, "seed": 5}
    found = wf.simulate.proportional(wf.DNN(2, "linear"), wf.Teacher(label_noise=0.3), training, **options)
    size = 2 * N / (N * 0.8**2)  # D/(N g0^2) times E |w|^2/N E (W^1)^2 E (W^0)^2/D |x|^2
    return found.test_loss.values[:, :1], np.array([1 + 0.3 + size])


@pytest.mark.parametrize("moments", [prior, finite_width, dynamics, proportional])
def test_standard_errors_are_the_distance_from_exact_moments(moments):
    samples, exact = moments()
    assert agrees(exact, samples)
    assert honest(exact, samples)
    assert not honest(exact, samples, claimed=0.6) and not honest(exact, samples, claimed=1.6), "wrong errors are seen"
